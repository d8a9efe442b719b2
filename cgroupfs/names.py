"""Names and layouts of pod and container cgroups, as the kubelet and the runtimes make them.

Two drivers name the same things differently (kubelet pkg/kubelet/cm/cgroup_manager_linux.go):
`systemd` `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice` with the
uid's `-` written `_`, and `cgroupfs` `kubepods/burstable/pod<uid>`. Guaranteed pods stand
directly under kubepods. The kubelet has no `kubepods/shared`, `kubepods-shared.slice`. With
`systemPartition` (KEP-5894) the pods of some namespaces stand in `kubepods/system`, which has
levels of its own; the agent makes none of these cgroups and writes none.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.errors import CgroupNameError, CgroupPathError
from cgroupfs.tree import check_path, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgroupfs.tree import CgroupTree

_PODS: Final = "kubepods"
_SYSTEM: Final = "system"
_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_UID_MAX: Final = 128
#: Of a unit name in systemd and of a directory name in the kernel.
_NAME_MAX: Final = 255
#: So many paths of pods and names of containers are remembered: each comparison needs them all.
_REMEMBERED: Final = 8192
_ROOT_PART: Final = re.compile(r"[A-Za-z0-9_.:-]+")


class Driver(StrEnum):
    """Who makes pod cgroups, and therefore how they are named (kubelet `cgroupDriver`)."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class Tier(StrEnum):
    """The quality-of-service level that a pod cgroup stands in."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"
    #: Guaranteed as well, of a pod that has no CPUs of its own; see `Layout.shares`.
    SHARED = "Shared"


_TIER_PARTS: Final = {
    Tier.GUARANTEED: (),
    Tier.BURSTABLE: ("burstable",),
    Tier.BEST_EFFORT: ("besteffort",),
    Tier.SHARED: ("shared",),
}


class PodName(Struct, frozen=True):
    """The pod that a cgroup belongs to."""

    uid: str
    tier: Tier
    #: The cgroup stands in the kubelet's system partition.
    system: bool = False


class Layout(Struct, frozen=True):
    """Where pods live below the cgroup root.

    `root` is the kubelet's `cgroupRoot` in its plain form (`"/"`, `"/sys/pods"`), which both
    drivers translate. With `shares` Guaranteed pods without CPUs of their own stand in a cgroup
    beside those of the QoS classes, which carries the shared pool for them; the kubelet has none.
    Raises `CgroupNameError` for a root that cannot be translated.
    """

    driver: Driver
    root: str = "/"
    shares: bool = False

    def __post_init__(self) -> None:
        for part in self._root_parts():
            if part in (".", "..") or not _ROOT_PART.fullmatch(part):
                raise CgroupNameError(
                    "cgroupRoot", self.root, f"the component {part!r} is not a plain name"
                )

    def pods(self) -> str:
        """Return the path of the cgroup of all pods."""
        return self._path((*self._root_parts(), _PODS))

    def tier(self, tier: Tier, *, system: bool = False) -> str:
        """Return the path of one quality-of-service level, with `system` in the partition."""
        return self._path(self._tier_parts(tier, system=system))

    @lru_cache(maxsize=_REMEMBERED)  # noqa: B019  # a layout is a value, and there is one
    def pod(self, uid: str, tier: Tier) -> str:
        """Return the path of a pod's cgroup; raises `CgroupNameError` on an unusable uid."""
        parts = (*self._tier_parts(tier, system=False), "pod" + check_uid(uid))
        path = self._path(parts)
        if len(path.rpartition("/")[2]) > _NAME_MAX:
            raise CgroupNameError(
                "pod uid", uid, f"the cgroup's name would exceed {_NAME_MAX} bytes"
            )
        return path

    def parse_pod(self, path: str) -> PodName | None:
        """Return the pod whose cgroup `path` is, None when it is not a pod's.

        The systemd driver's names lose the difference of `-` and `_`; uids contain no `_`.
        """
        directory, _, name = path.rpartition("/")
        for system in (False, True):
            for tier in Tier:
                if directory == self.tier(tier, system=system):
                    return self._pod_in(name, tier, system=system)
        return None

    def _tier_parts(self, tier: Tier, *, system: bool) -> tuple[str, ...]:
        inside = (_SYSTEM,) if system else ()
        return (*self._root_parts(), _PODS, *inside, *_TIER_PARTS[tier])

    def _pod_in(self, name: str, tier: Tier, *, system: bool) -> PodName | None:
        parts = (*self._tier_parts(tier, system=system), "pod")
        prefix, suffix = "pod", ""
        if self.driver is Driver.SYSTEMD:
            prefix, suffix = "-".join(_escape(part) for part in parts), ".slice"
        if not (name.startswith(prefix) and name.endswith(suffix)):
            return None
        uid = name[len(prefix) : len(name) - len(suffix)]
        if self.driver is Driver.SYSTEMD:
            uid = uid.replace("_", "-")
        usable = _UID.fullmatch(uid) and len(uid) <= _UID_MAX
        return PodName(uid, tier, system) if usable else None

    def _root_parts(self) -> tuple[str, ...]:
        return tuple(part for part in self.root.split("/") if part)

    def _path(self, parts: tuple[str, ...]) -> str:
        if self.driver is Driver.CGROUPFS:
            return "/".join(parts)
        escaped = [_escape(part) for part in parts]
        return "/".join("-".join(escaped[: depth + 1]) + ".slice" for depth in range(len(escaped)))


def _escape(part: str) -> str:
    # In a slice's name `-` means "below"; the kubelet replaces it (escapeSystemdCgroupName).
    return part.replace("-", "_")


def check_uid(uid: str) -> str:
    """Return a pod uid that may stand in a cgroup name, else raise `CgroupNameError`.

    Letters, digits, `-` and `.`, at most 128: no slash, no `..`, no `_` (it would collide with
    `-` in the systemd driver's names).
    """
    if len(uid) > _UID_MAX:
        raise CgroupNameError("pod uid", uid[:40] + "…", f"it is longer than {_UID_MAX} characters")
    if not _UID.fullmatch(uid) or ".." in uid:
        raise CgroupNameError("pod uid", uid, "use letters, digits, '-' and single '.' inside")
    return uid


class Runtime(StrEnum):
    """Who made a container's cgroup, read from its name."""

    CONTAINERD = "containerd"
    CRIO = "cri-o"
    PODMAN = "podman"
    DOCKER = "docker"
    SYSTEMD = "systemd"
    PLAIN = "plain"


class ContainerName(Struct, frozen=True):
    """What a container cgroup's name shows: the runtime, and the runtime's id.

    For `systemd` the id is the unit's name without its suffix, for `plain` the directory's name.
    """

    runtime: Runtime
    id: str


_PREFIXES: Final = (
    ("cri-containerd-", Runtime.CONTAINERD),
    ("nerdctl-", Runtime.CONTAINERD),
    ("crio-", Runtime.CRIO),
    ("libpod-", Runtime.PODMAN),
    ("docker-", Runtime.DOCKER),
)
#: Monitors of the runtimes run beside the containers and are not containers; nor are hidden names.
_NO_CONTAINERS: Final = ("crio-conmon-", "libpod-conmon-", ".")
_UNIT_SUFFIXES: Final = (".scope", ".service")
#: Any other suffix of a systemd unit: a slice, a mount, a swap … contains no container itself.
_NO_CONTAINER_UNITS: Final = (".slice", ".mount", ".swap", ".socket")
#: Made by the runtime inside a container's cgroup: crun (and podman with it) moves the process
#: there, so that it must be pinned together with the scope around it.
RUNTIME_SUBGROUPS: Final = ("container",)


@lru_cache(maxsize=_REMEMBERED)
def parse_container(name: str) -> ContainerName | None:
    """Return runtime and id of a directory in a pod cgroup, None if it is not a container.

    Scopes and services are containers (`systemd-run --scope --slice=`), as are plain directories;
    slices, monitors (conmon) and cgroups of other unit types are not.
    """
    if not _may_be_container(name):
        return None
    stem = _stem(name)
    for prefix, runtime in _PREFIXES:
        if stem.startswith(prefix) and len(stem) > len(prefix):
            return ContainerName(runtime, stem[len(prefix) :])
    return ContainerName(Runtime.PLAIN if stem == name else Runtime.SYSTEMD, stem)


def _may_be_container(name: str) -> bool:
    """Return whether a directory may be a container's; asked of every one in each pass."""
    return not (name.startswith(_NO_CONTAINERS) or name.endswith(_NO_CONTAINER_UNITS))


def _stem(name: str) -> str:
    for suffix in _UNIT_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def containers(tree: CgroupTree, pod: str) -> tuple[str, ...]:
    """Return the paths of the container cgroups directly in the pod cgroup `pod`, sorted.

    Empty when the pod cgroup is gone; see `containers_of`.
    """
    try:
        return tuple(containers_of(pod, tree.listed(pod)))
    except FileNotFoundError:
        return ()


def containers_of(pod: str, listed: Mapping[str, bool]) -> dict[str, bool]:
    """Return the paths of the containers among the cgroups `listed` in a pod's (`CgroupTree`).

    Each has whether there may be cgroups inside it. A sandbox (pause) of a container runtime is
    among them: its name does not distinguish it from a container.
    """
    return {join(pod, name): inner for name, inner in listed.items() if _may_be_container(name)}


def from_proc(text: str) -> str:
    """Return the cgroup path of `/proc/<pid>/cgroup`'s text, relative to the root.

    Only the unified hierarchy's line (`0::/path`) counts. Raises `CgroupPathError` when there is
    none (cgroup v1) or the cgroup was removed under the process.
    """
    # The kernel takes any character but a line feed into a cgroup's name.
    for line in text.split("\n"):
        if line.startswith("0::/"):
            path = line.removeprefix("0::/")
            if path.endswith(" (deleted)"):
                raise CgroupPathError(path, "the process outlived its cgroup")
            return check_path(path)
    raise CgroupPathError(text.strip()[:80], "the process has no cgroup v2 membership")
