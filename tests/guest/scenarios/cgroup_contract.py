"""The contract tests of the emulated cgroup tree, against the kernel's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from tests.guest.inside import kernel
from tests.guest.inside.commands import attempt

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE: Final = f"/opt/numawarden/lib/python{VERSION}/site-packages"


def run(guest: Guest) -> None:
    """Run the contract with pytest as root on /sys/fs/cgroup; each of its tests is a check."""
    report = guest.out / "contract.xml"
    outcome = attempt(
        *("env", f"PYTHONPATH={SITE}", f"NUMAWARDEN_CGROUP_ROOT={kernel.CGROUPS}"),
        *("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"),
        *("-k", "TestRealKernel", f"--junitxml={report}", "tests/cgroupfs/test_contract.py"),
    )
    guest.log("contract.log", outcome.stdout + outcome.stderr)
    guest.checks.require("pytest ran", report.exists(), outcome.status)
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        wrong = [part.get("message", part.tag) for part in case if part.tag != "skipped"]
        guest.checks.check(case.get("name", ""), not wrong, " ".join(wrong))
    guest.checks.equal("pytest's status", outcome.status, 0)
