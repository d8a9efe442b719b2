"""The contract of `tests/cgroupfs/contract.py`: the emulated kernel, and on request a real one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.emulated.rules import LINUX_6_12, LINUX_7_0, rules_of
from sysfs.mask import Mask
from tests.cgroupfs.contract import Contract, EmulatedLab, KernelLab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgroupfs.emulated.rules import Rules
    from tests.cgroupfs.contract import Lab

CPUS = Mask.parse("0-7")
NODES = Mask.parse("0-1")
ISOLCPUS = Mask.parse("6-7")
ROOT = os.environ.get("NUMAWARDEN_CGROUP_ROOT")


@pytest.mark.parametrize(
    ("release", "rules"),
    [
        ("6.1.0-40-amd64", LINUX_6_12),
        ("6.12.118+deb13-cloud-amd64", LINUX_6_12),
        ("7.0.0", LINUX_7_0),
        ("7.2.12-1", LINUX_7_0),
        ("10.1", LINUX_7_0),
        ("unknown", LINUX_6_12),
    ],
)
def test_a_kernel_has_the_rules_of_the_newest_row_before_it(release: str, rules: Rules) -> None:
    assert rules_of(release) == rules


@pytest.fixture(params=["6.12", "7.0"])
def rules(request: pytest.FixtureRequest) -> Rules:
    return rules_of(request.param)


class TestEmulatedKernel(Contract):
    @pytest.fixture
    def lab(self, rules: Rules) -> Iterator[Lab]:
        lab = EmulatedLab(EmulatedKernel(CPUS, NODES, rules=rules, isolcpus=ISOLCPUS))
        yield lab
        lab.close()


class TestEmulatedFiles(Contract):
    @pytest.fixture
    def lab(self, tmp_path: Path, rules: Rules) -> Iterator[Lab]:
        lab = EmulatedLab(DirectoryTree(tmp_path, CPUS, NODES, rules=rules, isolcpus=ISOLCPUS))
        yield lab
        lab.close()


if ROOT is not None:

    class TestRealKernel(Contract):
        @pytest.fixture
        def lab(self) -> Iterator[Lab]:
            lab = KernelLab(Path(str(ROOT)))
            yield lab
            lab.close()
