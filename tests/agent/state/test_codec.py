from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocations.cordons import CordonEntry, Cordons
from agent.managers.allocations.delivery import NOTHING, Delivery, DeviceNode, Mount
from agent.managers.allocations.ledger import Ledger
from agent.managers.allocations.origin import API, Origin, Source
from agent.managers.policy import Cordon
from agent.sources.manifests import ManifestDirectory
from agent.state import codec
from agent.state.checkpoint import Checkpoint, SharedPod
from agent.state.codec import Encoder, decode
from agent.state.errors import (
    DamagedCheckpointError,
    NewerCheckpointError,
    OlderCheckpointError,
    UnknownFormatCheckpointError,
    UnusableCheckpointError,
)
from sysfs.mask import Mask
from tests.agent.state.states import example, ledger_of, mixed_pod, plain_pods, states

if TYPE_CHECKING:
    import msgspec

FILE = Path("/var/lib/numawarden/checkpoint.json")


def with_body(body: str) -> bytes:
    """Return a document whose checksum fits its content, whatever that is."""
    data = body.encode()
    return b'{"format":"numawarden-checkpoint","version":1,"checksum":"sha256:%s","state":%s}' % (
        hashlib.sha256(data).hexdigest().encode(),
        data,
    )


def altered(*path: str | int, to: object) -> bytes:
    """Return the example with one value replaced and the checksum made to fit."""
    document = json.loads(Encoder().encode(example()))
    place = document["state"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return with_body(json.dumps(document["state"]))


CORDONS = Cordons((CordonEntry(Cordon(Mask.parse("4-7"), Mask.of(1)), "DIMM", 5.0),))
SHARED = SharedPod("1", "web", "shop", Source("kubelet", "pods/1"), "OutOfcpu: 8 CPUs")


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (replace(example(), cordons=CORDONS), "cordon.0"),
        (replace(example(), shared=MappingProxyType({"1": SHARED})), "shared.0"),
    ],
)
def test_a_release_without_cordons_or_shared_pods_finds_nothing_that_it_does_not_know(
    changed: Checkpoint, key: str
) -> None:
    """Such a release takes an unknown field for damage; values of the policy are any text."""
    plain = json.loads(Encoder().encode(example()))["state"]
    found = json.loads(Encoder().encode(changed))["state"]
    assert found["policy"].keys() - plain["policy"].keys() == {key}
    assert found.keys() == plain.keys()
    assert {key: found[key] for key in plain if key != "policy"} == {
        key: plain[key] for key in plain if key != "policy"
    }


@pytest.mark.parametrize("text", ['{"cpus": "x"}', '{"cpu": "1"}', "1-2", '{"nodes": 1}'])
def test_a_cordon_that_cannot_be_read_is_damage(text: str) -> None:
    with pytest.raises(DamagedCheckpointError, match="cordon"):
        decode(altered("policy", to={"cordon.0": text}), FILE)


@pytest.mark.parametrize("text", ["{}", '{"uid": "", "why": "", "source": "a"}', "full"])
def test_a_shared_pod_that_cannot_be_read_is_damage(text: str) -> None:
    with pytest.raises(DamagedCheckpointError, match="shared"):
        decode(altered("policy", to={"shared.0": text}), FILE)


@settings(deadline=None)
@given(states)
def test_what_was_encoded_is_decoded(state: Checkpoint) -> None:
    assert decode(Encoder().encode(state), FILE) == state


@settings(max_examples=30, deadline=None)
@given(states)
def test_pods_keep_their_order_of_admission(state: Checkpoint) -> None:
    assert list(decode(Encoder().encode(state), FILE).ledger.allocations) == list(
        state.ledger.allocations
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(states, max_size=3))
def test_bytes_do_not_depend_on_what_was_encoded_before(sequence: list[Checkpoint]) -> None:
    encoder = Encoder()
    for state in sequence:
        assert encoder.encode(state) == Encoder().encode(state)


def test_order_of_unordered_parts_does_not_change_the_bytes() -> None:
    state = example()
    turned = MappingProxyType(dict(reversed(list(state.policy.items()))))
    assert list(turned) != list(state.policy)
    assert Encoder().encode(replace(state, policy=turned)) == Encoder().encode(state)


def test_a_changed_allocation_of_the_same_uid_is_encoded_again() -> None:
    encoder = Encoder()
    pod = mixed_pod()
    encoder.encode(Checkpoint(ledger_of(pod)))
    renamed = Checkpoint(ledger_of(replace(pod, name="renamed")))
    assert decode(encoder.encode(renamed), FILE) == renamed


def test_allocations_that_stay_are_not_encoded_again() -> None:
    encoder = Encoder()
    ledger = plain_pods(3)
    encoder.encode(Checkpoint(ledger))
    before = dict(encoder._known)
    more = ledger.with_allocation(mixed_pod("new"))
    encoder.encode(Checkpoint(more))
    assert all(encoder._known[uid][1] is before[uid][1] for uid in before)


def test_what_was_delivered_with_devices_survives() -> None:
    delivery = Delivery(
        environment={"VF": "0000:3b:02.1"},
        mounts=(Mount("/opt/lib", "/usr/lib/vf", read_only=True), Mount("/run/vf", "/run/vf")),
        device_nodes=(DeviceNode("/dev/vfio/12", "/dev/vfio/12"),),
        annotations={"example.com/vf": "1"},
        cdi_devices=("example.com/vf=1",),
        pci_addresses=("0000:3b:02.1",),
    )
    pod = mixed_pod()
    first, *rest = pod.containers
    pod = replace(pod, containers=(replace(first, delivery=delivery), *rest))
    found = decode(Encoder().encode(Checkpoint(ledger_of(pod))), FILE).ledger.allocations[pod.uid]
    assert [container.delivery for container in found.containers] == [delivery, NOTHING]


def test_the_document_is_json_that_a_person_can_read() -> None:
    document = json.loads(Encoder().encode(example()))
    assert document["format"] == "numawarden-checkpoint"
    assert document["version"] == 1
    pod = document["state"]["pods"][0]
    assert pod["cpus"] == "2-7"
    assert pod["containers"][0]["isolation"] == "container"
    assert pod["containers"][0]["hint_nodes"] == "0"


@settings(deadline=None)
@given(st.data())
def test_any_flipped_byte_is_found(data: st.DataObject) -> None:
    intact = Encoder().encode(example())
    at = data.draw(st.integers(0, len(intact) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != intact[at]))
    broken = intact[:at] + bytes([byte]) + intact[at + 1 :]
    with pytest.raises(UnusableCheckpointError):
        decode(broken, FILE)


def test_any_truncation_is_found() -> None:
    intact = Encoder().encode(example())
    for length in range(len(intact) - 1):
        with pytest.raises(DamagedCheckpointError) as caught:
            decode(intact[:length], FILE)
        assert str(FILE) in str(caught.value)


def test_a_bit_that_flipped_in_any_byte_is_found() -> None:
    intact = Encoder().encode(example())
    for at, byte in enumerate(intact):
        broken = intact[:at] + bytes([byte ^ (1 << at % 8)]) + intact[at + 1 :]
        with pytest.raises(UnusableCheckpointError):
            decode(broken, FILE)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(UnusableCheckpointError):
        decode(data, FILE)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "$"),
        (b"[" * 100_000, "$"),
        (b"null", "$"),
        (b"{} trailing", "$"),
        (b'{"format":"numawarden-checkpoint"}', "$.version"),
        (b'{"format":"numawarden-checkpoint","version":1}', "$"),
        (b'{"format":"numawarden-checkpoint","version":"one"}', "$.version"),
        (altered("pods", 0, "cpus", to="7-2"), "$.pods[0].cpus"),
        (altered("pods", 0, "cpus", to=[2, 3]), "$.pods[0].cpus"),
        (altered("pods", 0, "qos", to="Golden"), "$.pods[0].qos"),
        (altered("pods", 0, "memory", 0, "size", to=-1), "$.pods[0].memory[0].size"),
        (altered("pods", 0, "containers", 1, "name", to=""), "$.pods[0].containers[1].name"),
        (altered("pods", 0, "containers", 1, "name", to="db"), "$.state.pods[0].containers"),
        (altered("pods", to=[json.loads(Encoder().encode(example()))["state"]["pods"][0]] * 2),
         "$.state.pods"),
        (altered("memory", 0, "cells", to="x"), "$.memory[0].cells"),
        (altered("surplus", to=1), "$"),
    ],
)  # fmt: skip
def test_damage_names_file_field_and_remedy(data: bytes, field: str) -> None:
    with pytest.raises(DamagedCheckpointError) as caught:
        decode(data, FILE)
    assert caught.value.field == field
    message = str(caught.value)
    assert str(FILE) in message
    assert "kept aside" in message
    assert "\n" not in message


def test_a_checkpoint_of_the_kubelet_has_an_unknown_format() -> None:
    with pytest.raises(UnknownFormatCheckpointError, match="state import"):
        decode(b'{"policyName":"static","defaultCpuSet":"0-3","checksum":1}', FILE)


def test_a_newer_format_is_named_as_such_whatever_else_it_holds() -> None:
    data = b'{"format":"numawarden-checkpoint","version":2,"body":{"new":[]}}'
    with pytest.raises(NewerCheckpointError, match="format 2") as caught:
        decode(data, FILE)
    assert caught.value.label == "newer"


def test_a_format_before_the_first_is_older() -> None:
    with pytest.raises(OlderCheckpointError, match="format 0"):
        decode(b'{"format":"numawarden-checkpoint","version":0}', FILE)


def test_a_wrong_checksum_says_both() -> None:
    broken = Encoder().encode(example()).replace(b"2-7", b"2-8")
    with pytest.raises(DamagedCheckpointError, match="says sha256:") as caught:
        decode(broken, FILE)
    assert caught.value.field == "$.checksum"


def test_files_of_format_1_stay_readable_and_are_still_written_the_same() -> None:
    recorded = (Path(__file__).parent / "format1.json").read_bytes()
    assert decode(recorded, FILE) == example()
    assert Encoder().encode(example()) == recorded


def test_a_file_from_before_allocations_had_an_origin_is_read_and_written_as_of_today() -> None:
    former = (Path(__file__).parent / "format1_before_origin.json").read_bytes()
    assert b"origin" not in former
    assert decode(former, FILE) == example()
    assert (
        Encoder().encode(decode(former, FILE))
        == (Path(__file__).parent / "format1.json").read_bytes()
    )


@pytest.mark.parametrize("namespace", ["default", "imported", "recovered"])
@pytest.mark.parametrize(
    ("recovered", "digest", "origin"),
    [
        (False, "3f1c", Origin.DECIDED),
        (False, "", Origin.IMPORTED),
        (True, "", Origin.RECOVERED),
        (True, "3f1c", Origin.RECOVERED),
    ],
)
def test_the_origin_in_a_former_file_follows_from_its_flag_and_digest_alone(
    namespace: str,
    recovered: bool,  # noqa: FBT001 - parametrized
    digest: str,
    origin: Origin,
) -> None:
    former = (Path(__file__).parent / "format1_before_origin.json").read_text()
    state = json.loads(former)["state"]
    state["pods"][0] |= {"namespace": namespace, "spec_digest": digest}
    if recovered:
        state["pods"][0]["recovered"] = True
    (allocation,) = decode(with_body(json.dumps(state)), FILE).ledger.allocations.values()
    assert (allocation.origin, allocation.namespace) == (origin, namespace)


@pytest.mark.parametrize(
    ("files", "digest", "source"),
    [
        ({}, "3f1c", API),
        ({}, "", None),
        ({"another": "other.yaml"}, "3f1c", API),
        ({mixed_pod().uid: "/m/a.yaml"}, "3f1c", Source(ManifestDirectory.name, "/m/a.yaml")),
        ({mixed_pod().uid: "/m/a.yaml"}, "", Source(ManifestDirectory.name, "/m/a.yaml")),
    ],
)
def test_in_a_former_file_a_pod_with_a_file_is_its_and_any_other_that_was_decided_the_apis(
    files: dict[str, str], digest: str, source: Source | None
) -> None:
    former = (Path(__file__).parent / "format1_before_origin.json").read_text()
    state = json.loads(former)["state"]
    state["pods"][0]["spec_digest"] = digest
    state["manifests"] = files
    (allocation,) = decode(with_body(json.dumps(state)), FILE).ledger.allocations.values()
    assert allocation.source == source


def test_what_pods_of_older_files_hold_counts_as_their_requests() -> None:
    allocated = decode((Path(__file__).parent / "format1.json").read_bytes(), FILE).ledger
    (allocation,) = allocated.allocations.values()
    assert allocation.requests == {}
    assert allocated.requests["cpu"] == 6000
    assert allocated.requests["memory"] == 4 << 30
    stated = replace(allocation, requests=MappingProxyType({"cpu": 6500}))
    saved = decode(Encoder().encode(Checkpoint(ledger_of(stated))), FILE)
    assert saved.ledger.requests == {"cpu": 6500}


def test_a_format_of_before_is_read_by_its_own_reader_when_a_later_one_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []

    def read2(body: msgspec.Raw) -> Checkpoint:
        asked.append(bytes(body))
        return Checkpoint(Ledger(), agent_version="2")

    monkeypatch.setattr(codec, "VERSION", 2)
    monkeypatch.setitem(codec.READERS, 2, read2)
    recorded = (Path(__file__).parent / "format1.json").read_bytes()
    assert decode(recorded, FILE) == example()
    assert asked == []
    assert decode(Encoder().encode(example()), FILE).agent_version == "2"
    assert len(asked) == 1
    monkeypatch.delitem(codec.READERS, 1)
    with pytest.raises(OlderCheckpointError, match="format 1, this release reads 2 and writes 2"):
        decode(recorded, FILE)
