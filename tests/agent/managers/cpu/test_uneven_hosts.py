"""Packing where cores, sockets or caches differ: what is narrower is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from agent.managers.cpu.take import Strategy, take
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from sysfs.mask import Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import CONTAINER, GIB, POD, RESTRICTED, SINGLE, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from agent.managers.policy import TopologyManagerPolicy
    from agent.pods.model import Pod

#: Node 0: efficiency cores 0 to 3. Node 1: performance cores 4-5, 6-7, 8-9, 10-11.
HYBRID = CpuTopology.from_rows(
    [*((cpu, cpu, 0, 0, 0) for cpu in range(4)), *((c, c // 2 * 2, 1, 1, 1) for c in range(4, 12))]
)
#: One node of four sockets: 0-1, 2-3, 4-8 and 9-13; cores have no siblings.
SOCKETS = CpuTopology.from_rows(
    (cpu, cpu, (0, 0, 1, 1, *[2] * 5, *[3] * 5)[cpu], 0, 0) for cpu in range(14)
)
#: The same with a node for each pair of sockets.
NODES = CpuTopology.from_rows(row._replace(node=row.socket // 2) for row in SOCKETS.rows)


def taken(topology: CpuTopology, free: str, count: int, **how: bool) -> str:
    return str(take(topology, Strategy(**how), Mask.parse(free), count))


# Shows in differences.md: uneven-sockets
def test_a_node_that_has_room_is_better_than_a_small_node_and_a_rest_elsewhere() -> None:
    assert taken(HYBRID, "0-11", 6) == "4-9"


def test_large_cores_are_used_up_before_a_node_of_small_ones_is() -> None:
    assert taken(HYBRID, "0-11", 10) == "0-1,4-11"


def test_a_whole_node_is_still_taken_as_one() -> None:
    assert taken(HYBRID, "0-11", 4) == "0-3"
    assert taken(HYBRID, "0-11", 8) == "4-11"


# Shows in differences.md: uneven-sockets
@pytest.mark.parametrize("topology", [SOCKETS, NODES], ids=["one node", "several nodes"])
def test_a_socket_that_has_room_is_better_than_several_small_ones(topology: CpuTopology) -> None:
    assert taken(topology, "0-13", 5) == "4-8"


#: A socket of four nodes of four CPUs, of which three are free.
_SMALL: Final = [(4, 3)] * 4


@pytest.mark.parametrize("how", [{}, {"uncore": True}, {"spread": True}, {"whole_cores": True}])
@pytest.mark.parametrize(
    ("sockets", "nodes"),
    [
        ([_SMALL, [(6, 5), (5, 4), (4, 3), (4, 1)], [(1, 1)]], {4, 5, 7}),
        ([_SMALL, [(6, 5), (6, 4)], [(4, 1)] * 4], {4, 5, 6}),
        # Two nodes have room, on two sockets: by the kubelet's order it is one.
        ([_SMALL, [(6, 5), *_SMALL], [(6, 5), *_SMALL]], {0, 1, 2, 3}),
    ],
)
def test_the_fewest_nodes_count_first_on_no_more_sockets_than_by_the_kubelets_order(
    sockets: list[list[tuple[int, int]]], nodes: set[int], how: dict[str, bool]
) -> None:
    """Of each node of each socket its CPUs, and how many of them are free."""
    rows, free = list[tuple[int, int, int, int, int]](), list[int]()
    places = ((socket, *node) for socket, inside in enumerate(sockets) for node in inside)
    for node, (socket, size, left) in enumerate(places):
        first = len(rows)
        rows += [(cpu, cpu, socket, node, node) for cpu in range(first, first + size)]
        free += range(first + size - left, first + size)
    topology = CpuTopology.from_rows(rows)
    chosen = take(topology, Strategy(**how), Mask.from_ids(free), 10)
    assert set(topology.nodes_of(chosen)) == nodes


def test_spread_cpus_are_on_one_socket_too_where_that_takes_no_more_cores() -> None:
    assert taken(SOCKETS, "0-3,5-13", 4, spread=True) == "5-8"


def test_no_sibling_of_a_busy_cpu_is_taken_for_the_sake_of_fewer_nodes() -> None:
    assert taken(HYBRID, "0,4,6,8", 2) == "0,4"
    assert taken(HYBRID, "0-3,4-8", 5) == "0,4-7"


def test_siblings_of_busy_cpus_are_taken_on_fewer_nodes_where_no_core_could_replace_them() -> None:
    assert taken(HYBRID, "4,6,8-11", 3) == "4,8-9"


class TestCpusThatInitContainersLeft:
    """Two nodes; one core of node 0 has lost a thread: other CPUs are left than by the kubelet."""

    MACHINE = Machine(
        CpuTopology.from_rows(
            (cpu, cpu // 2, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16) if cpu != 7
        ),
        tuple(
            MachineNode(node, 16 * GIB, {}, {other: 10 + 11 * (other != node) for other in (0, 1)})
            for node in (0, 1)
        ),
    )

    # Shows in differences.md: init-cpus
    @pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
    @pytest.mark.parametrize("memory", [1, 14], ids=["for its CPUs", "for its memory"])
    def test_do_not_tie_an_app_to_a_node_where_it_does_not_fit(
        self, policy: TopologyManagerPolicy, memory: int
    ) -> None:
        rules = make_rules(self.MACHINE, policy, CONTAINER, reserved="0")
        cpus = 8 if memory == 1 else 4
        desired = pod(
            app("a", guaranteed("cpu=1 memory=4Gi")),
            app("b", guaranteed(f"cpu={cpus} memory={memory}Gi")),
            init("i", guaranteed("cpu=4 memory=1Gi")),
        )
        allocation = with_pod(rules, desired).allocations["u-1"]
        places = {one.name: str(one.cpus) for one in allocation.containers}
        assert Mask.parse(places["b"]) <= Mask.parse("8-15")
        assert Mask.parse(places["i"]) <= Mask.parse("1-6")


def test_whole_cores_are_taken_on_one_node_though_a_fuller_one_tears_a_core() -> None:
    one_socket = CpuTopology.from_rows(row._replace(socket=0) for row in HYBRID.rows)
    assert taken(one_socket, "0-6", 3, whole_cores=True) == "0-2"


class TestCoresOfOnePod:
    """One node: a core of four threads (0-3), cores of two (4-5, 6-7), and of one (8 to 11)."""

    MACHINE = Machine(
        CpuTopology.from_rows(
            (cpu, core, 0, 0, 0)
            for core, cpus in enumerate([range(4), range(4, 6), range(6, 8), *zip(range(8, 12))])
            for cpu in cpus
        ),
        (MachineNode(0, 16 * GIB, {}, {0: 10}),),
    )

    def places(self, desired: Pod, reserved: str, *, spread: bool = False) -> dict[str, str]:
        rules = make_rules(self.MACHINE, SINGLE, POD, reserved=reserved, memory=False,
                           distribute_cpus_across_cores=spread)  # fmt: skip
        allocation = with_pod(rules, desired).allocations["u-1"]
        return {one.name: str(one.cpus) for one in allocation.containers}

    # Shows in differences.md: uneven-pods
    def test_a_container_breaks_no_core_of_which_another_would_get_the_rest(self) -> None:
        desired = pod(
            app("a", guaranteed("cpu=2 memory=1Gi")), app("b", guaranteed("cpu=4 memory=1Gi"))
        )
        assert self.places(desired, "4-7,11") == {"a": "8-9", "b": "0-3"}

    def test_a_container_that_is_alone_lies_on_the_fewest_cores(self) -> None:
        assert self.places(pod(app("a", guaranteed("cpu=2 memory=1Gi"))), "4-7,11") == {"a": "0-1"}

    def test_where_no_whole_cores_serve_a_core_is_broken(self) -> None:
        desired = pod(
            app("a", guaranteed("cpu=2 memory=1Gi")), app("b", guaranteed("cpu=2 memory=1Gi"))
        )
        assert self.places(desired, "4-11") == {"a": "0-1", "b": "2-3"}

    # Shows in differences.md: uneven-pods
    @pytest.mark.parametrize("spread", [False, True])
    def test_exclusive_containers_of_a_budget_get_cores_of_their_own(self, *, spread: bool) -> None:
        """Unless an option has threads of many cores taken."""
        one = guaranteed("cpu=1 memory=64Mi")
        desired = pod(app("a", one), app("b", one), app("c", one), app("z"),
                      of_pod=guaranteed("cpu=4 memory=1Gi"))  # fmt: skip
        places = self.places(desired, "0-3", spread=spread)
        assert (places == {"a": "8", "b": "9", "c": "10", "z": "11"}) is not spread

    def test_a_budget_of_few_cores_stays_where_its_containers_share_none(self) -> None:
        two = guaranteed("cpu=2 memory=64Mi")
        desired = pod(app("a", two), app("z"), of_pod=guaranteed("cpu=4 memory=1Gi"))
        assert self.places(desired, "0-3") == {"a": "4-5", "z": "6-7"}
