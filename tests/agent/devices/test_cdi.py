"""A pod's deliveries become a specification that every runtime with CDI reads."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.devices.cdi import (
    KIND,
    VERSIONS,
    CdiDevice,
    ContainerEdits,
    MountEdit,
    NodeEdit,
    Specification,
    device_name,
    device_names,
    qualified_name_fault,
    specification,
    validate,
)
from agent.managers.delivery import NOTHING, Delivery, DeviceNode
from tests.agent.devices.pods import DELIVERIES, DELIVERY, NAMES, UID, UIDS, pod

ENV = ContainerEdits(env=("A=1",))


def _spec(*devices: CdiDevice, kind: str = KIND, version: str = VERSIONS[-1]) -> Specification:
    return Specification(version, kind, devices or (CdiDevice("a", ENV),))


def _edits(version: str = VERSIONS[-1], **edits: Any) -> Specification:  # noqa: ANN401
    return _spec(CdiDevice("a", ContainerEdits(**edits)), version=version)


def test_a_specification_has_what_was_delivered_to_each_container() -> None:
    spec = specification(pod(main=DELIVERY, other=NOTHING))
    assert json.loads(msgspec.json.encode(spec)) == {
        "cdiVersion": "0.5.0",
        "kind": "numawarden.dev/pod",
        "devices": [
            {
                "name": f"{UID}-main",
                "containerEdits": {
                    "env": ["EXAMPLE_DEVICES=a=b c"],
                    "deviceNodes": [
                        {"path": "/dev/given", "hostPath": "/dev/example0", "permissions": "rw"},
                        {"path": "/dev/x", "permissions": "r"},
                    ],
                    "mounts": [
                        {
                            "hostPath": "/usr/lib/example",
                            "containerPath": "/opt/example",
                            "options": ["rbind", "rprivate", "ro"],
                        },
                        {
                            "hostPath": "/a",
                            "containerPath": "/b",
                            "options": ["rbind", "rprivate", "rw"],
                        },
                    ],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    "delivery",
    [NOTHING, Delivery(cdi_devices=("a.com/b=c",)), Delivery(annotations={"a": "b"})],
)
def test_a_pod_whose_deliveries_edit_nothing_has_no_specification(delivery: Delivery) -> None:
    assert specification(pod(main=delivery)) is None
    assert device_names(pod(main=delivery)) == {}


@pytest.mark.parametrize(
    ("first", "path", "version"),
    [("a", "/dev/x", "0.3.0"), ("a", "/dev/y", "0.5.0"), ("1", "/dev/x", "0.5.0")],
)
def test_the_version_is_the_lowest_with_what_is_used(first: str, path: str, version: str) -> None:
    delivery = Delivery(device_nodes=(DeviceNode(path, "/dev/x", "rw"),))
    spec = specification(pod(first + UID[1:], main=delivery))
    assert spec is not None
    assert spec.cdi_version == version


@given(UIDS, st.dictionaries(NAMES, DELIVERIES, max_size=3))
def test_a_specification_is_valid_and_complete(uid: str, deliveries: dict[str, Delivery]) -> None:
    allocation = pod(uid, **deliveries)
    spec = specification(allocation)
    names = device_names(allocation)
    if spec is None:
        assert not names
        return
    read = msgspec.json.decode(msgspec.json.encode(spec), type=Specification)
    assert read == spec
    assert validate(read) == ()
    assert [f"{KIND}={device.name}" for device in spec.devices] == list(names.values())
    assert all(qualified_name_fault(name) is None for name in names.values())


@given(UIDS, st.lists(NAMES, min_size=1, max_size=4))
def test_no_two_containers_have_one_name(uid: str, parts: list[str]) -> None:
    uids = ["-".join([uid, *parts[:count]]) for count in range(len(parts))]
    containers = ["-".join(parts[count:]) for count in range(len(parts))]
    assert len(set(map(device_name, uids, containers))) == len(parts)


def test_a_uid_that_ends_like_a_container_begins_gets_another_name() -> None:
    assert device_name(UID, "a-b") == f"{UID}-a-b"
    assert device_name(f"{UID}-a", "b") == f"{UID}-a_b"
    assert device_name("a" * 32, "b") == f"{'a' * 32}-b"


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (_spec(version="0.2.0"), "version '0.2.0' is not one of"),
        (_spec(version="0.9.0"), "version '0.9.0' is not one of"),
        (_spec(CdiDevice("1", ENV), version="0.4.0"), "0.5.0 is the lowest"),
        (_spec(kind="a.com/b.c", version="0.5.0"), "0.6.0 is the lowest"),
        (_edits(device_nodes=(NodeEdit("/a", "/b"),), version="0.4.0"), "0.5.0 is the lowest"),
        (_spec(kind="a.com"), "not vendor/class"),
        (_spec(kind="1.com/a"), "not vendor/class"),
        (_spec(kind="a.com/b-"), "not vendor/class"),
        (_spec(kind="a.com/b/c"), "not vendor/class"),
        (Specification("0.5.0", KIND, ()), "the list of devices is empty"),
        (_spec(CdiDevice("a", ENV), CdiDevice("a", ENV)), "2 devices of the name 'a'"),
        (_spec(CdiDevice("", ENV)), "the name is not"),
        (_spec(CdiDevice("a b", ENV)), "the name is not"),
        (_spec(CdiDevice("a\n", ENV)), "the name is not"),
        (_spec(CdiDevice("a-", ENV)), "the name is not"),
        (_spec(CdiDevice("ä", ENV)), "the name is not"),
        (_edits(), "nothing is edited"),
        (_edits(env=("A",)), "not NAME=value"),
        (_edits(env=("=1",)), "not NAME=value"),
        (_edits(device_nodes=(NodeEdit(""),)), "has no path"),
        (_edits(device_nodes=(NodeEdit("/a", "", "rx"),)), "not of r, w and m"),
        (_edits(mounts=(MountEdit("", "/a"),)), "a mount has no path"),
        (_edits(mounts=(MountEdit("/a", ""),)), "a mount has no path"),
    ],
)
def test_what_a_runtime_rejects_is_named(spec: Specification, fault: str) -> None:
    faults = validate(spec)
    assert len(faults) == 1, faults
    assert re.search(re.escape(fault), faults[0])


def test_a_field_that_runtimes_do_not_know_is_not_read() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `more`"):
        msgspec.json.decode(
            b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[],"more":1}', type=Specification
        )


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        *((text, True) for text in ("a.com/b=c", "A_b/c-1=0:1.x")),
        *((text, False) for text in ("", "/dev/x", "a.com=c", "a.com/b", "a.com/b=", "a/b=c\n")),
    ],
)
def test_a_fully_qualified_name_has_no_fault(text: str, *, valid: bool) -> None:
    assert (qualified_name_fault(text) is None) is valid
