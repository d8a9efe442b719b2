from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import AdmissionDocument
from agent.api.documents.explanations import ExplanationDocument, HintDocument
from agent.api.documents.kernel import KernelDocument
from agent.api.documents.pods import DeliveryDocument, PodListDocument
from agent.api.views import pod_document
from agent.cli.admission_text import admission_lines
from agent.cli.list_text import list_lines, list_table
from agent.cli.pod_text import difference_lines, pod_lines
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
    from collections.abc import Mapping

    from agent.api.documents.pods import PodDocument
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
    return replace(allocation, source=API)


def document(allocation: PodAllocation) -> PodDocument:
    return pod_document(allocation, Mask.of(0))


def unspecified(allocation: PodAllocation, origin: Origin) -> PodAllocation:
    nothing = tuple(replace(container, why="") for container in allocation.containers)
    return replace(allocation, spec_digest="", containers=nothing, origin=origin)


def with_devices(allocation: PodAllocation, own: Mapping[str, tuple[str, ...]]) -> PodAllocation:
    first, *others = allocation.containers
    given = replace(first, devices=MappingProxyType(own))
    return replace(allocation, containers=(given, *others))


def beside_a_kubelet() -> PodAllocation:
    allocation = with_devices(allocated(app("a", TWO)), {"example.com/nic": ("n0",)})
    (container,) = allocation.containers
    recorded = {KUBELET_DEVICES: {"example.com/gpu": {"g0": "0-1", "g1": ""}}}
    both = replace(container, others=MappingProxyType(recorded))
    return replace(allocation, containers=(both,))


def without_bytes(found: PodDocument) -> PodDocument:
    """Return a pod whose memory an init container left to a later one."""
    (container,) = found.containers
    gone = replace(container, memory=[replace(block, bytes=0) for block in container.memory])
    return replace(found, containers=[gone])


SIMPLE: Final = allocated(app("a", TWO))
GPUS: Final = {"example.com/gpu": ("g0", "g1"), "example.com/nic": ("n3",)}
NAMELESS: Final = replace(SIMPLE, name="", namespace="")
PODS: Final = {
    "asked for by nobody": document(replace(SIMPLE, source=None)),
    "of a source": document(replace(SIMPLE, source=Source("manifests", "/m/a.yaml"))),
    "init containers that meet a sidecar": document(
        allocated(sidecar("s"), init("i", THREE), init("burst"), app("a", TWO))
    ),
    "many that are met": document(
        allocated(*(sidecar(f"s{n}") for n in range(5)), init("i", THREE), app("a", TWO))
    ),
    "memory left to a later one": without_bytes(document(SIMPLE)),
    "imported": document(unspecified(allocated(app("a", TWO), app("b")), Origin.IMPORTED)),
    "recovered without a name": document(unspecified(NAMELESS, Origin.RECOVERED)),
    "recovered without containers": document(
        unspecified(replace(SIMPLE, containers=()), Origin.RECOVERED)
    ),
    "unused CPUs": document(allocated(app("a", TWO), budget="cpu=6 memory=1Gi")),
    "unused memory": document(allocated(init("i"), app("a", TWO), budget="cpu=2 memory=4Gi")),
    "nothing unused": document(allocated(app("a", ONE), app("b"))),
    "devices": document(with_devices(allocated(app("main", TWO), app("log")), GPUS)),
    "devices of the kubelet": document(beside_a_kubelet()),
}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_listed_shown_and_a_row_as_it_was(name: str) -> None:
    """With NUMAWARDEN_GOLDEN set the texts are written anew: read what changed."""
    file = Path(__file__).parent / "texts" / f"{name.replace(' ', '-')}.txt"
    listed = PodListDocument(pods=(PODS[name],))
    lines = (*list_lines(listed), "", *list_table(listed, wide=True), "", *pod_lines(PODS[name]))
    text = "".join(f"{line}\n" for line in lines)
    if os.environ.get("NUMAWARDEN_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_what_is_read_otherwise_than_meant_and_devices_are_said_with_the_answer() -> None:
    says = "spec.containers[0].resources.requests.memory: 128m counts as 1"
    answer = AdmissionDocument(
        uid="u", name="p", namespace="default", admitted=True, pod=PODS["devices"],
        explanation=ExplanationDocument((), (), (says,)),
    )  # fmt: skip
    lines = list(admission_lines(answer))
    assert f"  warning: {says}" in lines
    assert "        example.com/gpu: g0, g1" in lines
    rejected = replace(answer, admitted=False, pod=None)
    assert f"  warning: {says}" in list(admission_lines(rejected))


def test_there_are_words_for_every_way_of_sharing() -> None:
    for sharing in Sharing:
        one = replace(document(allocated(app("a"))).containers[0], sharing=str(sharing))
        whole = replace(document(allocated(app("a"))), containers=(one,))
        (line,) = (line for line in pod_lines(whole) if line.startswith("  CPUs"))
        assert f"({sharing})" not in line


def test_a_diff_has_devices_and_nothing_that_a_dry_run_does_not_know() -> None:
    dry = document(with_devices(SIMPLE, {"example.com/gpu": ("g0",)}))
    (known,) = dry.containers
    admitted = replace(
        known,
        delivery=DeliveryDocument(pci_addresses=("0000:01:00.0",)),
        hint=HintDocument(nodes="1", preferred=False),
        kernel=(KernelDocument(cgroup="/pod/a"),),
    )
    now = replace(dry, containers=(admitted,), source="api", containers_found=1)
    assert list(difference_lines(now, dry, "f")) == []
    lines = list(difference_lines(now, document(SIMPLE), "f"))
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
    found = pod_document(allocation, Mask.of(0), record=record)
    assert next(list_lines(PodListDocument(pods=(found,)))).endswith(f"  {state}  from api")
    assert f"  state     {state}" in pod_lines(found)
