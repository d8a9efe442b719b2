"""Packing where cores, sockets or caches differ: what is narrower is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from agent.managers.cpu.strategy import Strategy
from agent.managers.cpu.take import take
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated
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


#: Two sockets, each one node of two cores: 0-1 and 2-3, 5 and 6-7.
OFFLINE = CpuTopology.from_rows((c, c // 2, c // 4, c // 4, c // 4) for c in (0, 1, 2, 3, 5, 6, 7))
#: Four nodes of two cores on a socket; CPU 5 is offline.
FOUR = CpuTopology.from_rows((c, c // 2, 0, c // 4, 0) for c in range(16) if c != 5)
#: Four nodes of a core each; CPUs 4 and 7 are offline.
SMALL = CpuTopology.from_rows((c, c // 2, 0, c // 2, 0) for c in (0, 1, 2, 3, 5, 6))
#: Two sockets of two nodes of two cores; CPUs 9 and 14 are offline.
PAIRS = CpuTopology.from_rows(
    (c, c // 2, c // 8, c // 4, c // 8) for c in range(16) if c not in (9, 14)
)
#: The hybrid cores on one socket.
ONE_SOCKET = CpuTopology.from_rows(row._replace(socket=0) for row in HYBRID.rows)


# Shows in differences.md: uneven-sockets
@pytest.mark.parametrize(
    ("topology", "free", "count", "how", "cpus"),
    [
        pytest.param(HYBRID, "0-11", 6, {}, "4-9", id="a node that has room"),
        pytest.param(HYBRID, "0-11", 10, {}, "0-1,4-11", id="large cores are used up first"),
        pytest.param(HYBRID, "0-11", 4, {}, "0-3", id="a whole small node is taken as one"),
        pytest.param(HYBRID, "0-11", 8, {}, "4-11", id="a whole large node as well"),
        pytest.param(SOCKETS, "0-13", 5, {}, "4-8", id="a socket that has room"),
        pytest.param(NODES, "0-13", 5, {}, "4-8", id="a socket of several nodes"),
        pytest.param(SOCKETS, "0-3,5-13", 4, {"spread": True}, "5-8", id="spread on one socket"),
        pytest.param(HYBRID, "0,4,6,8", 2, {}, "0,4", id="no busy sibling for fewer nodes"),
        pytest.param(HYBRID, "0-3,4-8", 5, {}, "0,4-7", id="nor beside whole cores"),
        pytest.param(HYBRID, "4,6,8-11", 3, {}, "4,8-9", id="unless no core could replace it"),
        pytest.param(OFFLINE, "0,2,5,7", 2, {}, "5,7", id="one node does without the other"),
        pytest.param(FOUR, "0-1,4,9-10,12-13,15", 6, {}, "0-1,4,12-13,15", id="three of four"),
        pytest.param(SMALL, "1-3,5-6", 3, {}, "2-3,5", id="two others than those taken"),
        pytest.param(PAIRS, "1-3,5-6,10-13", 5, {"spread": True}, "1-3,10-11", id="spread on two"),
        pytest.param(HYBRID, "0,4-11", 3, {"whole_cores": True}, "0,4-5", id="on two nodes"),
        pytest.param(ONE_SOCKET, "0-6", 3, {"whole_cores": True}, "0-2", id="no core is torn"),
    ],
)
def test_what_is_narrower_is_taken(
    topology: CpuTopology, free: str, count: int, how: dict[str, bool], cpus: str
) -> None:
    assert str(take(topology, Strategy(**how), Mask.parse(free), count)) == cpus


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
        allocation = allocated(rules, desired)
        places = {one.name: str(one.cpus) for one in allocation.containers}
        assert Mask.parse(places["b"]) <= Mask.parse("8-15")
        assert Mask.parse(places["i"]) <= Mask.parse("1-6")


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
        allocation = allocated(rules, desired)
        return {one.name: str(one.cpus) for one in allocation.containers}

    # Shows in differences.md: uneven-pods
    @pytest.mark.parametrize(
        ("sizes", "reserved", "places"),
        [
            pytest.param((2, 4), "4-7,11", ("8-9", "0-3"), id="no core that another would get"),
            pytest.param((2,), "4-7,11", ("0-1",), id="alone on the fewest cores"),
            pytest.param((2, 2), "4-11", ("0-1", "2-3"), id="no whole cores serve"),
        ],
    )
    def test_a_core_is_broken_only_where_no_other_container_gets_its_rest(
        self, sizes: tuple[int, ...], reserved: str, places: tuple[str, ...]
    ) -> None:
        asked = [app(str(at), guaranteed(f"cpu={n} memory=1Gi")) for at, n in enumerate(sizes)]
        assert tuple(self.places(pod(*asked), reserved).values()) == places

    # Shows in differences.md: uneven-pods
    @pytest.mark.parametrize("spread", [False, True])
    def test_exclusive_containers_of_a_budget_get_cores_of_their_own(self, *, spread: bool) -> None:
        """Unless an option has threads of many cores taken."""
        one = guaranteed("cpu=1 memory=64Mi")
        desired = pod(app("a", one), app("b", one), app("c", one), app("z"),
                      of_pod=guaranteed("cpu=4 memory=1Gi"))  # fmt: skip
        places = self.places(desired, "0-3", spread=spread)
        assert (places == {"a": "8", "b": "9", "c": "10", "z": "11"}) is not spread

    @pytest.mark.parametrize(
        ("sizes", "reserved", "places"),
        [
            pytest.param((2,), "0-3", ("4-5", "6-7"), id="its containers share no core"),
            pytest.param((1, 1), "0-3,8-11", ("4", "5", "6-7"), id="no other cores have room"),
        ],
    )
    def test_a_budget_of_few_cores_stays(
        self, sizes: tuple[int, ...], reserved: str, places: tuple[str, ...]
    ) -> None:
        own = [app(str(at), guaranteed(f"cpu={n} memory=64Mi")) for at, n in enumerate(sizes)]
        desired = pod(*own, app("z"), of_pod=guaranteed("cpu=4 memory=1Gi"))
        assert tuple(self.places(desired, reserved).values()) == places
