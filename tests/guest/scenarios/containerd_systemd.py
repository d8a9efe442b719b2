"""The documents' pods through CRI, with runc and the systemd cgroup driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.scenarios.kep_containerd import run_with

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Run with pod slices that the agent makes over D-Bus."""
    run_with(guest, "systemd", "runc")
