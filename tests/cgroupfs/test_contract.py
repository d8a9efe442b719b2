"""The contract of `tests/cgroupfs/contract.py`: the emulated kernel, and on request a real one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from tests.cgroupfs.contract import Contract, EmulatedLab, KernelLab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cgroupfs.contract import Lab

CPUS = Mask.parse("0-7")
NODES = Mask.parse("0-1")
ROOT = os.environ.get("NUMAWARDEN_CGROUP_ROOT")


class TestEmulatedKernel(Contract):
    @pytest.fixture
    def lab(self) -> Iterator[Lab]:
        lab = EmulatedLab(EmulatedKernel(CPUS, NODES))
        yield lab
        lab.close()


class TestEmulatedFiles(Contract):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Iterator[Lab]:
        lab = EmulatedLab(DirectoryTree(tmp_path, CPUS, NODES))
        yield lab
        lab.close()


if ROOT is not None:

    class TestRealKernel(Contract):
        @pytest.fixture
        def lab(self) -> Iterator[Lab]:
            lab = KernelLab(Path(str(ROOT)))
            yield lab
            lab.close()
