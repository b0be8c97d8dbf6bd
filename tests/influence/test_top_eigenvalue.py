from __future__ import annotations

import numpy as np
import pytest
import torch

from puma.errors import SettingsError, SolverError
from puma.influence.solvers.lissa import top_eigenvalue
from tests.cases import Matrix, spectrum

SPECTRA = {
    "flat": torch.linspace(1, 2, 40),
    "few large": torch.tensor([100.0, 30.0, 10.0] + [0.1] * 37),
    "power law": torch.logspace(2, -6, 40),
    "with negative ones": torch.tensor([5.0, -4.0, 3.0] + [0.5] * 37),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPECTRA)
def test_it_is_numpys_from_below(name, dtype):
    matrix = spectrum(SPECTRA[name])
    largest = np.linalg.eigvalsh(matrix.numpy()).max()
    operator = Matrix(matrix.to(dtype))
    top = top_eigenvalue(operator)
    assert operator.products <= 12
    assert top == pytest.approx(largest, rel=0.02)
    assert top <= largest * (1 + 1e-5)


def test_low_rank_is_exact_and_the_seed_decides():
    operator = Matrix(spectrum(torch.tensor([3.0, 2.0, 1.0] + [0.0] * 37)))
    before = torch.get_rng_state()
    assert top_eigenvalue(operator) == pytest.approx(3, rel=1e-12)
    slow = Matrix(spectrum(SPECTRA["flat"]))
    first, again, other = (top_eigenvalue(slow, products=4, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(SettingsError, match=r"seed must be a whole number.*got -1"):
        top_eigenvalue(slow, seed=-1)


def test_a_product_that_is_not_finite_is_refused():
    with pytest.raises(SolverError, match="a product that is not finite"):
        top_eigenvalue(Matrix(torch.full((5, 5), float("nan"))))
