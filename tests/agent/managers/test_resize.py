"""Running pods get other amounts: what stays, what comes, and what is rejected.

What holds of every resize on every host is in `test_invariants`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine
from agent.managers.policy import (
    Cordon,
    CpuPolicy,
    IsolationMode,
    NodeFit,
    PluginDevice,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.managers.resize import OtherAmounts, advise, is_resize, resize
from agent.managers.rules import restored, with_cordon
from agent.managers.specification import specification_of
from agent.pods.model import (
    EXCLUSIVE,
    MEMORY_CLASSES,
    ROUND_UP,
    SMT,
    UNTIL_REMOVED,
    isolation_annotation,
    spec_text,
)
from sysfs.described import regular_host
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    GIB,
    NO_POLICY,
    POD,
    RESTRICTED,
    SINGLE,
    make_rules,
)
from tests.agent.managers.hosts import SMT as SMT_HOST
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Rejection
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod, Resources

MAIN: Final = "main"
ONE: Final = guaranteed("cpu=1 memory=1Gi")
HALF: Final = guaranteed("cpu=500m memory=1Gi")


def one(cpus: int, memory: str = "1Gi", uid: str = "u-1", **more: Any) -> Pod:  # noqa: ANN401
    return pod(app(MAIN, guaranteed(f"cpu={cpus} memory={memory}")), uid=uid, **more)


def asked(
    ledger: Ledger, uid: str = "u-1", container: str | None = MAIN, **amounts: float
) -> tuple[OtherAmounts, Pod]:
    """Return a change in CPUs and GiB, and the specification with it."""
    cpu, memory = amounts.get("cpu"), amounts.get("memory")
    change = OtherAmounts(
        uid,
        container,
        None if cpu is None else int(1000 * cpu),
        None if memory is None else int(GIB * memory),
    )
    before = specification_of(ledger.allocations[uid])
    assert before is not None
    return change, change.of(before)


def resized(
    rules: EffectivePolicy,
    ledger: Ledger,
    keep: str = "",
    **change: Any,  # noqa: ANN401
) -> Ledger:
    decision = resize(rules, ledger, asked(ledger, **change)[1], Mask.parse(keep))
    assert decision.admitted, decision.rejection
    return decision.ledger


def rejected(
    rules: EffectivePolicy,
    ledger: Ledger,
    keep: str = "",
    **change: Any,  # noqa: ANN401
) -> Rejection:
    decision = resize(rules, ledger, asked(ledger, **change)[1], Mask.parse(keep))
    assert decision.rejection is not None
    assert decision.ledger is ledger
    return decision.rejection


def cpus(ledger: Ledger, uid: str = "u-1") -> dict[str, str]:
    """Return the CPUs of the containers, and of the budget as ""."""
    allocation = ledger.allocations[uid]
    found = {"": allocation.cpus} | {each.name: each.cpus for each in allocation.containers}
    return {name: str(mask) for name, mask in found.items() if mask is not None}


# Shows in differences.md: resize-exclusive
def test_a_pod_grows_and_shrinks_back_to_what_it_had() -> None:
    rules = make_rules()
    before = with_pod(rules, one(2, uid="u-2"), with_pod(rules, one(2)))
    assert cpus(before) == {MAIN: "1-2"}
    grown = resized(rules, before, cpu=4)
    assert cpus(grown) == {MAIN: "1-2,5-6"}
    assert grown.allocations["u-1"].originals == {MAIN: Mask.parse("1-2")}
    assert list(grown.allocations) == ["u-1", "u-2"]
    shrunk = resized(rules, grown, cpu=2)
    assert cpus(shrunk) == {MAIN: "1-2"}
    assert shrunk.parts == before.parts, "what was free is free again"
    assert remove(rules, remove(rules, shrunk, "u-1"), "u-2") == rules.empty_ledger()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(BEST_EFFORT, "1-7,9"), (NO_POLICY, "1-7,9"), (RESTRICTED, None), (SINGLE, None)],
)
def test_beyond_its_node_a_pod_grows_where_the_policy_lets_it(
    policy: TopologyManagerPolicy, expected: str | None
) -> None:
    rules = make_rules(topology=policy, reserved="0,8")
    ledger = with_pod(rules, one(6))
    if expected is None:
        found = rejected(rules, ledger, cpu=8)
        assert (found.reason, found.message.partition(":")[0]) == (
            "Infeasible",
            "TopologyAffinityError",
        )
    else:
        assert cpus(resized(rules, ledger, cpu=8)) == {MAIN: expected}


# Shows in differences.md: resize-deferred
def test_what_others_have_defers_and_what_the_host_has_not_is_infeasible() -> None:
    rules = make_rules(topology=SINGLE)
    ledger = with_pod(rules, one(3, uid="u-2"), with_pod(rules, one(3)))
    found = rejected(rules, ledger, cpu=7)
    assert found.reason == "Deferred"
    fit = make_rules(topology=SINGLE, fit=NodeFit())
    found = rejected(fit, with_pod(fit, one(2)), cpu=99)
    assert found.reason == "Infeasible"
    assert found.message.startswith("OutOfcpu: ")


# Shows in differences.md: resize-below
def test_fewer_cpus_than_at_the_admission_have_to_be_named() -> None:
    rules = make_rules()
    ledger = with_pod(rules, one(4))
    found = rejected(rules, ledger, cpu=2)
    assert found.message == (
        "container main asks for 2 CPUs, but it was admitted with CPUs 1-4, which stay"
    )
    assert found.remedy == "name which 2 CPUs of CPUs 1-4 stay (--keep)"
    assert cpus(resized(rules, ledger, keep="2,4", cpu=2)) == {MAIN: "2,4"}
    assert rejected(rules, ledger, keep="2,9", cpu=2).message == (
        "the pod does not have CPUs 9, which are to stay"
    )
    grown = resized(rules, ledger, cpu=6)
    assert cpus(resized(rules, grown, keep="6", cpu=5)) == {MAIN: "1-4,6"}
    assert rejected(rules, grown, keep="5-6", cpu=5).message.endswith(
        "but CPUs 1-6 are to stay, which are more"
    )


def test_the_siblings_of_torn_cores_come_first() -> None:
    rules = make_rules(SMT_HOST, reserved="0,8")
    ledger = with_pod(rules, one(3))
    assert cpus(ledger) == {MAIN: "1-2,9"}
    assert cpus(resized(rules, ledger, cpu=4)) == {MAIN: "1-2,9-10"}


def test_whole_cores_stay_whole() -> None:
    rules = make_rules(SMT_HOST, full_pcpus_only=True)
    ledger = with_pod(rules, one(2))
    assert cpus(resized(rules, ledger, cpu=4)) == {MAIN: "1-2,9-10"}
    assert rejected(rules, ledger, cpu=3).message == (
        "SMTAlignmentError: 3 CPUs asked, not a multiple of the 2 CPUs of a core"
    )


@pytest.mark.parametrize(
    ("keep", "cpu", "stays", "remedy"),
    [
        ("", 4, "1-2,9-10", ""),
        ("2,10", 2, "2,10", ""),
        ("2,10", 4, "1-2,9-10", ""),
        ("", 5, "", "ask for a multiple of the 2 CPUs of a core"),
        ("1-2", 2, "", "name CPUs that stay, of whole cores (--keep)"),
        ("1-3", 4, "", "name CPUs that stay, of whole cores (--keep)"),
    ],
)
def test_a_pod_that_gives_cpus_back_keeps_whole_cores(
    keep: str, cpu: int, stays: str, remedy: str
) -> None:
    rules = make_rules(SMT_HOST, full_pcpus_only=True)
    budget = pod(app("rest"), of_pod=guaranteed("cpu=2 memory=2Gi"))
    for before, container in ((one(2), MAIN), (budget, None)):
        grown = resized(rules, with_pod(rules, before), cpu=6, container=container)
        if remedy:
            found = rejected(rules, grown, keep, cpu=cpu, container=container)
            assert (found.reason, found.remedy) == ("Infeasible", remedy)
            assert found.message.startswith("SMTAlignmentError: ")
        else:
            after = resized(rules, grown, keep, cpu=cpu, container=container)
            assert str(after.allocations["u-1"].exclusive_cpus) == stays


def test_torn_cores_of_an_older_policy_stay_where_nothing_is_added() -> None:
    ledger = with_pod(make_rules(SMT_HOST), one(3))
    rules = make_rules(SMT_HOST, full_pcpus_only=True)
    after = resized(rules, ledger, memory=2)
    assert cpus(after) == cpus(ledger)
    assert blocks(after) == [(2 * GIB, "0")]


@pytest.mark.parametrize(
    ("has", "others", "cpu", "after"),
    [
        # (what the pod has, whole cores of others, what it asks for; what it has then)
        (1, 0, 2, "1,9"),
        (3, 0, 4, "1-2,9-10"),
        (3, 0, 6, "1-3,9-11"),
        # All cores but its own are taken.
        (1, 12, 2, "1,9"),
        (3, 10, 4, "1-2,9-10"),
    ],
)
def test_torn_cores_of_an_older_policy_become_whole_as_a_pod_grows(
    has: int, others: int, cpu: int, after: str
) -> None:
    ledger = with_pod(make_rules(SMT_HOST, reserved="0,8"), one(has))
    rules = make_rules(SMT_HOST, reserved="0,8", topology=BEST_EFFORT, full_pcpus_only=True)
    if others:
        ledger = with_pod(rules, one(others, uid="u-2"), ledger)
    assert cpus(resized(rules, ledger, cpu=cpu)) == {MAIN: after}


def test_distributed_cpus_stay_distributed() -> None:
    rules = make_rules(topology=BEST_EFFORT, reserved="0,8", distribute_cpus_across_numa=True)
    ledger = with_pod(rules, one(8, memory="1Gi"))
    assert cpus(ledger) == {MAIN: "1-4,9-12"}
    assert cpus(resized(rules, ledger, cpu=10)) == {MAIN: "1-5,9-13"}


def test_idle_siblings_come_and_go_with_their_cores() -> None:
    rules = make_rules(SMT_HOST, smt=IsolationMode.ASKED)
    idle = {isolation_annotation(SMT): "idle-siblings"}
    ledger = with_pod(rules, one(2, annotations=idle))
    allocation = resized(rules, ledger, cpu=3).allocations["u-1"]
    assert (str(allocation.containers[0].cpus), str(allocation.idle)) == ("1-3", "9-11")
    shrunk = resized(rules, resized(rules, ledger, cpu=3), cpu=2)
    assert shrunk.parts == ledger.parts


def test_idle_siblings_are_not_named_to_stay() -> None:
    rules = make_rules(SMT_HOST, smt=IsolationMode.ALWAYS)
    ledger = with_pod(rules, pod(app("rest"), of_pod=guaranteed("cpu=2 memory=2Gi")))
    found = rejected(rules, ledger, "9", container=None, cpu=1)
    assert found.message == "the pod does not have CPUs 9, which are to stay"


@pytest.mark.parametrize(
    ("item", "before", "after", "message"),
    [
        (SMT, None, "idle-siblings", "asks for idle siblings, which the pod does not have"),
        (SMT, "idle-siblings", None, "no longer asks for idle siblings, which the pod has"),
        (
            MEMORY_CLASSES,
            None,
            "hbm",
            "is on node 0, which it may not use now; memory hbm is asked: node 1",
        ),
    ],
)
def test_an_annotation_that_changed_is_named(
    item: str, before: str | None, after: str | None, message: str
) -> None:
    """It takes effect as the file that states it is read, before the resize or with it."""
    rules = make_rules(SMT_HOST, smt=IsolationMode.ASKED)
    classes = replace(rules.policy.memory, classes={0: "dram", 1: "hbm"}, usual_classes="asked")
    rules = replace(rules, policy=replace(rules.policy, memory=classes))
    asks = {} if after is None else {isolation_annotation(item): after}
    asked_before = {} if before is None else {isolation_annotation(item): before}
    ledger = with_pod(rules, one(2, annotations=asked_before))
    found = resize(rules, ledger, one(4, annotations=asks)).rejection
    assert found is not None
    assert found.message.endswith(message)
    ledger = ledger.with_lifetime("u-1", UNTIL_REMOVED, {item: after or ""}, asks)
    found = rejected(rules, ledger, cpu=4)
    assert found.message.endswith(message)


# Shows in differences.md: burstable-exclusive, round-up
def test_a_named_container_of_a_burstable_pod_grows_by_whole_cores() -> None:
    rules = make_rules(SMT_HOST, scope=CONTAINER)
    own = app(MAIN, resources("cpu=1 memory=1Gi", "cpu=1"))
    first = init("first", resources("cpu=1", "cpu=1"))
    named = pod(first, own, annotations={EXCLUSIVE: MAIN, ROUND_UP: "cores"})
    ledger = with_pod(rules, named)
    (before,) = ledger.allocations.values()
    grown = resize(rules, ledger, asked(ledger, cpu=3)[1])
    assert grown.allocation is not None
    assert [len(each.exclusive_cpus) for each in (before, grown.allocation)] == [2, 4]
    assert before.exclusive_cpus < grown.allocation.exclusive_cpus
    # Without the annotation it would share CPUs.
    unnamed = replace(asked(ledger, cpu=3)[1], annotations={ROUND_UP: "cores"})
    found = resize(rules, ledger, unnamed).rejection
    assert found is not None
    assert found.message == (
        f"container {MAIN} has exclusive CPUs; a resize cannot change that: the pod's QoS class is "
        "Burstable; exclusive resources need Guaranteed, or the annotation "
        "cpu.numawarden.dev/exclusive"
    )


BUDGET: Final = pod(
    app(MAIN, guaranteed("cpu=2 memory=1Gi")),
    app("rest"),
    of_pod=guaranteed("cpu=4 memory=4Gi"),
)


# Shows in differences.md: resize-budget
def test_a_slice_grows_inside_its_budget_and_the_pool_keeps_a_cpu() -> None:
    rules = make_rules()
    ledger = with_pod(rules, BUDGET)
    assert cpus(ledger) == {"": "1-4", MAIN: "1-2", "rest": "3-4"}
    grown = resized(rules, ledger, cpu=3)
    assert cpus(grown) == {"": "1-4", MAIN: "1-3", "rest": "4"}
    assert rejected(rules, grown, cpu=4).reason == "Infeasible"
    assert resized(rules, grown, cpu=2).parts == ledger.parts


def test_a_budget_grows_for_its_pool_and_never_below_its_slices() -> None:
    rules = make_rules()
    grown = resized(rules, with_pod(rules, BUDGET), container=None, cpu=6, memory=6)
    assert cpus(grown) == {"": "1-6", MAIN: "1-2", "rest": "3-6"}
    assert [(block.size, str(block.nodes)) for block in grown.allocations["u-1"].memory] == [
        (6 * GIB, "0")
    ]
    found = rejected(rules, grown, keep="1-3", container=None, cpu=2)
    assert found.message == "the pod asks for 2 CPUs, but CPUs 1-3 are to stay, which are more"
    assert cpus(resized(rules, grown, keep="1-3", container=None, cpu=3)) == {
        "": "1-3",
        MAIN: "1-2",
        "rest": "3",
    }


def test_memory_keeps_its_node_and_widens_where_it_must() -> None:
    rules = make_rules(topology=BEST_EFFORT)
    ledger = with_pod(rules, one(2, memory="4Gi"))
    grown = resized(rules, ledger, memory=8)
    assert blocks(grown) == [(8 * GIB, "0")]
    wide = resized(rules, grown, memory=20)
    assert blocks(wide) == [(20 * GIB, "0-1")]
    assert blocks(resized(rules, wide, memory=4)) == [(4 * GIB, "0-1")], "nodes stay"


def blocks(ledger: Ledger) -> list[tuple[int, str]]:
    [container] = ledger.allocations["u-1"].containers
    return [(block.size, str(block.nodes)) for block in container.memory]


def test_a_container_that_shares_gets_another_quota_alone() -> None:
    rules = make_rules()
    ledger = with_pod(rules, pod(app(MAIN, resources("cpu=500m", "cpu=1"))))
    after = resized(rules, ledger, cpu=2.5).allocations["u-1"]
    assert (after.cpu.limit_millis, after.cpu.request_millis) == (2500, 500)
    assert after.exclusive_cpus == EMPTY


GPU: Final = "example.com/gpu"
TWO_GPUS: Final = {GPU: tuple(PluginDevice(f"d{node}", Mask.of(node)) for node in (0, 1))}


def test_devices_stay_even_if_they_are_gone() -> None:
    rules = make_rules(topology=SINGLE, devices=TWO_GPUS)
    ledger = with_pod(rules, pod(app(MAIN, guaranteed(f"cpu=2 memory=1Gi {GPU}=1"))))
    assert gpus(resized(rules, ledger, cpu=4).allocations["u-1"]) == ("d0",)
    gone = replace(rules, policy=replace(rules.policy, devices={GPU: ()}))
    assert gpus(resized(gone, ledger, cpu=2, memory=2).allocations["u-1"]) == ("d0",)


def gpus(allocation: PodAllocation) -> tuple[str, ...]:
    return allocation.containers[0].devices[GPU]


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        (
            one(2),
            {"cpu": 2.5},
            "container main has exclusive CPUs; a resize cannot change that: its cpu request",
        ),
        (
            pod(app(MAIN, guaranteed("cpu=500m memory=1Gi"))),
            {"cpu": 1},
            "container main has no exclusive CPUs; a resize cannot change that: Guaranteed",
        ),
        (
            pod(app(MAIN, resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"))),
            {"cpu": 1},
            "QoS class would change from Burstable to Guaranteed",
        ),
        (
            pod(
                init("first", guaranteed("cpu=1 memory=1Gi")),
                app(MAIN, one(1).containers[0].resources),
            ),
            {"container": "first", "cpu": 2},
            "init container first is not restartable and cannot be resized",
        ),
    ],
)
def test_what_no_resize_changes(before: Pod, change: dict[str, Any], expected: str) -> None:
    rules = make_rules(scope=CONTAINER)
    found = rejected(rules, with_pod(rules, before), **change)
    assert found.reason == "Infeasible"
    assert found.message.startswith(expected)


BOUNDED: Final = guaranteed("cpu=1 memory=1Gi")


@pytest.mark.parametrize(
    ("before", "after", "remedy"),
    [
        (BOUNDED, resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"), "requests and limits equal"),
        (resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"), BOUNDED, "leave a limit above its"),
        (resources("cpu=1"), resources("cpu=0"), "remove the pod and admit the new one"),
        (resources("cpu=0"), resources("cpu=1"), "remove the pod and admit the new one"),
    ],
)
def test_the_remedy_of_another_qos_class_is_that_of_the_class(
    before: Resources, after: Resources, remedy: str
) -> None:
    rules = make_rules()
    decision = resize(rules, with_pod(rules, pod(app(MAIN, before))), pod(app(MAIN, after)))
    assert decision.rejection is not None
    assert decision.rejection.message.startswith("QoS class would change from ")
    assert remedy in decision.rejection.remedy


def test_a_policy_that_divides_no_budgets_resizes_none() -> None:
    rules = make_rules()
    ledger = with_pod(rules, pod(app(MAIN), of_pod=guaranteed("cpu=4 memory=4Gi")))
    found = rejected(make_rules(scope=CONTAINER), ledger, container=None, cpu=5)
    assert (found.reason, found.message) == (
        "Infeasible",
        "the current policy allocates pod-level resources differently than at admission",
    )


# Shows in differences.md: resize-init
@pytest.mark.parametrize("scope", [CONTAINER, POD])
def test_app_containers_grow_into_what_ended_init_containers_left(
    scope: TopologyManagerScope,
) -> None:
    rules = make_rules(topology=SINGLE, scope=scope)
    many = (
        sidecar("proxy", guaranteed("cpu=1 memory=64Mi")),
        init("first", guaranteed("cpu=5 memory=64Mi")),
        app(MAIN, ONE),
        app("other", ONE),
    )
    ledger = with_pod(rules, pod(*many))
    grown = resized(rules, ledger, cpu=3)
    assert cpus(grown) == {"proxy": "1", "first": "2-6", MAIN: "2,4-5", "other": "3"}
    assert grown.parts["cpu"] == ledger.parts["cpu"], "the pod had them all"
    assert rejected(rules, grown, container="proxy", cpu=3).reason == "Infeasible"
    assert cpus(resized(rules, grown, container="proxy", cpu=2))["proxy"] == "1,7"
    assert resized(rules, grown, cpu=1).parts == ledger.parts
    cordoned = with_cordon(rules, Cordon(cpus=Mask.parse("4-6")))
    assert rejected(cordoned, ledger, cpu=4).resource == "cpu", "not from another node"


def test_an_init_container_keeps_its_cpus_under_another_policy() -> None:
    rules = make_rules(memory=False)
    ledger = with_pod(
        rules, pod(init("first", guaranteed("cpu=2 memory=1Gi")), app(MAIN, HALF), uid="u-1")
    )
    none = replace(rules, policy=replace(rules.policy, cpu=CpuPolicy()))
    found = rejected(none, ledger, memory=2)
    assert found.message.startswith(
        "container first has exclusive CPUs; a resize cannot change that"
    )


def test_another_specification_is_no_resize() -> None:
    rules = make_rules()
    ledger = with_pod(rules, one(2))
    existing = ledger.allocations["u-1"]
    assert is_resize(existing, one(4, memory="3Gi"))
    other = pod(app("other", guaranteed("cpu=2 memory=1Gi")))
    assert not is_resize(existing, other)
    decision = resize(rules, ledger, other)
    assert decision.rejection is not None
    assert decision.rejection.message == (
        "resize of pod default/p changes fields other than the amounts of cpu, memory and huge "
        "pages"
    )
    assert decision.eligibility, "what explains it is known"
    unknown = ledger.with_allocation(replace(existing, spec=""))
    decision = resize(rules, unknown, one(4))
    assert decision.rejection is not None
    assert decision.rejection.message == "the specification of pod default/p is not known"


SIXTEEN_CORES: Final = Machine.of(regular_host(cores_per_node=16, threads=2))


@pytest.mark.parametrize(
    ("rules", "before", "change", "expected"),
    [
        (make_rules(topology=SINGLE), one(2), {"cpu": 7}, "ask for 3 of cpu"),
        (make_rules(topology=SINGLE), one(2), {"cpu": 100}, "ask for 3 of cpu"),
        (make_rules(topology=SINGLE), one(2), {"cpu": 4.5}, "ask for 3 of cpu"),
        (make_rules(), one(3), {"cpu": 1.5}, None),
        (
            make_rules(SIXTEEN_CORES, topology=SINGLE, full_pcpus_only=True),
            one(2),
            {"cpu": 1000},
            "ask for 26 of cpu",
        ),
        (
            make_rules(fit=NodeFit()),
            pod(app(MAIN, resources("cpu=1500m", "cpu=1500m"))),
            {"cpu": 30},
            "ask for 11500m of cpu",
        ),
        (make_rules(topology=SINGLE), one(2), {"memory": 500}, "ask for 14Gi of memory"),
        (
            make_rules(topology=SINGLE),
            one(2),
            {"cpu": 3, "memory": 40},
            "ask for 14Gi of memory, with cpu as asked",
        ),
        (
            make_rules(topology=SINGLE),
            one(2),
            {"cpu": 30, "memory": 1},
            "ask for 3 of cpu, with memory as asked",
        ),
        (make_rules(topology=SINGLE), one(2, memory="2Gi"), {"cpu": 30, "memory": 40}, None),
        (
            make_rules(topology=SINGLE),
            one(2),
            {"cpu": 2, "memory": 15},
            "ask for 14Gi of memory, with cpu as asked",
        ),
    ],
)
def test_a_rejection_names_the_nearest_amount_that_was_tried(
    rules: EffectivePolicy, before: Pod, change: dict[str, Any], expected: str | None
) -> None:
    ledger = with_pod(rules, one(4, uid="u-2"), with_pod(rules, before))
    assert not resize(rules, ledger, asked(ledger, **change)[1]).admitted
    *tried, last = advise(rules, ledger, asked(ledger, **change)[0])
    assert len(tried) <= 16
    if expected is None:
        assert last is None
        return
    assert set(tried) == {None}
    assert last is not None
    assert last.text == expected
    amount = last.amount / 1000 if last.resource == "cpu" else last.amount / GIB
    assert resize(rules, ledger, asked(ledger, **change | {last.resource: amount})[1]).admitted


def test_what_is_advised_instead_of_too_few_cpus_is_what_the_admission_gave() -> None:
    rules = make_rules()
    grown = resized(rules, with_pod(rules, one(4)), cpu=7)
    assert not resize(rules, grown, asked(grown, cpu=1.5)[1]).admitted
    *_, last = advise(rules, grown, asked(grown, cpu=1.5)[0])
    assert last is not None
    assert last.amount == 4000


def test_the_specification_of_a_pod_is_kept_with_it() -> None:
    rules = make_rules()
    stated = replace(
        BUDGET,
        annotations={"example.com/x": "y", "agent.numawarden/require": "aligned"},
        overhead=guaranteed("cpu=100m").requests,
    )
    allocation = with_pod(rules, replace(stated, overhead={})).allocations["u-1"]
    kept = specification_of(allocation)
    assert kept is not None
    assert spec_text(kept) == spec_text(replace(stated, overhead={}))
    assert kept.annotations == {"agent.numawarden/require": "aligned"}


def test_a_pod_gives_cpus_back_while_some_of_them_are_offline_and_the_node_is_too_full() -> None:
    rules = make_rules(topology=BEST_EFFORT, fit=NodeFit())
    before = resized(rules, with_pod(rules, one(4, uid="u-2"), with_pod(rules, one(2))), cpu=6)
    added = before.allocations["u-1"].exclusive_cpus - Mask.parse("1-2")
    lost = Mask.from_ids([*added][:3]) | before.allocations["u-2"].exclusive_cpus
    lost |= Mask.parse("0-15") - before.allocations["u-1"].exclusive_cpus - Mask.parse("0")
    rows = [row for row in rules.machine.cpus.rows if row.cpu not in lost]
    machine = Machine(CpuTopology.from_rows(rows), rules.machine.nodes)
    fewer = make_rules(machine, topology=BEST_EFFORT, fit=NodeFit())
    ledger = restored(fewer, before)
    shrunk = resized(fewer, ledger, cpu=5).allocations["u-1"].exclusive_cpus
    assert Mask.parse("1-2") | (added - lost) <= shrunk
    assert len(shrunk) == 5


def test_a_thread_that_is_named_to_stay_keeps_its_whole_core() -> None:
    rules = make_rules(SMT_HOST, topology=BEST_EFFORT, full_pcpus_only=True)
    ledger = resized(rules, with_pod(rules, one(2)), cpu=6)
    assert cpus(ledger) == {MAIN: "1-3,9-11"}
    assert cpus(resized(rules, ledger, keep="3", cpu=4)) == {MAIN: "1,3,9,11"}
