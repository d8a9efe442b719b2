"""What the kernel is to enforce, before any cgroup is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.bindings import NO_BINDINGS

if TYPE_CHECKING:
    from agent.managers.allocations.bindings import Bindings
    from agent.managers.allocations.ledger import Ledger
    from sysfs.mask import Mask


class Desired(Struct, frozen=True):
    """What the kernel is to enforce: allocations, the node's shared pool, explicit bindings."""

    ledger: Ledger
    shared_pool: Mask
    bindings: Bindings = NO_BINDINGS
