"""The variables that say to a process which resources are its own."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "NUMAWARDEN_"


def allocation_variables(pod: str, uid: str, cpus: str, mems: str) -> dict[str, str]:
    """Return the variables of one container of a pod (its full name and uid).

    `cpus` and `mems` are lists as in `cpuset.cpus`. `NUMAWARDEN_MEMORY_NODES` is empty where the
    memory is not pinned.
    """
    return {
        f"{PREFIX}POD": pod,
        f"{PREFIX}POD_UID": uid,
        f"{PREFIX}CPUS": cpus,
        f"{PREFIX}MEMORY_NODES": mems,
    }
