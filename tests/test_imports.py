"""What is imported at once is what nearly every command and notebook waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest

AT_THE_POINT_OF_USE = {
    *("sklearn", "scipy.stats", "scipy.optimize", "torch._dynamo", "torchvision"),
    *("mlflow", "pandas", "dvc", "matplotlib.pyplot", "pyarrow"),
}


@pytest.mark.slow
@pytest.mark.parametrize("module", ["puma.workflows.remove", "puma.plots", "puma.lineage.audits"])
def test_heavy_packages_are_imported_where_they_are_used(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert module in loaded
    assert loaded & AT_THE_POINT_OF_USE == set()


def test_the_command_line_and_the_settings_do_not_wait_for_numpy() -> None:
    code = "import sys, puma.cli, puma.settings; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"puma.cli.main", "puma.settings.params"} <= loaded
    assert "numpy" not in loaded


@pytest.mark.slow
@pytest.mark.parametrize("command", ["source", "registered", "versions"])
def test_commands_that_look_before_anything_is_done_do_not_wait_for_pytorch(command: str) -> None:
    code = f"""if True:
        import sys
        from typer.testing import CliRunner
        from puma.cli import app
        CliRunner().invoke(app, ["{command}", *sys.argv[1:]])
        print(*sys.modules)"""
    dataset = [] if command == "registered" else ["german_credit"]
    done = subprocess.run(
        [sys.executable, "-c", code, *dataset], capture_output=True, text=True, check=True
    )
    assert "torch" not in done.stdout.split()
