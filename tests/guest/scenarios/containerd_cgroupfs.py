"""The documents' pods through CRI, with crun and the cgroupfs cgroup driver.

crun puts a container's process into a cgroup of its own below the container's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.scenarios.kep_containerd import run_with

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Run with pod cgroups that the agent makes as directories."""
    run_with(guest, "cgroupfs", "crun")
