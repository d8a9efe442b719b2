"""Reading a whole host from a root directory."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from sysfs.cpus import read_core_kinds, read_cpu_sets, read_topology, read_uncore, read_uncore_sizes
from sysfs.devices import read_devices
from sysfs.files import SysfsTree
from sysfs.host import CoreKind, Cpu, Host
from sysfs.nodes import nodes_of_cpus, read_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sysfs.cpus import CpuSets
    from sysfs.host import Node


def discover(root: Path, *, devices: bool = True) -> Host:
    """Return the facts of the host whose `sys` (and `proc`) stand below a root directory.

    Without `devices`, PCI devices and network interfaces are not read: on hosts with many that
    takes as long as all the rest.

    The root is `/` on a live host, or a directory with an unpacked capture. Every fallback is
    documented where it is taken and in docs/discovery.md. A file that may be absent and is odd
    costs its own fact and a line of `Host.warnings`. Raises a `SysfsError` that names the file
    where the tree does not describe a host: no CPU online, an online CPU without its core, a
    node without its CPUs.
    """
    return read_host(SysfsTree(root), live=str(root) == "/", devices=devices)


def read_host(tree: SysfsTree, *, live: bool = False, devices: bool = True) -> Host:
    """Return the host of a tree; `live` asks netlink for the interfaces as well."""
    sets = read_cpu_sets(tree)
    nodes = read_nodes(tree, sets.online)
    uncore = read_uncore(tree, sets.online)
    return Host(
        cpus=_cpus(tree, sets, nodes, uncore),
        nodes=nodes,
        devices=read_devices(tree, sets.online, live=live) if devices else (),
        nohz_full=sets.nohz_full & sets.present,
        uncore_bytes=MappingProxyType(read_uncore_sizes(tree, uncore)),
        warnings=tree.warnings,
    )


def _cpus(
    tree: SysfsTree, sets: CpuSets, nodes: tuple[Node, ...], uncore: Mapping[int, int]
) -> tuple[Cpu, ...]:
    topology = read_topology(tree, sets.online)
    kinds = read_core_kinds(tree, sets.online)
    node_of = nodes_of_cpus(tree, nodes, sets.present)
    return tuple(
        Cpu(
            id=cpu,
            online=cpu in sets.online,
            isolated=cpu in sets.isolated,
            core=topology.cores.get(cpu),
            cluster=topology.clusters.get(cpu),
            die=topology.dies.get(cpu),
            package=topology.packages.get(cpu),
            node=node_of.get(cpu),
            uncore=uncore.get(cpu),
            kind=kinds.get(cpu, CoreKind.STANDARD),
        )
        for cpu in sets.present
    )
