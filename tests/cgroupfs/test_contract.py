"""The contract of `tests/cgroupfs/contract.py`: the emulated kernel, and on request a real one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.emulated.rules import LINUX_6_12, LINUX_7_0, rules_of
from sysfs.mask import Mask
from tests.cgroupfs.contract import Contract, EmulatedLab, KernelLab, make, rejected, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgroupfs.emulated.rules import Rules
    from tests.cgroupfs.contract import Lab

CPUS = Mask.parse("0-7")
NODES = Mask.parse("0-1")
ISOLCPUS = Mask.parse("6-7")
ROOT = os.environ.get("NUMAWARDEN_CGROUP_ROOT")


class EmulatedContract(Contract):
    """What a kernel does, too, but is not tried on one here."""

    # Linux 6.12 rejects it as well. But the next partitions of the contract crash the kernel of
    # Debian 13 after it (6.12.118: list_add corruption in update_prstate), so no guest runs it.
    def test_exclusive_cpus_cannot_be_those_that_a_partition_beside_lists(self, lab: Lab) -> None:
        lab.tree.write(lab.top, "cpuset.cpus", "1-3")
        lab.tree.write(lab.top, "cpuset.cpus.partition", "root")
        one, two = make(lab, "one", cpus="2"), make(lab, "two")
        lab.tree.write(one, "cpuset.cpus.partition", "root")
        assert shown(lab, one, "cpuset.cpus.partition") == "root"
        assert rejected(lab, two, "cpuset.cpus.exclusive", "2-3") == errno.EINVAL
        lab.tree.write(two, "cpuset.cpus.exclusive", "3")
        assert shown(lab, one, "cpuset.cpus.partition") == "root"


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


class TestEmulatedKernel(EmulatedContract):
    @pytest.fixture
    def lab(self, rules: Rules) -> Iterator[Lab]:
        lab = EmulatedLab(EmulatedKernel(CPUS, NODES, rules=rules, isolcpus=ISOLCPUS))
        yield lab
        lab.close()


class TestEmulatedFiles(EmulatedContract):
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
