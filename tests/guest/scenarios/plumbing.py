"""Everything the other scenarios stand on, without the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.inside import kernel

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Check the guest itself: kernel, nodes, systemd."""
    guest.checks.equal("nodes", kernel.ids(open("/sys/devices/system/node/online").read()), frozenset({0, 1}))
