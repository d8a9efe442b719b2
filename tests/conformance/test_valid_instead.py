"""That no invalid answer passes for a valid one: a table for each rule, named by what it looks at.

That valid answers pass is what the recorded cases say (test_selection.py); here one row of each
rule shows that the others fail for what they are named after.
"""

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
from tests.agent.managers.hosts import CONTAINER, GIB, NO_POLICY, POD, RESTRICTED, SMT, make_rules
from tests.agent.managers.ledgers import with_exclusive
from tests.agent.pods.pods import app, guaranteed, init, pod, resources
from tests.conformance.memory_instead import (
    counts_init_memory,
    pins_no_shared_memory,
    reuses_memory,
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
    reuses_cores,
    same_memory_in_all,
    valid_instead,
    valid_reservation,
    with_our_slices,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod

#: Two nodes of four cores; siblings are n and n + 8; CPU 0 is reserved.
RULES = make_rules(SMT, NO_POLICY, CONTAINER, memory=False)
WHOLE = make_rules(SMT, NO_POLICY, CONTAINER, memory=False, full_pcpus_only=True)
TWO = pod(app("a", guaranteed("cpu=2 memory=1Gi")))
PAIR = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b", guaranteed("cpu=2 memory=1Gi")))
MIXED = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b"),
            of_pod=guaranteed("cpu=4 memory=2Gi"))  # fmt: skip
#: What the kubelet says of a pod that it rejects for another reason than the rules look at.
REJECTED: Final[dict[str, Any]] = {"admitted": False}


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


def stated(name: str, **amounts: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


@pytest.mark.parametrize(
    ("ours", "theirs", "busy", "valid"),
    [
        pytest.param("2,10", "1,9", "", True, id="one core for one"),
        pytest.param("2,10", "1-2", "", True, id="one core for two"),
        pytest.param("2-3", "1,9", "", False, id="more cores"),
        pytest.param("1,4", "1,9", "", False, id="more nodes"),
        pytest.param("0-1", "1,9", "", False, id="reserved"),
        pytest.param("2,10", "1,9", "10", False, id="busy"),
        pytest.param("16-17", "1,9", "", False, id="not there"),
        pytest.param("1", "1,9", "", False, id="too few"),
        pytest.param("3,6", "1,9", "9", True, id="theirs busy are no measure of width"),
        pytest.param("3,6", "0-1", "", True, id="theirs reserved are no measure of width"),
        pytest.param("0,3", "0-1", "", False, id="reserved beside reserved ones"),
    ],
)
def test_an_irregular_host(ours: str, theirs: str, busy: str, *, valid: bool) -> None:
    decision = admitting(RULES, TWO, a=ours)
    assert valid_instead(RULES, ledger(busy), TWO, decision, recorded(a=theirs)) is valid


def test_an_irregular_host_whose_answer_overlaps_or_has_to_be_of_whole_cores() -> None:
    decision = admitting(RULES, PAIR, a="2,10", b="3,5")
    assert valid_instead(RULES, ledger(), PAIR, decision, recorded(a="1,9", b="1,10"))
    assert not valid_instead(RULES, ledger(), PAIR, decision, recorded(a="1,9", b="2,10"))
    torn = admitting(WHOLE, TWO, a="2-3")
    assert valid_instead(RULES, ledger(), TWO, torn, REJECTED)
    assert not valid_instead(WHOLE, ledger(), TWO, torn, REJECTED)


@pytest.mark.parametrize(
    ("reason", "asked", "container", "busy", "valid"),
    [
        pytest.param(Reason.SMT_ALIGNMENT, 3, "a", "", True, id="half a core is asked"),
        pytest.param(Reason.SMT_ALIGNMENT, 8, "a", "3-7", True, id="too few whole cores are free"),
        pytest.param(Reason.SMT_ALIGNMENT, 2, "a", "", False, id="whole cores are free"),
        pytest.param(Reason.SMT_ALIGNMENT, 2, None, "", False, id="of no container"),
        pytest.param(Reason.SMT_ALIGNMENT, 4, "a", "3-7,11-15", False, id="just enough are free"),
        pytest.param(Reason.SMT_ALIGNMENT, 2, "b", "", True, id="another container took them"),
        pytest.param(Reason.TOPOLOGY_AFFINITY, 3, "a", "", False, id="another reason"),
    ],
)
def test_a_rejection_on_an_irregular_host(
    reason: Reason, asked: int, container: str | None, busy: str, *, valid: bool
) -> None:
    decision, theirs = rejecting(reason, asked, container), recorded(a="1,9", b="2,10")
    assert valid_instead(WHOLE, ledger(busy), PAIR, decision, theirs) is valid
    both = {"admitted": False, "reason": "SMTAlignmentError"}
    same = reason is Reason.SMT_ALIGNMENT or container == "b"
    assert valid_instead(WHOLE, ledger(busy), PAIR, decision, both) is same


@pytest.mark.parametrize(
    ("budget", "whole", "a", "b", "valid"),
    [
        pytest.param("1-2,9-10", False, "1,9", "2,10", True, id="the same cores"),
        pytest.param("4-7", False, "4-6", "7", False, id="fewer cores"),
        pytest.param("4-7", False, "4,8", "5-7", True, id="theirs outside of the budget"),
        pytest.param("4-5,12-13", True, "4-5", "12-13", True, id="theirs torn"),
        pytest.param("4-5,12-13", True, "4", "5,12-13", False, id="theirs too few"),
    ],
)
def test_a_budget(budget: str, a: str, b: str, *, whole: bool, valid: bool) -> None:
    """Ours is a budget of 4 CPUs, of which the exclusive container has 2, in 2 cores."""
    rules = make_rules(SMT, RESTRICTED, POD, memory=False, full_pcpus_only=whole)
    decision = admit(rules, rules.empty_ledger(), MIXED)
    theirs = recorded(a=a, b=b)
    theirs["pod"]["cpus"] = budget
    theirs["pod"]["containers"]["b"]["isolation"] = "pod"
    assert valid_instead(rules, rules.empty_ledger(), MIXED, decision, theirs) is valid


def test_a_pod_that_shares() -> None:
    shares = pod(app("a", resources("cpu=1")))
    decision = admit(RULES, RULES.empty_ledger(), shares)
    theirs = recorded(a="1")
    theirs["pod"]["containers"]["a"] = {"cpus": None, "isolation": "host"}
    assert valid_instead(RULES, ledger(), shares, decision, theirs)
    assert not valid_instead(RULES, ledger(), shares, decision, recorded(a="1"))


@pytest.mark.parametrize(
    ("budget", "gate", "cpus", "busy", "valid"),
    [
        pytest.param(True, False, "4,12", "", True, id="all that is asked"),
        pytest.param(True, False, "4,12", "4", False, id="busy"),
        pytest.param(False, False, "4,12", "", False, id="no budget"),
        pytest.param(True, True, "4,12", "", False, id="the gate is on"),
    ],
)
def test_a_dropped_budget(cpus: str, busy: str, *, budget: bool, gate: bool, valid: bool) -> None:
    off = make_rules(SMT, NO_POLICY, CONTAINER, memory=False, managed=False,
                     gates={"pod_level_resources": False})  # fmt: skip
    rules, amount = RULES if gate else off, guaranteed("cpu=4 memory=2Gi")
    asked = replace(TWO, resources=amount if budget else None)
    assert drops_budget(rules, ledger(busy), asked, admitting(rules, asked, a=cpus)) is valid


class TestWholeCores:
    """The kubelet takes the sibling of reserved CPU 0 and half of another core."""

    RULES = make_rules(SMT, RESTRICTED, CONTAINER, memory=False, full_pcpus_only=True)

    @pytest.mark.parametrize(
        ("ours", "theirs", "nodes", "valid"),
        [
            pytest.param("4,12", "1,8", (0,), True, id="whole and free"),
            pytest.param("4,12", "1,9", (0,), False, id="theirs are whole"),
            pytest.param("2,10", "1,8", (0,), False, id="busy"),
            pytest.param("4-5", "1,8", (0,), False, id="torn"),
            pytest.param("4", "1,8", (0,), False, id="too few"),
            pytest.param(Reason.TOPOLOGY_AFFINITY, "1,8", (0,), True, id="their node has none"),
            pytest.param(Reason.TOPOLOGY_AFFINITY, "1,8", (0, 1), False, id="their nodes have"),
            pytest.param(Reason.SMT_ALIGNMENT, "1,8", (0,), False, id="another reason"),
        ],
    )
    def test_torn_cores(
        self, ours: str | Reason, theirs: str, nodes: tuple[int, ...], *, valid: bool
    ) -> None:
        if isinstance(ours, Reason):
            decision = rejecting(ours, 4, "a")
        else:
            decision = admitting(self.RULES, TWO, a=ours)
        answer = recorded(a=theirs)
        answer["pod"]["containers"]["a"]["hint"] = {"mask": list(nodes)}
        assert in_whole_cores(self.RULES, ledger("2-3,10-11"), TWO, decision, answer) is valid

    def test_a_rejection_by_both_or_without_the_option(self) -> None:
        ours = rejecting(Reason.TOPOLOGY_AFFINITY)
        for reason, busy, valid in (
            (Reason.SMT_ALIGNMENT, "", True),
            (Reason.SMT_ALIGNMENT, "8", False),  # beside whole cores only
            (Reason.UNEXPECTED, "", False),
        ):
            theirs = {"admitted": False, "reason": reason}
            assert in_whole_cores(self.RULES, ledger(busy), TWO, ours, theirs) is valid
        ours = admitting(RULES, TWO, a="4,12")
        assert not in_whole_cores(RULES, ledger(), TWO, ours, recorded(a="1,8"))


@pytest.mark.parametrize(
    ("ours", "theirs", "as_narrow", "as_even"),
    [
        ("0", "8", True, True),
        ("0", "0,8", False, False),
        ("0,4", "0,8", False, True),
        ("0,8", "0,4", True, False),
        ("1,4", "2,5", True, True),
    ],
)
def test_a_reservation(ours: str, theirs: str, *, as_narrow: bool, as_even: bool) -> None:
    rules = make_rules(SMT, reserved=ours, distribute_cpus_across_numa=True)
    assert valid_reservation(rules, {"reserved": theirs}) is as_narrow
    assert evenly_reserved(rules, {"reserved": theirs}) is as_even
    assert not evenly_reserved(make_rules(SMT, reserved=ours), {"reserved": theirs})


@pytest.mark.parametrize(
    ("ours", "theirs", "closest", "valid"),
    [
        pytest.param(0b1100, [0, 2], True, True, id="closer"),
        pytest.param(0b101, [2, 3], True, False, id="farther"),
        pytest.param(0b1100, [2], True, False, id="more nodes"),
        pytest.param(0b1100, [0, 2], False, False, id="without the option"),
        pytest.param(0b1100, [2, 3], True, False, id="the same"),
    ],
)
def test_closer_nodes(ours: int, theirs: list[int], *, closest: bool, valid: bool) -> None:
    """Of nodes 0, 2 and 3 the last two are the closest."""
    cpus = CpuTopology.from_rows([(n, n, n // 2, (0, 2, 3)[n // 2], n // 2) for n in range(6)])
    rows = {0: {0: 10, 2: 32, 3: 32}, 2: {0: 32, 2: 10, 3: 12}, 3: {0: 32, 2: 12, 3: 10}}
    nodes = tuple(MachineNode(node, 16 * GIB, {}, row) for node, row in rows.items())
    rules = make_rules(Machine(cpus, nodes), memory=False)
    topology = replace(rules.policy.topology, prefer_closest_numa_nodes=closest)
    rules = EffectivePolicy(rules.machine, replace(rules.policy, topology=topology), MANAGERS)
    decision = admitting(rules, TWO, a="2-3")
    assert decision.allocation is not None
    (one,) = decision.allocation.containers
    aligned = (replace(one, hint=Hint(ours, preferred=True)),)
    decision = replace(decision, allocation=replace(decision.allocation, containers=aligned))
    hint = {"mask": theirs, "preferred": True}
    expected = {"admitted": True, "pod": {"containers": {"a": {"hint": hint}}}}
    assert on_closer_nodes(rules, decision, expected) is valid


def of_option(nodes_per_package: int, packages: int, **option: Any) -> EffectivePolicy:  # noqa: ANN401
    """Return rules of nodes of four CPUs each."""
    host = regular_host(packages, nodes_per_package, cores_per_node=4, threads=1)
    return make_rules(Machine.of(host), NO_POLICY, CONTAINER, memory=False, **option)


#: Four nodes by themselves, and two sockets of two nodes.
EVEN, NO_EVEN = of_option(1, 4, distribute_cpus_across_numa=True), of_option(1, 4)
BY_SOCKET, NO_SOCKET = of_option(2, 2, align_by_socket=True), of_option(2, 2)
SIX = pod(app("a", guaranteed("cpu=6 memory=1Gi")))


@pytest.mark.parametrize(
    ("rule", "rules", "ours", "theirs", "busy", "valid"),
    [
        pytest.param(evenly_distributed, EVEN, "1,4-5,8-9,12", "1-6", "", True, id="more even"),
        pytest.param(evenly_distributed, EVEN, "1-6", "1,4-5,8-9,12", "", False, id="less even"),
        pytest.param(evenly_distributed, EVEN, "1,4-5,8-9", "1-6", "", False, id="too few"),
        pytest.param(evenly_distributed, EVEN, "0,4-5,8-9,12", "1-6", "", False, id="reserved"),
        pytest.param(evenly_distributed, NO_EVEN, "1,4-5,8-9,12", "1-6", "", False, id="no option"),
        pytest.param(evenly_distributed, EVEN, None, "1-6", "", False, id="ours a rejection"),
        pytest.param(evenly_distributed, EVEN, "1,4-5,8-9,12", None, "", False, id="theirs one"),
        pytest.param(on_fewer_sockets, BY_SOCKET, "8-13", "4-9", "", True, id="fewer sockets"),
        pytest.param(on_fewer_sockets, BY_SOCKET, "8-13", "10-15", "", False, id="as many"),
        pytest.param(on_fewer_sockets, BY_SOCKET, "8-12", "4-9", "", False, id="too few CPUs"),
        pytest.param(on_fewer_sockets, BY_SOCKET, "8-13", "4-9", "13", False, id="busy"),
        pytest.param(on_fewer_sockets, NO_SOCKET, "8-13", "4-9", "", False, id="without option"),
        pytest.param(on_fewer_sockets, BY_SOCKET, None, "4-9", "", False, id="rejected by us"),
        pytest.param(on_fewer_sockets, BY_SOCKET, "8-13", None, "", False, id="by the kubelet"),
    ],
)
def test_what_serves_an_option_better(
    rule: Callable[[EffectivePolicy, Ledger, Decision, Mapping[str, Any]], bool],
    rules: EffectivePolicy,
    ours: str | None,
    theirs: str | None,
    busy: str,
    *,
    valid: bool,
) -> None:
    answer = recorded(a=theirs) if theirs else REJECTED
    if theirs:
        answer["pod"]["containers"]["a"]["hint"] = {"mask": None}
    decision = admitting(rules, SIX, a=ours) if ours else rejecting(Reason.UNEXPECTED)
    before = with_exclusive(rules.empty_ledger(), Mask.parse(busy))
    assert rule(rules, before, decision, answer) is valid


AGAIN = pod(init("i", guaranteed("cpu=4 memory=1Gi")), app("a", guaranteed("cpu=2 memory=1Gi")))


@pytest.mark.parametrize(
    ("desired", "rules", "ours", "busy", "reason", "valid"),
    [
        pytest.param(AGAIN, WHOLE, "1,9", "", "SMTAlignmentError", True, id="again"),
        pytest.param(AGAIN, WHOLE, "1-2", "", "SMTAlignmentError", False, id="halves"),
        pytest.param(AGAIN, WHOLE, "1,9", "9", "SMTAlignmentError", False, id="busy"),
        pytest.param(AGAIN, WHOLE, "1-2,9-10", "", "SMTAlignmentError", False, id="too many"),
        pytest.param(AGAIN, WHOLE, "1,9", "", "TopologyAffinityError", False, id="other reason"),
        pytest.param(AGAIN, RULES, "1,9", "", "SMTAlignmentError", False, id="without option"),
        pytest.param(TWO, WHOLE, "1,9", "", "SMTAlignmentError", False, id="without init"),
        pytest.param(AGAIN, WHOLE, None, "", "SMTAlignmentError", False, id="no further"),
    ],
)
def test_cores_of_init_containers(
    desired: Pod, rules: EffectivePolicy, ours: str | None, busy: str, reason: str, *, valid: bool
) -> None:
    decision = rejecting(Reason.SMT_ALIGNMENT)
    if ours:
        decision = admitting(rules, desired, i="1-2,9-10", a=ours)
    answer = {"admitted": False, "reason": reason, "metrics": {}}
    assert reuses_cores(rules, ledger(busy), desired, decision, answer) is valid


def test_caches_of_a_rejected_pod() -> None:
    rejected, before = rejecting(Reason.UNEXPECTED), BY_SOCKET.empty_ledger()
    answer: dict[str, Any] = {"admitted": False, "reason": "UnexpectedAdmissionError"}
    answer["metrics"] = {UNCORE_ALIGNED: 1}
    assert caches_of_rejected(BY_SOCKET, before, rejected, answer) == ("fewer sockets", 0)
    assert caches_of_rejected(RULES, before, rejected, answer) is None
    for name, other in ("reason", "x"), ("metrics", {}):
        assert caches_of_rejected(BY_SOCKET, before, rejected, {**answer, name: other}) is None
    rejected, answer["reason"] = rejecting(Reason.SMT_ALIGNMENT), "SMTAlignmentError"
    cores = make_rules(SMT, reserved="0,8", full_pcpus_only=True)
    torn = with_exclusive(cores.empty_ledger(), Mask.of(1))
    assert caches_of_rejected(cores, torn, rejected, answer) == ("whole cores", 0)
    assert caches_of_rejected(cores, cores.empty_ledger(), rejected, answer) is None


class TestSlicesByCore:
    #: Siblings are n and n + 8; the budget is two cores, or three.
    RULES = make_rules(SMT, reserved="0,8", full_pcpus_only=True)
    SINGLES = pod(
        app("a", guaranteed("cpu=1 memory=1Gi")),
        app("b", guaranteed("cpu=1 memory=1Gi")),
        app("c"),
        of_pod=guaranteed("cpu=4 memory=4Gi"),
    )

    @pytest.mark.parametrize(
        ("a", "b", "c", "budget", "better"),
        [
            pytest.param("1", "2", "9-10", "1-2,9-10", True, id="cores of their own"),
            pytest.param("1", "2", "9-10", "3-4,11-12", False, id="another budget"),
            pytest.param("2", "10", "1,9", "1-2,9-10", False, id="one core as well"),
            pytest.param("1", "2", "2,9-10", "1-2,9-10", False, id="shared as well"),
            pytest.param("1", "1", "2,9-10", "1-2,9-10", False, id="of both"),
            pytest.param("1", "3", "2,9", "1-2,9-10", False, id="outside of the budget"),
            pytest.param("1", "2,10", "9", "1-2,9-10", False, id="too many"),
        ],
    )
    def test_slices(self, a: str, b: str, c: str, budget: str, *, better: bool) -> None:
        ours = {"a": a, "b": b, "c": c}
        answer = recorded(a="1", b="9", c="2,10")
        answer["pod"]["cpus"] = budget
        answer["pod"]["containers"]["c"]["isolation"] = "pod"
        found = with_our_slices(self.RULES, admitting(self.RULES, self.SINGLES, **ours), answer)
        assert (found is not answer) is better
        if better:
            assert {n: one["cpus"] for n, one in found["pod"]["containers"].items()} == ours


NEGATIVE: Final = {"name": "b", "resources": {"limits": {"memory": "-1"}}}
PAGES: Final = {"requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}}


@pytest.mark.parametrize(
    ("spec", "invalid"),
    [
        ({"containers": [{"resources": {}}]}, False),
        ({"containers": [NEGATIVE]}, True),
        ({"containers": [{"name": "a"}], "initContainers": [NEGATIVE]}, True),
        ({"containers": [{"name": "a"}], **NEGATIVE}, True),
        ({"containers": [stated("a", **{"hugepages-2Mi": "4Mi"})], "resources": PAGES}, False),
        ({"containers": [stated("a", **{"hugepages-2Mi": "6Mi"})], "resources": PAGES}, True),
    ],
)
def test_negative_amounts_and_more_huge_pages_than_the_budget_are_invalid(
    spec: dict[str, Any], *, invalid: bool
) -> None:
    assert is_invalid({"spec": spec}) is invalid


#: The whole pod is admitted by the rules, and rejected by the kubelet for memory.
SHARED: Final = make_rules(SMT, RESTRICTED, CONTAINER)


TOO_FEW: Final = admitting(SHARED, MIXED, a="1", b="3")
EXCLUSIVE, SHARING = (rejecting(Reason.SMT_ALIGNMENT, 2, name) for name in "ab")
NO_GATE: Final = make_rules(SMT, RESTRICTED, CONTAINER, managed=False)


@pytest.mark.parametrize(
    ("rules", "ours", "theirs", "valid"),
    [
        pytest.param(SHARED, None, {}, True, id="all that is asked"),
        pytest.param(SHARED, TOO_FEW, {}, False, id="too few"),
        pytest.param(SHARED, EXCLUSIVE, {}, True, id="exclusive rejected"),
        pytest.param(SHARED, SHARING, {}, False, id="shared rejected"),
        pytest.param(SHARED, rejecting(Reason.UNEXPECTED), {}, False, id="none rejected"),
        pytest.param(make_rules(SMT, NO_POLICY, POD), None, {}, True, id="nothing aligned"),
        pytest.param(make_rules(SMT, RESTRICTED, POD), None, {}, False, id="served as one"),
        pytest.param(NO_GATE, None, {}, False, id="no gate"),
        pytest.param(SHARED, None, {"message": "SMT"}, False, id="another reason of theirs"),
        pytest.param(SHARED, None, {"admitted": True}, False, id="admitted by both"),
    ],
)
def test_memory_of_shared_containers(
    rules: EffectivePolicy, ours: Decision | None, theirs: dict[str, object], *, valid: bool
) -> None:
    decision = ours or admit(rules, rules.empty_ledger(), MIXED)
    document = {"spec": {"containers": [stated("a", cpu="2", memory="1Gi"), {"name": "b"}]}}
    message = "Allocate failed due to [memorymanager] whatever"
    expected = {"admitted": False, "message": message, **theirs}
    assert pins_no_shared_memory(rules, MIXED, decision, expected, document) is valid


# Shows in differences.md: rejected-pod
def test_memory_may_be_spread_otherwise_but_must_add_up_by_type() -> None:
    empty = make_rules().empty_ledger()
    charged = {
        node: replace(memory, reserved=MappingProxyType({"memory": GIB}))
        for node, memory in memory_charge(empty).items()
    }
    for sizes, valid in ((2 * GIB, 0), True), ((2 * GIB, 1), False):
        nodes = {str(n): {"memory": {"memory": [0, size]}} for n, size in enumerate(sizes)}
        assert same_memory_in_all(empty.with_part(MEMORY, charged), {"mem_nodes": nodes}) is valid


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
        assert self.judged(decision, REJECTED)
        assert decision.allocation is not None
        first, second = decision.allocation.containers
        for lacking in replace(second, memory=()), replace(second, cpus=Mask.of(1)):
            allocation = replace(decision.allocation, containers=(first, lacking))
            assert not self.judged(replace(decision, allocation=allocation), REJECTED)

    def test_a_rejection_is_valid_where_the_kubelet_rejects_or_breaks_its_hint(self) -> None:
        rejected = rejecting(Reason.UNEXPECTED)
        assert self.judged(rejected, REJECTED)
        assert not self.judged(rejected, REJECTED, pages="0")
        for nodes, valid in ([0, 1], True), ([0], False):
            container = {"hint": {"mask": [0]}, "memory": [{"numa": nodes}]}
            kubelet = {"admitted": True, "pod": {"containers": {"a": container}}}
            assert self.judged(rejected, kubelet) is valid

    def test_memory_that_was_left_serves_where_the_kubelet_did_not_count_it(self) -> None:
        decision = admit(self.RULES, self.RULES.empty_ledger(), self.DESIRED)
        document = {
            "spec": {
                "initContainers": [stated("i", cpu="1", memory="1Gi")],
                "containers": [stated("a", cpu="2", memory="1Gi")],
            }
        }
        message = (
            "Allocate failed due to [memorymanager] failed to find the extended preferred hint"
        )

        def judged(decision: Decision, **theirs: object) -> bool:
            theirs = {"admitted": False, "message": message, **theirs}
            return reuses_memory(self.RULES, self.DESIRED, decision, theirs, document)

        assert judged(decision)
        assert not judged(decision, message="Allocate failed due to [memorymanager] whatever")
        assert not judged(decision, admitted=True)
        assert not judged(rejecting(Reason.UNEXPECTED))
        assert decision.allocation is not None
        first, second = decision.allocation.containers
        lacking = replace(decision.allocation, containers=(first, replace(second, memory=())))
        assert not judged(replace(decision, allocation=lacking))
