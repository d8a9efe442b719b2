"""The pools of shared CPUs that pods can be in: `agent.pools`.

In goes the list as a file has it, with CPUs and NUMA nodes; `pools_on` makes of it the pools of a
host. No name is listed twice, and no namespace or QoS class is in two pools.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from agent.config.keys import Section, item_schema, key, parts, read, switch, written
from agent.config.kinds import Kind, list_of_names, one_of, some_of, text_kind
from agent.config.text_kinds import CPU_LIST, NODE_LIST
from agent.managers.policy import Pool, PoolMemory
from agent.pods.model import QosClass, label_fault
from agent.yaml import Mistake, shown
from sysfs.host import CoreKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.kinds import KeyReader
    from agent.managers.machine import Machine
    from agent.yaml import Field

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
    core_kinds: frozenset[CoreKind] = key(
        frozenset(), some_of(CoreKind), "The kinds of cores of a hybrid host that it has, too."
    )
    isolated: bool = switch("Whether it has the CPUs of isolcpus, too.")
    per_node: bool = switch(
        "Whether each NUMA node with some of these CPUs (without any: of all) has a pool of its "
        "own, called NAME-0, NAME-1, and so on. Pods choose it by annotation."
    )
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
        PoolMemory.FREE,
        one_of(PoolMemory),
        "Where the memory of its pods is; pinned memory stays as it is.",
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
        if pool.per_node and (pool.namespaces or pool.qos_classes):
            reader.reject(
                item, "with perNode it has several pools, which pods choose by annotation"
            )
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
    return tuple(made for pool in pools for made in _pools_of(pool, machine))


def _pools_of(pool: PoolConfig, machine: Machine) -> Iterator[Pool]:
    cpus = (pool.cpus or EMPTY) | machine.cpus.cpus_in_nodes(pool.nodes)
    cpus |= Mask.union(machine.core_kinds.get(kind, EMPTY) for kind in pool.core_kinds)
    cpus |= machine.isolated if pool.isolated else EMPTY
    if not pool.per_node:
        named = {pool.name: cpus}
    else:
        stated = pool.cpus is not None or pool.nodes or pool.core_kinds or pool.isolated
        some = cpus if stated else machine.cpus.all
        of_node = {
            id_: some & machine.cpus.cpus_in_nodes(Mask.of(id_)) for id_ in machine.node_mask
        }
        # A node that is listed has a pool even while all of its CPUs are offline.
        named = {f"{pool.name}-{id_}": p for id_, p in of_node.items() if p or id_ in pool.nodes}
    for name, part in named.items():
        yield Pool(name, part, pool.namespaces, pool.qos_classes, pool.memory)


def pool_problems(
    pools: tuple[PoolConfig, ...], machine: Machine, offline: Mask, kept: Mask
) -> Iterator[Mistake]:
    """Yield what of pools does not fit a host; `kept` are CPUs that no shared container has."""
    absent = offline | machine.withheld_cpus
    there = machine.cpus.all | absent
    for number, pool in enumerate(pools):
        at = f"agent.pools[{number}]"
        if unknown := (pool.cpus or EMPTY) - there:
            message = f"this host has no CPU {unknown}; its CPUs are {there}"
            yield Mistake(at, f"pool {pool.name}: {message}")
            continue
        if unknown := pool.nodes - machine.node_mask:
            message = f"this host has no NUMA node {unknown}; its nodes are {machine.node_mask}"
            yield Mistake(at, f"pool {pool.name}: {message}")
            continue
        made = {each.name: each.cpus for each in _pools_of(pool, machine)}
        for name in made:
            if fault := label_fault(name):
                yield Mistake(at, f"pool {name}: no annotation can name it: {fault}")
        if not _absent_cpus(pool, machine, absent):
            yield from (Mistake(at, message) for message in _without_cpus(pool.name, made, kept))
    names = Counter(pool.name for pool in pools_on(pools, machine))
    for name, count in names.items():
        if count > 1:
            yield Mistake("agent.pools", f"pool {name} is made twice; call one of them otherwise")


def _absent_cpus(pool: PoolConfig, machine: Machine, absent: Mask) -> Mask:
    """Return which of the offline and withheld CPUs may be of a pool."""
    if pool.nodes or pool.core_kinds:
        return absent  # of which the node and the kind are not known
    return absent & ((pool.cpus or EMPTY) | (machine.isolated if pool.isolated else EMPTY))


def _without_cpus(pool: str, made: Mapping[str, Mask], kept: Mask) -> Iterator[str]:
    """Yield why pools have no CPU for shared containers; of several some may be empty, not all."""
    found = {name: cpus for name, cpus in made.items() if cpus} or {pool: EMPTY}
    for name, cpus in found.items():
        if not cpus - kept:
            why = f"no shared container gets {kept}" if cpus else "this host has none for it"
            yield f"pool {name} has no CPU: {why}; list others"
