from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.map import map_of_host
from agent.tools.map.parts import cores_text, parts_of, runs_of
from sysfs.described import regular_host, with_offline
from sysfs.host import CoreKind
from sysfs.mask import Mask
from tests.sysfs.hosts import hosts

if TYPE_CHECKING:
    from agent.tools.map.parts import MappedPart
    from sysfs.host import Host


def _parts(host: Host) -> tuple[MappedPart, ...]:
    return parts_of(map_of_host(host))


@settings(max_examples=60, deadline=None)
@given(hosts())
def test_every_cpu_is_in_one_core_of_one_part(host: Host) -> None:
    cores = [core for part in _parts(host) for core in part.all_cores()]
    found = [cpu.id for core in cores for cpu in core.threads]
    assert sorted(found) == [cpu.id for cpu in host.cpus]
    for core in cores:
        assert len({cpu.core for cpu in core.threads}) == 1


def test_parts_nest_and_offline_cpus_are_a_part_of_their_own() -> None:
    host = with_offline(regular_host(packages=2, cores_per_node=2, threads=1), Mask.of(3))
    first, second, offline = _parts(host)
    assert (first.kind, str(first.cpus), str(second.cpus)) == ("package", "0-1", "2")
    assert [part.kind for part in first.children] == ["node"]
    assert [part.kind for part in first.children[0].children] == ["L3"]
    assert (offline.kind, offline.id, str(offline.cpus)) == ("offline", 1, "3")


def test_dies_are_shown_where_a_package_has_several() -> None:
    host = regular_host(packages=1, cores_per_node=2, threads=1)
    split = replace(host, cpus=tuple(replace(cpu, die=cpu.id) for cpu in host.cpus))
    (node,) = _parts(split)[0].children
    (cache,) = node.children
    assert (node.kind, cache.kind) == ("node", "L3")
    assert [part.kind for part in cache.children] == ["die", "die"]


def test_unknown_caches_and_packages_are_left_out() -> None:
    host = regular_host(packages=1, cores_per_node=2, threads=1)
    cpus = tuple(replace(cpu, uncore=None, package=None, die=None) for cpu in host.cpus)
    (node,) = _parts(replace(host, cpus=cpus))
    assert (node.kind, node.children, len(node.cores)) == ("node", (), 2)


def test_parts_that_differ_in_ids_alone_are_alike() -> None:
    assert [len(run) for run in runs_of(_parts(regular_host(packages=3)))] == [3]


def test_hybrid_cores_are_counted_by_kind() -> None:
    host = regular_host(packages=1, cores_per_node=3, threads=1)
    kinds = (CoreKind.PERFORMANCE, CoreKind.EFFICIENCY, CoreKind.EFFICIENCY)
    cpus = tuple(replace(cpu, kind=kind) for cpu, kind in zip(host.cpus, kinds, strict=True))
    (part,) = _parts(replace(host, cpus=cpus))
    assert cores_text(part.all_cores()) == "1 performance core + 2 efficiency cores"
