"""What an exclusive pod writes and asks of systemd beside 1,000 Guaranteed pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.scenarios import shared_pool_writes

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Run the scenario `shared-pool-writes` with more pods."""
    shared_pool_writes.run(guest, 1000)
