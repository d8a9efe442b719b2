"""Whether running containers are where the documents say, by what the kernel shows of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel, machine, workloads
from tests.guest.inside.checks import wait_until
from tests.guest.inside.pods import GIB, Exclusive, NodeShared, Placement, PodShared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.pods import Example
    from tests.guest.inside.workloads import Workload

PAGE: Final = 4096


def exclusive_cpus(example: Example, running: Mapping[str, Workload]) -> frozenset[int]:
    """Return the CPUs that a pod's running containers take out of the node's shared pool."""
    assert example.placements is not None
    taken: frozenset[int] = frozenset()
    for name, placement in zip(example.containers, example.placements, strict=True):
        if isinstance(placement, (Exclusive, PodShared)):
            taken |= running[name].cgroup.cpus
    return taken


def check_pod(
    checks: Checks,
    example: Example,
    running: Mapping[str, Workload],
    pod: kernel.Cgroup,
    background: Workload,
) -> None:
    """Check a pod's running containers, its own cgroup, and what is left for all others."""
    assert example.placements is not None
    pairs = list(zip(example.containers, example.placements, strict=True))
    for name, placement in pairs:
        title = f"{example.name} {name}"
        check_container(checks, title, running[name], placement, background)
        limit = partial(running[name].cgroup.millicores_within, pod)
        desired = _quota(example, placement)
        checks.eventually(f"{title}: cpu.max", limit, desired, running[name].cgroup)
    _check_apart(checks, example, running)
    taken = exclusive_cpus(example, running)
    rest = machine.cpus() - taken
    title = f"{example.name}: all others have the rest"
    others = background.cgroup
    checks.eventually(title, lambda: others.cpus, rest, others)
    runs = partial(kernel.affinity, background.pid)
    checks.eventually(f"{example.name}: and runs there", runs, rest, others)
    _check_pod_cgroup(checks, example, pod, taken)
    _check_limits(checks, example, running, pod)


#: What the kubelet makes of a pod's CPU request: 2 to 262,144 shares (1,024 for a CPU), spread over
#: weights from 1 to 10,000.
WEIGHTS: Final = {0: 1, 4: 157, 5: 196}


def _check_limits(
    checks: Checks, example: Example, running: Mapping[str, Workload], pod: kernel.Cgroup
) -> None:
    """Check weight, memory and huge pages of a pod, and the memory of its containers."""
    asked = example.budget or sum(example.cpus)
    title = f"{example.name}: limits of the pod"
    shown = {name: pod.read(name) for name in ("cpu.weight", "memory.max", "hugetlb.2MB.max")}
    most = str(asked * GIB) if asked else "max"
    expected = {"cpu.weight": str(WEIGHTS[asked]), "memory.max": most, "hugetlb.2MB.max": "0"}
    checks.equal(title, shown, expected, pod)
    for name, cpus in zip(example.containers, example.cpus, strict=True):
        cgroup = running[name].cgroup
        limit = cpus * GIB if cpus else None
        title = f"{example.name} {name}: memory.max"
        checks.eventually(title, partial(cgroup.memory_within, pod), limit, cgroup)


def _settle(workload: Workload, placement: Placement, background: Workload) -> None:
    """Wait until the agent has seen a new container (systemd may start it without a cpuset)."""

    def pinned() -> bool:
        try:
            return len(workload.cgroup.cpus) == _size(placement, background)
        except FileNotFoundError:
            return False

    wait_until(pinned)


def _size(placement: Placement, background: Workload) -> int:
    if isinstance(placement, (Exclusive, PodShared)):
        return placement.cpus
    return len(background.cgroup.cpus)


def check_container(
    checks: Checks,
    title: str,
    workload: Workload,
    placement: Placement,
    background: Workload,
    nodes: int = 1,
) -> None:
    """Wait until the agent has seen a container, then check its CPUs and its memory nodes.

    What is not the node's shared pool lies on this many NUMA nodes.
    """
    _settle(workload, placement, background)
    cgroup, cpus = workload.cgroup, workload.cgroup.cpus
    checks.equal(f"{title}: number of CPUs", len(cpus), _size(placement, background), cgroup)
    # The kernel shows a set before it has gone through the processes in it.
    runs = partial(kernel.affinity, workload.pid)
    checks.eventually(f"{title}: sched_getaffinity", runs, cpus, cgroup)
    if isinstance(placement, (Exclusive, PodShared)):
        own = machine.nodes_of(cpus)
        checks.equal(f"{title}: number of its nodes", len(own), nodes, cgroup)
        _check_memory(checks, title, workload, own)
    else:
        checks.equal(f"{title}: the node's shared pool", cpus, background.cgroup.cpus, cgroup)
        _check_memory(checks, title, workload, machine.memory_nodes())
    if isinstance(placement, Exclusive):
        checks.equal(f"{title}: periods throttled", cgroup.throttled, 0, cgroup)


def _quota(example: Example, placement: Placement) -> int | None:
    """Return the quota in millicores: none on exclusive CPUs, else the pod's budget.

    Of a budget those who run in the node's shared pool have what the exclusive CPUs leave, each an
    equal part.
    """
    if isinstance(placement, Exclusive) or not example.budget:
        return None
    budget = example.budget * 1000
    others = [one for one in example.placements or () if isinstance(one, NodeShared)]
    exclusive = sum(one.cpus for one in example.placements or () if isinstance(one, Exclusive))
    if not exclusive or placement not in others:
        return budget
    return (budget - exclusive * 1000) // len(others)


def _check_memory(checks: Checks, title: str, workload: Workload, nodes: frozenset[int]) -> None:
    cgroup = workload.cgroup
    checks.eventually(f"{title}: cpuset.mems.effective", lambda: cgroup.mems, nodes, cgroup)
    allowed = partial(kernel.memory_nodes, workload.pid)
    checks.eventually(f"{title}: Mems_allowed", allowed, nodes, cgroup)

    def resident() -> int:
        pages = kernel.anonymous_pages(workload.pid)
        return sum(pages.get(node, 0) for node in nodes)

    # The set is in effect before the kernel has moved the pages that are elsewhere.
    wait_until(lambda: resident() >= workloads.ALLOCATED // PAGE)
    pages = kernel.anonymous_pages(workload.pid)
    checks.check(
        f"{title}: its memory lies there", resident() >= workloads.ALLOCATED // PAGE, pages
    )


def _check_apart(checks: Checks, example: Example, running: Mapping[str, Workload]) -> None:
    """Check that exclusive sets are disjoint from all others and pod-shared sets are one set."""
    assert example.placements is not None
    pairs = list(zip(example.containers, example.placements, strict=True))
    sets = {name: running[name].cgroup.cpus for name, _ in pairs}
    for name, placement in pairs:
        if isinstance(placement, Exclusive):
            others = frozenset().union(*(cpus for other, cpus in sets.items() if other != name))
            checks.equal(
                f"{example.name}: only {name} has its CPUs", sets[name] & others, frozenset()
            )
    shared = {sets[name] for name, placement in pairs if isinstance(placement, PodShared)}
    if shared:
        checks.equal(f"{example.name}: one pod shared pool", len(shared), 1)


def _check_pod_cgroup(
    checks: Checks, example: Example, pod: kernel.Cgroup, taken: frozenset[int]
) -> None:
    """Check the pod's own cgroup: wide enough for its members, and no brake on exclusive ones."""
    assert example.placements is not None
    checks.check(
        f"{example.name}: the pod's set holds its containers'", taken <= pod.cpus, pod.cpus
    )
    exclusive = any(isinstance(placement, Exclusive) for placement in example.placements)
    quota = None if exclusive else example.budget * 1000 or None
    checks.eventually(f"{example.name}: the pod's cpu.max", lambda: pod.millicores, quota, pod)
    if taken:
        checks.equal(f"{example.name}: all on one node", len(machine.nodes_of(taken)), 1)
