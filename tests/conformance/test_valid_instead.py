"""That no invalid answer passes for a valid one."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.cpu.topology import CpuTopology
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.machine import Machine, MachineNode
from agent.managers.memory.state import memory_charge
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.managers.topology.hint import Hint
from agent.pods.model import MEMORY
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.hosts import (
    CONTAINER,
    GIB,
    NO_POLICY,
    POD,
    RESTRICTED,
    SMT,
    make_rules,
)
from tests.agent.managers.ledgers import with_exclusive
from tests.agent.pods.pods import app, guaranteed, init, pod, resources
from tests.conformance.memory_instead import (
    counts_init_memory,
    pins_no_shared_memory,
    rejected_for_own_demand,
)
from tests.conformance.valid_instead import (
    UNCORE_ALIGNED,
    caches_of_rejected,
    drops_budget,
    evenly_distributed,
    evenly_reserved,
    in_whole_cores,
    is_invalid,
    on_closer_nodes,
    on_fewer_sockets,
    same_memory_in_all,
    valid_instead,
    valid_reservation,
    with_our_slices,
)

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod

#: Two nodes of four cores; siblings are n and n + 8; CPU 0 is reserved.
RULES = make_rules(SMT, NO_POLICY, CONTAINER, memory=False)
TWO = pod(app("a", guaranteed("cpu=2 memory=1Gi")))
PAIR = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b", guaranteed("cpu=2 memory=1Gi")))


def admitting(rules: EffectivePolicy, desired: Pod, **cpus: str) -> Decision:
    """Return an admission of the pod whose containers have these CPUs, whatever we would decide."""
    decision = admit(rules, rules.empty_ledger(), desired)
    assert decision.allocation is not None
    containers = tuple(
        replace(one, cpus=Mask.parse(cpus[one.name])) for one in decision.allocation.containers
    )
    return replace(decision, allocation=replace(decision.allocation, containers=containers))


def recorded(**cpus: str) -> dict[str, Any]:
    containers = {name: {"cpus": text, "isolation": "container"} for name, text in cpus.items()}
    return {"admitted": True, "pod": {"cpus": None, "containers": containers}}


def rejecting(reason: Reason, asked: int | None = None, container: str | None = None) -> Decision:
    rejection = Rejection(reason, "", asked=asked, container=container)
    return Decision("u-1", RULES.empty_ledger(), cause=rejection)


def ledger(busy: str = "") -> Ledger:
    return with_exclusive(RULES.empty_ledger(), Mask.parse(busy))


class TestOnIrregularHosts:
    def judged(
        self, ours: str, theirs: str, *, busy: str = "", rules: EffectivePolicy = RULES
    ) -> bool:
        decision = admitting(rules, TWO, a=ours)
        return valid_instead(rules, ledger(busy), TWO, decision, recorded(a=theirs))

    def test_as_many_free_cpus_as_narrow_as_theirs_are_valid(self) -> None:
        assert self.judged("2,10", "1,9")
        assert self.judged("2,10", "1-2")

    @pytest.mark.parametrize(
        ("ours", "busy"),
        [("0-1", ""), ("2,10", "10"), ("16-17", ""), ("1", ""), ("1-3", ""), ("1,4", "")],
        ids=["reserved", "busy", "not there", "too few", "too many", "more nodes"],
    )
    def test_anything_else_is_not(self, ours: str, busy: str) -> None:
        assert not self.judged(ours, "1,9", busy=busy)

    def test_more_cores_than_theirs_are_not_valid(self) -> None:
        assert not self.judged("2-3", "1,9")

    def test_whole_cores_are_required_where_the_option_says_so(self) -> None:
        rules = make_rules(SMT, NO_POLICY, CONTAINER, memory=False, full_pcpus_only=True)
        assert self.judged("2,10", "1,9", rules=rules)
        assert not self.judged("2-3", "1,9", rules=rules)

    @pytest.mark.parametrize(
        ("theirs", "busy"), [("1,9", "9"), ("0-1", "")], ids=["busy", "reserved"]
    )
    def test_a_broken_answer_does_not_measure_width(self, theirs: str, busy: str) -> None:
        assert self.judged("3,6", theirs, busy=busy)
        assert not self.judged("3", theirs, busy=busy)
        assert not self.judged("0,3", theirs, busy=busy)

    def test_an_answer_that_overlaps_in_itself_is_broken(self) -> None:
        decision = admitting(RULES, PAIR, a="2,10", b="3,5")
        theirs = recorded(a="1,9", b="1,10")
        assert valid_instead(RULES, ledger(), PAIR, decision, theirs)
        sane = recorded(a="1,9", b="2,10")
        assert not valid_instead(RULES, ledger(), PAIR, decision, sane)


class TestDroppedBudget:
    RULES = make_rules(SMT, NO_POLICY, CONTAINER, memory=False, managed=False,
                       gates={"pod_level_resources": False})  # fmt: skip
    BUDGET = pod(app("a", guaranteed("cpu=2 memory=1Gi")), of_pod=guaranteed("cpu=4 memory=2Gi"))

    def test_containers_have_what_they_ask_for_where_the_gate_is_off(self) -> None:
        ours = admitting(self.RULES, self.BUDGET, a="4,12")
        assert drops_budget(self.RULES, ledger(), self.BUDGET, ours)
        assert not drops_budget(self.RULES, ledger("4"), self.BUDGET, ours)
        few = admitting(self.RULES, self.BUDGET, a="4")
        assert not drops_budget(self.RULES, ledger(), self.BUDGET, few)

    def test_nothing_is_dropped_of_other_pods_or_with_the_gate(self) -> None:
        ours = admitting(self.RULES, TWO, a="4,12")
        assert not drops_budget(self.RULES, ledger(), TWO, ours)
        budget = admitting(RULES, self.BUDGET, a="4,12")
        assert not drops_budget(RULES, ledger(), self.BUDGET, budget)


class TestInWholeCores:
    """The kubelet takes the sibling of reserved CPU 0 and half of another core."""

    RULES = make_rules(SMT, RESTRICTED, CONTAINER, memory=False, full_pcpus_only=True)

    def judged(self, ours: Decision, theirs: str = "1,8", nodes: tuple[int, ...] = (0,)) -> bool:
        answer = recorded(a=theirs)
        answer["pod"]["containers"]["a"]["hint"] = {"mask": list(nodes)}
        return in_whole_cores(self.RULES, ledger("2-3,10-11"), TWO, ours, answer)

    def test_whole_free_cores_are_right_where_theirs_are_torn(self) -> None:
        assert self.judged(admitting(self.RULES, TWO, a="4,12"))
        assert not self.judged(admitting(self.RULES, TWO, a="4,12"), theirs="1,9")

    @pytest.mark.parametrize("ours", ["2,10", "4-5", "4"], ids=["busy", "torn", "too few"])
    def test_nothing_else_is(self, ours: str) -> None:
        assert not self.judged(admitting(self.RULES, TWO, a=ours))

    def test_a_rejection_is_right_only_where_their_nodes_have_no_whole_cores(self) -> None:
        rejection = rejecting(Reason.TOPOLOGY_AFFINITY, asked=4, container="a")
        assert self.judged(rejection)
        assert not self.judged(rejection, nodes=(0, 1))
        assert not self.judged(rejecting(Reason.SMT_ALIGNMENT, asked=4, container="a"))

    def test_both_may_reject_for_alignment_or_cores_beside_half_cores(self) -> None:
        theirs = {"admitted": False, "reason": Reason.SMT_ALIGNMENT}
        ours = rejecting(Reason.TOPOLOGY_AFFINITY)
        assert in_whole_cores(self.RULES, ledger(), TWO, ours, theirs)
        assert not in_whole_cores(self.RULES, ledger("8"), TWO, ours, theirs)
        theirs = {"admitted": False, "reason": Reason.UNEXPECTED}
        assert not in_whole_cores(self.RULES, ledger(), TWO, ours, theirs)

    def test_without_the_option_nothing_is(self) -> None:
        ours = admitting(RULES, TWO, a="4,12")
        assert not in_whole_cores(RULES, ledger(), TWO, ours, recorded(a="1,8"))


class TestDividingABudget:
    """Ours is a budget of 4 CPUs, of which the exclusive container has 2, in 2 cores."""

    MIXED = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b"),
                of_pod=guaranteed("cpu=4 memory=2Gi"))  # fmt: skip

    def judged(self, budget: str, *, whole: bool, **cpus: str) -> bool:
        rules = make_rules(SMT, RESTRICTED, POD, memory=False, full_pcpus_only=whole)
        decision = admit(rules, rules.empty_ledger(), self.MIXED)
        theirs = recorded(**cpus)
        theirs["pod"]["cpus"] = budget
        theirs["pod"]["containers"]["b"]["isolation"] = "pod"
        return valid_instead(rules, rules.empty_ledger(), self.MIXED, decision, theirs)

    def test_cpus_outside_of_it_are_no_measure(self) -> None:
        # Ours touches more cores than a budget of one core and two others' CPUs would.
        assert self.judged("1-2,9-10", whole=False, a="1,9", b="2,10")
        assert not self.judged("4-7", whole=False, a="4-6", b="7")
        assert self.judged("4-7", whole=False, a="4,8", b="5-7")
        assert self.judged("4-7", whole=False, a="4-6", b="7-8")

    def test_a_torn_core_does_not_measure_where_cores_are_whole(self) -> None:
        assert self.judged("4-5,12-13", whole=True, a="4-5", b="12-13")
        assert not self.judged("4-5,12-13", whole=True, a="4", b="5,12-13")


class TestRejections:
    SMT_RULES = make_rules(SMT, NO_POLICY, CONTAINER, memory=False, full_pcpus_only=True)

    def test_where_the_kubelet_rejects_too_the_reason_must_be_its_own(self) -> None:
        theirs = {"admitted": False, "reason": "SMTAlignmentError"}
        for reason, valid in (Reason.SMT_ALIGNMENT, True), (Reason.UNEXPECTED, False):
            judged = valid_instead(RULES, ledger(), TWO, rejecting(reason), theirs)
            assert judged is valid

    def judged(self, *, busy: str = "", asked: int = 2, container: str | None = "a") -> bool:
        decision = rejecting(Reason.SMT_ALIGNMENT, asked, container)
        theirs = recorded(a="1,9", b="2,10")
        return valid_instead(self.SMT_RULES, ledger(busy), PAIR, decision, theirs)

    def test_for_the_cores_sake_the_free_cores_must_not_add_up(self) -> None:
        assert self.judged(asked=3)
        assert self.judged(asked=8, busy="3-7")
        assert not self.judged()
        assert not self.judged(container=None)
        assert not self.judged(asked=4, busy="3-7,11-15")

    def test_a_later_container_may_lack_what_an_earlier_one_took(self) -> None:
        assert self.judged(container="b")

    def test_another_reason_does_not_excuse(self) -> None:
        decision = rejecting(Reason.TOPOLOGY_AFFINITY, asked=2)
        assert not valid_instead(self.SMT_RULES, ledger(), TWO, decision, recorded(a="1,9"))


class TestReservation:
    def test_as_many_and_no_further_apart(self) -> None:
        assert valid_reservation(RULES, {"reserved": "8"})
        assert not valid_reservation(RULES, {"reserved": "0,8"})
        wide = make_rules(SMT, reserved="0,4")
        assert not valid_reservation(wide, {"reserved": "0,8"})
        assert valid_reservation(make_rules(SMT, reserved="0,8"), {"reserved": "0,4"})


def test_cpus_are_reserved_as_evenly_as_the_kubelet_does() -> None:
    spread = make_rules(SMT, reserved="1,4", distribute_cpus_across_numa=True)
    assert evenly_reserved(spread, {"reserved": "1-2"})
    assert evenly_reserved(spread, {"reserved": "2,5"})
    assert not evenly_reserved(spread, {"reserved": "1,4-5"})
    assert not evenly_reserved(make_rules(SMT, reserved="1,4"), {"reserved": "1-2"})
    packed = make_rules(SMT, reserved="1-2", distribute_cpus_across_numa=True)
    assert not evenly_reserved(packed, {"reserved": "1,4"})


class TestCloserNodes:
    """Nodes 0, 2 and 3, of which 2 and 3 are the closest."""

    CPUS = CpuTopology.from_rows([(n, n, n // 2, (0, 2, 3)[n // 2], n // 2) for n in range(6)])
    ROWS: Final = {0: {0: 10, 2: 32, 3: 32}, 2: {0: 32, 2: 10, 3: 12}, 3: {0: 32, 2: 12, 3: 10}}

    def judged(self, ours: int, theirs: list[int], *, closest: bool = True) -> bool:
        nodes = tuple(MachineNode(node, 16 * GIB, {}, row) for node, row in self.ROWS.items())
        rules = make_rules(Machine(self.CPUS, nodes), memory=False)
        topology = replace(rules.policy.topology, prefer_closest_numa_nodes=closest)
        rules = EffectivePolicy(rules.machine, replace(rules.policy, topology=topology), MANAGERS)
        decision = admitting(rules, TWO, a="2-3")
        assert decision.allocation is not None
        (one,) = decision.allocation.containers
        allocation = replace(
            decision.allocation, containers=(replace(one, hint=Hint(ours, preferred=True)),)
        )
        hint = {"mask": theirs, "preferred": True}
        expected = {"admitted": True, "pod": {"containers": {"a": {"hint": hint}}}}
        return on_closer_nodes(rules, replace(decision, allocation=allocation), expected)

    def test_as_many_nodes_no_farther_apart_are_right(self) -> None:
        assert self.judged(0b1100, [0, 2])
        assert self.judged(0b100, [3])

    def test_farther_or_more_nodes_or_no_option_are_not(self) -> None:
        assert not self.judged(0b101, [2, 3])
        assert not self.judged(0b1100, [2])
        assert not self.judged(0b1100, [0, 2], closest=False)
        assert not self.judged(0b1100, [2, 3])


class TestDistribution:
    MACHINE = Machine.of(regular_host(packages=4, cores_per_node=4, threads=1))
    DISTRIBUTED = make_rules(
        MACHINE, NO_POLICY, CONTAINER, memory=False, distribute_cpus_across_numa=True
    )
    DESIRED = pod(app("a", guaranteed("cpu=6 memory=1Gi")))

    def judged(self, ours: str, theirs: str, rules: EffectivePolicy | None = None) -> bool:
        rules = rules or self.DISTRIBUTED
        decision = admitting(rules, self.DESIRED, a=ours)
        return evenly_distributed(rules, rules.empty_ledger(), decision, recorded(a=theirs))

    def test_more_even_nodes_are_valid(self) -> None:
        assert self.judged("1,4-5,8-9,12", "1-3,4-6")

    def test_less_even_nodes_are_not(self) -> None:
        assert not self.judged("1-3,4-6", "1,4-5,8-9,12")

    def test_too_few_or_reserved_cpus_are_not(self) -> None:
        assert not self.judged("1,4-5,8-9", "1-3,4-6")
        assert not self.judged("0,4-5,8-9,12", "1-3,4-6")

    def test_without_the_option_nothing_is_excused(self) -> None:
        packed = make_rules(self.MACHINE, NO_POLICY, CONTAINER, memory=False)
        assert not self.judged("1,4-5,8-9,12", "1-3,4-6", packed)

    def test_a_rejection_of_either_side_is_not_excused(self) -> None:
        rejected = rejecting(Reason.UNEXPECTED)
        before = self.DISTRIBUTED.empty_ledger()
        assert not evenly_distributed(self.DISTRIBUTED, before, rejected, recorded(a="1-6"))
        ours = admitting(self.DISTRIBUTED, self.DESIRED, a="1,4-5,8-9,12")
        assert not evenly_distributed(self.DISTRIBUTED, before, ours, {"admitted": False})


def test_only_a_container_with_a_demand_of_its_own_may_be_rejected() -> None:
    mixed = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b"), of_pod=guaranteed("cpu=4"))
    rules = make_rules(scope=CONTAINER)
    for container, valid in ("a", True), ("b", False), (None, False):
        rejection = rejecting(Reason.UNEXPECTED, container=container)
        assert rejected_for_own_demand(rules, mixed, rejection) is valid


@pytest.mark.parametrize("part", ["containers", "initContainers", "pod"])
def test_negative_amounts_are_found_wherever_they_stand(part: str) -> None:
    negative = {"resources": {"limits": {"memory": "-1"}}}
    spec: dict[str, Any] = {"containers": [{"name": "a"}]}
    spec = {**spec, **negative} if part == "pod" else {**spec, part: [negative]}
    assert is_invalid({"spec": spec})
    assert not is_invalid({"spec": {"containers": [{"resources": {}}]}})


def test_more_huge_pages_than_the_budget_has_are_invalid() -> None:
    def asking(pages: str) -> dict[str, Any]:
        amounts = {"limits": {"cpu": "1", "hugepages-2Mi": pages}}
        budget = {"requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}}
        return {"spec": {"containers": [{"name": "a", "resources": amounts}], "resources": budget}}

    assert is_invalid(asking("6Mi"))
    assert not is_invalid(asking("4Mi"))


class TestMemoryOfSharedContainers:
    MIXED = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b"),
                of_pod=guaranteed("cpu=4 memory=2Gi"))  # fmt: skip
    FOR_MEMORY: Final = "Allocate failed due to [memorymanager] whatever"

    def judged(
        self,
        *,
        rules: EffectivePolicy | None = None,
        ours: Decision | None = None,
        **theirs: object,
    ) -> bool:
        rules = rules or make_rules(SMT, RESTRICTED, CONTAINER)
        decision = ours or admit(rules, rules.empty_ledger(), self.MIXED)
        document = {"spec": {"containers": [stated("a", cpu="2", memory="1Gi"), {"name": "b"}]}}
        expected = {"admitted": False, "message": self.FOR_MEMORY, **theirs}
        return pins_no_shared_memory(rules, self.MIXED, decision, expected, document)

    def test_it_may_be_admitted_with_all_that_is_asked_for(self) -> None:
        assert self.judged()
        rules = make_rules(SMT, RESTRICTED, CONTAINER)
        lacking = admitting(rules, self.MIXED, a="1", b="3")
        assert not self.judged(rules=rules, ours=lacking)

    def test_it_may_be_rejected_for_an_exclusive_container_only(self) -> None:
        assert self.judged(ours=rejecting(Reason.SMT_ALIGNMENT, 2, "a"))
        assert not self.judged(ours=rejecting(Reason.SMT_ALIGNMENT, 2, "b"))

    def test_it_is_the_kubelets_rejection_for_memory_where_the_pod_is_not_served_as_one(
        self,
    ) -> None:
        assert self.judged(rules=make_rules(SMT, NO_POLICY, POD))
        assert not self.judged(rules=make_rules(SMT, RESTRICTED, POD))
        assert not self.judged(rules=make_rules(SMT, RESTRICTED, CONTAINER, managed=False))
        assert not self.judged(message="SMT")
        assert not self.judged(admitted=True)


def test_memory_may_be_spread_otherwise_but_must_add_up_by_type() -> None:
    rules = make_rules()
    empty = rules.empty_ledger()
    charged = {
        node: replace(memory, reserved=MappingProxyType({"memory": GIB}))
        for node, memory in memory_charge(empty).items()
    }
    ours = empty.with_part(MEMORY, charged)

    def theirs(*reserved: int) -> dict[str, Any]:
        nodes = {str(n): {"memory": {"memory": [0, size]}} for n, size in enumerate(reserved)}
        return {"mem_nodes": nodes}

    assert same_memory_in_all(ours, theirs(2 * GIB, 0))
    assert not same_memory_in_all(ours, theirs(2 * GIB, 1))


def test_a_pod_that_shares_must_share_on_both_sides() -> None:
    shares = pod(app("a", resources("cpu=1")))
    decision = admit(RULES, RULES.empty_ledger(), shares)
    theirs = recorded(a="1")
    theirs["pod"]["containers"]["a"] = {"cpus": None, "isolation": "host"}
    assert valid_instead(RULES, ledger(), shares, decision, theirs)
    assert not valid_instead(RULES, ledger(), shares, decision, recorded(a="1"))


class TestSlicesByCore:
    #: Siblings are n and n + 8; the budget is two cores, or three.
    RULES = make_rules(SMT, reserved="0,8", full_pcpus_only=True)
    SINGLES = pod(
        app("a", guaranteed("cpu=1 memory=1Gi")),
        app("b", guaranteed("cpu=1 memory=1Gi")),
        app("c"),
        of_pod=guaranteed("cpu=4 memory=4Gi"),
    )

    def corrected(self, ours: dict[str, str], theirs: dict[str, str]) -> dict[str, Any]:
        decision = admitting(self.RULES, self.SINGLES, **ours)
        assert decision.allocation is not None
        assert decision.allocation.cpus == Mask.parse("1-2,9-10")
        answer = recorded(**theirs)
        answer["pod"]["cpus"] = "1-2,9-10"
        answer["pod"]["containers"]["c"]["isolation"] = "pod"
        found = with_our_slices(self.RULES, decision, answer)
        return {name: one["cpus"] for name, one in found["pod"]["containers"].items()}

    THEIRS = {"a": "1", "b": "9", "c": "2,10"}  # noqa: RUF012  # never changed

    def test_slices_on_cores_of_their_own_are_better(self) -> None:
        ours = {"a": "1", "b": "2", "c": "9-10"}
        assert self.corrected(ours, self.THEIRS) == ours

    @pytest.mark.parametrize(
        "ours",
        [
            {"a": "1", "b": "9", "c": "2,10"},
            {"a": "2", "b": "10", "c": "1,9"},
            {"a": "1", "b": "2", "c": "9"},
            {"a": "1", "b": "2", "c": "2,9-10"},
            {"a": "1", "b": "1", "c": "2,9-10"},
            {"a": "1", "b": "3", "c": "2,9"},
            {"a": "1", "b": "2,10", "c": "9"},
        ],
    )
    def test_no_better_or_no_proper_slices_are_not(self, ours: dict[str, str]) -> None:
        assert self.corrected(ours, self.THEIRS) == self.THEIRS

    def test_another_budget_is_not(self) -> None:
        decision = admitting(self.RULES, self.SINGLES, a="1", b="2", c="9-10")
        answer = recorded(**self.THEIRS)
        answer["pod"]["cpus"] = "3-4,11-12"
        assert with_our_slices(self.RULES, decision, answer) is answer


class TestFewerSockets:
    #: Two sockets of two nodes of four CPUs.
    MACHINE = Machine.of(regular_host(packages=2, nodes_per_package=2, cores_per_node=4, threads=1))
    RULES = make_rules(MACHINE, NO_POLICY, CONTAINER, memory=False, align_by_socket=True)
    SIX = pod(app("a", guaranteed("cpu=6 memory=1Gi")))

    def judged(self, ours: str, theirs: str, *, busy: str = "", option: bool = True) -> bool:
        rules = make_rules(self.MACHINE, NO_POLICY, CONTAINER, memory=False, align_by_socket=option)
        answer = recorded(a=theirs)
        answer["pod"]["containers"]["a"]["hint"] = {"mask": None}
        before = with_exclusive(rules.empty_ledger(), Mask.parse(busy))
        return on_fewer_sockets(rules, before, admitting(rules, self.SIX, a=ours), answer)

    def test_one_socket_is_better_than_two(self) -> None:
        assert self.judged("8-13", "4-9")

    def test_as_many_sockets_or_more_are_not(self) -> None:
        assert not self.judged("8-13", "10-15")
        assert not self.judged("4-9", "8-13")

    def test_other_numbers_busy_cpus_or_no_option_are_not(self) -> None:
        assert not self.judged("8-12", "4-9")
        assert not self.judged("8-13", "4-9", busy="13")
        assert not self.judged("8-13", "4-9", option=False)

    def test_a_rejection_of_either_side_is_not_excused(self) -> None:
        before = self.RULES.empty_ledger()
        assert not on_fewer_sockets(
            self.RULES, before, rejecting(Reason.UNEXPECTED), recorded(a="1")
        )
        ours = admitting(self.RULES, self.SIX, a="8-13")
        assert not on_fewer_sockets(self.RULES, before, ours, {"admitted": False})

    def test_a_rejected_pods_caches_are_excused_with_the_option_only(self) -> None:
        rejected = rejecting(Reason.UNEXPECTED)
        answer = {
            "admitted": False,
            "reason": "UnexpectedAdmissionError",
            "metrics": {UNCORE_ALIGNED: 1},
        }
        before = self.RULES.empty_ledger()
        excused = ("fewer sockets", 0)
        assert caches_of_rejected(self.RULES, before, rejected, answer) == excused
        assert caches_of_rejected(RULES, before, rejected, answer) is None
        assert caches_of_rejected(self.RULES, before, rejected, {**answer, "reason": "x"}) is None
        assert caches_of_rejected(self.RULES, before, rejected, {**answer, "metrics": {}}) is None

    def test_with_whole_cores_they_are_excused_while_half_cores_are_free(self) -> None:
        rules = make_rules(SMT, reserved="0,8", full_pcpus_only=True)
        rejected, empty = rejecting(Reason.SMT_ALIGNMENT), rules.empty_ledger()
        answer = {
            "admitted": False,
            "reason": "SMTAlignmentError",
            "metrics": {UNCORE_ALIGNED: 1},
        }
        assert caches_of_rejected(rules, empty, rejected, answer) is None
        torn = with_exclusive(empty, Mask.of(1))
        assert caches_of_rejected(rules, torn, rejected, answer) == ("whole cores", 0)


class TestMemoryOfInitContainers:
    RULES = make_rules(SMT)
    DESIRED = pod(
        init("i", guaranteed("cpu=1 memory=1Gi")), app("a", guaranteed("cpu=2 memory=1Gi"))
    )

    def judged(self, decision: Decision, theirs: dict[str, Any], pages: str = "2Mi") -> bool:
        document = {
            "spec": {
                "initContainers": [stated("i", cpu="1", memory="1Gi", **{"hugepages-2Mi": pages})],
                "containers": [stated("a", cpu="2", memory="1Gi")],
            }
        }
        return counts_init_memory(self.RULES, self.DESIRED, decision, theirs, document)

    def test_an_admission_must_give_what_is_asked_for(self) -> None:
        decision = admit(self.RULES, self.RULES.empty_ledger(), self.DESIRED)
        assert self.judged(decision, {"admitted": False})
        assert decision.allocation is not None
        first, second = decision.allocation.containers
        for lacking in replace(second, memory=()), replace(second, cpus=Mask.of(1)):
            allocation = replace(decision.allocation, containers=(first, lacking))
            assert not self.judged(replace(decision, allocation=allocation), {"admitted": False})

    def test_a_rejection_is_valid_where_the_kubelet_rejects_or_breaks_its_hint(self) -> None:
        rejected = rejecting(Reason.UNEXPECTED)
        assert self.judged(rejected, {"admitted": False})

        def kubelet(numa: list[int]) -> dict[str, Any]:
            container = {"hint": {"mask": [0]}, "memory": [{"numa": numa}]}
            return {"admitted": True, "pod": {"containers": {"a": container}}}

        assert self.judged(rejected, kubelet([0, 1]))
        assert not self.judged(rejected, kubelet([0]))

    def test_a_pod_without_such_memory_is_not_excused(self) -> None:
        assert not self.judged(rejecting(Reason.UNEXPECTED), {"admitted": False}, pages="0")


def stated(name: str, **amounts: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}
