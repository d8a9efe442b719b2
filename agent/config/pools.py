"""The pools of shared CPUs that pods can be in: `agent.pools`.

In goes the list as a file has it, with CPUs and NUMA nodes; `pools_on` makes of it the pools of a
host. No name is listed twice, and no namespace or QoS class is in two pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.config.keys import Section, item_schema, key, parts, read, written
from agent.config.kinds import Kind, list_of_names, one_of, some_of, text_kind
from agent.config.text_kinds import CPU_LIST, NODE_LIST
from agent.managers.policy import Pool
from agent.pods.model import QosClass, label_fault
from agent.values import KeyChoice
from agent.yaml import Mistake, shown
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.kinds import KeyReader
    from agent.managers.machine import Machine
    from agent.yaml import Field
    from sysfs.mask import Mask

#: A pod's pool is looked for among all of them.
_MOST: Final = 64
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def _name(text: str) -> str:
    if fault := label_fault(text):
        raise ValueError(f"{shown(text)} is not the name of a pool: {fault}")
    return text


def _namespace_fault(text: str) -> str | None:
    fault = label_fault(text)
    return None if fault is None else f"is not the name of a namespace: {fault}"


class PoolMemory(KeyChoice):
    """Where the memory of pods in a pool is."""

    FREE = "free", "as for pods in no pool"
    BOUND = (
        "bound",
        "on the nodes of the pool's CPUs, however little is free; pinned memory stays as it is",
    )


class PoolConfig(Section, frozen=True):
    """One pool of `agent.pools`."""

    name: str = key(
        "",
        text_kind("name", {"type": "string", "pattern": f"^{_LABEL}$", "maxLength": 63}, _name),
        "The name of the pool.",
        is_required=True,
    )
    cpus: Mask | None = key(None, CPU_LIST, "Its CPUs.")
    nodes: Mask = key(EMPTY, NODE_LIST, "NUMA nodes whose CPUs it has, too.")
    namespaces: tuple[str, ...] = key(
        (),
        list_of_names("list of namespaces", f"^{_LABEL}$", _namespace_fault),
        "The namespaces of pods that are in it without an annotation.",
    )
    qos_classes: frozenset[QosClass] = key(
        frozenset(),
        some_of(QosClass),
        "The QoS classes of pods that are in it without an annotation; a namespace goes first.",
    )
    memory: PoolMemory = key(
        PoolMemory.FREE, one_of(PoolMemory), "Where the memory of its pods is."
    )


def _pools(reader: KeyReader, at: Field, _: tuple[PoolConfig, ...]) -> tuple[PoolConfig, ...]:
    pools: list[PoolConfig] = []
    owners: dict[tuple[str, str], str] = {}
    for item in reader.items(at):
        pool = read(reader, item, PoolConfig())
        if len(pools) == _MOST:
            reader.reject(item, f"there can be {_MOST} pools at most")
            break
        if pool.name and any(pool.name == each.name for each in pools):
            reader.reject(item, f"pool {shown(pool.name)} is listed twice")
        pods = [("namespace", name) for name in pool.namespaces]
        for what in (*pods, *(("QoS class", str(qos)) for qos in sorted(pool.qos_classes))):
            first = owners.setdefault(what, pool.name)
            if first != pool.name:
                reader.reject(item, f"{' '.join(what)} is in the pool {first}, too")
        pools.append(pool)
    return tuple(pools)


POOLS: Final[Kind[tuple[PoolConfig, ...]]] = Kind(
    "list of pools",
    {"type": "array", "items": item_schema(PoolConfig), "maxItems": _MOST},
    _pools,
    lambda pools: [written(pool) for pool in pools],
    parts=parts(PoolConfig),
)


def pools_on(pools: tuple[PoolConfig, ...], machine: Machine) -> tuple[Pool, ...]:
    """Return the pools of a host; CPUs that are offline or withheld stay listed."""
    return tuple(
        Pool(
            pool.name,
            (pool.cpus or EMPTY) | machine.cpus.cpus_in_nodes(pool.nodes),
            pool.namespaces,
            pool.qos_classes,
            bound=pool.memory is PoolMemory.BOUND,
        )
        for pool in pools
    )


def pool_problems(
    pools: tuple[PoolConfig, ...], machine: Machine, offline: Mask, kept: Mask
) -> Iterator[Mistake]:
    """Yield what of pools does not fit a host; `kept` are CPUs that no shared container has."""
    there = machine.cpus.all | offline | machine.withheld_cpus
    for number, (pool, made) in enumerate(zip(pools, pools_on(pools, machine), strict=True)):
        at, name = f"agent.pools[{number}]", f"pool {pool.name}"
        if unknown := made.cpus - there:
            yield Mistake(at, f"{name}: this host has no CPU {unknown}; its CPUs are {there}")
        elif unknown := pool.nodes - machine.node_mask:
            found = f"this host has no NUMA node {unknown}; its nodes are {machine.node_mask}"
            yield Mistake(at, f"{name}: {found}")
        elif not made.cpus - kept:
            why = f"no shared container gets {kept}" if made.cpus else "it lists none"
            yield Mistake(at, f"{name} has no CPU: {why}; list others")
