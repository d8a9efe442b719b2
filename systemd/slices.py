"""Slices with resource properties: created, changed, stopped.

The record with systemd comes first, then the cgroup's files, then reading them back: this is the
first part only. Properties are set only on slices that run, because on one that does not, systemd
leaves a drop-in file and a cgroup that nothing removes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from systemd.errors import UnitExistsError
from systemd.escape import check_unit
from systemd.properties import description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from systemd.bus import Systemd
    from systemd.properties import Property


def ensure(systemd: Systemd, name: str, properties: Sequence[Property], *, about: str = "") -> bool:
    """Start the slice with these properties, or set them if it runs; return whether it was started.

    A slice started here is transient: its properties live in /run and nothing is left of it after
    `stop`. `about` becomes its description. Raises `UnitNameError` and the bus's errors.
    """
    check_unit(name, "slice")
    described = (description(about),) if about else ()
    try:
        systemd.start_transient(name, (*described, *properties))
    except UnitExistsError:
        if not update(systemd, name, properties):
            raise
        return False
    return True


def update(systemd: Systemd, name: str, properties: Sequence[Property]) -> bool:
    """Set properties on the slice if it runs; return whether it does."""
    check_unit(name, "slice")
    if not systemd.active_state(name).running:
        return False
    if properties:
        systemd.set_properties(name, properties)
    return True


def stop(systemd: Systemd, name: str) -> bool:
    """Stop the slice, and nothing that runs in it; return whether there was anything to stop.

    The state is asked for first: systemd stops a slice that never was with success.
    """
    check_unit(name, "slice")
    if not systemd.active_state(name).running:
        return False
    systemd.stop(name)
    return True
