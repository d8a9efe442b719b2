"""Checked bindings of a container to a cgroup or process that an operator names.

Inside the pod's own cgroup any cgroup is accepted. Elsewhere the cgroup must be one that can be
pinned without affecting other workloads: a leaf (with no more than the runtime's subgroup in it),
not a slice, not the agent's, not the service manager's, and not in another pod.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.bindings import NO_BINDINGS, Binding, Bindings
from agent.pods.model import full_name
from agent.reconcile.placement import pod_cgroup
from agent.reconcile.report import BindingError
from cgroupfs.errors import CgroupPathError
from cgroupfs.names import RUNTIME_SUBGROUPS, from_proc, parse_container
from cgroupfs.tree import check_path

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from agent.managers.allocation import PodAllocation
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree


_SYSTEMD_OWN: Final = ("init.scope", "dbus.service", "dbus-broker.service")
#: An error repeats this many characters of what was asked.
_SHOWN: Final = 200
_NAME_CONTAINERS: Final = (
    "start the container in the pod's cgroup, or name the cgroup of this one container"
)


class OtherBindings(Struct, frozen=True):
    """What a new binding is checked against: the other bindings, the uids of the ledger's pods."""

    bindings: Bindings = NO_BINDINGS
    pods: Collection[str] = frozenset()


NO_OTHERS: Final = OtherBindings()


def cgroup_of_pid(proc: Path, pid: int) -> str:
    """Return the cgroup that process `pid` lives in, relative to the root.

    `proc` is where procfs is mounted. Raises `BindingError` when there is no such process or it
    has no cgroup v2 membership.
    """
    asked = f"process {pid}"
    try:
        text = os.fsdecode((proc / str(pid) / "cgroup").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        raise BindingError(asked, "there is no such process", "name one that runs") from None
    except OSError as error:
        reason = f"its cgroup cannot be read: {os.strerror(error.errno or 0)}"
        raise BindingError(asked, reason, "run the agent as root") from error
    try:
        return from_proc(text)
    except CgroupPathError as error:
        raise BindingError(asked, error.why, "name a process of the running container") from error


def cgroup_named(text: str, mount: Path) -> str:
    """Return a cgroup path that an operator named, relative to the root.

    Accepted are a path below the cgroup root with or without a leading slash, and a file path
    below the `mount` of the hierarchy. Raises `BindingError` when it could leave the root.
    """
    below_mount = text.removeprefix(f"{mount}/")
    path = below_mount.strip("/") if text.startswith("/") else text.rstrip("/")
    try:
        return check_path(path)
    except CgroupPathError as error:
        remedy = "name a cgroup by its path below the cgroup root"
        raise BindingError(f"cgroup {text[:_SHOWN]!r}", error.why, remedy) from error


def make_binding(
    tree: CgroupTree,
    layout: Layout,
    pod: PodAllocation,
    container: str,
    cgroup: str,
    *,
    others: OtherBindings = NO_OTHERS,
    own: str = "",
) -> Binding:
    """Return the binding of a pod's container to a cgroup, or raise `BindingError`.

    `own` is the agent's own cgroup. The subgroup that a runtime made for its process stands for
    the container's cgroup around it. A cgroup that is bound to a container of another pod is
    rejected: its processes would run on CPUs of a pod they do not belong to. So is a cgroup inside
    or around one that is or was bound: it cannot have the sets of both.
    """
    asked = f"{full_name(pod)} {container} to /{cgroup}"
    if pod.container(container) is None:
        names = ", ".join(allocation.name for allocation in pod.containers)
        raise BindingError(asked, f"the pod has no container {container!r}", f"it has {names}")
    cgroup = _around_subgroup(cgroup, pod_cgroup(tree, layout, pod))
    if not cgroup:
        raise BindingError(asked, "that is the root of all cgroups", _NAME_CONTAINERS)
    if not tree.exists(cgroup):
        raise BindingError(asked, "there is no such cgroup", "name a cgroup that exists")
    if cgroup == layout.pods():
        raise BindingError(asked, "that is the cgroup of all pods", _NAME_CONTAINERS)
    new = Binding(pod.uid, container, cgroup)
    why = _why_not(tree, layout, pod, cgroup, own)
    if why is not None:
        raise BindingError(asked, why, _NAME_CONTAINERS)
    beside = _why_not_beside(pod_cgroup(tree, layout, pod), new, others)
    if beside is not None:
        raise BindingError(asked, *beside)
    return new


def _around_subgroup(cgroup: str, own_pod: str) -> str:
    above, _, name = cgroup.rpartition("/")
    inside = name in RUNTIME_SUBGROUPS and parse_container(above.rpartition("/")[2]) is not None
    return above if inside and above != own_pod else cgroup


def _why_not_beside(own_pod: str, new: Binding, others: OtherBindings) -> tuple[str, str] | None:
    """Return why a cgroup conflicts with another binding, and what to do."""
    home = f"{own_pod}/"
    for old in others.bindings:
        who = f"/{old.cgroup} is bound to container {old.container} of pod {old.pod_uid}"
        same = (old.pod_uid, old.container) == (new.pod_uid, new.container)
        if old.cgroup == new.cgroup and old.pod_uid not in (new.pod_uid, *_gone(old, others)):
            release = f"bind that container to its own cgroup or remove pod {old.pod_uid} first"
            return who, f"{_NAME_CONTAINERS}; if this is the one, {release}"
        if _nested(old.cgroup, new.cgroup) and not (same and new.cgroup.startswith(home)):
            return who, _NAME_CONTAINERS
    for cgroup in others.bindings.released:
        if _nested(cgroup, new.cgroup) and not new.cgroup.startswith(home):
            why = f"/{cgroup} was bound before; what runs there is confined to the shared pool"
            return why, f"end what runs in /{cgroup}, then bind again"
    return None


def _gone(binding: Binding, others: OtherBindings) -> tuple[str, ...]:
    """Return the pod of a binding when it is no longer in the ledger."""
    return () if binding.pod_uid in others.pods else (binding.pod_uid,)


def _nested(one: str, other: str) -> bool:
    return one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _why_not(
    tree: CgroupTree, layout: Layout, pod: PodAllocation, cgroup: str, own: str
) -> str | None:
    own_pod = pod_cgroup(tree, layout, pod)
    if cgroup.startswith(f"{own_pod}/"):
        return None
    if cgroup == own_pod:
        return "it is the cgroup of the whole pod"
    if f"{cgroup}/".startswith(f"{layout.pods()}/"):
        return "it belongs to another pod"
    return _why_not_elsewhere(tree, cgroup, own)


def _is_systemds(name: str) -> bool:
    """Return whether a unit is systemd's own; some have cgroups below theirs, as udevd does."""
    return name in _SYSTEMD_OWN or (name.startswith("systemd-") and name.endswith(".service"))


def _why_not_elsewhere(tree: CgroupTree, cgroup: str, own: str) -> str | None:
    name = cgroup.rpartition("/")[2]
    if own and (f"{own}/".startswith(f"{cgroup}/") or cgroup.startswith(f"{own}/")):
        return "it is the agent's own cgroup"
    if any(_is_systemds(part) for part in cgroup.split("/")):
        return "it belongs to the service manager"
    if name.endswith(".slice"):
        return "it is a slice, which may contain several containers"
    others = [child for child in tree.children(cgroup) if child not in RUNTIME_SUBGROUPS]
    if others:
        return f"it has cgroups in it ({', '.join(others[:3])})"
    if parse_container(name) is None:
        return "it is not a scope, a service or a plain directory"
    return None
