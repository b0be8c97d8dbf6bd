"""`puma ui` and JupyterLab on a project, as its manual starts them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.browser.chromium import PATIENCE, wait_for
from tests.registry.servers import free_port

MANUAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
# Settings and kernels of this machine's user are not looked at, and none are written.
USER_FOLDERS = (
    *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"),
    *("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"),
)
# JupyterLab asks once whether it may fetch news.
NOTIFICATIONS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"


@contextlib.contextmanager
def mlflow_ui(project: Path) -> Iterator[list[str]]:
    """The addresses that `puma ui` prints: of the models, and of the runs."""
    with _process(
        [sys.executable, "-m", "puma.cli", "ui", "--port", str(free_port())],
        project,
        {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
    ) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline(), process.stdout.readline()]
        found = re.findall(r"http://\S+", "".join(printed))
        assert len(found) == 2, printed
        wait_for(found[0])
        yield found


@contextlib.contextmanager
def jupyterlab(project: Path, private: Path) -> Iterator[str]:
    """The address of JupyterLab, started as the manual says; ``private`` has its own files."""
    (command,) = re.findall(r"`(jupyter lab [^`]+)`", MANUAL)
    settings = private / "JUPYTERLAB_SETTINGS_DIR" / NOTIFICATIONS
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false"}')
    port = free_port()
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token="]
    environment = {
        **os.environ,
        **{name: str(private / name) for name in USER_FOLDERS},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with _process([*shlex.split(command), *options], project, environment):
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/lab")
        yield address


@contextlib.contextmanager
def _process(
    command: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A server that ends with the block."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # JupyterLab waits for a kernel that does not start
            process.kill()
            process.wait()
