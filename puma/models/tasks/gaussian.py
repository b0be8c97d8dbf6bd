"""Numbers: squared error, the likelihood of a normal distribution of deviation 1."""

from __future__ import annotations

from torch import Tensor

from puma.data.task import Task
from puma.models.device import exact
from puma.models.tasks.likelihood import Likelihood, Product, ones_like_rows

# Of the target's deviation: models that are trained alike differ by about so much in a row's
# prediction, as classifiers do by a logit. Measured on Diabetes: docs/method.md.
MARGIN_UNIT = 0.1


class Gaussian(Likelihood):
    """The (B, 1) outputs are the labels' means.

    The labels are standardised, so that the loss of the mean label is 1/2 on average.
    """

    metrics = ("r2", "mae")
    test_metrics = ("test_r2", "test_mae")
    has_classes = False
    margin = "predicted less true label, in tenths of the target's deviation"
    score = "minus the size of the error, in tenths of the target's deviation"

    @property
    def wanted(self) -> str:
        """One column."""
        return "the predicted labels, of shape (batch, 1): give its last layer one output"

    def fits(self, outputs: Tensor, labels: Tensor) -> bool:  # noqa: ARG002
        """Whether there is one output."""
        return outputs.shape[1] == 1

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) half the squared error, in squared deviations of the target."""
        return (outputs[:, 0] - labels).square() / 2

    def margins(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) the signed error, predicted less true, in tenths of the target's deviation.

        With its sign it is linear in the output and near to normal over models; of its size, or
        its square, neither is true near 0, where most rows are.
        """
        return (outputs[:, 0] - labels) / MARGIN_UNIT

    def scores(self, margins: Tensor) -> Tensor:
        """(B,) minus the size of the error."""
        return -margins.abs()

    def curvature(self, outputs: Tensor) -> Product:  # noqa: ARG002
        """1."""
        return lambda tangent: tangent

    def eigenpairs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """1 and 1."""
        ones = ones_like_rows(outputs)
        return ones[:, 0], ones

    def rank(self, outputs: int) -> int:
        """All: the one."""
        return outputs

    def predictions(self, outputs: Tensor) -> Tensor:
        """(B, 1) the outputs themselves."""
        return outputs

    def labels(self, predictions: Tensor) -> Tensor:
        """(B,) the predicted label."""
        return predictions[:, 0]

    def measured(self, predictions: Tensor, labels: Tensor, task: Task) -> dict[str, float]:
        """R², where the labels differ, and the mean absolute error in the target's own unit."""
        errors, truth = exact(predictions[:, 0] - labels), exact(labels)
        spread = (truth - truth.mean()).square().sum().item()
        r2 = {"r2": 1 - errors.square().sum().item() / spread} if spread > 0 else {}
        return r2 | {"mae": task.scale * errors.abs().mean().item()}
