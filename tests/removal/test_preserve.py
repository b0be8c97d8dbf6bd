"""Several criteria that a removal keeps, against dense matrices and plain implementations."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import puma
from puma.data import Dataset, Examples
from puma.errors import DataError, SettingsError, SolverError
from puma.models import build_model
from puma.removal import PUMA, Removal, Trained
from puma.removal.puma import target_margin_step
from puma.removal.puma.target_margin_step import PULL, REACH, SHARES
from puma.requests.deletion_set import DeletionSet
from puma.settings import ModelSettings, Settings, TrainingSettings
from puma.workflows.preconditions import removal_method
from tests.oracles import dense_margin_gradients, per_example_gradients
from tests.removal.conftest import WEIGHT_DECAY, blobs, flat, optimum

ROWS = torch.arange(0, 60, 2)
DAMPING = 0.05
LARGE = 1e6
OLD = "age >= 60"
ECE = {"criterion": "soft_ece", "budget": LARGE}
GROUP = {"criterion": "group_loss", "where": OLD, "budget": LARGE}
VALIDATION = {"criterion": "validation_loss", "budget": LARGE}
SHARP = {
    "training": TrainingSettings(weight_decay=WEIGHT_DECAY),
    "tolerance": 1e-12,
    "damping": DAMPING,
    "budget": LARGE,
    "max_weight": 1e6,
    "l2": 1e-12,
    "steps": 1,
}
CODE = """
def spread(logits, labels):
    return logits.diff(dim=1).square().mean()

def greedy(logits, labels):
    found = spread(logits, labels)
    labels.zero_()
    logits.data.zero_()
    return found

calls = 0

def counting(logits, labels):
    global calls
    calls += 1
    return logits.mean() + calls
"""


def grouped(examples: Examples) -> Examples:
    return examples.with_groups({OLD: examples.features[:, 2] > 0.3})


@pytest.fixture(scope="module")
def promised() -> Trained:
    """Logistic regression at its optimum, in 7 dimensions that matter."""
    train, test, validation = (
        grouped(blobs(n, seed=seed, features=6)) for seed, n in enumerate((400, 100, 90))
    )
    strangers = np.asarray([f"held-{row}" for row in range(90)], np.str_)
    validation = replace(validation, subject_ids=strangers)
    start = nn.Linear(6, 2).double()
    model = optimum(train, objective_rows=400, start=start)
    data = Dataset("blobs", train, test, ("a", "b"), validation=validation)
    return Trained(model, data, start)


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    (tmp_path / "spreading.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield {"criterion": "spreading:spread", "budget": LARGE}
    sys.modules.pop("spreading", None)


def request(trained: Trained, rows: Tensor = ROWS) -> DeletionSet:
    ids = trained.dataset.train.subject_ids[rows.numpy()].tolist()
    return DeletionSet.of(ids, trained.dataset)


def outputs(vector: Tensor, features: Tensor) -> Tensor:
    return features @ vector[:12].view(2, 6).T + vector[12:]


def loss(vector: Tensor, examples: Examples) -> Tensor:
    return cross_entropy(outputs(vector, examples.features), examples.labels)


def ece(vector: Tensor, examples: Examples) -> Tensor:
    """15 bins, one after the other."""
    logits = outputs(vector, examples.features)
    confidence, predicted = logits.softmax(1).max(1)
    gap = (predicted == examples.labels).double() - confidence
    near = [torch.exp(-((confidence - (b + 0.5) / 15) ** 2) / 0.01) for b in range(15)]
    whole = torch.stack(near).sum(0)
    parts = [(each / whole * gap).sum().abs() for each in near]
    return torch.stack(parts).sum() / len(examples)


def criteria(trained: Trained, rows: Tensor = ROWS):
    """Name -> C(θ), of the rows that stay."""
    retained = trained.dataset.train.without(rows)
    old = retained.subset(retained.features[:, 2] > 0.3)
    validation = trained.dataset.validation
    return {
        "retained_loss": lambda vector: loss(vector, retained),
        "soft_ece": lambda vector: ece(vector, retained),
        "group_loss": lambda vector: loss(vector, old),
        "validation_loss": lambda vector: loss(vector, validation),
        "spread": lambda vector: outputs(vector, retained.features).diff(dim=1).square().mean(),
    }


def slopes(names, trained: Trained) -> Tensor:
    """(K, p) gradients at the original."""
    start, each = flat(trained.predictor), criteria(trained)
    return torch.stack([torch.autograd.functional.jacobian(each[name], start) for name in names])


def dense_curvature(trained: Trained) -> Tensor:
    """Of the retained rows: for a linear model the Gauss-Newton matrix is the Hessian."""
    start = flat(trained.predictor)
    retained = criteria(trained)["retained_loss"]
    hessian = torch.autograd.functional.hessian(retained, start)
    return hessian + (DAMPING + WEIGHT_DECAY) * torch.eye(len(start), dtype=torch.float64)


def least_norm(scores: Tensor, targets: Tensor) -> Tensor:
    """(n,) the smallest λ with Ψλ = targets."""
    return torch.linalg.pinv(scores) @ targets


@pytest.mark.parametrize("solver", ["dual", "dense", "cg"])
@pytest.mark.parametrize(
    "names", [["soft_ece"], ["group_loss", "validation_loss"], ["soft_ece", "spread", "group_loss"]]
)
def test_the_step_to_the_targets_is_the_dense_one(promised, spread, names, solver, monkeypatch):
    entries = {
        "soft_ece": ECE,
        "group_loss": GROUP,
        "validation_loss": VALIDATION,
        "spread": spread,
    }
    generator = torch.Generator().manual_seed(3)
    targets = 2 * torch.randn(len(ROWS), generator=generator, dtype=torch.float64) - 1
    monkeypatch.setattr(target_margin_step, "target_margins", lambda *_, **__: targets)
    preserve = [entries[name] for name in names]
    method = PUMA(reference_models=1, solver=solver, preserve=preserve, **SHARP)
    removal = method.remove(promised, request(promised), progress=False)

    model, train = promised.predictor, promised.dataset.train
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[ROWS] = False
    start, hessian = flat(model), dense_curvature(promised)
    inverse, identity = torch.linalg.inv(hessian), torch.eye(len(start), dtype=torch.float64)
    slope = slopes(["retained_loss", *names], promised)
    each = per_example_gradients(model, train)
    psi = slope @ inverse @ each.T
    # For every criterion, what the retained rows do to it and to none of the others.
    weights = [least_norm(psi[:, kept], row) for row in psi[:, ROWS].sum(1).diag()]
    made_up = torch.stack([-inverse @ (w @ each[kept]) / len(train) for w in weights], 1)
    keeping = identity - made_up @ torch.linalg.inv(slope @ made_up) @ slope

    removed = train.subset(ROWS)

    def distance(vector: Tensor) -> Tensor:
        logits = outputs(vector, removed.features).softmax(1)
        p = logits.gather(1, removed.labels[:, None])[:, 0]
        return targets - torch.log(p / (1 - p))

    pulled = dense_margin_gradients(model, removed) @ keeping
    joint = hessian + PULL / len(ROWS) * pulled.T @ pulled
    missing = distance(start).clamp(-REACH, REACH)
    way = keeping @ torch.linalg.solve(joint, PULL / len(ROWS) * pulled.T @ missing)
    share = min(SHARES, key=lambda part: float(distance(start + part * way).abs().mean()))
    assert removal.steps[0]["dose"] == share
    moved = flat(removal.predictor) - start
    torch.testing.assert_close(moved, share * way, rtol=1e-5, atol=1e-8)
    assert (slope @ moved).abs().max() < 1e-6 * slope.norm() * moved.norm()
    assert float(moved.norm()) > 1e-2


@pytest.mark.parametrize("solver", ["dense", "cg"])
def test_the_first_order_step_is_the_dense_one(promised, spread, solver):
    """Eqs. 9 to 11 with K rows of Ψ: every criterion is unchanged to first order."""
    preserve = [ECE, {**GROUP, "budget": 1e5}, spread]
    settings = SHARP | {"reference_models": 0, "max_dose": 1.0}
    method = PUMA(solver=solver, preserve=preserve, **settings)
    removal = method.remove(promised, request(promised), progress=False)

    train = promised.dataset.train
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[ROWS] = False
    inverse = torch.linalg.inv(dense_curvature(promised))
    slope = slopes(["retained_loss", "soft_ece", "group_loss", "spread"], promised)
    each = per_example_gradients(promised.predictor, train)
    psi = slope @ inverse @ each.T
    weights = least_norm(psi[:, kept], psi[:, ROWS].sum(1))
    way = inverse @ (each[ROWS].sum(0) - weights @ each[kept]) / len(train)
    moved = flat(removal.predictor) - flat(promised.predictor)
    torch.testing.assert_close(moved, way, rtol=1e-4, atol=1e-8)
    assert (slope @ moved).abs().max() < 1e-5 * slope.norm() * moved.norm()
    assert float(moved.norm()) > 1e-3
    assert removal.parameters["bound_by"] == "nothing"  # max_dose stopped it


def drifts(removal: Removal, trained: Trained) -> dict[str, float]:
    """By the plain implementations, on the weights of the result."""
    before, after = flat(trained.predictor), flat(removal.predictor)
    return {name: float(c(after) - c(before)) for name, c in criteria(trained).items()}


@pytest.mark.parametrize("name", ["soft_ece", "group_loss", "validation_loss", "spread"])
@pytest.mark.parametrize("reweighting", ["always", "never"])
def test_each_budget_bounds_the_measured_change(promised, spread, name, reweighting):
    entries = [ECE, GROUP, VALIDATION, spread]
    titles = ["soft_ece", "group_loss", "validation_loss", "spread"]

    def removed(preserve):
        method = PUMA(
            budget=0.2,
            reference_models=1,
            reweighting=reweighting,
            preserve=preserve,
            damping=DAMPING,
            level_tolerance=1e-3,
        )
        return method.remove(promised, request(promised), progress=False)

    free = removed(entries)
    change = drifts(free, promised)
    budget = abs(change[name]) / 4
    tight = [
        {**entry, "budget": budget if title == name else LARGE}
        for entry, title in zip(entries, titles, strict=True)
    ]
    removal = removed(tight)
    found = drifts(removal, promised)
    assert abs(found[name]) <= budget * (1 + 1e-9)
    if reweighting == "never":  # else the steps themselves leave the criterion alone
        assert removal.parameters["bound_by"] == name
    # What the removal says is what the plain implementations say.
    for change in removal.preserved:
        assert change.drift == pytest.approx(found[change.title], rel=1e-6, abs=1e-9)
        before = criteria(promised)[change.title](flat(promised.predictor))
        assert change.before == pytest.approx(float(before), rel=1e-9)
    assert [change.title for change in removal.preserved] == ["retained_loss", *titles]
    assert removal.steps[-1][f"drift_{name}"] == pytest.approx(found[name], rel=1e-6, abs=1e-9)


def test_a_first_order_dose_is_the_largest_that_keeps_every_budget(promised):
    preserve = [{**ECE, "budget": 1e-4}, {**GROUP, "budget": 2e-4}, VALIDATION]
    method = PUMA(steps=1, reference_models=0, max_dose=1e6, budget=LARGE, preserve=preserve)
    removal = method.remove(promised, request(promised), progress=False)
    before, after = flat(promised.predictor), flat(removal.predictor)
    broken = []
    for stretch in (1.0, 1.03):
        vector = before + stretch * (after - before)
        change = {name: float(c(vector) - c(before)) for name, c in criteria(promised).items()}
        budgets = {"soft_ece": 1e-4, "group_loss": 2e-4}
        broken.append({name for name, most in budgets.items() if abs(change[name]) > most})
    assert broken[0] == set() != broken[1]
    assert set(str(removal.parameters["bound_by"]).split()) == broken[1]


def test_where_no_step_keeps_the_budgets_the_error_names_those_that_bind(promised):
    preserve = [{**GROUP, "budget": 1e-18}, ECE]
    method = PUMA(steps=1, reference_models=0, preserve=preserve)
    with pytest.raises(SolverError, match=r"none keeps the budgets: group_loss \(1.0e-18\) binds"):
        method.remove(promised, request(promised), progress=False)


def test_no_criterion_and_no_step_looks_at_the_test_rows(promised):
    """Other test rows give the same weights to the last bit."""
    preserve = [{**ECE, "budget": 0.01}, {**GROUP, "over": "validation"}, VALIDATION]
    other = replace(promised, dataset=replace(promised.dataset, test=blobs(77, seed=8, features=6)))
    found = [
        PUMA(reference_models=1, preserve=preserve).remove(each, request(each), progress=False)
        for each in (promised, other)
    ]
    assert torch.equal(flat(found[0].predictor), flat(found[1].predictor))
    assert found[0].preserved == found[1].preserved


def test_validation_rows_of_the_removed_people_leave_the_criteria(promised):
    """Their labels then change nothing; those of others do."""
    whole = promised.dataset
    ids = np.asarray([*whole.train.subject_ids[:5], *[f"held-{n}" for n in range(85)]], np.str_)

    def change(flipped: slice):
        labels = whole.validation.labels.clone()
        labels[flipped] = 1 - labels[flipped]
        held = grouped(Examples(whole.validation.features, labels, ids))
        trained = replace(promised, dataset=replace(whole, validation=held))
        removal = PUMA(reference_models=1, preserve=[VALIDATION]).remove(
            trained, request(trained, torch.arange(5)), progress=False
        )
        return removal.preserved

    assert change(slice(0)) == change(slice(0, 5))
    assert change(slice(0)) != change(slice(5, 10))


def test_a_group_of_which_the_request_leaves_too_few_is_refused(promised):
    old = promised.dataset.train.groups[OLD].nonzero().flatten()
    method = PUMA(reference_models=1, preserve=[GROUP])
    with pytest.raises(DataError, match="only 9 people are in the group 'age >= 60'"):
        method.remove(promised, request(promised, old[:-9]), progress=False)


def test_criteria_that_repeat_each_other_change_nothing(promised):
    """The same promise three times: once as a group of its own, twice by name."""
    everybody = PUMA(reference_models=1, preserve=[GROUP])
    twice = PUMA(reference_models=1, preserve=[GROUP, {**GROUP, "name": "again"}])
    found = [m.remove(promised, request(promised), progress=False) for m in (everybody, twice)]
    torch.testing.assert_close(
        flat(found[0].predictor), flat(found[1].predictor), rtol=1e-3, atol=1e-5
    )


def test_without_entries_nothing_is_recorded(promised):
    removal = PUMA(reference_models=1).remove(promised, request(promised), progress=False)
    assert removal.preserved == ()
    assert not {"preserve", "bound_by", "preserve_sha256"} & removal.parameters.keys()


def test_the_code_of_an_own_criterion_is_recorded(spread, tmp_path):
    method = PUMA(reference_models=1, preserve=[spread])
    first = method.recorded_settings()["preserve_sha256"]
    assert first == method.recorded_settings()["preserve_sha256"]
    (tmp_path / "spreading.py").write_text(CODE + "\n# another\n")
    assert first != method.recorded_settings()["preserve_sha256"]


@pytest.mark.parametrize(
    ("preserve", "message"),
    [
        ([{"criterion": "ece", "budget": 1}], "unknown criterion 'ece'; choose one of"),
        ([{"criterion": "soft_ece"}], r"preserve.0.budget: Field required"),
        ([{"criterion": "soft_ece", "budget": 0}], "greater than 0"),
        ([{"criterion": "soft_ece", "budget": True}], "expected a number"),
        ([{"criterion": "group_loss", "budget": 1}], 'group_loss needs where, such as "age >= 60"'),
        ([{**GROUP, "where": "age >= "}], r"'age >= ' cannot be read; compare columns with"),
        ([{**GROUP, "where": "exit()"}], r"'exit\(\)' cannot be read at character 1"),
        ([ECE, ECE], "several entries called soft_ece; give each a `name` of its own"),
        ([{"criterion": "retained_loss", "budget": 0.5}], "budget is 0.01, and preserve gives re"),
        ([{"criterion": "retained_loss", "budget": 0.01, "where": OLD}], "for a group write group"),
        ([{**VALIDATION, "over": "retained"}], "validation_loss is over validation rows; leave"),
        ([{**ECE, "name": "a b"}], "name"),
        ([{**ECE, "weight": 3}], "weight"),
        ([{**ECE, "over": "test"}], "'retained' or 'validation'"),
    ],
)
def test_bad_entries_are_refused(preserve, message):
    with pytest.raises(SettingsError, match=message):
        PUMA(preserve=preserve)


def test_a_criterion_that_is_not_finite_is_refused(promised, tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("def all(logits, labels):\n    return logits.sum() / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    method = PUMA(reference_models=1, preserve=[{"criterion": "endless:all", "budget": 1}])
    with pytest.raises(SettingsError, match=r"all of the original is -?inf; keep a criterion that"):
        method.remove(promised, request(promised), progress=False)


def test_the_listed_retained_loss_is_the_one_that_is_always_kept(promised):
    listed = {"criterion": "retained_loss", "budget": 0.01}
    plain = PUMA(reference_models=1).remove(promised, request(promised), progress=False)
    removal = PUMA(reference_models=1, preserve=[listed]).remove(
        promised, request(promised), progress=False
    )
    assert torch.equal(flat(plain.predictor), flat(removal.predictor))
    (change,) = removal.preserved
    assert change.drift == pytest.approx(removal.criterion_drift, abs=1e-9)


def test_the_budget_of_one_request_is_that_of_the_listed_retained_loss_too():
    """As `puma remove --budget` has it."""
    entries = [{"criterion": "retained_loss", "budget": 0.01}, {**ECE, "budget": 0.5}]
    settings = Settings.model_validate({"puma": {"preserve": entries}})
    method = removal_method("puma", settings, seed=0, budget=0.03)
    assert [each.budget for each in method.promises] == [0.03, 0.5]
    assert json.loads(str(method.recorded_settings()["preserve"]))[0]["budget"] == 0.03


def test_a_regression_keeps_its_own_loss_of_a_group():
    data = puma.load_dataset("diabetes", groups=["bmi > 26"], validation_fraction=0.2)
    entries = [
        {"criterion": "group_loss", "where": "bmi > 26", "budget": 0.004},
        {"criterion": "validation_loss", "budget": 0.02},
    ]
    training = TrainingSettings(epochs=15)
    method = PUMA(reference_models=1, preserve=entries, training=training)
    model = build_model(ModelSettings(hidden=(16,)), data, seed=0)
    trained = method.fit(model, data, progress=False)
    rows = torch.arange(0, 60, 3)
    removal = method.remove(
        trained,
        DeletionSet.of(data.train.subject_ids[rows.numpy()].tolist(), data),
        progress=False,
    )
    retained = data.train.without(rows)
    group = retained.subset(retained.groups["bmi > 26"])
    # Half the squared error, of the standardised target.
    halves = [
        float(((m(group.features)[:, 0] - group.labels) ** 2).double().mean() / 2)
        for m in (trained.predictor, removal.predictor)
    ]
    change = removal.preserved[1]
    assert (change.before, change.after) == pytest.approx(tuple(halves), rel=1e-5)
    assert 0 < abs(change.drift) <= 0.004
    assert abs(removal.preserved[2].drift) <= 0.02


def test_a_criterion_that_changes_over_time_is_refused(
    promised: Trained, spread: dict[str, object]
) -> None:
    entry = {**spread, "criterion": "spreading:counting"}
    method = PUMA(**SHARP, reference_models=0, preserve=[entry])
    with pytest.raises(SettingsError, match=r"counting of the original is .* the second time, for"):
        method.remove(promised, request(promised), progress=False)


def test_a_criterion_that_writes_into_its_arguments_changes_no_data(
    promised: Trained, spread: dict[str, object]
) -> None:
    before = promised.dataset.train.labels.clone()
    removals = [
        PUMA(**SHARP, reference_models=0, preserve=[{**spread, "criterion": name}]).remove(
            promised, request(promised), progress=False
        )
        for name in ("spreading:spread", "spreading:greedy")
    ]
    assert torch.equal(promised.dataset.train.labels, before)
    one, other = (each.preserved[1] for each in removals)
    assert (other.before, other.after) == (one.before, one.after)
