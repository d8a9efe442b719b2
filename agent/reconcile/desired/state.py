"""What the kernel should enforce, independent of the cgroups that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.bindings import NO_BINDINGS

if TYPE_CHECKING:
    from agent.managers.allocations.bindings import Bindings
    from agent.managers.allocations.ledger import Ledger
    from sysfs.mask import Mask


class Desired(Struct, frozen=True):
    """What the kernel should enforce: allocations, the node's shared pool, explicit bindings."""

    ledger: Ledger
    shared_pool: Mask
    bindings: Bindings = NO_BINDINGS
