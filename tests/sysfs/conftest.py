from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.sysfs.machines import Machine, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="package", autouse=True)
def _trees_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lay drawn hosts out where pytest's own directories are: each is a thousand small files."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
        yield


@pytest.fixture(scope="session")
def machine_root(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Machine], Path]:
    """Unpack a machine when it is first asked for, once per session."""
    roots: dict[str, Path] = {}

    def root_of(machine: Machine) -> Path:
        if machine.name not in roots:
            roots[machine.name] = unpack(machine, tmp_path_factory.mktemp("machine"))
        return roots[machine.name]

    return root_of
