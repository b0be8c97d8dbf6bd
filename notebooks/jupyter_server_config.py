"""JupyterLab saves the notebooks of this project without their outputs.

DVC hashes the notebooks and git tracks them: outputs that are saved would run stages again. `make
install` copies this file into .venv, where every Jupyter server of the environment finds it.
"""

from pathlib import Path
from typing import Any

import nbformat
from nbstripout import strip_output


def strip(*, model: dict[str, Any], path: str, contents_manager: Any, **_: Any) -> None:
    """Take out of a notebook what running it, or opening it, put in."""
    folder = (Path(contents_manager.root_dir) / path.strip("/")).resolve().parent
    home = folder.parent if folder.name == "paper" else folder
    ours = home.name == "notebooks" and (home.parent / "dvc.yaml").is_file()
    if not ours or model["type"] != "notebook":
        return
    notebook = strip_output(
        nbformat.from_dict(model["content"]), keep_output=False, keep_count=False, keep_id=False
    )
    notebook.metadata = {"language_info": {"name": "python"}}  # no kernel: it has another name
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = {"tags": tags} if tags else {}
    model["content"] = notebook


c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.ContentsManager.pre_save_hook = strip
