"""The agent killed a hundred times while pods come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.scenarios import kills

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Run the scenario `kills` for longer."""
    kills.run(guest, 100)
