"""What programs read over podresources, compared with what was asked for and allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.api.pod_resources import Listing, allocatable_message
from agent.config.agent import POD_RESOURCES
from agent.managers.admission import admit, remove
from agent.managers.allocation import Origin
from agent.managers.device.kubelet import NOT_LISTED, GivenDeviceManager, KubeletListing
from agent.managers.policy import IsolationMode, PluginDevice
from agent.managers.versions import KubernetesVersion
from agent.pods.model import CPU, MEMORY, ContainerKind, GivenDevice
from agent.rpc.messages import Messages
from agent.rpc.pod_resources import V1
from sysfs.mask import Mask
from tests.agent.managers.hosts import BEST_EFFORT, GIB, make_rules
from tests.agent.managers.hosts import SMT as HOST_WITH_SMT
from tests.agent.managers.ledgers import ledger_with
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar
from tests.agent.tools.kubelet_state.machines import admitted

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from agent.rpc.messages import Message

GPU, NIC = "example.com/gpu", "example.com/nic"
DEVICES = {
    GPU: (
        PluginDevice("g0", Mask.of(0)),
        PluginDevice("g1", Mask.of(0)),
        PluginDevice("g2", Mask.of(1), healthy=False),
    ),
    NIC: (PluginDevice("n0"), PluginDevice("n1", Mask.of(0, 1))),
}
RULES = make_rules(devices=DEVICES)
BUDGET = pod(
    app("own", guaranteed("cpu=2 memory=1Gi")),
    app("shares", resources("cpu=100m")),
    app("too", resources("cpu=100m")),
    of_pod=guaranteed("cpu=4 memory=4Gi"),
)


def listed(
    rules: EffectivePolicy,
    ledger: Ledger,
    listing: Listing | None = None,
    kubelet: KubeletListing = NOT_LISTED,
) -> list[Message]:
    """Return the listed pods as JSON has them."""
    data = (listing or Listing(KubernetesVersion.V1_37)).all(rules, ledger, kubelet)
    response = V1["ListPodResourcesResponse"].FromString(data)
    return [shown(each) for each in response.pod_resources]


def shown(message: Message) -> Message:
    return MessageToDict(message, preserving_proto_field_name=True)


def nodes(*ids: int) -> Message:
    """Return a topology; JSON leaves a node's id of 0 out."""
    return {"nodes": [{"ID": str(node)} if node else {} for node in ids]}


def block(kind: str, size: int, *ids: int) -> Message:
    return {"memory_type": kind, "size": str(size), "topology": nodes(*ids)}


# Shows in differences.md: podresources-entries
def test_a_container_has_its_cpus_memory_and_devices_with_their_nodes() -> None:
    asked = guaranteed(f"cpu=2 memory=1Gi {GPU}=2 {NIC}=2")
    rules = make_rules(topology=BEST_EFFORT, devices=DEVICES)
    assert listed(rules, admitted(rules, pod(app("a", asked)))) == [
        {
            "name": "p",
            "namespace": "default",
            "containers": [
                {
                    "name": "a",
                    "cpu_ids": ["1", "2"],
                    "memory": [block("memory", GIB, 0)],
                    "devices": [
                        {"resource_name": GPU, "device_ids": ["g0", "g1"], "topology": nodes(0)},
                        {"resource_name": NIC, "device_ids": ["n0"]},
                        {"resource_name": NIC, "device_ids": ["n1"], "topology": nodes(0)},
                        {"resource_name": NIC, "device_ids": ["n1"], "topology": nodes(1)},
                    ],
                }
            ],
        }
    ]


def test_init_containers_are_left_out_and_the_shared_pool_has_no_cpus() -> None:
    asked = pod(
        init("early", guaranteed("cpu=1 memory=1Gi")),
        sidecar("log", guaranteed("cpu=1 memory=1Gi")),
        app("own", guaranteed("cpu=1 memory=1Gi")),
        app("part", guaranteed("cpu=500m memory=1Gi")),
    )
    rules = make_rules(memory=False)
    (one,) = listed(rules, admitted(rules, asked))
    assert [(each["name"], each.get("cpu_ids")) for each in one["containers"]] == [
        ("log", ["1"]),
        ("own", ["2"]),
        ("part", None),
    ]


# Shows in differences.md: podresources-version
def test_what_containers_share_of_a_budget_stands_at_the_pod_or_for_v1_36_at_each_of_them() -> None:
    ledger = admitted(RULES, BUDGET)
    (one,) = listed(RULES, ledger)
    assert one["cpu_ids"] == ["1", "2", "3", "4"]
    assert one["memory"] == [block("memory", 4 * GIB, 0)]
    own = {"name": "own", "cpu_ids": ["1", "2"], "memory": [block("memory", GIB, 0)]}
    assert one["containers"] == [own, {"name": "shares"}, {"name": "too"}]
    (one,) = listed(RULES, ledger, Listing(KubernetesVersion.V1_36))
    assert "cpu_ids" not in one
    assert "memory" not in one
    pool = {"cpu_ids": ["3", "4"], "memory": [block("memory", 3 * GIB, 0)]}
    assert one["containers"] == [own, {"name": "shares", **pool}, {"name": "too", **pool}]
    assert Listing().all(RULES, ledger) == Listing(KubernetesVersion.V1_36).all(RULES, ledger)


@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_whatever_is_allocated_is_listed_to_clients_of_either_version(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    """Free is the allocatable less what containers list (v1.36), or pods as well (v1.37)."""
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 6))):
        ledger = admit(rules, ledger, data.draw(pods(f"u-{number}"))).ledger
    for version in POD_RESOURCES:
        response = V1["ListPodResourcesResponse"].FromString(Listing(version).all(rules, ledger))
        for found, allocation in zip(
            response.pod_resources, ledger.allocations.values(), strict=True
        ):
            lasting = {c.name for c in allocation.containers if c.kind is not ContainerKind.INIT}
            sharing = [c.cpus for c in allocation.containers if c.name in lasting and c.cpus]
            by_containers = {cpu for c in found.containers for cpu in c.cpu_ids}
            if not version.rules.budgets_are_listed_at_pods:
                assert by_containers == {cpu for cpus in sharing for cpu in cpus}
            else:
                of_pod = set(found.cpu_ids)
                assert (of_pod or by_containers) == set(allocation.cpus or by_containers)
                assert by_containers <= of_pod or not of_pod


def test_a_pod_of_which_only_the_uid_is_known_is_listed_by_it() -> None:
    (allocation,) = admitted(
        RULES, pod(app("a", guaranteed("cpu=2 memory=1Gi")))
    ).allocations.values()
    unnamed = replace(allocation, name="", namespace="", spec_digest="", origin=Origin.RECOVERED)
    ledger = ledger_with(unnamed)
    (one,) = listed(RULES, ledger)
    assert (one["name"], one.get("namespace")) == ("u-1", None)
    assert one["containers"][0]["cpu_ids"] == ["1", "2"]
    assert Listing().one(RULES, ledger, "", "u-1") is not None


def test_containers_of_a_budget_whose_specification_is_unknown_have_nothing_certain() -> None:
    (allocation,) = admitted(RULES, BUDGET).allocations.values()
    unknown = replace(
        allocation,
        origin=Origin.IMPORTED,
        containers=tuple(replace(each, why="") for each in allocation.containers),
    )
    (one,) = listed(RULES, ledger_with(unknown))
    assert one["cpu_ids"] == ["1", "2", "3", "4"]
    assert one["containers"] == [{"name": "own"}, {"name": "shares"}, {"name": "too"}]


def test_the_allocatable_is_what_is_not_reserved_and_healthy() -> None:
    message = allocatable_message(RULES, RULES.empty_ledger())
    assert list(message.cpu_ids) == list(range(1, 16))
    found = shown(message)
    assert found["memory"] == [block("memory", 15 * GIB, 0), block("memory", 15 * GIB, 1)]
    ids = {(each["resource_name"], *each["device_ids"]) for each in found["devices"]}
    assert ids == {(GPU, "g0", "g1"), (NIC, "n0"), (NIC, "n1")}


def test_siblings_that_stay_idle_are_not_allocatable_as_long_as_they_do() -> None:
    rules = make_rules(HOST_WITH_SMT, smt=IsolationMode.ALWAYS)
    ledger = admitted(rules, pod(app("a", guaranteed("cpu=2 memory=1Gi"))))
    assert list(allocatable_message(rules, ledger).cpu_ids) == [*range(1, 9), *range(11, 16)]


def test_managers_without_a_policy_have_nothing_allocatable() -> None:
    rules = make_rules(memory=False)
    off = replace(rules, policy=replace(rules.policy, cpu=type(rules.policy.cpu)()))
    assert shown(allocatable_message(off, off.empty_ledger())) == {}


def test_of_two_pods_of_one_name_the_later_is_returned() -> None:
    first = pod(app("a", guaranteed("cpu=2 memory=1Gi")))
    second = replace(first, uid="u-2")
    ledger = admitted(RULES, first, second)
    data = Listing().one(RULES, ledger, "default", "p")
    assert data is not None
    response = V1["GetPodResourcesResponse"].FromString(data)
    assert list(response.pod_resources.containers[0].cpu_ids) == [3, 4]
    assert Listing().one(RULES, ledger, "kube-system", "p") is None


def test_a_device_is_listed_where_it_was_when_it_was_allocated() -> None:
    """CPUs and memory are aligned to that, whatever its provider says since or while it is gone."""
    ledger, listing = admitted(RULES, pod(app("a", guaranteed(f"{GPU}=1")))), Listing()
    moved = {**DEVICES, GPU: (PluginDevice("g0", Mask.of(1)),)}
    found = [
        listed(rules, ledger, listing)[0]["containers"][0]["devices"][0]["topology"]
        for rules in (RULES, make_rules(devices=moved), make_rules())
    ]
    assert found == [nodes(0), nodes(0), nodes(0)]


def test_unchanged_pods_are_not_serialized_again() -> None:
    ledger, listing = admitted(RULES, pod(app("a", guaranteed("cpu=2 memory=1Gi")))), Listing()
    first = listing.all(RULES, ledger)
    assert listing.all(RULES, ledger) is first
    entry = listing._entries["u-1"]
    more = admit(RULES, ledger, pod(app("b"), uid="u-2")).ledger
    assert len(listed(RULES, more, listing)) == 2
    assert listing._entries["u-1"] is entry


@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_after_any_changes_the_list_is_what_the_pods_asked_for_and_got(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    listing, ledger = Listing(KubernetesVersion.V1_37), rules.empty_ledger()
    asked: dict[str, Pod] = {}
    for number in range(data.draw(st.integers(1, 6))):
        one = data.draw(pods(f"u-{number}"))
        decision = admit(rules, ledger, one)
        ledger = decision.ledger
        if decision.admitted:
            asked[one.uid] = one
        if asked and data.draw(st.integers(0, 3)) == 0:
            uid = data.draw(st.sampled_from(sorted(asked)))
            ledger = remove(rules, ledger, uid)
            del asked[uid]
        expected = [
            expected_pod(rules, asked[uid], allocation)
            for uid, allocation in ledger.allocations.items()
        ]
        response = V1["ListPodResourcesResponse"].FromString(listing.all(rules, ledger))
        assert [found_pod(each) for each in response.pod_resources] == expected


def expected_pod(rules: EffectivePolicy, asked: Pod, allocation: PodAllocation) -> Message:
    """Return what is to be listed, from what the containers demand of each manager."""
    demand = rules.demand(asked)
    containers = []
    for wanting in demand.containers:
        got = allocation.container(wanting.name)
        assert got is not None
        if wanting.kind is ContainerKind.INIT:
            continue
        cpus = got.cpus if wanting.may_have(CPU) and wanting.cpus else None
        memory = got.memory if wanting.may_have(MEMORY) else ()
        places = {
            (resource, device, node)
            for resource, ids in got.devices.items()
            for device in ids
            for known in rules.policy.devices[resource]
            if known.id == device
            for node in known.nodes or (None,)
        }
        blocks = [(each.type, each.size, list(each.nodes)) for each in memory]
        containers.append((got.name, list(cpus or ()), blocks, places))
    budget = [(each.type, each.size, list(each.nodes)) for each in allocation.memory]
    return (asked.namespace, asked.name, list(allocation.cpus or ()), budget, containers)


def found_pod(message: Message) -> Message:
    containers = []
    for each in message.containers:
        places = {
            (devices.resource_name, device, node)
            for devices in each.devices
            for device in devices.device_ids
            for node in [one.ID for one in devices.topology.nodes] or [None]
        }
        containers.append((each.name, list(each.cpu_ids), found_memory(each.memory), places))
    memory = found_memory(message.memory)
    return (message.namespace, message.name, list(message.cpu_ids), memory, containers)


def found_memory(blocks: Message) -> Message:
    return [
        (each.memory_type, each.size, [node.ID for node in each.topology.nodes]) for each in blocks
    ]


BESIDE = make_rules(topology=BEST_EFFORT, memory=False)
BESIDE_KUBELET = replace(BESIDE, managers=(GivenDeviceManager(), *BESIDE.managers))
GIVEN = GivenDevice(NIC, "given", Mask.of(1))
ELSEWHERE = ("shop", "web")


def of_kubelet(**given: GivenDevice) -> Pod:
    devices = {name: (device,) for name, device in given.items()}
    small = guaranteed("cpu=500m memory=1Gi")
    asked = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b", small))
    return replace(asked, given_devices=devices)


def devices_of(pods: list[Message]) -> dict[str, list[Message]]:
    return {c["name"]: c.get("devices", []) for each in pods for c in each["containers"]}


def test_devices_of_the_kubelet_stand_with_the_cpus_of_the_agent() -> None:
    """Those that were recorded count; of a container without such those listed now."""
    ledger = admitted(BESIDE_KUBELET, of_kubelet(a=GIVEN))
    later = GivenDevice(NIC, "later", Mask.of(0))
    kubelet = KubeletListing({("default", "p"): {"a": (later,), "b": (later,)}})
    for beside, b in ((NOT_LISTED, []), (kubelet, [["later"]])):
        (found,) = listed(BESIDE_KUBELET, ledger, kubelet=beside)
        assert found["containers"][0] == {
            "name": "a",
            "cpu_ids": ["8", "9"],
            "devices": [{"resource_name": NIC, "device_ids": ["given"], "topology": nodes(1)}],
        }
        assert [each["device_ids"] for each in devices_of([found])["b"]] == b


def test_pods_that_only_the_kubelet_has_are_listed_and_found() -> None:
    listing, ledger = Listing(), admitted(BESIDE_KUBELET, of_kubelet())
    kubelet = KubeletListing({ELSEWHERE: {"main": (GIVEN, GivenDevice(GPU, "any"))}})
    own, other = listed(BESIDE_KUBELET, ledger, listing, kubelet)
    assert own["name"] == "p"
    assert other == {
        "namespace": "shop",
        "name": "web",
        "containers": [
            {
                "name": "main",
                "devices": [
                    {"resource_name": GPU, "device_ids": ["any"]},
                    {"resource_name": NIC, "device_ids": ["given"], "topology": nodes(1)},
                ],
            }
        ],
    }
    found = listing.one(BESIDE_KUBELET, ledger, *ELSEWHERE, kubelet)
    assert found is not None
    response = V1["GetPodResourcesResponse"].FromString(found)
    assert shown(response.pod_resources) == other
    assert listing.one(BESIDE_KUBELET, ledger, "shop", "nosuch", kubelet) is None


#: `DynamicResource` of the kubelet's v1, as a client declares it.
CLAIMS: Final = Messages(
    "client",
    {
        "DynamicResource": {
            "claim_name": (2, "string"),
            "claim_namespace": (3, "string"),
            "claim_resources": (4, "repeated ClaimResource"),
        },
        "ClaimResource": {
            "cdi_devices": (1, "repeated CDIDevice"),
            "driver_name": (2, "string"),
            "pool_name": (3, "string"),
            "device_name": (4, "string"),
            "share_id": (5, "string"),
        },
        "CDIDevice": {"name": (1, "string")},
    },
)


def test_claims_of_dra_stand_at_their_containers_as_the_kubelet_says_them() -> None:
    claim = CLAIMS["DynamicResource"](
        claim_name="gpu",
        claim_namespace="default",
        claim_resources=[{"driver_name": "gpu.example.com", "device_name": "g0", "share_id": "1"}],
    )
    given = {"a": (claim.SerializeToString(),)}
    kubelet = KubeletListing(claims={("default", "p"): given, ELSEWHERE: given})
    data = Listing().all(BESIDE_KUBELET, admitted(BESIDE_KUBELET, of_kubelet()), kubelet)
    own, other = V1["ListPodResourcesResponse"].FromString(data).pod_resources
    for pod_resources in (own, other):
        (found,) = pod_resources.containers[0].dynamic_resources
        assert CLAIMS["DynamicResource"].FromString(found) == claim
    assert list(own.containers[0].cpu_ids) == [1, 2]
    assert Listing().one(BESIDE_KUBELET, admitted(BESIDE_KUBELET), *ELSEWHERE, kubelet)


def test_what_the_kubelet_lists_later_is_listed_and_the_same_answer_is_not_made_again() -> None:
    listing, ledger = Listing(), admitted(BESIDE_KUBELET, of_kubelet())
    kubelet = KubeletListing({("default", "p"): {"b": (GIVEN,)}})
    first = listing.all(BESIDE_KUBELET, ledger, kubelet)
    assert listing.all(BESIDE_KUBELET, ledger, kubelet) is first
    assert devices_of(listed(BESIDE_KUBELET, ledger, listing))["b"] == []
    assert listing.all(BESIDE_KUBELET, ledger, kubelet) == first


def test_allocatable_devices_are_those_of_both() -> None:
    kubelet = KubeletListing(allocatable=(GivenDevice("example.com/given", "x", Mask.of(0, 1)),))
    empty = RULES.empty_ledger()
    own, both = (allocatable_message(RULES, empty, one) for one in (NOT_LISTED, kubelet))
    assert list(both.devices)[: len(own.devices)] == list(own.devices)
    assert [shown(each) for each in list(both.devices)[len(own.devices) :]] == [
        {"resource_name": "example.com/given", "device_ids": ["x"], "topology": nodes(node)}
        for node in (0, 1)
    ]
    assert list(both.cpu_ids) == list(own.cpu_ids)
