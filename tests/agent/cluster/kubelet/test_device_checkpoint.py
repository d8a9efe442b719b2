"""The kubelet's file of devices, as it is, changes, and as another program may have left it."""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given as tried
from hypothesis import strategies as st

from agent.cluster.kubelet import device_checkpoint as module
from agent.cluster.kubelet.device_checkpoint import FILE, DeviceCheckpoint, DeviceCheckpointError
from agent.pods.model import GivenDevice
from sysfs.mask import EMPTY, Mask
from tests.agent.pods.pods import app, init, pod, resources
from tests.fakes.kubelet.device_shares import write_device_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agent.pods.model import Pod

NIC, GPU = "example.com/nic", "example.com/gpu"


#: Byte for byte as kubelet v1.36 writes it.
FILE_OF_A_KUBELET = (
    b'{"Data":{"PodDeviceEntries":['
    b'{"PodUID":"u-1","ContainerName":"a","ResourceName":"example.com/nic",'
    b'"DeviceIDs":{"0":["nic0","nic1"]},"AllocResp":"CgA="},'
    b'{"PodUID":"u-1","ContainerName":"a","ResourceName":"example.com/gpu",'
    b'"DeviceIDs":{"0":["gpu0"],"1":["gpu0"]},"AllocResp":""},'
    b'{"PodUID":"u-1","ContainerName":"b","ResourceName":"example.com/gpu",'
    b'"DeviceIDs":{"-1":["gpu1"]},"AllocResp":""},'
    b'{"PodUID":"u-2","ContainerName":"a","ResourceName":"example.com/nic",'
    b'"DeviceIDs":{"1":["nic2"]},"AllocResp":""}],'
    b'"RegisteredDevices":{"example.com/gpu":[],"example.com/nic":["nic0"]}},'
    b'"Checksum":1024309195}'
)


def written(directory: Path, content: bytes) -> DeviceCheckpoint:
    path = directory / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return DeviceCheckpoint(directory)


def test_the_devices_of_a_pod_are_known_with_their_nodes(tmp_path: Path) -> None:
    found = written(tmp_path, FILE_OF_A_KUBELET).read()
    assert found.of("u-1") == {
        "a": (
            GivenDevice(NIC, "nic0", Mask.of(0)),
            GivenDevice(NIC, "nic1", Mask.of(0)),
            GivenDevice(GPU, "gpu0", Mask.of(0, 1)),
        ),
        "b": (GivenDevice(GPU, "gpu1", EMPTY),),
    }
    assert found.of("u-2") == {"a": (GivenDevice(NIC, "nic2", Mask.of(1)),)}
    assert found.of("u-3") == {}
    assert found.registered == {NIC, GPU}


def test_a_kubelet_that_gave_no_device_yet_has_no_file(tmp_path: Path) -> None:
    (tmp_path / "device-plugins").mkdir()
    found = DeviceCheckpoint(tmp_path).read()
    assert (found.of("u-1"), found.registered) == ({}, frozenset())


def test_fields_and_checksums_of_later_kubelets_are_passed_over(tmp_path: Path) -> None:
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": NIC, "DeviceIDs": {"1": ["n"]}}
    document = {"Data": {"PodDeviceEntries": [{**entry, "Share": 1}], "More": []}, "Version": 2}
    found = written(tmp_path, json.dumps(document).encode()).read()
    assert found.of("u") == {"c": (GivenDevice(NIC, "n", Mask.of(1)),)}


def test_what_changes_is_read_and_what_did_not_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_device_checkpoint(tmp_path, {"u": {"c": {NIC: {0: ["nic0"]}}}}, NIC)
    checkpoint = DeviceCheckpoint(tmp_path)
    first = checkpoint.read()
    with monkeypatch.context() as unread:
        unread.setattr(module, "read_trusted", pytest.fail)
        assert checkpoint.read() is first
    # The same size, and the same time: the kubelet's rename makes another inode.
    before = checkpoint.path.stat()
    write_device_checkpoint(tmp_path, {"u": {"c": {NIC: {1: ["nic1"]}}}}, NIC)
    os.utime(checkpoint.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert checkpoint.read().of("u") == {"c": (GivenDevice(NIC, "nic1", Mask.of(1)),)}


ENTRY = {"PodUID": "u", "ContainerName": "c", "ResourceName": NIC}


def with_ids(ids: object) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": ids}]}}).encode()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "the file is empty"),
        (b'{"Data": {', "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `Data`"),
        (with_ids(["nic0"]), r"Expected `object \| null`, got `array`"),  # before kubelet 1.20
        (with_ids({"-2": ["nic0"]}), ">= -1"),
        (with_ids({"99999999": ["nic0"]}), "<="),
        (with_ids({"zero": ["nic0"]}), "Expected `int`"),
        (with_ids({"0": "nic0"}), r"Expected `array \| null`, got `str`"),
        (b'{"Data": ' + b"[" * 100_000, "recursion|depth|Expected"),
    ],
)
def test_an_unknown_format_is_an_error(tmp_path: Path, content: bytes, found: str) -> None:
    checkpoint = written(tmp_path, content)
    with pytest.raises(DeviceCheckpointError, match=found) as caught:
        checkpoint.read()
    assert caught.value.path == checkpoint.path
    assert "podresources" in caught.value.remedy
    # It is an error as long as the file is there, and none after it was replaced.
    with pytest.raises(DeviceCheckpointError):
        checkpoint.read()
    write_device_checkpoint(tmp_path, {})
    assert checkpoint.read().of("u") == {}


def test_a_kubelet_elsewhere_is_named_with_the_key_to_set(tmp_path: Path) -> None:
    with pytest.raises(DeviceCheckpointError, match=r"device-plugins: there is no .*agent.kubelet"):
        DeviceCheckpoint(tmp_path).read()


def test_a_file_that_another_user_can_change_is_not_believed(tmp_path: Path) -> None:
    path = write_device_checkpoint(tmp_path, {})
    path.chmod(0o666)
    with pytest.raises(DeviceCheckpointError, match=f"chmod go-w {path}"):
        DeviceCheckpoint(tmp_path).read()


def test_a_file_larger_than_any_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = write_device_checkpoint(tmp_path, {})
    with path.open("r+b") as file:
        file.truncate(module.LONGEST + 1)
    with pytest.raises(DeviceCheckpointError, match="larger than"):
        DeviceCheckpoint(tmp_path).read()


@pytest.mark.parametrize("make", ["mkdir", "mkfifo"])
def test_a_directory_or_a_pipe_is_an_error_without_waiting(tmp_path: Path, make: str) -> None:
    path = tmp_path / FILE
    path.parent.mkdir()
    getattr(os, make)(path)
    with pytest.raises(DeviceCheckpointError, match=r"directory|regular file"):
        DeviceCheckpoint(tmp_path).read()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "Data",
                    "PodDeviceEntries",
                    "RegisteredDevices",
                    *ENTRY,
                    "DeviceIDs",
                    "0",
                    "-1",
                    "x",
                ]
            ),
            some,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@tried(st.dictionaries(st.sampled_from(["Data", "Checksum"]), VALUES) | st.binary(max_size=50))
def test_no_content_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any] | bytes
) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    checkpoint = written(tmp_path_factory.mktemp("kubelet"), raw)
    with suppress(DeviceCheckpointError):
        checkpoint.read().of("u")


def test_the_plugins_response_is_not_read(tmp_path: Path) -> None:
    entry = {**ENTRY, "DeviceIDs": {"0": ["n"]}, "AllocResp": base64.b64encode(b"x").decode()}
    content = json.dumps({"Data": {"PodDeviceEntries": [entry]}})
    odd = content.replace(base64.b64encode(b"x").decode(), "not base64")
    assert written(tmp_path, odd.encode()).read().of("u")["c"][0].id == "n"


def asking(limits: str) -> Pod:
    return pod(init("setup", resources(limits=limits)), app("main", resources(limits=limits)))


def test_what_plugins_provide_and_a_container_lacks_is_awaited(tmp_path: Path) -> None:
    write_device_checkpoint(tmp_path, {"u-1": {"setup": {NIC: {0: ["nic0"]}}}}, NIC, GPU)
    checkpoint = DeviceCheckpoint(tmp_path)
    assert checkpoint.read().awaited(asking(f"{NIC}=1")) == {NIC}
    assert checkpoint.read().awaited(asking(f"{GPU}=1 {NIC}=1 cpu=1")) == {NIC, GPU}
    assert checkpoint.read().awaited(asking(f"{GPU}=0 example.com/licence=3")) == frozenset()
    assert checkpoint.awaits(asking(f"{NIC}=1"))
    both = {name: {NIC: {0: ["nic0"]}} for name in ("setup", "main")}
    write_device_checkpoint(tmp_path, {"u-1": both}, NIC, GPU)
    assert not checkpoint.awaits(asking(f"{NIC}=1"))


def test_the_agents_own_resource_and_an_unreadable_file_hold_up_no_pod(tmp_path: Path) -> None:
    path = write_device_checkpoint(tmp_path, {}, NIC, GPU)
    own = DeviceCheckpoint(tmp_path, NIC)
    assert not own.awaits(asking(f"{NIC}=1"))
    assert own.awaits(asking(f"{NIC}=1 {GPU}=1"))
    path.write_text("{}")
    assert not own.awaits(asking(f"{GPU}=1"))
