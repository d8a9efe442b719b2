"""How a budget of CPUs is divided: who is left without, and who shares a physical core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.cpu.pod_level import CpuPart, divide_cpus, empty_pool_problem
from agent.managers.cpu.topology import CpuTopology
from agent.managers.policy import CpuPolicyOptions
from agent.pods.model import Container, ContainerKind
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.demand import PodDemand
    from agent.pods.model import Resources


WHOLE = CpuPolicyOptions(full_pcpus_only=True)
RULES = make_rules()


def machine(threads: int) -> CpuTopology:
    host = regular_host(packages=2, nodes_per_package=2, cores_per_node=4, threads=threads)
    return CpuTopology.from_host(host)


TWO, FOUR = machine(2), machine(4)


def own(cpus: int) -> Resources:
    return guaranteed(f"cpu={cpus} memory=1Gi")


def demand(budget: int, *containers: Container) -> PodDemand:
    asked = pod(*containers, of_pod=guaranteed(f"cpu={budget} memory=99Gi"))
    return RULES.demand(asked)


@pytest.mark.parametrize(
    ("containers", "problem"),
    [
        ([app("a", own(4)), app("b")], "none is left for its shared containers"),
        ([app("a", own(2)), sidecar("s", own(2)), app("b")], "exclusive containers take all 4"),
        ([sidecar("s"), app("a", own(4))], "none is left for its shared containers"),
        ([sidecar("s", own(4)), init("i")], "none is left for the shared init container i"),
        ([sidecar("s", own(2)), init("i", own(3))], "init container i asks for 3 CPUs"),
    ],
)
def test_some_container_is_left_without(containers: list[Container], problem: str) -> None:
    assert problem in (empty_pool_problem(demand(4, *containers)) or "")


def test_the_policy_options_choose_within_the_budget() -> None:
    spread = CpuPolicyOptions(distribute_cpus_across_cores=True)
    bubble = Mask.parse("0-1,8-9")
    asked = demand(4, app("a", own(2)), app("b"))
    packed = divide_cpus(SMT.cpus, CpuPolicyOptions(), bubble, asked)
    assert packed["a"] == CpuPart(Mask.of(0, 8), exclusive=True)
    assert divide_cpus(SMT.cpus, spread, bubble, asked)["a"].cpus == Mask.of(0, 1)


def cores(topology: CpuTopology, number: int) -> Mask:
    """Return all threads of the first cores."""
    return Mask(sum(core.cpus for core in topology.cores[:number]))


def test_whole_cores_are_given_first_where_cores_differ_and_do_not_suffice() -> None:
    """Cores 0-1, 2-3 and CPU 4: three containers of one CPU and one of two need a core more."""
    hybrid = CpuTopology.from_rows((cpu, cpu // 2 * 2, 0, 0, 0) for cpu in range(5))
    asked = demand(5, *(app(name, own(1)) for name in "abc"), app("d", own(2)))
    parts = divide_cpus(hybrid, WHOLE, hybrid.all, asked)
    assert parts["a"].cpus == Mask.of(4)
    assert not hybrid.cores_of(parts["d"].cpus) - parts["d"].cpus


def test_without_the_option_a_slice_is_a_whole_core_where_cores_differ() -> None:
    """The budget has one whole core, (2,12), and halves of two others."""
    rows = [(cpu, {12: 2, 13: 3, 14: 4}.get(cpu, cpu), 0, 0, 0) for cpu in range(15)]
    uneven = CpuTopology.from_rows(rows)
    budget = Mask.parse("2,12-14")
    asked = demand(4, app("a", own(2)), app("b", own(1)), app("c"))
    parts = divide_cpus(uneven, CpuPolicyOptions(), budget, asked)
    assert [str(part.cpus) for part in parts.values()] == ["2,12", "13", "14"]


def shown(cpus: int, kind: ContainerKind, number: int) -> Container:
    asked = own(cpus) if cpus else resources()
    return Container(f"c{number}", kind, asked)


_CONTAINERS = st.lists(
    st.tuples(st.sampled_from(list(ContainerKind)), st.integers(0, 7)), min_size=1, max_size=6
)


def pairs_at_one_time(asked: PodDemand) -> list[tuple[str, str]]:
    """Return the exclusive containers that run at the same time, two by two."""
    pairs, running = [], list[str]()
    for container in asked.containers:
        if container.cpus:
            pairs += [(other, container.name) for other in running]
            if container.kind is not ContainerKind.INIT:
                running.append(container.name)
    return pairs


def cores_needed(asked: PodDemand, threads: int) -> dict[str, int]:
    return {c.name: -(-c.cpus // threads) for c in asked.containers if c.cpus}


def must_share(asked: PodDemand, number: int, threads: int) -> set[str]:
    """Return the moments, named by the container that starts, with too few cores for all."""
    crowded, running = set[str](), 0
    needed = cores_needed(asked, threads)
    long_running = [c.name for c in asked.containers if c.kind is not ContainerKind.INIT]
    in_the_end = sum(needed.get(name, 0) for name in long_running)
    for container in asked.containers:
        if container.kind is ContainerKind.INIT:
            if running + needed.get(container.name, 0) > number:
                crowded.add(container.name)
        else:
            running += needed.get(container.name, 0)
            if in_the_end > number:
                crowded.add(container.name)
    return crowded


def whole_cores_in(topology: CpuTopology, cpus: Mask) -> int:
    return sum(1 for core in topology.cores if not core.cpus & ~cpus.bits)


@pytest.mark.parametrize(
    ("number", "asked", "slices"),
    [
        (2, (1, 3), ["0", "1,16-17"]),
        (3, (3, 3), ["0-1,16", "2,17-18"]),
    ],
)
def test_where_nothing_is_gained_the_containers_choose_in_their_order(
    number: int, asked: tuple[int, int], slices: list[str]
) -> None:
    """As in the kubelet: one core is shared either way."""
    budget = cores(TWO, number)
    parts = divide_cpus(TWO, WHOLE, budget, demand(len(budget), *map(app, "ab", map(own, asked))))
    assert [str(part.cpus) for part in parts.values()] == slices


# Shows in differences.md: budget-cores
@pytest.mark.parametrize("topology", [TWO, FOUR], ids=["two threads", "four threads"])
@given(drawn=_CONTAINERS, number=st.integers(1, 8))
def test_a_core_is_shared_only_where_the_cores_do_not_suffice(
    topology: CpuTopology, drawn: list[tuple[ContainerKind, int]], number: int
) -> None:
    threads = topology.cpus_per_core
    budget = cores(topology, number)
    containers = [shown(cpus, kind, at) for at, (kind, cpus) in enumerate(drawn)]
    asked = demand(len(budget), *containers)
    if empty_pool_problem(asked) or _exceeds(asked, len(budget)):
        return
    parts = divide_cpus(topology, WHOLE, budget, asked)
    crowded = must_share(asked, number, threads)
    for one, other in pairs_at_one_time(asked):
        assert not parts[one].cpus & parts[other].cpus
        if topology.cores_of(parts[one].cpus) & parts[other].cpus:
            assert other in crowded
    for container in asked.containers:
        if container.cpus:
            part = parts[container.name].cpus
            assert len(part) == container.cpus
            assert part <= budget
            if container.kind is not ContainerKind.INIT:
                assert whole_cores_in(topology, part) == container.cpus // threads
    _the_others_have_the_rest(asked, parts, budget)


def _exceeds(asked: PodDemand, size: int) -> bool:
    return sum(c.cpus for c in asked.containers if c.kind is not ContainerKind.INIT) > size


def _the_others_have_the_rest(asked: PodDemand, parts: dict[str, CpuPart], budget: Mask) -> None:
    left = budget.bits
    for container in asked.containers:
        if container.kind is not ContainerKind.INIT and container.cpus:
            left &= ~parts[container.name].cpus.bits
    for container in asked.containers:
        if container.kind is not ContainerKind.INIT and not container.cpus:
            assert parts[container.name].cpus == Mask(left)
