"""The benchmark of step sizes: on a linear model, whose steps have a closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax, softmax
from typer.testing import CliRunner

from benchmarks import __main__ as cli
from benchmarks.step_size import (
    STEP_COLUMNS,
    read_step_sizes,
    run_step_sizes,
    step_size_table,
)
from puma.cli.common import REFUSED
from puma.data import Dataset, load_dataset
from puma.errors import DataError, SettingsError
from puma.models import build_model
from puma.models.training import train
from puma.requests.demonstration import smallest_clusters
from puma.settings import Settings

DAMPING = 0.5
# λ = 0 throughout, and solvers that end: the step is then that of plain influence.
LINEAR = {
    "model": {"name": "linear"},
    "training": {"epochs": 3, "learning_rate": 0.05},
    "puma": {"damping": DAMPING, "reweighting": "never", "solver": "dense"},
    "puma_paper": {
        "damping": DAMPING,
        "curvature": "gauss_newton",
        "steps": 150,
        "batch_size": 10_000,
        "reweighter": "exact",
        "l1": 1e9,
    },
    "shadow": {"models": 1, "epochs": 2, "attack_epochs": 2, "attack_hidden": [4]},
    "pool": {"models": 16, "everybody": 3},
}
ETAS, BUDGETS = (1e-4, 0.01, 1.0), (0.001, 0.02)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return run_step_sizes(
        ["breast_cancer"],
        settings=Settings.model_validate(LINEAR),
        seeds=1,
        etas=ETAS,
        budgets=BUDGETS,
        progress=False,
    )


class Oracle:
    """The linear model in double precision, by numpy."""

    def __init__(self) -> None:
        settings = Settings.model_validate(LINEAR)
        data: Dataset = load_dataset("breast_cancer", seed=0, test_fraction=0.25)
        model = build_model(settings.model, data, seed=0)
        train(model, data.train, settings.training, seed=0, progress=False)
        weight, bias = (each.detach().double().numpy() for each in model.parameters())
        self.theta = np.hstack([weight, bias[:, None]])  # (classes, features + 1)
        self.train, self.test = (
            (np.hstack([part.features.double().numpy(), np.ones((len(part), 1))]), part.labels)
            for part in (data.train, data.test)
        )
        self.marked = np.zeros(len(data.train), dtype=bool)
        self.marked[smallest_clusters(data, clusters=8, seed=0).numpy()] = True

    def step(self, rows: np.ndarray) -> np.ndarray:
        """H⁻¹ Σ_marked ∇L with the Gauss-Newton matrix of ``rows``, the mean over them."""
        x, labels = self.train
        p = softmax(x @ self.theta.T, axis=1)
        gradient = ((p - np.eye(2)[labels])[self.marked].T @ x[self.marked]).ravel()
        p, x = p[rows], x[rows]
        of_outputs = np.einsum("ni,ij->nij", p, np.eye(2)) - np.einsum("ni,nj->nij", p, p)
        curvature = np.einsum("nij,na,nb->iajb", of_outputs, x, x) / len(x)
        matrix = curvature.reshape(gradient.size, -1) + DAMPING * np.eye(gradient.size)
        return np.linalg.solve(matrix, gradient).reshape(self.theta.shape)

    def retained_loss(self, theta: np.ndarray) -> float:
        x, labels = self.train
        losses = -log_softmax(x @ theta.T, axis=1)[np.arange(len(x)), labels]
        return float(losses[~self.marked].mean())

    def accuracy(self, theta: np.ndarray) -> float:
        x, labels = self.test
        return float(((x @ theta.T).argmax(1) == labels.numpy()).mean())


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def check(row: pd.Series, theta: np.ndarray, oracle: Oracle) -> None:
    drift = oracle.retained_loss(theta) - oracle.retained_loss(oracle.theta)
    assert row["drift"] == pytest.approx(drift, rel=0.01, abs=2e-6)
    assert row["accuracy"] == pytest.approx(oracle.accuracy(theta), abs=1e-6)
    assert row["original_accuracy"] == pytest.approx(oracle.accuracy(oracle.theta), abs=1e-6)


def test_the_printed_algorithm_steps_by_eta_on_sums(frame: pd.DataFrame, oracle: Oracle) -> None:
    printed = frame[frame["method"] == "puma_paper"]
    assert list(printed["eta"]) == list(ETAS)
    n = len(oracle.marked)
    step = oracle.step(np.ones(n, dtype=bool))
    for _, row in printed.iterrows():
        assert row["dose"] == pytest.approx(row["eta"] * n)
        check(row, oracle.theta + row["eta"] * step, oracle)
    assert printed["drift"].abs().max() > 0.1  # so that a wrong step would show


def test_a_budget_is_used_up_and_its_dose_is_on_the_axis_of_eta(
    frame: pd.DataFrame, oracle: Oracle
) -> None:
    stepped = frame[frame["method"] == "puma_one_step"]
    assert list(stepped["budget"]) == list(BUDGETS)
    step = oracle.step(~oracle.marked)
    for _, row in stepped.iterrows():
        assert 0.9 * row["budget"] < abs(row["drift"]) <= row["budget"]
        assert row["eta"] == pytest.approx(row["dose"] / len(oracle.marked))
        check(row, oracle.theta + row["eta"] * step, oracle)


def test_what_has_no_eta_is_there_once(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == STEP_COLUMNS
    assert list(frame["note"]) == [""] * len(frame)
    rest = frame[~frame["method"].isin(["puma_paper", "puma_one_step"])]
    assert list(rest["method"]) == ["retrain", "puma"]
    assert rest[["eta", "budget"]].isna().all(axis=None)
    rates = frame[["removed_rate_before", "removed_rate", "unseen_rate", "loss_auc"]]
    assert rates.stack().between(0, 1).all()


def test_table_is_of_means_over_seeds(frame: pd.DataFrame, tmp_path: Path) -> None:
    twice = pd.concat([frame, frame.assign(seed=1, accuracy=frame["accuracy"] - 0.02)])
    heading, lines = step_size_table(twice, "breast_cancer")
    assert len(lines) == len(ETAS) + len(BUDGETS) + 2
    assert [line[1] for line in lines] == [""] * 3 + ["0.001", "0.02", "", ""]
    assert [line[2] for line in lines[:3]] == ["0.0001", "0.01", "1"]
    shown = lines[0][heading.index("accuracy %")]
    # Two values 2 points apart: 1 below the first, √2 deviation.
    assert shown == f"{100 * frame['accuracy'].iloc[0] - 1:.1f} ± 1.4"
    path = tmp_path / "step_size.csv"
    twice.to_csv(path, index=False)
    assert step_size_table(read_step_sizes(path), "breast_cancer") == (heading, lines)
    path.write_text("dataset\nradial\n")
    with pytest.raises(DataError, match="step-size again"):
        read_step_sizes(path)


@pytest.mark.parametrize("wrong", [{"etas": [0.0]}, {"budgets": [-1.0]}])
def test_no_step_is_refused_before_anything_is_trained(wrong: dict[str, list[float]]) -> None:
    with pytest.raises(SettingsError, match="above 0"):
        run_step_sizes(["radial"], settings=Settings(), **wrong)


def test_the_command_refuses_a_dataset_that_is_not_there(tmp_path: Path) -> None:
    arguments = ["step-size", "--datasets", "german_debit", "--output", str(tmp_path / "a.csv")]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == REFUSED
    assert "unknown datasets ['german_debit']" in done.output
