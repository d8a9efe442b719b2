from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents import (
    AdmissionDocument,
    DeliveryDocument,
    ExplanationDocument,
    HintDocument,
    KernelDocument,
    PodListDocument,
)
from agent.api.views import pod_document
from agent.cli.pod_text import (
    admission_lines,
    difference_lines,
    list_lines,
    list_table,
    pod_lines,
)
from agent.managers.admission import admit
from agent.managers.allocation import API, Origin, Source
from agent.managers.device.kubelet import KUBELET_DEVICES
from agent.managers.sharing import Sharing
from agent.server.pod_records import PodRecord
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar
from tests.agent.reconcile.pods import unenforced

if TYPE_CHECKING:
    from agent.api.documents import PodDocument
    from agent.managers.allocation import PodAllocation
    from agent.pods.model import Container

ONE = guaranteed("cpu=1 memory=1Gi")
TWO = guaranteed("cpu=2 memory=1Gi")
THREE = guaranteed("cpu=3 memory=1Gi")


def allocated(*containers: Container, budget: str = "cpu=4 memory=4Gi") -> PodAllocation:
    rules = make_rules()
    allocation = admit(
        rules, rules.empty_ledger(), pod(*containers, of_pod=guaranteed(budget))
    ).allocation
    assert allocation is not None
    return allocation


def document(allocation: PodAllocation) -> PodDocument:
    return pod_document(allocation, Mask.of(0))


def listed(allocation: PodAllocation) -> list[str]:
    return list(list_lines(PodListDocument(pods=(document(allocation),))))[1:]


def shown(allocation: PodAllocation) -> list[str]:
    return list(pod_lines(document(allocation)))


def unspecified(allocation: PodAllocation) -> PodAllocation:
    nothing = tuple(replace(container, why="") for container in allocation.containers)
    return replace(allocation, spec_digest="", containers=nothing, origin=Origin.IMPORTED)


def test_an_init_container_that_meets_a_sidecar_is_not_said_to_be_alone() -> None:
    allocation = allocated(sidecar("s"), init("i", THREE), init("burst"), app("a", TWO))
    overlap = "its own among init containers; s may use 3 of them too"
    assert listed(allocation) == [
        "  pod budget: CPUs 1-4, 4Gi of memory on node 0",
        "  s      CPUs 3-4 (the pod's shared pool), memory on node 0",
        f"  i      CPUs 1-3 ({overlap}), 1Gi of memory on node 0",
        "  burst  CPUs 1-4 (the pod's budget until its other containers start), memory on node 0",
        "  a      CPUs 1-2 (its own), 1Gi of memory on node 0",
    ]
    quotas = [line for line in shown(allocation) if line.startswith("  quota")]
    assert quotas == ["  quota     none", "  quota     none, its CPUs are its own"]


def test_memory_that_an_init_container_left_to_a_later_one_is_not_printed_as_its_own() -> None:
    (container, *_) = document(allocated(app("a", TWO))).containers
    gone = replace(container, memory=[replace(block, bytes=0) for block in container.memory])
    left = replace(document(allocated(app("a", TWO))), containers=[gone])
    lines = list(list_lines(PodListDocument(pods=(left,))))
    assert "  a  CPUs 1-2 (its own), memory on node 0" in lines


def test_what_is_read_otherwise_than_meant_is_said_with_the_answer() -> None:
    says = "spec.containers[0].resources.requests.memory: 128m counts as 1"
    answer = AdmissionDocument(
        uid="u", name="p", namespace="default", admitted=True,
        pod=document(allocated(app("a", TWO))), explanation=ExplanationDocument((), (), (says,)),
    )  # fmt: skip
    assert f"  warning: {says}" in list(admission_lines(answer))
    rejected = replace(answer, admitted=False, pod=None)
    assert f"  warning: {says}" in list(admission_lines(rejected))


def test_of_many_that_it_meets_a_few_are_named() -> None:
    allocation = allocated(*(sidecar(f"s{n}") for n in range(5)), init("i", THREE), app("a", TWO))
    (line,) = (line for line in listed(allocation) if line.startswith("  i "))
    assert "; s0, s1, s2 and others may use 3 of them too)" in line


def test_of_a_pod_without_a_specification_no_cpus_are_said_to_be_its_own() -> None:
    allocation = unspecified(allocated(app("a", TWO), app("b")))
    assert not [line for line in (*listed(allocation), *shown(allocation)) if "its own)" in line]
    assert shown(allocation)[-1] == (
        "no specification is known yet; admit its manifest to confirm what it holds"
    )


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (Origin.IMPORTED, "imported from the kubelet's state"),
        (Origin.RECOVERED, "recovered from its cgroups"),
    ],
)
def test_an_allocation_without_a_specification_says_its_origin_and_its_uid(
    origin: Origin, said: str
) -> None:
    allocation = replace(unspecified(allocated(app("a", TWO))), name="", namespace="")
    unmatched = replace(allocation, origin=origin)
    (line, *_) = list_lines(PodListDocument(pods=(document(unmatched),)))
    assert line.startswith(f"uid {allocation.uid}  Guaranteed")
    assert line.endswith(said)
    assert shown(unmatched)[0] == f"uid {allocation.uid}"
    assert f"  origin    {said}" in shown(unmatched)
    decided = allocated(app("a", TWO))
    (line, *_) = list_lines(PodListDocument(pods=(document(decided),)))
    assert said not in line
    assert "  origin    decided" in shown(decided)


def test_a_pod_says_who_asked_for_it() -> None:
    allocation = allocated(app("a", TWO))
    for source, listed_as, shown_as in (
        (API, "from api", "api"),
        (Source("manifests", "/m/a.yaml"), "from /m/a.yaml", "/m/a.yaml (source manifests)"),
    ):
        known = replace(allocation, source=source)
        (line, *_) = list_lines(PodListDocument(pods=(document(known),)))
        assert line.endswith(f"  {listed_as}")
        assert f"  from      {shown_as}" in shown(known)
    assert "  from      no source has asked for it yet" in shown(allocation)


def test_budget_that_no_container_can_use_is_said_wherever_the_pod_is() -> None:
    lonely = allocated(app("a", TWO), budget="cpu=6 memory=1Gi")
    line = "4 of 6 CPUs of the budget are used by no container"
    assert f"  {line}" in listed(lonely)
    assert f"  unused    {line}" in shown(lonely)
    later = allocated(init("i"), app("a", TWO), budget="cpu=2 memory=4Gi")
    assert (
        "  3Gi of 4Gi of memory of the budget are used by no container once its init containers"
        " are done"
    ) in listed(later)
    assert not [line for line in listed(allocated(app("a", ONE), app("b"))) if "budget are" in line]


def test_there_are_words_for_every_way_of_sharing() -> None:
    for sharing in Sharing:
        one = replace(document(allocated(app("a"))).containers[0], sharing=str(sharing))
        whole = replace(document(allocated(app("a"))), containers=(one,))
        (line,) = (line for line in pod_lines(whole) if line.startswith("  CPUs"))
        assert f"({sharing})" not in line


def test_an_admission_names_the_devices_of_every_container() -> None:
    allocation = allocated(app("main", TWO), app("log"))
    first, second = allocation.containers
    devices = MappingProxyType({"example.com/gpu": ("g0", "g1"), "example.com/nic": ("n3",)})
    given = replace(allocation, containers=(replace(first, devices=devices), second))
    answer = AdmissionDocument(uid="u", name="p", namespace="d", admitted=True, pod=document(given))
    lines = list(admission_lines(answer))
    place = next(number for number, line in enumerate(lines) if line.startswith("  main"))
    assert lines[place + 1 : place + 3] == [
        "        example.com/gpu: g0, g1",
        "        example.com/nic: n3",
    ]
    assert lines[place + 3].startswith("  log")


def test_a_diff_has_devices_and_nothing_that_a_dry_run_does_not_know() -> None:
    allocation = allocated(app("a", TWO))
    (container,) = allocation.containers
    given = replace(container, devices=MappingProxyType({"example.com/gpu": ("g0",)}))
    dry = document(replace(allocation, containers=(given,)))
    (known,) = dry.containers
    admitted = replace(
        known,
        delivery=DeliveryDocument(pci_addresses=("0000:01:00.0",)),
        hint=HintDocument(nodes="1", preferred=False),
        kernel=(KernelDocument(cgroup="/pod/a"),),
    )
    now = replace(dry, containers=(admitted,), source="api", containers_found=1)
    assert list(difference_lines(now, dry, "f")) == []
    lines = list(difference_lines(now, document(allocation), "f"))
    assert [line for line in lines[2:] if line[0] in "+-"] == ["-  devices   example.com/gpu: g0"]


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (PodRecord(), "0 of 2 containers found"),
        (PodRecord(running=frozenset({"i"})), "0 of 2 containers found"),
        (PodRecord(running=frozenset({"a"})), "enforced on 1 of 2 containers found"),
        (PodRecord(running=frozenset({"s", "a"})), "enforced"),
        (PodRecord(running=frozenset({"s", "a"}), unenforced=(unenforced("no"),)), "NOT ENFORCED"),
    ],
)
def test_enforced_is_said_of_containers_that_were_found(record: PodRecord, state: str) -> None:
    allocation = allocated(sidecar("s"), init("i", ONE), app("a", TWO))
    allocation = replace(allocation, source=API)
    found = pod_document(allocation, Mask.of(0), record=record)
    assert next(list_lines(PodListDocument(pods=(found,)))).endswith(f"  {state}  from api")
    assert f"  state     {state}" in pod_lines(found)


def test_devices_of_the_kubelet_stand_beside_the_agents_and_are_marked() -> None:
    allocation = allocated(app("a", TWO))
    (container,) = allocation.containers
    recorded = {KUBELET_DEVICES: {"example.com/gpu": {"g0": "0-1", "g1": ""}}}
    own = MappingProxyType({"example.com/nic": ("n0",)})
    both = replace(container, devices=own, others=MappingProxyType(recorded))
    found = replace(allocation, containers=(both,))
    line = "example.com/gpu: g0 (nodes 0-1), g1, given by the kubelet"
    assert f"     {line}" in listed(found)
    assert [each for each in shown(found) if each.startswith("  devices")] == [
        "  devices   example.com/nic: n0",
        f"  devices   {line}",
    ]
    assert not [each for each in shown(found) if KUBELET_DEVICES in each]
    _, row = list_table(PodListDocument(pods=(document(found),)), wide=True)
    assert "example.com/nic=1,kubelet:example.com/gpu=2" in row.split()
