"""Weights and limits of memory: what follows from a pod, and what the kernel is made to show."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from msgspec.structs import replace

from agent.managers.allocation import ContainerAllocation, CpuLimits, Origin, PodAllocation
from agent.pods.model import QosClass
from agent.reconcile.desired import Role, desired_cgroups
from agent.reconcile.diff import Cause
from agent.reconcile.drivers import DirectoryCgroups
from agent.reconcile.enforced import EVERYTHING, EnforcedControllers
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.identify import IdentifiedBy, Located
from agent.reconcile.pod_cgroups import IdentifiedCgroups, LocatedPod
from agent.reconcile.values import container_defaults, container_memory, cpu_weight, pod_values
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Driver
from sysfs.mask import Mask
from tests.agent.reconcile.pods import (
    ONLINE,
    OTHER,
    UID,
    by_pod,
    directories,
    kernel,
    layout,
    on_host,
    path_of,
    pod,
    run,
    slices,
    target,
)

GIB = 1 << 30
PAGES = EnforcedControllers(page_sizes=(2 << 20, 1 << 30))
TIERED = EnforcedControllers(reserves_memory=True)


def limited(
    *containers: ContainerAllocation,
    uid: str = UID,
    request: int | None = 2000,
    qos: QosClass = QosClass.BURSTABLE,
    **limits: int,
) -> PodAllocation:
    """Return a pod with limits by memory type (`hugepages_2Mi` for `hugepages-2Mi`)."""
    sizes = {name.replace("_", "-"): size for name, size in limits.items()}
    allocation = pod(*(containers or (on_host("a"),)), uid=uid, qos=qos)
    return replace(allocation, cpu=CpuLimits(request, None), limits=MappingProxyType(sizes))


def of_pages(name: str, size: int) -> dict[str, str]:
    """Return the files that limit huge pages of a size: their use, and what mmap may reserve."""
    return {f"hugetlb.{name}.{file}": str(size) for file in ("max", "rsvd.max")}


def with_limit(name: str, **limits: int) -> ContainerAllocation:
    sizes = {key.replace("_", "-"): size for key, size in limits.items()}
    return replace(on_host(name), limits=MappingProxyType(sizes))


@pytest.mark.parametrize(
    ("millis", "weight"),
    # A kubelet v1.36 on cgroup v2 shows 20, 39 and 79 for half a CPU, one and two.
    [(0, 1), (2, 1), (500, 20), (1000, 39), (2000, 79), (256_000, 10_000)],
)
def test_a_weight_is_the_kubelets(millis: int, weight: int) -> None:
    assert cpu_weight(millis) == weight


@pytest.mark.parametrize(
    ("allocation", "values"),
    [
        (
            limited(memory=GIB + 1, hugepages_2Mi=(4 << 20) + 1),
            {
                "cpu.weight": "79",
                "memory.max": str(GIB),
                **of_pages("2MB", 4 << 20),
                **of_pages("1GB", 0),
            },
        ),
        (limited(qos=QosClass.BEST_EFFORT, request=None), {"cpu.weight": "1"}),
        (limited(memory=1 << 63), {"cpu.weight": "79", "memory.max": "max"}),
        (replace(limited(memory=GIB), origin=Origin.IMPORTED), {}),
    ],
    ids=["in whole pages", "without a limit", "an endless limit", "an unknown specification"],
)
def test_a_pod_has_its_weight_its_limits_and_no_huge_pages_unasked(
    allocation: PodAllocation, values: dict[str, str]
) -> None:
    pages = PAGES if "hugetlb.2MB.max" in values else EVERYTHING
    assert pod_values(allocation, None, pages) == values


def test_a_controller_that_is_left_to_others_sets_nothing() -> None:
    allocation, container = limited(memory=GIB), with_limit("a", memory=GIB, hugepages_2Mi=2 << 20)
    only_sets = replace(PAGES, controllers=frozenset({"cpuset"}))
    assert pod_values(allocation, None, only_sets) == {}
    assert container_defaults(allocation, container, only_sets) == {}
    assert container_defaults(allocation, container, PAGES) == {
        "memory.max": str(GIB),
        **of_pages("2MB", 2 << 20),
    }


# Shows in differences.md: huge-page-limits
def test_no_huge_pages_are_left_to_a_container_that_states_none_beside_others() -> None:
    """Unless the pod as a whole states more than its containers: then each may use any."""
    containers = with_limit("a", hugepages_2Mi=4 << 20), on_host("b")
    allocation = limited(*containers, hugepages_2Mi=4 << 20)
    assert container_defaults(allocation, containers[1], PAGES) == of_pages("2MB", 0)
    of_pod = replace(allocation, limits={"hugepages-2Mi": 8 << 20})
    assert container_defaults(of_pod, containers[1], PAGES) == {}


def requesting(
    request: int, limit: int, qos: QosClass
) -> tuple[PodAllocation, ContainerAllocation]:
    """Return a pod of two such containers, of MiB, and one of these."""
    container = replace(with_limit("a", memory=limit << 20), memory_request=request << 20)
    if not limit:
        container = replace(container, limits={})
    other = replace(container, name="b")
    allocation = replace(limited(container, other, qos=qos), requests={"memory": 2 * request << 20})
    return allocation, container


@pytest.mark.parametrize(
    ("qos", "file", "unset"),
    [
        (QosClass.GUARANTEED, "memory.min", "memory.low"),
        (QosClass.BURSTABLE, "memory.low", "memory.min"),
    ],
)
def test_requested_memory_is_reserved_for_pods_and_containers_by_their_class(
    qos: QosClass, file: str, unset: str
) -> None:
    allocation, container = requesting(64, 64, qos)
    of_pod = pod_values(allocation, None, TIERED)
    of_container = container_memory(allocation, container, TIERED, 0)
    assert (of_pod[file], of_container) == (str(128 << 20), {file: str(64 << 20)})
    assert unset not in of_pod
    assert not pod_values(allocation, None, EVERYTHING).keys() & {file}
    assert container_memory(allocation, container, EVERYTHING, 0) == {}
    best_effort = replace(allocation, qos=QosClass.BEST_EFFORT)
    assert container_memory(best_effort, container, TIERED, 0) == {}


# Shows in differences.md: memory-high
@pytest.mark.parametrize(
    ("qos", "request_mib", "limit_mib", "high"),
    [
        # KEP-2570, "Reasons for changing the formula": request 500 and 800 of 1000.
        (QosClass.BURSTABLE, 500, 1000, 800 << 20),
        (QosClass.BURSTABLE, 800, 1000, 920 << 20),
        (QosClass.BURSTABLE, 1000, 1000, None),
        # Without a limit the node's allocatable memory stands for one, in whole pages.
        (QosClass.BURSTABLE, 100, 0, 1_300 << 20),
        (QosClass.BEST_EFFORT, 0, 0, 1_260 << 20),
        (QosClass.BURSTABLE, 3000, 0, None),
        (QosClass.GUARANTEED, 1000, 1000, None),
    ],
)
def test_containers_are_slowed_down_from_where_the_kubelet_does(
    qos: QosClass, request_mib: int, limit_mib: int, high: int | None
) -> None:
    allocation, container = requesting(request_mib, limit_mib, qos)
    throttled = replace(EVERYTHING, throttling=0.6)
    values = container_memory(allocation, container, throttled, 2100 << 20)
    assert values == {"memory.high": "max" if high is None else str(high)}
    recovered = replace(allocation, origin=Origin.RECOVERED)
    assert container_memory(recovered, container, throttled, 2100 << 20) == {}


@pytest.mark.parametrize("qos", QosClass)
def test_an_ephemeral_container_is_slowed_down_as_one_that_states_nothing(qos: QosClass) -> None:
    """The kubelet goes by the container alone (kubernetes/kubernetes#138139)."""
    allocation, _ = requesting(0 if qos is QosClass.BEST_EFFORT else 128, 128, qos)
    throttled = replace(EVERYTHING, throttling=0.5)
    debug = Located(f"{path_of(allocation)}/debug", None, IdentifiedBy.EPHEMERAL)
    located = LocatedPod(path_of(allocation), exists=True, containers=(debug,))
    seen = IdentifiedCgroups({allocation.uid: located})
    aim = replace(target(allocation), capacity={"memory": 2 * GIB})
    values = {item.role: item.setting.values for item in desired_cgroups(aim, seen, throttled)}
    assert values[Role.EPHEMERAL]["memory.high"] == str(GIB)
    none = desired_cgroups(aim, seen, EVERYTHING)
    assert all("memory.high" not in item.setting.values for item in none)


def shown(tree: EmulatedKernel, path: str, *files: str) -> dict[str, str]:
    texts = tree.read_many(path, files)
    return {file: (text or "none").strip() for file, text in zip(files, texts, strict=True)}


# Shows in differences.md: system-reserved, memory-low
def test_kubepods_is_limited_and_reserves_what_its_pods_request() -> None:
    tree = kernel()
    kept = {"cpu": 1000, "memory": GIB, "hugepages-2Mi": 64 << 20, "pid": 1000}
    everything = replace(TIERED, page_sizes=PAGES.page_sizes, most_processes=32768)
    enforcer = directories(tree, replace(everything, reserved=kept))
    burstable, _ = requesting(64, 128, QosClass.BURSTABLE)
    guaranteed = replace(requesting(128, 128, QosClass.GUARANTEED)[0], uid=OTHER)
    pages = {"hugepages-2Mi": 128 << 20, "hugepages-1Gi": 0}
    aim = replace(target(burstable), capacity={"cpu": 3000, "memory": 5 * GIB, **pages})
    both = replace(target(burstable, guaranteed), capacity=aim.capacity)
    assert enforcer.enforce(both).ok
    node = {"memory.max": str((4096 - 64) << 20), "cpu.weight": "79", "pids.max": "31768"}
    node |= of_pages("2MB", 64 << 20) | of_pages("1GB", 0)
    reserved = {"memory.min": str(384 << 20), "memory.low": str(128 << 20)}
    assert shown(tree, "kubepods", *node, *reserved) == node | reserved
    of_class = {"memory.min": "0", "memory.low": str(128 << 20)}
    assert shown(tree, "kubepods/burstable", *of_class) == of_class
    enforcer.releaser.pod(guaranteed)
    assert enforcer.enforce_change(aim).ok
    assert shown(tree, "kubepods", "memory.min") == {"memory.min": str(128 << 20)}
    off = replace(everything, reserved=kept, limits_all_pods=False, reserves_memory=False)
    assert directories(tree, off).enforce(aim).ok
    none = {"memory.max": str(5 * GIB), "memory.min": "0", "memory.low": "0"}
    none |= of_pages("2MB", 128 << 20) | {"pids.max": "32768"}
    assert shown(tree, "kubepods", *none) == none
    assert shown(tree, "kubepods/burstable", "memory.low") == {"memory.low": "0"}


def test_huge_pages_that_count_as_memory_are_in_its_limits_and_reservations() -> None:
    """Else a pod could never use both: its processes would wait for memory for good."""
    tree = EmulatedKernel(ONLINE, Mask.parse("0-1"), counts_huge_pages=True)
    counting = replace(PAGES, counts_huge_pages=True, reserves_memory=True, throttling=0.5)
    kept = replace(counting, reserved={"memory": GIB})
    both = {"memory": 2 * GIB, "hugepages-2Mi": GIB}
    container = replace(with_limit("a"), limits=both, memory_request=GIB)
    beside = with_limit("b", memory=GIB)
    allocation = replace(limited(container, beside), limits={**both, "memory": 3 * GIB})
    allocation = replace(allocation, requests={"memory": GIB, "hugepages-2Mi": GIB})
    aim = replace(target(allocation), capacity={"memory": 8 * GIB, "hugepages-2Mi": 3 * GIB})
    enforcer = directories(tree, kept)
    enforcer.enforce(aim)
    path = path_of(allocation)
    for pid, name in enumerate("ab", 1):
        run(tree, f"{path}/{name}", pid)
    tree.use(f"{path}/a", "memory.max", 2 * GIB)
    tree.use(f"{path}/a", "hugetlb.2MB.max", GIB)
    assert enforcer.enforce(aim).ok
    assert tree.read(path, "memory.current").strip() == str(3 * GIB)
    files = ("memory.max", "memory.low", "memory.high")
    found = {each: shown(tree, each, *files) for each in (path, f"{path}/a", f"{path}/b")}
    sizes = {path: (4, 2, "max"), f"{path}/a": (3, 2, 2.5), f"{path}/b": (1, 0, 0.5)}
    assert {
        each: tuple(text if text == "max" else int(text) / GIB for text in texts.values())
        for each, texts in found.items()
    } == sizes
    # What is allocatable is memory less huge pages, which count here, too.
    assert shown(tree, "kubepods", *files[:2]) == {
        "memory.max": str(7 * GIB),
        "memory.low": str(2 * GIB),
    }
    whole = directories(tree, replace(kept, limits_all_pods=False))
    assert whole.enforce(aim).ok
    assert shown(tree, "kubepods", "memory.max") == {"memory.max": str(8 * GIB)}
    any_pages = replace(allocation, limits={**allocation.limits, "hugepages-2Mi": 2 * GIB})
    assert container_defaults(any_pages, beside, kept) == {"memory.max": str(3 * GIB)}
    assert container_defaults(any_pages, beside, PAGES) == {"memory.max": str(GIB)}


def test_a_container_gets_its_limit_where_its_runtime_set_none() -> None:
    tree = kernel()
    enforcer = directories(tree, PAGES)
    allocation = limited(
        with_limit("a", memory=GIB, hugepages_2Mi=2 << 20), on_host("b"), memory=3 * GIB
    )
    enforcer.enforce(target(allocation))
    path = path_of(allocation)
    run(tree, f"{path}/a", 1)
    run(tree, f"{path}/b", 2)
    assert enforcer.enforce(target(allocation)).ok
    assert shown(tree, f"{path}/a", "memory.max", "hugetlb.2MB.max") == {
        "memory.max": str(GIB),
        "hugetlb.2MB.max": str(2 << 20),
    }
    tree.write(f"{path}/a", "memory.max", str(2 * GIB))  # its runtime resized it
    report = enforcer.repair(target(allocation))
    assert report.ok
    assert not report.found
    assert not report.writes
    assert shown(tree, f"{path}/a", "memory.max") == {"memory.max": str(2 * GIB)}
    assert shown(tree, f"{path}/b", "memory.max")["memory.max"] in ("max", "none")


def test_a_running_pod_is_taken_over_without_killing_and_says_so_until_it_fits() -> None:
    tree = kernel()
    enforcer = directories(tree, PAGES)
    allocation = limited(with_limit("a", memory=GIB), memory=GIB)
    path = path_of(allocation)
    known_without = replace(allocation, limits=MappingProxyType({}), containers=(on_host("a"),))
    enforcer.enforce(target(known_without))
    run(tree, f"{path}/a", 1)
    tree.write(path, "hugetlb.2MB.max", "max")
    for above in ("kubepods/burstable", path):
        tree.write(above, "cgroup.subtree_control", "+hugetlb +memory")
    tree.use(f"{path}/a", "memory.max", 3 * GIB)
    tree.use(f"{path}/a", "hugetlb.2MB.max", 2 << 20)
    reports = [enforcer.repair(target(allocation)) for _ in range(2)]
    for report in reports:
        assert tree.procs(f"{path}/a") == (1,)
        found = {(p.cgroup, p.file): p for p in report.remaining}
        assert set(found) == {
            (path, "memory.max"),
            (path, "hugetlb.2MB.max"),
            (f"{path}/a", "memory.max"),
        }
        assert {p.cause for p in found.values()} == {Cause.IN_USE}
        assert "more than that is in use" in found[path, "memory.max"].detail
        assert set(by_pod(report)) == {UID}
        assert not report.drift
    tree.use(f"{path}/a", "memory.max", GIB // 2)
    tree.use(f"{path}/a", "hugetlb.2MB.max", 0)
    report = enforcer.repair(target(allocation))
    assert report.ok
    assert not report.drift  # no setting was changed by another process
    assert shown(tree, f"{path}/a", "memory.max") == {"memory.max": str(GIB)}
    assert tree.procs(f"{path}/a") == (1,)


def test_a_controller_that_the_kernel_does_not_offer_is_reported_once_and_not_missed() -> None:
    tree = EmulatedKernel(ONLINE, Mask.parse("0-1"), controllers=("cpuset", "cpu"))
    enforcer = Enforcer(tree, layout(), DirectoryCgroups(tree), enforced=PAGES)
    prepared = enforcer.prepare()
    assert prepared.ok
    assert [line.partition(",")[0] for line in prepared.notes] == [
        "the kernel offers no hugetlb controller here",
        "the kernel offers no memory controller here",
        "the kernel offers no pids controller here",
    ]
    assert enforcer.enforce(target(limited(memory=GIB))).ok


def test_no_limit_that_would_kill_is_recorded_in_systemd() -> None:
    tree = kernel()
    enforcer, systemd = slices(tree)
    allocation = limited(memory=GIB)
    path = path_of(allocation, Driver.SYSTEMD)
    unit = path.rpartition("/")[2]
    enforcer.enforce(target(replace(allocation, limits=MappingProxyType({}))))
    tree.use(path, "memory.max", 2 * GIB)
    assert not enforcer.repair(target(allocation)).ok
    assert systemd.properties[unit].get("MemoryMax") is None
    assert shown(tree, path, "memory.max") == {"memory.max": "max"}
