"""systemd units that get an allocation: their names, their cgroups, their pods."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from agent.tools.run.pod import Amounts, listed_amounts, unit_pod
from systemd.errors import NoSuchUnitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from systemd.bus import Systemd

_NO_POD_NAME: Final = re.compile(r"[^a-z0-9.-]+|^[^a-z0-9]+|[^a-z0-9]+$")
_TYPES: Final = (".service", ".scope")


def unit_name(text: str) -> str:
    """Return the name of a unit; without a type it is a service, as for systemctl."""
    return text if text.endswith(_TYPES) else f"{text}.service"


def connect() -> Systemd:
    """Return the systemd of this host."""
    from systemd.bus import SystemBus  # noqa: PLC0415  # takes time that other commands do not need

    return SystemBus()


def running_cgroup(systemd: Systemd, unit: str) -> str:
    """Return the cgroup of a unit that runs, "" of any other. Raises `SystemdError`."""
    if not systemd.active_state(unit).running:
        return ""
    try:
        return systemd.control_group(unit)
    except NoSuchUnitError:  # it was stopped meanwhile
        return ""


def pod_of_unit(unit: str, cpus: str, memory: str, hugepages: Iterable[str]) -> bytes:
    """Return the manifest of a unit's pod, under a new uid. Raises `OptionError`."""
    name = _NO_POD_NAME.sub("-", unit.lower()).strip("-.")
    amounts = Amounts(cpus, memory, listed_amounts(hugepages, ()))
    return unit_pod(str(uuid4()), name, unit, amounts)
