"""Exported graphs without PyTorch's exporter: their weights, read and replaced.

``torch.export`` takes two seconds to import, and a removal changes nothing but weights. Its archive
is a zip in which each tensor is an entry of its own.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from puma.project.files import sha256

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "data/weights/"
CONFIG = f"{WEIGHTS}model_weights_config.json"
SERIAL = ".data/serialization_id"  # of the writing, not of what is written
# What torch.export calls types in an archive: torch._export.serde.schema.ScalarType.
DTYPES: dict[int, np.dtype[Any]] = {
    5: np.dtype("int64"),
    7: np.dtype("float32"),
    8: np.dtype("float64"),
}


class _Integer(BaseModel):
    as_int: int


class _Meta(BaseModel):
    dtype: Literal[5, 7, 8]
    sizes: list[_Integer]
    strides: list[_Integer]
    storage_offset: _Integer


class _Entry(BaseModel):
    """A tensor of the archive."""

    path_name: str
    use_pickle: Literal[False]
    meta: _Meta = Field(alias="tensor_meta")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(each.as_int for each in self.meta.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.meta.dtype]

    def is_whole(self, content: bytes) -> bool:
        """Whether the tensor is all of its entry, in row-major order."""
        empty = np.empty(self.shape, self.dtype)
        strides = [each.as_int * empty.itemsize for each in self.meta.strides]
        offset = self.meta.storage_offset.as_int
        return (offset, len(content), strides) == (0, empty.nbytes, list(empty.strides))


class _Config(BaseModel):
    config: dict[str, _Entry]


@dataclass(frozen=True)
class GraphArchive:
    """An exported graph whose weights can be read and replaced.

    Attributes:
        root: The folder in which PyTorch puts all entries.
        contents: What is in the archive, by the names of its entries in that folder.
        tensors: Where the weights are, by the names of the state dict.
    """

    root: str
    contents: Mapping[str, bytes]
    tensors: Mapping[str, _Entry]

    @classmethod
    def read(cls, path: Path) -> GraphArchive | None:
        """Read an archive; None if it is damaged or laid out in a way that is not known here.

        PyTorch itself can then say what is in it.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                root = archive.namelist()[0].partition("/")[0] + "/"
                contents = {
                    name.removeprefix(root): archive.read(name) for name in archive.namelist()
                }
            tensors = _Config.model_validate_json(contents[CONFIG]).config
            whole = [each.is_whole(contents[WEIGHTS + each.path_name]) for each in tensors.values()]
        except (zipfile.BadZipFile, LookupError, ValidationError):
            return None
        return cls(root, contents, tensors) if all(whole) else None

    @property
    def state(self) -> dict[str, Tensor]:
        """The state dict of the graph."""
        import torch

        return {
            name: torch.from_numpy(
                np.frombuffer(self.contents[WEIGHTS + each.path_name], each.dtype)
                .reshape(each.shape)
                .copy()
            )
            for name, each in self.tensors.items()
        }

    @property
    def graph_digest(self) -> str:
        """The digest of all that is not a weight: what is computed with them."""
        weights = {SERIAL} | {WEIGHTS + each.path_name for each in self.tensors.values()}
        rest = sorted(self.contents.keys() - weights)
        return sha256(*(part for name in rest for part in (name.encode(), self.contents[name])))

    def with_state(self, state: Mapping[str, Tensor]) -> bytes | None:
        """The archive of the same graph with other weights; None if they do not fit."""
        if {name: (f"{each.dtype}", (*each.shape,)) for name, each in state.items()} != {
            name: (f"torch.{each.dtype}", each.shape) for name, each in self.tensors.items()
        }:
            return None
        contents = dict(self.contents)
        for name, tensor in state.items():
            entry = WEIGHTS + self.tensors[name].path_name
            content = tensor.detach().cpu().contiguous().numpy().tobytes()
            if contents[entry] not in (self.contents[entry], content):
                return None  # two names of what was one tensor, and is two now
            contents[entry] = content
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in contents.items():
                archive.writestr(zipfile.ZipInfo(self.root + name), content)
        return buffer.getvalue()
