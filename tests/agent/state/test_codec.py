from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from agent.managers.allocation import API, ContainerAllocation, PodAllocation
from agent.managers.bindings import NO_BINDINGS
from agent.pods.model import ContainerKind, QosClass
from agent.state import checkpoint as codec
from agent.state.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    NewerCheckpointError,
    OlderCheckpointError,
    UnknownFormatCheckpointError,
    UnusableCheckpointError,
    decode,
    encode,
)
from tests.agent.state.states import everything, example, ledger_of, mixed_pod, states

FILE = Path("/var/lib/numawarden/checkpoint.json")
#: The fields that are maps of values with fields, and those that are maps of plain values.
MAPS = {"memory", "shared"}
TEXTS = {"annotations", "deviceNodes", "devices", "environment", "hugepages", "limits", "others"}
TEXTS |= {"isolation", "policy", "requests", "reserved"}


def with_body(body: str) -> bytes:
    """Return a document whose checksum fits its content, whatever that is."""
    return with_bytes(body.encode())


def with_bytes(data: bytes) -> bytes:
    return b'{"format":"numawarden-checkpoint","version":2,"checksum":"sha256:%s","state":%s}' % (
        hashlib.sha256(data).hexdigest().encode(),
        data,
    )


def altered(*path: str | int, to: object) -> bytes:
    """Return the example with one value replaced and the checksum made to fit."""
    document = json.loads(encode(everything()))
    place = document["state"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return with_body(json.dumps(document["state"]))


def with_unknown(value: object, key: str = "") -> object:
    """Return JSON with a field of another release wherever there are fields of one."""
    if isinstance(value, list):
        return [with_unknown(each) for each in value]
    if not isinstance(value, dict) or key in TEXTS:
        return value
    entries = {name: with_unknown(each, name) for name, each in value.items()}
    return entries if key in MAPS else {**entries, "ofAnother": {"a": [1]}}


@settings(deadline=None)
@given(states)
def test_what_was_encoded_is_decoded_in_order_and_encoded_the_same(state: Checkpoint) -> None:
    data = encode(state)
    found = decode(data, FILE)
    assert found == state
    assert list(found.ledger.allocations) == list(state.ledger.allocations)
    assert encode(found) == data


def test_orphaned_pods_are_encoded_in_their_order() -> None:
    """Without an order, the same state would have other bytes after each start."""
    uids = [f"uid-{number:02}" for number in range(20)]
    state = json.loads(encode(Checkpoint(ledger_of(), orphaned=frozenset(uids))))["state"]
    assert state["orphaned"] == uids


def test_allocations_that_stay_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = decode(encode(Checkpoint(ledger_of(*map(mixed_pod, "abc")))), FILE).ledger
    encoded: list[object] = []
    encoder = codec._ENCODER

    def recorded(value: object) -> bytes:
        encoded.append(value)
        return encoder.encode(value)

    monkeypatch.setattr(codec, "_ENCODER", SimpleNamespace(encode=recorded))
    more = ledger.with_allocation(mixed_pod("new"))
    for _ in range(2):
        encode(Checkpoint(more))
    assert [each.uid for each in encoded if isinstance(each, PodAllocation)] == ["new"]
    renamed = Checkpoint(ledger_of(replace(mixed_pod("new"), name="renamed")))
    assert decode(encode(renamed), FILE) == renamed


def test_fields_of_another_release_are_no_damage_and_outlive_this_one() -> None:
    state = json.loads(encode(everything()))["state"]
    read = decode(with_body(json.dumps(with_unknown(state))), FILE)
    assert replace(read, unknown=MappingProxyType({})) == everything()
    changed = replace(read, boot_id="another", bindings=NO_BINDINGS)
    written = json.loads(encode(decode(encode(changed), FILE)))["state"]
    assert written["ofAnother"] == {"a": [1]}
    assert written["pods"] == with_unknown(state["pods"])
    assert written["bootId"] == "another"


def test_an_unknown_field_that_is_not_text_is_damage() -> None:
    body = (
        encode(example()).partition(b'"state":')[2][:-2].replace(b"{", b'{"ofAnother":"\xff",', 1)
    )
    with pytest.raises(DamagedCheckpointError, match="not a complete JSON document"):
        decode(with_bytes(body), FILE)


def test_an_allocation_that_changed_is_written_as_this_release_has_it() -> None:
    state = json.loads(encode(everything()))["state"]
    read = decode(with_body(json.dumps(with_unknown(state))), FILE)
    (uid,) = read.ledger.allocations
    api = replace(read, ledger=read.ledger.with_source(uid, API))
    (pod,) = json.loads(encode(api))["state"]["pods"]
    assert pod == {**state["pods"][0], "source": {"name": "api"}}


def test_fields_that_a_former_release_did_not_write_have_their_defaults() -> None:
    pod = {
        "uid": "u", "name": "n", "namespace": "d", "qos": "Guaranteed", "specDigest": "1",
        "containers": [{"name": "c", "kind": "app"}],
    }  # fmt: skip
    container = ContainerAllocation("c", ContainerKind.APP)
    allocation = PodAllocation("u", "n", "d", QosClass.GUARANTEED, "1", (container,))
    found = decode(with_body(json.dumps({"pods": [pod]})), FILE)
    assert found == Checkpoint(ledger_of(allocation))


def test_any_truncation_is_found() -> None:
    intact = encode(example())
    for length in range(len(intact) - 1):
        with pytest.raises(DamagedCheckpointError) as caught:
            decode(intact[:length], FILE)
        assert str(FILE) in str(caught.value)


def test_a_bit_that_flipped_in_any_byte_is_found() -> None:
    intact = encode(example())
    for at, byte in enumerate(intact):
        broken = intact[:at] + bytes([byte ^ (1 << at % 8)]) + intact[at + 1 :]
        with pytest.raises(UnusableCheckpointError):
            decode(broken, FILE)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "$"),
        (b"[" * 100_000, "$"),
        (b"null", "$"),
        (b"{} trailing", "$"),
        (encode(example()).replace(b"2-7", b"2-8"), "$.checksum"),
        (b'{"format":"numawarden-checkpoint"}', "$.version"),
        (b'{"format":"numawarden-checkpoint","version":2}', "$"),
        (b'{"format":"numawarden-checkpoint","version":"one"}', "$.version"),
        (altered("pods", 0, "cpus", to="7-2"), "$.pods[0].cpus"),
        (altered("pods", 0, "cpus", to=[2, 3]), "$.pods[0].cpus"),
        (altered("pods", 0, "qos", to="Golden"), "$.pods[0].qos"),
        (altered("pods", 0, "memory", 0, "size", to=-1), "$.pods[0].memory[0].size"),
        (altered("pods", 0, "containers", 1, "name", to=""), "$.pods[0].containers[1].name"),
        (altered("pods", 0, "containers", 1, "name", to="db"), "$.state.pods[0].containers"),
        (altered("pods", to=json.loads(encode(example()))["state"]["pods"] * 2),
         "$.state.pods"),
        (altered("memory", "0", "cells", to="x"), "$.memory[...].cells"),
        (altered("pods", 0, "containers", 0, "hint", to=[-1, True]),
         "$.pods[0].containers[0].hint[0]"),
        (altered("pods", 0, "requests", to={"cpu": -1}), "$.pods[0].requests[...]"),
        (altered("pods", 0, "source", to={"name": ""}), "$.pods[0].source.name"),
        (altered("cordons", "entries", to=[{"cordon": {"cpus": "x"}}]),
         "$.cordons.entries[0].cordon.cpus"),
        (altered("cordons", "entries", to=[{"cordon": {"nodes": 1}}]),
         "$.cordons.entries[0].cordon.nodes"),
        (altered("cordons", "entries", to=[{}]), "$.cordons.entries[0]"),
        (altered("shared", to="full"), "$.shared"),
        (altered("shared", "1", "uid", to=""), "$.shared[...].uid"),
        (altered("bindings", "entries", 0, "cgroup", to=""), "$.bindings.entries[0].cgroup"),
        (altered("host", "nodes", 0, "id", to=-1), "$.host.nodes[0].id"),
        (with_body("{}"), "$"),
        (with_body('{"pods":[],"pods":[{}]}'), "$.pods[0]"),
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
    data = b'{"format":"numawarden-checkpoint","version":3,"body":{"new":[]}}'
    with pytest.raises(NewerCheckpointError, match="format 3") as caught:
        decode(data, FILE)
    assert caught.value.label == "newer"


@pytest.mark.parametrize("version", [0, 1])
def test_a_former_format_is_older_and_says_what_to_do(version: int) -> None:
    data = b'{"format":"numawarden-checkpoint","version":%d,"checksum":"","state":{}}' % version
    with pytest.raises(OlderCheckpointError, match=f"format {version}, this release") as caught:
        decode(data, FILE)
    assert caught.value.label == "older"
    assert "kept aside; let running pods be admitted again" in str(caught.value)


def test_the_golden_file_is_read_and_still_written_the_same() -> None:
    """A change of the format shows here: a new field needs a default, any other a new version."""
    recorded = (Path(__file__).parent / "checkpoint.json").read_bytes()
    assert decode(recorded, FILE) == everything()
    assert encode(decode(recorded, FILE)) == recorded
    assert encode(everything()) == recorded


def test_what_pods_without_requests_have_counts_as_their_requests() -> None:
    saved = decode(encode(example()), FILE).ledger
    (allocation,) = saved.allocations.values()
    assert allocation.requests == {}
    assert saved.requests["cpu"] == 6000
    assert saved.requests["memory"] == 4 << 30
    stated = replace(allocation, requests=MappingProxyType({"cpu": 6500}))
    assert decode(encode(Checkpoint(ledger_of(stated))), FILE).ledger.requests == {"cpu": 6500}
