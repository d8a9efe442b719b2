"""Node fit on whole admissions: reasons, messages, remedies, and a slow reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.allocation import Origin
from agent.managers.decision import Shortage
from agent.managers.ledger import total_requests
from agent.managers.machine import Machine
from agent.managers.node_fit import not_allocated
from agent.managers.policy import NodeFit, PluginDevice, TopologyManagerPolicy
from agent.pods.model import ContainerKind, QosClass
from sysfs.described import regular_host
from tests.agent.managers.drafts import allocated, rejected, with_pod
from tests.agent.managers.hosts import CONTAINER, GIB, NO_POLICY, PLAIN, make_rules
from tests.agent.pods.pods import amounts, app, guaranteed, init, pod, resources, sidecar
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod, Resources

GPU = "example.com/gpu"
NIC = "example.com/nic"
LICENCE = "example.com/licence"
MIB = 1 << 20
#: 16 CPUs and 32 GiB, of which the system keeps 1500m and 2 GiB.
KEPT = NodeFit({"cpu": 1500, "memory": 2 * GIB}, max_pods=4)
PAGED = Machine.of(regular_host(cores_per_node=8, threads=1, hugepages=((2 * MIB, 512),)))
DEVICES = {GPU: (PluginDevice("0"), PluginDevice("1"), PluginDevice("2", healthy=False)), NIC: ()}


def rules_with(fit: NodeFit = KEPT, machine: Machine = PLAIN) -> EffectivePolicy:
    return make_rules(machine, NO_POLICY, CONTAINER, memory=False, devices=DEVICES, fit=fit)


def asking(text: str, uid: str = "u-1") -> Pod:
    return pod(app("a", resources(text, text if "/" in text else "")), uid=uid)


def imported(ledger: Ledger) -> Ledger:
    """Return the ledger where the specification of its pod is not known."""
    (known,) = ledger.allocations.values()
    known = replace(known, spec_digest="", requests={}, origin=Origin.IMPORTED)
    return replace(ledger, allocations={"u-1": known}, requests=total_requests([known]))


def test_the_first_in_the_kubelets_order_is_the_reason_and_all_are_named() -> None:
    rules = rules_with(replace(KEPT, max_pods=1))
    ledger = with_pod(rules, asking("cpu=1"))
    asked = asking(f"memory=31Gi {GPU}=3 cpu=15 hugepages-2Mi=2Mi", "u-2")
    rejection = rejected(rules, asked, ledger)
    assert rejection.reason == "OutOfpods"
    names = [each.resource for each in rejection.shortages]
    assert names == ["pods", "cpu", "memory", GPU, "hugepages-2Mi"]
    assert all(name.removeprefix("pods") in rejection.message for name in names)


@pytest.mark.parametrize("name", [LICENCE, "numawarden.dev/exclusive"])
def test_beside_a_kubelet_a_resource_that_the_agent_does_not_have_is_not_looked_at(
    name: str,
) -> None:
    rules = rules_with(replace(KEPT, beside_kubelet=True))
    allocated(rules, asking(f"{name}=1000000"))
    assert not_allocated(rules, (name,)) == ()
    assert rejected(rules_with(), asking(f"{name}=1")).reason == f"OutOf{name}"
    for text in f"{GPU}=3", f"{NIC}=1", "cpu=15", "memory=31Gi", "hugepages-2Mi=2Mi":
        assert rejected(rules, asking(text)) == rejected(rules_with(), asking(text))


def test_an_admitted_pods_init_container_keeps_its_room() -> None:
    """As for the kubelet: it may start again for as long as the pod is there."""
    rules = make_rules(PLAIN, NO_POLICY, CONTAINER, fit=replace(KEPT, reserved={}))
    first = pod(init("i", guaranteed("cpu=12 memory=4Gi")), app("a", guaranteed("cpu=1 memory=1")))
    ledger = start_container(rules, with_pod(rules, first), "u-1", "a")
    assert rejected(rules, asking("cpu=5", "u-2"), ledger).reason == "OutOfcpu"


# Shows in differences.md: fit-after-restart
def test_asking_again_on_a_full_node_keeps_the_allocation() -> None:
    ledger = with_pod(rules_with(), asking("cpu=14"))
    again = admit(rules_with(NodeFit({"cpu": 15_000}, max_pods=1)), ledger, asking("cpu=14"))
    assert again.already_admitted
    assert again.ledger is ledger


def test_an_imported_pod_is_completed_although_it_has_no_room() -> None:
    shared = app("b", guaranteed("cpu=500m memory=1Gi"))
    asked = pod(app("a", guaranteed("cpu=4 memory=4Gi")), shared)
    ledger = imported(with_pod(make_rules(scope=CONTAINER), asked))
    assert ledger.requests == {"cpu": 4000, "memory": 5 * GIB}
    tight = make_rules(scope=CONTAINER, fit=NodeFit({"cpu": 15_000}, max_pods=0))
    decision = admit(tight, ledger, asked)
    assert decision.already_admitted
    assert decision.ledger.requests == {"cpu": 4500, "memory": 5 * GIB}


def test_without_a_specification_what_is_allocated_counts() -> None:
    rules = make_rules(scope=CONTAINER, devices=DEVICES, fit=KEPT)
    old = imported(with_pod(rules, pod(app("a", guaranteed(f"cpu=4 memory=4Gi {GPU}=1")))))
    assert old.requests == {"cpu": 4000, "memory": 4 * GIB, GPU: 1}
    assert rejected(rules, asking("cpu=11", "u-2"), old).shortages[0].requested == 4000
    assert remove(rules, old, "u-1").requests == {}


def test_memory_that_went_back_no_longer_counts_without_a_specification() -> None:
    rules = make_rules(scope=CONTAINER)
    parts = init("i", guaranteed("cpu=1 memory=4Gi")), app("a", guaranteed("cpu=1 memory=1Gi"))
    old = imported(with_pod(rules, pod(*parts)))
    started = start_container(rules, old, "u-1", "a")
    assert started.requests["memory"] < old.requests["memory"]
    assert broken_invariants(rules, started) == []


def test_it_says_what_was_asked_what_is_free_and_who_has_the_rest() -> None:
    rules = rules_with()
    ledger = with_pod(rules, asking("cpu=1500m memory=512Mi"))
    rejection = rejected(rules, asking("cpu=1000 memory=900Ti", "u-2"), ledger)
    assert rejection.message == (
        "the node has no room for the pod: 1000 of cpu asked, 13 free (14500m allocatable,"
        " other pods request 1500m); 900 TiB of memory asked, 29.5 GiB free (30 GiB"
        " allocatable, other pods request 512 MiB)"
    )
    assert rejection.remedy == ""
    close = rejected(rules, asking(f"memory={30 * GIB + 1}")).message
    assert f"{30 * GIB + 1} B of memory asked, {30 * GIB} B free" in close


def test_too_many_pods_says_which_limit() -> None:
    rules = rules_with(NodeFit(max_pods=1))
    rejection = rejected(rules, asking("", "u-2"), with_pod(rules, asking("")))
    assert rejection.message.endswith("1 pod admitted, at most 1 by maxPods")
    assert rejection.remedy == "remove 1 pod, or raise maxPods"


@pytest.mark.parametrize(
    ("rules", "asked", "said"),
    [
        (rules_with(), "example.com/gpuu", f'it offers {GPU}, {NIC}; did you mean "{GPU}"?'),
        (rules_with(), "exmaple.com/gpu", f'it offers {GPU}, {NIC}; did you mean "{GPU}"?'),
        (make_rules(memory=False, fit=KEPT), GPU, "it has no devices"),
        (rules_with(machine=PAGED), "hugepages-1Gi", "it offers hugepages-2Mi"),
    ],
)
def test_of_a_resource_that_is_not_offered_the_offered_and_the_nearest_are_named(
    rules: EffectivePolicy, asked: str, said: str
) -> None:
    rejection = rejected(rules, asking(f"cpu=1 {asked}={GIB if 'Gi' in asked else 1}"))
    assert rejection.message.endswith(said)
    assert f"of {asked} asked, which the node does not offer" in rejection.message
    assert rejection.shortages[0].allocatable is None


def test_what_is_admitted_but_not_allocated_is_said() -> None:
    rules = rules_with(NodeFit(ignored=frozenset({"vendor.io/x"})))
    names = ["cpu", "ephemeral-storage", "vendor.io/x", GPU, "vendor.io/x"]
    ignored, unmeasured = not_allocated(rules, names)
    assert ignored.startswith("vendor.io/x is not allocated here: agent.ignoredResources")
    assert unmeasured.startswith("ephemeral-storage is not limited here")
    assert not_allocated(rules, ["cpu", GPU]) == ()


def test_several_resources_that_are_not_offered_have_one_remedy_that_names_them() -> None:
    rejection = rejected(rules_with(), asking("vendor.io/x=1 vendor.io/y=2 vendor.io/z=1"))
    for sentence in ("request a resource", "agent.hostDevices", "agent.ignoredResources"):
        assert rejection.remedy.count(sentence) == 1
    assert rejection.remedy.count("vendor.io/x and vendor.io/y and vendor.io/z") == 2
    assert rejection.remedy.endswith("when something else provides them")


FITS = st.builds(
    lambda cpu, memory, pages, pods, per_core: NodeFit(
        {"cpu": cpu, "memory": memory * GIB, "hugepages-2Mi": pages * 2 * MIB},
        max_pods=pods,
        pods_per_core=per_core,
        ignored=frozenset({LICENCE}),
    ),
    st.sampled_from([0, 700, 9_500, 20_000]),
    st.sampled_from([0, 1, 25, 40]),
    st.sampled_from([0, 100, 2_000]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([0, 0, 1]),
)
ASKED = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi", GPU, NIC, LICENCE, "ephemeral-storage"]),
    st.integers(0, 6),
    max_size=4,
)
UNITS = {"cpu": 1300, "memory": 3 * GIB, "hugepages-2Mi": 300 * MIB}


def _resources(asked: dict[str, int], *, limited: bool) -> Resources:
    sizes = {name: number * UNITS.get(name, 1) for name, number in asked.items()}
    text = " ".join(
        f"{name}={size}m" if name == "cpu" else f"{name}={size}" for name, size in sizes.items()
    )
    return guaranteed(text) if limited else resources(text)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    members: list[Container] = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([app, app, init, sidecar])) if number else app
        members.append(kind(f"c{number}", _resources(draw(ASKED), limited=draw(st.booleans()))))
    budget = None
    if draw(st.integers(0, 3)) == 0:
        of_pod = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 6), min_size=1)
        budget = _resources(draw(of_pod), limited=False)
    one = pod(*members, of_pod=budget, status_qos=QosClass.BURSTABLE)
    extra = draw(st.sampled_from(["", "cpu=100m", "memory=64Mi"]))
    return replace(one, overhead=amounts(extra))


def slow_requests(asked: Pod) -> dict[str, int]:
    """Return the most that a pod requests at any moment of its life, moment by moment."""

    def of(parts: list[Container]) -> dict[str, int]:
        names = {name for part in parts for name in part.resources.requests}
        return {
            name: sum(
                part.resources.requests[name].nano
                for part in parts
                if name in part.resources.requests
            )
            for name in names
        }

    sidecars: list[Container] = []
    moments = []
    for each in asked.init_containers:
        moments.append(of([*sidecars, each]))
        if each.kind is ContainerKind.SIDECAR:
            sidecars.append(each)
    moments.append(of([*sidecars, *asked.containers]))
    names = {name for moment in moments for name in moment}
    peak = {name: max(moment.get(name, 0) for moment in moments) for name in names}
    if asked.resources is not None:
        peak |= {name: amount.nano for name, amount in asked.resources.requests.items()}
    for name, amount in asked.overhead.items():
        peak[name] = peak.get(name, 0) + amount.nano
    return {name: -(-nano // (10**6 if name == "cpu" else 10**9)) for name, nano in peak.items()}


def slow_capacity(fit: NodeFit) -> dict[str, int]:
    """Return what is allocatable of `PAGED` with `DEVICES`."""
    left = {
        "cpu": 16_000 - fit.reserved["cpu"],
        "memory": 32 * GIB - fit.reserved["memory"],
        "hugepages-2Mi": 2 * GIB - fit.reserved["hugepages-2Mi"],
    }
    left["memory"] = max(left["memory"], 0) - 2 * GIB
    return {name: max(size, 0) for name, size in left.items()} | {GPU: 2, NIC: 0}


def slow_reason(fit: NodeFit, running: list[Pod], asked: Pod) -> str | None:
    most = min(fit.max_pods, fit.pods_per_core * 16 or fit.max_pods)
    if len(running) + 1 > most:
        return "OutOfpods"
    capacity, desired = slow_capacity(fit), slow_requests(asked)
    for name in ("cpu", "memory", *sorted(desired.keys() - {"cpu", "memory"})):
        if name in (LICENCE, "ephemeral-storage") or not desired.get(name):
            continue
        together = desired[name] + sum(slow_requests(one).get(name, 0) for one in running)
        if together > capacity.get(name, 0):
            return f"OutOf{name}"
    return None


@given(
    fit=FITS,
    policy=st.sampled_from(list(TopologyManagerPolicy)),
    steps=st.lists(st.tuples(pods(), st.integers(0, 9)), min_size=1, max_size=12),
)
@settings(derandomize=True)
def test_the_sum_of_requests_never_exceeds_what_is_allocatable(
    fit: NodeFit, policy: TopologyManagerPolicy, steps: list[tuple[Pod, int]]
) -> None:
    rules = make_rules(PAGED, policy, memory=False, devices=DEVICES, fit=fit)
    capacity = slow_capacity(fit)
    running: dict[str, Pod] = {}
    ledger = rules.empty_ledger()
    for number, (drawn, ends) in enumerate(steps):
        asked = replace(drawn, uid=f"u-{number}")
        decision = admit(rules, ledger, asked)
        reason = slow_reason(fit, list(running.values()), asked)
        if reason is not None:
            assert decision.rejection is not None
            assert decision.rejection.reason == reason
        elif decision.rejection is not None:
            assert not decision.rejection.reason.startswith("OutOf"), decision.rejection
        else:
            running[asked.uid] = asked
        ledger = decision.ledger
        for name, size in capacity.items():
            assert sum(slow_requests(one).get(name, 0) for one in running.values()) <= size
        if ends < len(running):
            uid = list(running)[ends]
            del running[uid]
            ledger = remove(rules, ledger, uid)
        assert ledger.requests == total_requests(ledger.allocations.values())
    for uid in running:
        ledger = remove(rules, ledger, uid)
    assert ledger == rules.empty_ledger()


def test_devices_that_pods_keep_though_they_are_gone_leave_no_less_for_others() -> None:
    """As in the kubelet (sanitizeNodeAllocatable): of two devices one is allocated and lost."""

    def rules(*devices: PluginDevice) -> EffectivePolicy:
        return make_rules(devices={GPU: devices}, fit=KEPT)

    def one(uid: str) -> Pod:
        return pod(app("main", guaranteed(f"cpu=1 memory=1Gi {GPU}=1")), uid=uid)

    first, other = PluginDevice("a"), PluginDevice("b")
    ledger = with_pod(rules(first, other), one("first"))
    assert rejected(rules(), one("second"), ledger).shortages == (Shortage(GPU, 1, 0, 0),)
    for left in ((other,), (replace(first, healthy=False), other)):
        decision = admit(rules(*left), ledger, one("second"))
        assert decision.allocation is not None
        assert decision.allocation.containers[0].devices == {GPU: ("b",)}
        rejection = rejected(rules(*left), one("third"), decision.ledger)
        assert rejection.reason == f"OutOf{GPU}"
        assert "0 free (1 allocatable, other pods request 1)" in rejection.message
