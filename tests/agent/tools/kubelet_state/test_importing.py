from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.allocation import Isolation, Origin
from agent.managers.cpu.manager import exclusive_cpus, shared_pool
from agent.managers.decision import Reason
from agent.managers.policy import NodeFit
from agent.pods.model import ContainerKind, ManifestError, QosClass, spec_digest
from agent.tools.kubelet_state.exporting import kubelet_state
from agent.tools.kubelet_state.files import KubeletState
from agent.tools.kubelet_state.format import UnfitStateError
from agent.tools.kubelet_state.importing import read_pods, take_over
from agent.tools.kubelet_state.memory import MemoryState
from sysfs.mask import Mask
from tests.agent.managers.hosts import CONTAINER, GIB, make_rules
from tests.agent.pods.pods import app, guaranteed, pod, resources, sidecar
from tests.agent.tools.kubelet_state.machines import RULES, admitted, cpu_state, files
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from pathlib import Path

    from agent.pods.model import Pod

TWO = pod(app("a", guaranteed("cpu=2 memory=1Gi")), app("b", guaranteed("cpu=500m memory=1Gi")))
SHARING = pod(
    sidecar("log", guaranteed("cpu=1 memory=64Mi")),
    app("db", guaranteed("cpu=2 memory=1Gi")),
    app("web", resources("cpu=100m")),
    of_pod=guaranteed("cpu=4 memory=4Gi"),
)
EXCLUSIVE = files("0,3-15", {"u-1": {"a": "1-2"}})
SHARED_FILES = files(
    "0,5-15", {"u-1": {"db": "2-3", "log": "1", "web": "4"}}, {"u-1": "1-4"}
)  # fmt: skip


def test_cpus_are_taken_over_and_out_of_the_shared_pool() -> None:
    ledger = take_over(RULES, EXCLUSIVE).ledger
    allocation = ledger.allocations["u-1"]
    assert (allocation.name, allocation.namespace, allocation.qos) == ("", "", QosClass.GUARANTEED)
    assert allocation.origin is Origin.IMPORTED
    assert (allocation.spec_digest, allocation.cpus) == ("", None)
    (container,) = allocation.containers
    assert (container.name, container.cpus) == ("a", Mask.parse("1-2"))
    assert (container.isolation, container.quota_disabled) == (Isolation.CONTAINER, True)
    assert str(shared_pool(RULES, ledger)) == "0,3-15"
    assert broken_invariants(RULES, ledger) == []
    assert remove(RULES, ledger, "u-1") == RULES.empty_ledger()


def test_the_first_specification_that_fits_completes_the_allocation_and_changes_no_cpu() -> None:
    ledger = take_over(RULES, EXCLUSIVE).ledger
    decision = admit(RULES, ledger, TWO)
    assert decision.already_admitted
    allocation = decision.allocation
    assert allocation is not None
    assert decision.ledger.allocations["u-1"] == allocation
    assert (allocation.name, allocation.spec_digest) == ("p", spec_digest(TWO))
    assert [(c.name, c.cpus) for c in allocation.containers] == [
        ("a", Mask.parse("1-2")),
        ("b", None),
    ]
    assert allocation.cpu.limit_millis == 2500
    assert exclusive_cpus(decision.ledger) == exclusive_cpus(ledger)
    again = admit(RULES, decision.ledger, TWO)
    assert (again.allocation, again.ledger) == (allocation, decision.ledger)


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (
            pod(app("a", guaranteed("cpu=3 memory=1Gi"))),
            "asks for 3 exclusive CPUs, allocated are 1-2",
        ),
        (pod(app("a", resources("cpu=2"))), "asks for 0 exclusive CPUs, allocated are 1-2"),
        (pod(app("x", guaranteed("cpu=2 memory=1Gi"))), "it has no container a, which has"),
    ],
)
def test_another_specification_conflicts_and_changes_nothing(asked: Pod, difference: str) -> None:
    ledger = take_over(RULES, EXCLUSIVE).ledger
    decision = admit(RULES, ledger, asked)
    assert decision.ledger is ledger
    assert decision.rejection is not None
    assert decision.rejection.reason is Reason.CONFLICT
    assert difference in decision.rejection.message


def test_manifests_complete_kinds_isolation_and_limits() -> None:
    (unknown,) = take_over(RULES, SHARED_FILES).ledger.allocations.values()
    assert unknown.cpus == Mask.parse("1-4")
    # Inside a budget nothing is said of quotas until the pod is known.
    assert not any(container.quota_disabled for container in unknown.containers)
    taken = take_over(RULES, SHARED_FILES, {"u-1": SHARING})
    (allocation,) = taken.ledger.allocations.values()
    assert taken.notes == ()
    assert [(c.name, c.kind, c.isolation) for c in allocation.containers] == [
        ("log", ContainerKind.SIDECAR, Isolation.CONTAINER),
        ("db", ContainerKind.APP, Isolation.CONTAINER),
        ("web", ContainerKind.APP, Isolation.POD),
    ]
    assert allocation.cpu.limit_millis == 4000
    assert (allocation.spec_digest, allocation.origin) == ("", Origin.IMPORTED)
    assert admit(RULES, taken.ledger, SHARING).already_admitted


def test_manifests_that_do_not_fit_are_rejected_by_name() -> None:
    with pytest.raises(UnfitStateError, match=r"pod default/p \(u-1\): by its manifest it has no"):
        take_over(RULES, SHARED_FILES, {"u-1": TWO})


def test_all_reasons_are_reported_at_once_with_their_files() -> None:
    broken = KubeletState(cpu_state("1-15", {"u": {"a": "5"}}), MemoryState("Static"))
    with pytest.raises(UnfitStateError) as caught:
        take_over(RULES, broken)
    assert [reason.split(":")[0] for reason in caught.value.reasons] == [
        "cpu_manager_state",
        "cpu_manager_state",
        "memory_manager_state",
    ]


def test_a_budget_without_containers_binds_its_cpus_only_while_they_are_not_shared() -> None:
    kept = take_over(RULES, files("0,5-15", {}, {"u": "1-4"}))
    assert str(exclusive_cpus(kept.ledger)) == "1-4"
    assert any("'numawarden remove u' frees them" in note for note in kept.notes)
    inert = take_over(RULES, files("0-15", {}, {"u": "1-4"}))
    assert inert.ledger == RULES.empty_ledger()
    assert any("pod u is left out" in note for note in inert.notes)


def test_lost_cpus_are_shared_and_memory_of_another_boot_is_this_boots() -> None:
    """A kubelet would not start with them."""
    rules = make_rules(scope=CONTAINER)
    ledger = admitted(rules, TWO)
    found = kubelet_state(rules, ledger)
    assert found.cpu is not None
    assert found.memory is not None
    nodes = dict(found.memory.nodes)
    for node, drift in ((0, -40 << 20), (1, 40 << 20)):
        table = nodes[node].tables["memory"]
        table = replace(
            table,
            total=table.total + drift,
            allocatable=table.allocatable + drift,
            free=table.free + drift,
        )
        nodes[node] = replace(nodes[node], tables={**nodes[node].tables, "memory": table})
    lost = Mask.parse("7,15")
    moved = KubeletState(
        replace(found.cpu, default=found.cpu.default - lost), replace(found.memory, nodes=nodes)
    )
    imported = take_over(rules, moved)
    assert imported.ledger == take_over(rules, found).ledger
    assert lost <= shared_pool(rules, imported.ledger)
    first, *others = (note.partition(" bytes ")[0] for note in imported.notes[:3])
    assert first.startswith(f"cpu_manager_state: CPUs {lost} were neither shared nor allocated")
    assert others == [
        f"memory_manager_state: node 0 has {16 * GIB}",
        f"memory_manager_state: node 1 has {16 * GIB}",
    ]
    table = nodes[0].tables["memory"]
    nodes[0] = replace(nodes[0], tables={"memory": replace(table, free=table.free + 1)})
    with pytest.raises(UnfitStateError, match="node 0: total of memory is"):
        take_over(rules, replace(moved, memory=replace(found.memory, nodes=nodes)))


GPU = "example.com/gpu"
USING = pod(app("a", guaranteed(f"cpu=2 memory=1Gi {GPU}=1")))


def test_what_is_not_taken_over_is_noted() -> None:
    rules = make_rules()
    notes = take_over(rules, KubeletState(cpu_state("0-15"))).notes
    assert notes == ("there is no memory_manager_state: no pod holds pinned memory",)
    notes = take_over(rules, KubeletState(memory=MemoryState("Static"))).notes
    assert notes == ("there is no cpu_manager_state: no pod holds CPUs of its own",)
    notes = take_over(RULES, EXCLUSIVE).notes
    assert notes == ("known by uid alone until they are asked for: 1 pods (u-1)",)
    (note,) = take_over(RULES, EXCLUSIVE, {"u-1": USING}).notes
    assert note.startswith(f"pod default/p has devices ({GPU}) that are not taken over")
    assert "end this pod" in note


@pytest.mark.parametrize(
    "fit", [NodeFit(ignored=frozenset({GPU})), NodeFit(beside_kubelet=True)], ids=str
)
def test_devices_that_others_provide_are_no_matter(fit: NodeFit) -> None:
    assert take_over(make_rules(memory=False, fit=fit), EXCLUSIVE, {"u-1": USING}).notes == ()


HOSTILE = ["../../x", "a/b", "..", "a\x1b]0;b", "n\nb", "\u202e", "a" * 300]


@pytest.mark.parametrize(
    ("what", "state"),
    [
        *(("uid", files("0,3-15", {uid: {"a": "1-2"}})) for uid in HOSTILE),
        *(("uid", files("0,3-15", {}, {uid: "1-2"})) for uid in HOSTILE),
        *(
            ("name of a container", files("0,3-15", {"u-1": {name: "1-2"}}))
            for name in ("../x", "A", "a\x1b[2J", "c" * 1000)
        ),
    ],
)
def test_a_name_that_no_cgroup_can_have_is_not_taken_over_and_is_shown_escaped(
    what: str, state: KubeletState
) -> None:
    with pytest.raises(UnfitStateError, match=f"is not a valid {what}") as caught:
        take_over(RULES, state)
    assert all(reason.isprintable() and len(reason) < 500 for reason in caught.value.reasons)


def manifest(uid: str, name: str = "p", **annotations: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": "a"}]},
    }


def test_a_clusters_list_gives_the_pods_that_are_desired(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    broken = {**manifest("other"), "spec": {}}
    listed = {"kind": "List", "items": [manifest("u-1", "one"), broken, manifest("u-2", "two")]}
    file.write_text(json.dumps(listed))
    pods = read_pods(file, {"u-1", "u-2"}, pod_level=True)
    assert {uid: pod.name for uid, pod in pods.items()} == {"u-1": "one", "u-2": "two"}


def test_a_static_pod_is_known_by_the_kubelets_uid_not_its_mirrors(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    mirror = manifest("mirror", **{"kubernetes.io/config.mirror": "u-1"})
    file.write_text(json.dumps({"kind": "PodList", "items": [mirror]}))
    pods = read_pods(file, {"u-1", "mirror"}, pod_level=True)
    assert {uid: pod.uid for uid, pod in pods.items()} == {"u-1": "u-1"}


def test_the_manifests_of_a_directory_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(manifest("u-1"), indent=1)[0:] + "\n")
    (tmp_path / "b.yml").write_text(
        "kind: Pod\nmetadata: {name: b, uid: u-2}\nspec: {containers: [{name: a}]}\n"
    )
    (tmp_path / "notes.txt").write_text("no manifest")
    assert sorted(read_pods(tmp_path, {"u-1", "u-2"}, pod_level=True)) == ["u-1", "u-2"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "this is not JSON"),
        ("a: [", "this is not YAML"),
        ("kind: Service", "expected a Pod, or a List of them"),
        ('{"kind":"Pod","metadata":{"uid":"u-1","name":"p"},"spec":{}}', "at least one container"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(content)
    with pytest.raises(ManifestError, match=problem) as caught:
        read_pods(tmp_path, {"u-1"}, pod_level=True)
    assert str(caught.value).startswith(str(file))


def test_two_pods_of_one_uid_are_rejected(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest("u-1", name)))
    with pytest.raises(ManifestError, match="a second pod has u-1"):
        read_pods(tmp_path, {"u-1"}, pod_level=True)
