"""Whether the kernel's files show what the ledger has, read without the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside.kernel import Cgroup

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Which file must show which member of a verification's cgroup.
FILES: Final = {
    "cpuset.cpus": "cpus",
    "cpuset.cpus.effective": "cpus",
    "cpuset.mems": "mems",
    "cpuset.mems.effective": "mems",
    "cpu.max": "cpuMax",
}


def differences(verification: Mapping[str, Any]) -> list[str]:
    """Return which files do not show what `GET /v1/verify` says is desired, a line each.

    A cgroup that inherits has no CPUs of its own: what is in effect counts.
    """
    return [
        f"{cgroup['kernel']['cgroup']}/{file}: {shown} instead of {cgroup[desired]}"
        for cgroup in verification["cgroups"]
        for file, desired in FILES.items()
        if cgroup[desired] is not None
        and not (file == "cpuset.cpus" and cgroup["inherits"])
        and (shown := _shown(cgroup, file)) != cgroup[desired]
    ]


def _shown(cgroup: Mapping[str, Any], file: str) -> str:
    path = Cgroup(cgroup["kernel"]["cgroup"])
    try:
        return path.in_effect(file) if cgroup["inherits"] else path.read(file)
    except OSError as error:
        return str(error.strerror)
