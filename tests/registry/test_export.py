"""An export is written whole or not at all."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from puma.registry.export import exports_through_memory


@pytest.mark.slow
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(30, 30), (torch.zeros(2, 30),))
    path = tmp_path / "model.pt2"
    path.write_bytes(b"before")
    plain = torch.export.save
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with exports_through_memory():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        try:
            with pytest.raises(OSError) as failed:  # noqa: PT011
                torch.export.save(program, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert failed.value.errno == errno.EFBIG
        assert [each.name for each in tmp_path.iterdir()] == ["model.pt2"]
        assert path.read_bytes() == b"before"
        torch.export.save(program, path)
    assert torch.export.save is plain
    loaded = torch.export.load(path).module()
    assert torch.equal(loaded(torch.ones(2, 30)), program.module()(torch.ones(2, 30)))
