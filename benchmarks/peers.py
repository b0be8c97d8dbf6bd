"""ψ of 20,000 rows by PUMA and by other libraries, against the dense solution; λ; memory.

    make bench

makes an environment of its own for the other libraries and calls ``python -m benchmarks peers``.
Every measurement is a process of its own with one thread (:mod:`benchmarks.peer_methods`). Writes
docs/results/peers.csv, reweighting.csv and peers.json, which has the facts of the machine, too.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from benchmarks.peer_methods import METHODS, OWN, SOLVES_ALONE, Problem, network
from benchmarks.reweighting import SOLVERS, random_problem, timed
from puma.cli.tables import print_table
from puma.project.files import write_json, write_text

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WIDTHS = (30, 32, 16, 2)  # 1,570 parameters: few enough for the dense solution
UNSEEN, DAMPING = 2000, 0.1
LIBRARIES = {"pydvl": "pyDVL", "captum": "captum", "kronfluence": "kronfluence",
             "dattri": "dattri", "curvlinops": "curvlinops-for-pytorch"}  # fmt: skip
SLSQP_LIMIT = 1000  # its time grows with the cube of n, and L-BFGS-B's with its memory
LBFGSB_LIMIT = 100_000
CHUNK = 500
LONG = 10.0  # seconds; what takes longer is measured once


def make_problem(n: int, *, seed: int = 0) -> Problem:
    """``n`` normal rows whose labels are noisy, and an MLP trained on them for ten epochs."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n + UNSEEN, WIDTHS[0], generator=generator)
    noise = 2 * torch.randn(n + UNSEEN, generator=generator)
    labels = (features @ torch.randn(WIDTHS[0], generator=generator) + noise > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        problem = Problem(WIDTHS, {}, features[:n], labels[:n], features[n:], labels[n:], DAMPING)
        model = network(WIDTHS)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(10):
            for rows in torch.randperm(n).split(256):
                optimizer.zero_grad()
                cross_entropy(model(problem.features[rows]), problem.labels[rows]).backward()
                optimizer.step()
    return Problem(**{**vars(problem), "weights": model.state_dict()})


def dense(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """(damped Gauss-Newton matrix (p, p), ∇C (p,), ψ (n,)) in double precision, row by row.

    By PyTorch's per-example Jacobians and one Cholesky factor: nothing of it is PUMA's.
    """
    model = problem.model.double()
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def outputs(values: dict[str, Tensor], row: Tensor) -> Tensor:
        found: Tensor = functional_call(model, values, (row[None],))
        return found[0]

    def loss(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(outputs(values, row)[None], label[None])

    def flat(parts: dict[str, Tensor], start: int) -> Tensor:
        return torch.cat([each.flatten(start) for each in parts.values()], -1)

    p = sum(each.numel() for each in parameters.values())
    matrix, gradients = torch.zeros(p, p, dtype=torch.float64), list[Tensor]()
    for rows, labels in zip(
        problem.features.double().split(CHUNK), problem.labels.split(CHUNK), strict=True
    ):
        jacobian = flat(vmap(jacrev(outputs), (None, 0))(parameters, rows), 2)  # (B, K, p)
        likely = model(rows).detach().softmax(1)
        curvature = torch.diag_embed(likely) - likely[:, :, None] * likely[:, None]
        matrix += torch.einsum(
            "bkp,bkq->pq", jacobian, torch.einsum("bkl,blp->bkp", curvature, jacobian)
        )
        gradients.append(flat(vmap(grad(loss), (None, 0, 0))(parameters, rows, labels), 1))
    matrix /= len(problem.labels)
    matrix.diagonal().add_(problem.damping)
    criterion = cross_entropy(model(problem.unseen.double()), problem.unseen_labels)
    gradient = torch.cat(
        [each.flatten() for each in torch.autograd.grad(criterion, [*model.parameters()])]
    )
    inverse = torch.cholesky_solve(gradient[:, None], torch.linalg.cholesky(matrix))[:, 0]
    return matrix, gradient, torch.cat(gradients) @ inverse


def measured(method: str, problem: Path, python: str) -> dict[str, Any]:
    """The result of ``method``, run by ``python``.

    Raises:
        RuntimeError: It ended with an error. What it printed is told.
    """
    root = Path(__file__).parents[1]
    own = method in OWN
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    environment["PYTHONPATH"] = str(root) if own else ""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.pt"
        script = root / "benchmarks" / "peer_methods.py"
        done = subprocess.run(
            [sys.executable if own else python, str(script), method, str(problem), str(target)],
            env=environment, cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{method} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        result: dict[str, Any] = torch.load(target)
    return result


def compared(python: str, n: int, repeats: int) -> pd.DataFrame:
    """One row a method: medians of the seconds, agreement with the dense solution, memory.

    The methods take turns, so that a slow minute of the machine meets all.
    """
    problem, smaller = make_problem(n), make_problem(n // 4)
    matrix, gradient, exact = dense(problem)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        paths = {rows: Path(folder) / f"{rows}.pt" for rows in (n, n // 4)}
        for path, each in zip(paths.values(), (problem, smaller), strict=True):
            torch.save(vars(each), path)
        for _ in range(repeats):
            for name in tqdm(METHODS, unit="method"):
                found[name].append(measured(name, paths[n], python))
        memory = {name: measured(name, paths[n // 4], python)["megabytes"] for name in METHODS}
    rows: list[dict[str, Any]] = []
    for name, runs in found.items():
        scores, inverse = runs[0]["scores"].double(), runs[0]["inverse"]
        agreement = residual = math.nan
        if name not in SOLVES_ALONE:
            agreement = float(torch.corrcoef(torch.stack([scores, exact]))[0, 1])
        if inverse is not None:
            residual = float((matrix @ inverse.double() - gradient).norm() / gradient.norm())
        rows.append(
            {
                "method": name,
                "examples": n,
                "seconds": statistics.median(run["seconds"] for run in runs),
                "cpu_seconds": statistics.median(run["cpu_seconds"] for run in runs),
                "correlation": agreement,
                "residual": residual,
                "megabytes_quarter": memory[name],
                "megabytes": statistics.median(run["megabytes"] for run in runs),
            }
        )
    return pd.DataFrame(rows)


def reweighted(sizes: tuple[int, ...] = (10**3, 10**4, 10**5, 10**6)) -> pd.DataFrame:
    """Seconds of λ for one criterion by each solver, and how optimal its answer is."""
    rows = []
    for n in sizes:
        problem = random_problem(1, n, 0.1, 1e-3)
        for name, solver in SOLVERS.items():
            if n > {"slsqp": SLSQP_LIMIT, "lbfgsb": LBFGSB_LIMIT}.get(name, n):
                continue
            runs = [timed(solver, problem)]
            while runs[0][0] < LONG and len(runs) < 3:
                runs.append(timed(solver, problem))
            rows.append(
                {
                    "examples": n,
                    "solver": name,
                    "seconds": statistics.median(seconds for seconds, _, _ in runs),
                    "kkt_residual": runs[0][2],
                }
            )
    return pd.DataFrame(rows)


def machine(python: str) -> dict[str, Any]:
    """What the numbers were measured on, and the versions of all libraries."""
    wanted = [*LIBRARIES.values(), "torch"]
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *wanted], capture_output=True, text=True, check=True)
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "puma": version("puma-unlearning"),
        "peers": json.loads(done.stdout),
    }


def main(
    python: Annotated[
        str, typer.Option(help="The Python of the environment that has the other libraries.")
    ],
    examples: Annotated[int, typer.Option(min=4000, help="n.")] = 20_000,
    repeats: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 3,
) -> None:
    """Compare ψ, its solve, and λ with other libraries: speed, exactness and memory."""
    frame, weights = compared(python, examples, repeats), reweighted()
    write_text(RESULTS / "peers.csv", frame.to_csv(index=False))
    write_text(RESULTS / "reweighting.csv", weights.to_csv(index=False))
    filled = {"peers": frame, "reweighting": weights}
    records = {name: each.astype(object).where(each.notna(), None) for name, each in filled.items()}
    write_json(
        RESULTS / "peers.json",
        {"machine": machine(python)}
        | {name: each.to_dict(orient="records") for name, each in records.items()},
    )
    for title, each in filled.items():
        shown = each.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))
        print_table(title, tuple(each.columns), shown.to_numpy().tolist())
