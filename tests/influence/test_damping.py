from __future__ import annotations

import numpy as np
import pytest
import torch

from puma.errors import SettingsError, SolverError
from puma.influence import (
    Damping,
    FlatModel,
    GaussNewton,
    Hessian,
    Shifted,
    damped,
    mean_eigenvalue,
    top_eigenvalue,
)
from tests.cases import Matrix, mlp, random_examples, spectrum
from tests.oracles import dense_gauss_newton

SPECTRA = {
    "flat": torch.linspace(1, 2, 40),
    "few large": torch.tensor([100.0, 30.0, 10.0] + [0.1] * 37),
    "power law": torch.logspace(2, -6, 40),
    "with negative ones": torch.tensor([5.0, -4.0, 3.0] + [0.5] * 37),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPECTRA)
def test_relative_damping_is_a_fraction_of_numpys_eigenvalues(name, dtype):
    matrix = spectrum(SPECTRA[name])
    eigenvalues = np.linalg.eigvalsh(matrix.numpy())
    operator = Matrix(matrix.to(dtype))
    mean = Damping(0.1, relative_to="mean").resolve(operator)
    assert mean == pytest.approx(0.1 * eigenvalues.mean(), rel=0.1)
    assert operator.products <= 12
    top = Damping(0.1, relative_to="top").resolve(operator)
    assert top == pytest.approx(0.1 * eigenvalues.max(), rel=0.02)
    assert top <= 0.1 * eigenvalues.max() * (1 + 1e-5)


def test_relative_damping_of_a_network():
    model, examples = mlp(), random_examples(30, 3)
    operator = GaussNewton(FlatModel(model), examples, batch_size=7)
    eigenvalues = np.linalg.eigvalsh(dense_gauss_newton(model, examples).numpy())
    mean, top = mean_eigenvalue(operator), top_eigenvalue(operator)
    assert mean == pytest.approx(eigenvalues.mean(), rel=0.1)
    assert top == pytest.approx(eigenvalues.max(), rel=0.01)


def test_mean_eigenvalue_is_unbiased():
    # A flat spectrum leaves nothing for the sketch: the sampled third carries the estimate.
    matrix = spectrum(torch.rand(40, generator=torch.Generator().manual_seed(0)) - 0.3)
    found = torch.tensor(
        [mean_eigenvalue(Matrix(matrix), products=6, seed=seed) for seed in range(400)]
    )
    error = found.mean() - matrix.trace() / 40
    assert error.abs() < 3 * found.std() / 20
    assert found.std() > 0.01


def test_both_are_exact_where_they_can_be():
    low_rank = Matrix(spectrum(torch.tensor([3.0, 2.0, 1.0] + [0.0] * 37)))
    assert mean_eigenvalue(low_rank, products=9) == pytest.approx(6 / 40, rel=1e-12)
    assert top_eigenvalue(low_rank) == pytest.approx(3, rel=1e-12)
    small = Matrix(spectrum(torch.tensor([3.0, -2.0, 1.0])))
    assert mean_eigenvalue(small, products=3) == pytest.approx(2 / 3, rel=1e-12)
    assert top_eigenvalue(small) == pytest.approx(3, rel=1e-12)
    assert top_eigenvalue(Matrix(torch.zeros(3, 3))) == 0


def test_a_seed_decides_and_the_global_state_is_left_alone():
    operator = Matrix(spectrum(torch.rand(40, generator=torch.Generator().manual_seed(0))))
    before = torch.get_rng_state()
    for relative_to in ("mean", "top"):
        first, again, other = (
            Damping(1, relative_to, products=4, seed=seed).resolve(operator) for seed in (1, 1, 2)
        )
        assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def test_damped_adds_the_resolved_number():
    operator = Matrix(2 * torch.eye(5, dtype=torch.float64))
    assert damped(operator, 0.3) == Shifted(operator, 0.3)
    assert damped(operator, Damping(0.3)) == Shifted(operator, 0.3)
    assert damped(operator, Damping(0.25, "top")).shift == pytest.approx(0.5)
    assert operator.products > 0


def test_no_scale_to_be_relative_to():
    flat = FlatModel(mlp())
    negative = Matrix(spectrum(torch.tensor([-1.0, -2.0])))
    with pytest.raises(SolverError, match=r"mean eigenvalue, which is -1\.5; use the Gauss-Newton"):
        Damping(0.1, "mean").resolve(negative)
    with pytest.raises(SolverError, match="product that is not finite; check the model"):
        Damping(0.1, "top").resolve(Matrix(torch.full((5, 5), float("nan"))))
    assert Damping(0.1).resolve(Hessian(flat, random_examples(3, 3))) == 0.1


def test_settings_are_checked_when_built():
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SettingsError, match="damping must be finite and >= 0, got"):
            Damping(value)
    with pytest.raises(SettingsError, match=r"relative to mean or top, or None.*got 'trace'"):
        Damping(0.1, "trace")
    with pytest.raises(SettingsError, match="products must be >= 3, got 2"):
        Damping(0.1, products=2)
