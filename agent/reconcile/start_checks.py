"""Start checks: whether the host has what enforcement needs, or one line on what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.desired import no_host_settings, no_partitions
from agent.reconcile.diff import unknown_writer
from agent.reconcile.drivers import DirectoryCgroups, SliceCgroups
from agent.reconcile.enforced import EVERYTHING
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.report import EnforcementStartError
from cgroupfs.errors import CgroupNameError, CgroupRootError
from cgroupfs.names import Driver, Layout
from cgroupfs.tree import KernelTree, check_usable

if TYPE_CHECKING:
    from pathlib import Path

    from agent.reconcile.desired import HostSettings, PartitionWords
    from agent.reconcile.diff import WriterOf
    from agent.reconcile.drivers import PodCgroups
    from agent.reconcile.enforced import EnforcedControllers
    from agent.runtimes import ContainerIdentifier
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd


def open_tree(mount: Path, *, require_kernel: bool = True) -> KernelTree:
    """Return the cgroup v2 tree mounted at `mount`, writable and with `cpuset` and `cpu`.

    `require_kernel` False accepts a directory with the same files (the emulated kernel).
    Raises `EnforcementStartError`.
    """
    try:
        tree = KernelTree(mount, require_kernel=require_kernel)
        check_usable(mount)
    except CgroupRootError as error:
        raise EnforcementStartError(f"cgroup v2 at {mount}", error.found, error.remedy) from error
    return tree


def make_layout(driver: str, root: str = "/") -> Layout:
    """Return the layout of a configured `cgroupDriver` and `cgroupRoot`.

    Raises `EnforcementStartError` naming the drivers there are.
    """
    try:
        return Layout(Driver(driver), root)
    except CgroupNameError as error:
        raise EnforcementStartError("cgroupRoot", str(error), "use plain names") from error
    except ValueError:
        known = " or ".join(Driver)
        raise EnforcementStartError(
            "cgroupDriver", f"{driver!r} is not known", f"use {known}"
        ) from None


def make_enforcer(  # noqa: PLR0913  # what an enforcer is made of
    tree: CgroupTree,
    layout: Layout,
    systemd: Systemd | None,
    finder: ContainerIdentifier | None = None,
    enforced: EnforcedControllers = EVERYTHING,
    writer_of: WriterOf = unknown_writer,
    *,
    beside_kubelet: bool = False,
    beside: HostSettings = no_host_settings,
    partitions: PartitionWords = no_partitions,
) -> Enforcer:
    """Return the enforcer of a driver; `systemd` may be None for cgroupfs.

    `beside_kubelet`: the kubelet makes and removes the cgroups of the pods. `beside` says what the
    host's own cgroups are to have, `partitions` which pods are partitions. Raises
    `EnforcementStartError` when the systemd driver is asked for without systemd.
    """
    pods: PodCgroups
    if layout.driver is Driver.CGROUPFS:
        pods = DirectoryCgroups(tree, makes=not beside_kubelet)
    elif systemd is not None:
        pods = SliceCgroups(tree, systemd, makes=not beside_kubelet)
    else:
        raise EnforcementStartError(
            "cgroupDriver systemd",
            "there is no connection to systemd",
            "run where systemd runs, or use cgroupDriver: cgroupfs",
        )
    return Enforcer(tree, layout, pods, finder, enforced, writer_of, beside, partitions=partitions)
