from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.shared import shared_dir

if TYPE_CHECKING:
    from pathlib import Path


class _Unpacked(dict["Path", "Path"]):
    """The root of each capture, unpacked when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, capture: Path) -> Path:
        target = self._folder / capture.name
        target.mkdir()
        # Some have device nodes and the like, which need root and which nothing reads.
        subprocess.run(["tar", "xf", capture, "-C", target], capture_output=True, check=False)
        cpus = next(target.rglob("sys/devices/system/cpu"))
        self[capture] = cpus.parents[3]
        return self[capture]


@pytest.fixture(scope="session")
def captured_root(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Return the root directory of each capture in the shared folder, by its file."""
    assert shared_dir() is not None
    return _Unpacked(tmp_path_factory.mktemp("captures"))
