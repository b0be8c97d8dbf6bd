"""Algorithm 1 as printed, against the same formula with dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from puma.removal import PaperPUMA
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings
from tests.removal.conftest import WEIGHT_DECAY, flat


@pytest.mark.parametrize("up_sample", [10_000, 50])
def test_equals_equation_11(problem, up_sample):
    data, model = problem.dataset.train, problem.trained.predictor
    rows = torch.arange(0, 60, 2)
    removal = PaperPUMA(
        training=TrainingSettings(weight_decay=WEIGHT_DECAY),
        eta=0.02,
        damping=0.05,
        steps=300,
        batch_size=400,
        up_sample=up_sample,
        reweighter="exact",
    ).remove(problem.trained, DeletionSet.of([str(row) for row in rows.tolist()], problem.dataset))

    def mean_loss(vector):
        return cross_entropy(data.features @ vector[:6].view(2, 3).T + vector[6:], data.labels)

    def each(vector):
        logits = data.features @ vector[:6].view(2, 3).T + vector[6:]
        return cross_entropy(logits, data.labels, reduction="none")

    hessian = torch.autograd.functional.hessian(mean_loss, flat(model))
    inverse = torch.linalg.inv(hessian + (0.05 + WEIGHT_DECAY) * torch.eye(8, dtype=hessian.dtype))
    gradients = torch.autograd.functional.jacobian(each, flat(model))
    psi = gradients @ inverse @ gradients.mean(0)

    moved = torch.linalg.solve(inverse, (flat(removal.predictor) - flat(model)) / 0.02)
    weights = gradients[rows].sum(0) - moved  # what was subtracted: the sum over D_up
    kept = torch.ones(400, dtype=torch.bool)
    kept[rows] = False
    if up_sample >= 370:
        q = psi[kept]
        expected = psi[rows].sum() * q / (q @ q + 1e-6)
        torch.testing.assert_close(weights, expected @ gradients[kept], rtol=1e-3, atol=1e-4)
        assert removal.diagnostics["up_sampled_rows"] == 370
    else:
        # Whatever the sample is, its weighted psi offsets that of the marked rows.
        offset = weights @ inverse @ gradients.mean(0)
        assert offset.item() == pytest.approx(psi[rows].sum().item(), rel=1e-2)
        assert removal.diagnostics["up_sampled_rows"] == 50
        assert removal.diagnostics["reweighted_rows"] <= 50
    found = removal.row_weights
    torch.testing.assert_close(found.scores, psi, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(found.weights @ gradients, weights, rtol=1e-2, atol=1e-3)
    assert not found.weights[rows].any()
    assert removal.parameters["dose"] == pytest.approx(0.02 * 400)
