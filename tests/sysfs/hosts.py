"""Hypothesis strategies for uneven hosts, for every test that needs one."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st
from msgspec.structs import replace

from sysfs.host import CoreKind, Cpu, Device, Host, HugePages, MemoryClass, Node
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PAGE_SIZES: Final = (64 << 10, 2 << 20, 1 << 30)
#: What a core begins again: a package, a die, a node, a cache, a cluster, or nothing.
_LEVELS: Final = 6


@dataclass(frozen=True)
class _Place:
    """Ordinal numbers of the groups that a core is in."""

    package: int = -1
    die: int = -1
    node: int = -1
    uncore: int = -1
    cluster: int = -1

    def begin(self, level: int) -> _Place:
        """Return the place of the next core, which begins a new group of this level."""
        counters = [self.package, self.die, self.node, self.uncore, self.cluster]
        return _Place(*(count + (place >= level) for place, count in enumerate(counters)))


@st.composite
def hosts(draw: st.DrawFn, *, devices: bool = True) -> Host:
    """Draw a host with up to 12 cores: any nesting, numbering, offline CPUs and memory."""
    places = draw(_places())
    kinds = draw(_kinds(len(places)))
    threads = draw(st.lists(st.integers(1, 4), min_size=len(places), max_size=len(places)))
    ids = draw(_ids(sum(threads), 255))
    package_ids = draw(_ids(places[-1].package + 1, 300))
    node_ids = draw(_ids(places[-1].node + 1, 400))
    shown = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    left = iter(ids)
    cpus = []
    for number, (place, kind, count) in enumerate(zip(places, kinds, threads, strict=True)):
        for _ in range(count):
            cpu = _cpu(next(left), number, place, kind, shown)
            cpus.append(replace(cpu, package=package_ids[place.package], node=node_ids[place.node]))
    offline = draw(st.sets(st.sampled_from(ids), max_size=len(ids) - 1))
    isolated = draw(st.sets(st.sampled_from(ids)))
    named = _relabelled(cpus, Mask.from_ids(offline), Mask.from_ids(isolated))
    host = Host(
        cpus=named,
        nodes=draw(_nodes(named, node_ids)),
        nohz_full=Mask.from_ids(draw(st.sets(st.sampled_from(ids)))),
        uncore_bytes=draw(_cache_sizes(named)),
    )
    return replace(host, devices=draw(_devices(host))) if devices else host


@st.composite
def _places(draw: st.DrawFn) -> list[_Place]:
    levels = draw(st.lists(st.integers(0, _LEVELS - 1), max_size=11))
    places = [_Place().begin(0)]
    for level in levels:
        places.append(places[-1].begin(level))
    return places


def _kinds(count: int) -> st.SearchStrategy[list[CoreKind]]:
    hybrid = st.sampled_from([CoreKind.PERFORMANCE, CoreKind.EFFICIENCY])
    return st.one_of(
        st.just([CoreKind.STANDARD] * count), st.lists(hybrid, min_size=count, max_size=count)
    )


def _ids(count: int, highest: int) -> st.SearchStrategy[list[int]]:
    """Draw distinct ids in any order, often without gaps."""
    sparse = st.lists(st.integers(0, highest), min_size=count, max_size=count, unique=True)
    return st.one_of(st.permutations(range(count)), sparse)


def _cpu(cpu: int, core: int, place: _Place, kind: CoreKind, shown: tuple[bool, bool, bool]) -> Cpu:
    return Cpu(
        id=cpu,
        online=True,
        isolated=False,
        core=core,
        cluster=place.cluster if shown[0] else None,
        die=place.die if shown[1] else None,
        package=None,
        node=None,
        uncore=place.uncore if shown[2] and place.uncore % 3 != 2 else None,
        kind=kind,
    )


def _relabelled(cpus: list[Cpu], offline: Mask, isolated: Mask) -> tuple[Cpu, ...]:
    """Name each group after its lowest online CPU, and take offline CPUs out of theirs."""
    online = [cpu for cpu in cpus if cpu.id not in offline]
    lowest = {
        name: _lowest(online, getter)
        for name, getter in (
            ("core", lambda cpu: cpu.core),
            ("cluster", lambda cpu: cpu.cluster),
            ("die", lambda cpu: cpu.die),
            ("uncore", lambda cpu: cpu.uncore),
        )
    }
    named = [
        replace(
            cpu,
            isolated=cpu.id in isolated,
            core=lowest["core"].get(cpu.core),
            cluster=lowest["cluster"].get(cpu.cluster),
            die=lowest["die"].get(cpu.die),
            uncore=lowest["uncore"].get(cpu.uncore),
        )
        for cpu in online
    ]
    named += [
        Cpu(cpu.id, False, cpu.id in isolated, None, None, None, None, cpu.node, None)  # noqa: FBT003
        for cpu in cpus
        if cpu.id in offline
    ]
    return tuple(sorted(named, key=lambda cpu: cpu.id))


def _lowest(cpus: list[Cpu], getter: Callable[[Cpu], int | None]) -> dict[int | None, int]:
    lowest: dict[int | None, int] = {}
    for cpu in sorted(cpus, key=lambda cpu: cpu.id):
        group = getter(cpu)
        if group is not None:
            lowest.setdefault(group, cpu.id)
    return lowest


def _cache_sizes(cpus: tuple[Cpu, ...]) -> st.SearchStrategy[Mapping[int, int]]:
    caches = sorted({cpu.uncore for cpu in cpus if cpu.uncore is not None})
    sizes = st.integers(1, 1 << 20).map(lambda kib: kib << 10)
    known = st.dictionaries(st.sampled_from(caches), sizes) if caches else st.just({})
    return known.map(MappingProxyType)


@st.composite
def _nodes(draw: st.DrawFn, cpus: tuple[Cpu, ...], used: list[int]) -> tuple[Node, ...]:
    more = draw(st.sets(st.integers(401, 500), max_size=3))
    ids = sorted({*used, *more})
    return tuple(
        Node(
            id=node,
            cpus=Mask.from_ids(cpu.id for cpu in cpus if cpu.online and cpu.node == node),
            memory_bytes=draw(_memory()),
            hugepages=draw(_hugepages()),
            tier=draw(st.sampled_from([None, 4, 22])),
            bandwidth=draw(st.one_of(st.none(), st.integers(1, 10**6))),
            backing=draw(
                st.sampled_from([None, MemoryClass.GPU, MemoryClass.CXL, MemoryClass.PMEM])
            ),
            distances=MappingProxyType(
                {other: 10 if other == node else draw(st.integers(11, 254)) for other in ids}
            ),
        )
        for node in ids
    )


def _memory() -> st.SearchStrategy[int | None]:
    return st.one_of(st.integers(0, 1 << 32).map(lambda kib: kib * 1024), st.none())


def _hugepages() -> st.SearchStrategy[tuple[HugePages, ...]]:
    pools = st.dictionaries(st.sampled_from(_PAGE_SIZES), st.integers(0, 1 << 20))
    return pools.map(lambda counts: tuple(HugePages(*pool) for pool in sorted(counts.items())))


@st.composite
def _devices(draw: st.DrawFn, host: Host) -> tuple[Device, ...]:
    numbers = sorted(draw(st.sets(st.integers(0, 255), max_size=4)))
    places = st.sampled_from([None, *(node.id for node in host.nodes)])
    near = st.sets(st.sampled_from(list(host.online))).map(Mask.from_ids)
    pci = [
        Device(
            kind="pci",
            name=f"0000:{number:02x}:00.0",
            address=f"0000:{number:02x}:00.0",
            node=draw(places),
            cpus=draw(near),
            vendor=draw(st.sampled_from(["", "0x8086"])),
            device="0x1572",
            device_class="0x020000",
        )
        for number in numbers
    ]
    behind = [device for device in pci if draw(st.booleans())]
    net = [
        Device("net", f"eth{number}", device.address, device.node, device.cpus)
        for number, device in enumerate(behind)
    ]
    other = [Device("net", "usb0", "", draw(places), EMPTY)] if draw(st.booleans()) else []
    return tuple(pci + net + other)


def with_isolated(host: Host, isolated: Mask) -> Host:
    """Return the host booted with `isolcpus=` these CPUs."""
    return replace(host, cpus=tuple(replace(cpu, isolated=cpu.id in isolated) for cpu in host.cpus))
