"""Why the kernel does not show what was written: the causes, and how they are told apart."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.state import CPUS, CPUS_EFFECTIVE, MEMS_EFFECTIVE
from cgroupfs.tree import ancestors
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from cgroupfs.tree import Tree

_ISOLATED: Final = "cpuset.cpus.isolated"


class Cause(StrEnum):
    """Why a cgroup differs from what is wanted."""

    REVERTED_BY_SYSTEMD = "reverted by systemd"
    RUNTIME_UPDATE = "runtime update"
    PARENT_TOO_NARROW = "parent too narrow"
    CPU_OFFLINE = "CPU offline"
    CONTROLLER_LOST = "controller lost"
    IN_USE = "in use"
    UNKNOWN = "unknown"


class Diagnosis(Struct, frozen=True):
    """A cause, and one sentence with its facts and the remedy."""

    cause: Cause
    detail: str


def online(tree: Tree) -> Mask:
    """Return the CPUs the kernel can give: the root's effective set and what partitions took.

    Empty when the root does not show them (the controller is missing everywhere).
    """
    root, isolated = tree.read_many("", (CPUS_EFFECTIVE, _ISOLATED))
    return Mask.parse(root or "") | Mask.parse(isolated or "")


def why_not_effective(tree: Tree, path: str, file: str, wanted: Mask, effective: Mask) -> Diagnosis:
    """Tell why `effective` of `file` is not the `wanted` that was written.

    `file` is `cpuset.cpus` or `cpuset.mems`. Looked at in this order: CPUs that are offline, the
    topmost ancestor that lacks some of the set (those below it cannot have more), a partition that
    took them.
    """
    if file == CPUS:
        offline = wanted - online(tree)
        if offline and (wanted - offline or effective) == effective:
            return Diagnosis(Cause.CPU_OFFLINE, _offline(offline, wanted, effective))
    narrow = _too_narrow(tree, path, file, wanted)
    if narrow is not None:
        above, has = narrow
        detail = (
            f"/{above} has only {has} of {wanted} (missing {wanted - has}), so the kernel uses "
            f"{effective} without an error; widen /{above} first"
        )
        return Diagnosis(Cause.PARENT_TOO_NARROW, detail)
    detail = (
        f"the kernel uses {effective} instead of {wanted} though no cgroup above is narrower; "
        "look for a cpuset partition or a memory node gone offline"
    )
    return Diagnosis(Cause.UNKNOWN, detail)


def _offline(offline: Mask, wanted: Mask, effective: Mask) -> str:
    if offline == wanted:
        return (
            f"all of {wanted} is offline, so the kernel uses the parent's {effective}; "
            "bring the CPUs online or remove the pod"
        )
    return f"{offline} of {wanted} is offline; bring it online or remove the pod"


def _too_narrow(tree: Tree, path: str, file: str, wanted: Mask) -> tuple[str, Mask] | None:
    """Return the topmost ancestor that is too narrow, None when it is the root: nobody set that."""
    effective = CPUS_EFFECTIVE if file == CPUS else MEMS_EFFECTIVE
    for above in ancestors(path):
        text = tree.read_many(above, (effective,))[0]
        has = EMPTY if text is None else Mask.parse(text)
        if text is not None and not wanted <= has:
            return (above, has) if above else None
    return None
