from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sysfs.machines import Machine, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def machine_root(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Machine], Path]:
    """Unpack a machine when it is first asked for, once per session."""
    roots: dict[str, Path] = {}

    def root_of(machine: Machine) -> Path:
        if machine.name not in roots:
            roots[machine.name] = unpack(machine, tmp_path_factory.mktemp("machine"))
        return roots[machine.name]

    return root_of
