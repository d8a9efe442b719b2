"""The documents' pods through CRI, with runc and the systemd cgroup driver; `numawarden doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.guest.inside import containerd
from tests.guest.inside.agent import CONFIG, PROGRAM
from tests.guest.inside.checks import wait_until
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as run_program
from tests.guest.scenarios.kep_containerd import run_with

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Run with pod slices that the agent makes over D-Bus."""
    run_with(guest, "systemd", "runc")
    _check_doctor(guest.checks)


def _check_doctor(checks: Checks) -> None:
    """Check what is found of a real containerd, and that what is to be changed helps."""
    found = _examined()
    version = run_program("dpkg-query", "--show", "--showformat=${Version}", "containerd")
    numbers, runtime = version.partition("~")[0], found["container runtime"]
    # The runtime's own answer, or in a guest that is too slow for it the package's version.
    checks.check(
        "doctor: containerd's version", f"containerd {numbers}" in runtime["found"], runtime
    )
    checks.equal("doctor: the driver is seen", found["cgroup driver"]["verdict"], "ok")
    off = found["NRI"]
    checks.equal("doctor: Debian's containerd has NRI off", off["verdict"], "error")
    line, table = "disable = false", "[plugins.'io.containerd.nri.v1.nri']"
    checks.check("doctor: the line to write", f"`{line}` in {table}" in off["change"], off)
    with containerd.CONFIG.open("a") as file:
        file.write(f"{table}\n{line}\n")
    run_program("systemctl", "restart", "containerd.service")
    checks.check(
        "doctor: with the line NRI is on",
        wait_until(lambda: _examined()["NRI"]["verdict"] == "ok"),
    )


def _examined() -> dict[str, dict[str, Any]]:
    """Return what `numawarden doctor` says of a host that is to have a kubelet, by check."""
    said = attempt(
        PROGRAM, "doctor", "--config", CONFIG, "--set", "agent.kubelet.enabled=true", "-o", "json"
    )
    return {one["check"]: one for one in json.loads(said.stdout)["checks"]}
