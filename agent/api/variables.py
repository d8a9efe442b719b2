"""The environment variables by which a process knows what its container has."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "NUMAWARDEN_"


def allocation_variables(pod: str, uid: str, cpus: str, mems: str) -> dict[str, str]:
    """Return the variables of one container.

    `pod` is the full name of its pod, `uid` the pod's. `cpus` and `mems` are lists as in
    `cpuset.cpus`; `mems` is empty where the memory is not pinned.
    """
    return {
        f"{PREFIX}POD": pod,
        f"{PREFIX}POD_UID": uid,
        f"{PREFIX}CPUS": cpus,
        f"{PREFIX}MEMORY_NODES": mems,
    }
