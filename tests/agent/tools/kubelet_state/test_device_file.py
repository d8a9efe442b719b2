from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.kubelet_state.devices import (
    DeviceEntry,
    DeviceState,
    read_device_state,
    write_device_state,
)
from agent.tools.kubelet_state.format import UnreadableStateFileError, fnv1a_32
from tests.strategies import built

PATH = Path("dir/kubelet_internal_checkpoint")
STATE = DeviceState(
    (
        DeviceEntry("u-1", "a", "example.com/gpu", {0: ("g0", "g1"), 10: ("g0",)}, b"\n\x04\xff"),
        DeviceEntry("u-2", "b", "example.com/nic", {-1: ("n0",)}),
    ),
    {"example.com/nic": ("n0",), "example.com/gpu": ()},
)
#: What go-spew gives for the state; the checksum is the hash of it.
TEXT = (
    "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)["
    "{PodUID:(string)u-1 ContainerName:(string)a ResourceName:(string)example.com/gpu "
    "DeviceIDs:(checkpoint.DevicesPerNUMA)map[0:[g0 g1] 10:[g0]] AllocResp:([]uint8)[10 4 255]} "
    "{PodUID:(string)u-2 ContainerName:(string)b ResourceName:(string)example.com/nic "
    "DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[n0]] AllocResp:([]uint8)[]}] "
    "RegisteredDevices:(map[string][]string)map[example.com/gpu:[] example.com/nic:[n0]]}"
)
FILE = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"u-1","ContainerName":"a",'
    '"ResourceName":"example.com/gpu","DeviceIDs":{"0":["g0","g1"],"10":["g0"]},'
    '"AllocResp":"CgT/"},{"PodUID":"u-2","ContainerName":"b","ResourceName":"example.com/nic",'
    '"DeviceIDs":{"-1":["n0"]},"AllocResp":""}],"RegisteredDevices":{"example.com/gpu":[],'
    f'"example.com/nic":["n0"]}}}},"Checksum":{fnv1a_32(TEXT)}}}'
).encode()

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
IDS = st.lists(NAMES, max_size=3).map(tuple)
STATES = built(
    DeviceState,
    st.lists(
        built(
            DeviceEntry,
            NAMES,
            NAMES,
            NAMES,
            st.dictionaries(st.integers(-1, 20), IDS, max_size=3),
            st.binary(max_size=20),
        ),
        max_size=3,
    ).map(tuple),
    st.dictionaries(NAMES, IDS, max_size=3),
)


def test_a_state_is_written_as_the_kubelet_writes_it() -> None:
    assert write_device_state(STATE) == FILE
    assert read_device_state(FILE, PATH) == STATE


def test_without_entries_there_is_null() -> None:
    text = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> "
        "RegisteredDevices:(map[string][]string)map[]}"
    )
    expected = (
        f'{{"Data":{{"PodDeviceEntries":null,"RegisteredDevices":{{}}}},'
        f'"Checksum":{fnv1a_32(text)}}}'
    )
    assert write_device_state(DeviceState()) == expected.encode()
    assert read_device_state(expected.encode(), PATH) == DeviceState()


def test_the_boot_of_newer_kubelets_is_passed_over() -> None:
    newer = FILE[:-1] + b',"BootID":"3f2a"}'
    assert read_device_state(newer, PATH) == STATE


def test_null_lists_have_a_checksum_of_their_own() -> None:
    entry = (
        '{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":null,"AllocResp":null}'
    )
    text = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{PodUID:"
        "(string)u ContainerName:(string)c ResourceName:(string)r DeviceIDs:"
        "(checkpoint.DevicesPerNUMA)<nil> AllocResp:([]uint8)<nil>}] "
        "RegisteredDevices:(map[string][]string)<nil>}"
    )
    data = (
        f'{{"Data":{{"PodDeviceEntries":[{entry}],"RegisteredDevices":null}},'
        f'"Checksum":{fnv1a_32(text)}}}'
    )
    assert read_device_state(data.encode(), PATH) == DeviceState((DeviceEntry("u", "c", "r"),))


@given(state=STATES)
def test_what_is_written_is_read_and_written_again_byte_for_byte(state: DeviceState) -> None:
    data = write_device_state(state)
    assert read_device_state(data, PATH) == state
    assert write_device_state(read_device_state(data, PATH)) == data


@given(state=STATES, data=st.data())
def test_a_changed_byte_is_found(state: DeviceState, data: st.DataObject) -> None:
    written = bytearray(write_device_state(state))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] = data.draw(st.integers(0, 255))
    try:
        read = read_device_state(bytes(written), PATH)
    except UnreadableStateFileError:
        return
    assert read == state


@pytest.mark.parametrize(
    ("changed", "place", "problem"),
    [
        ({"Checksum": 1}, "$.Checksum", "says 1, the content has"),
        ({"Checksum": 0}, "$.Checksum", "says 0, the content has"),
        ({"Data": 3}, "$.Data", "Expected `object`"),
    ],
)
def test_what_is_damaged_is_named(changed: dict[str, object], place: str, problem: str) -> None:
    data = json.dumps({**json.loads(FILE), **changed}).encode()
    with pytest.raises(UnreadableStateFileError) as caught:
        read_device_state(data, PATH)
    assert caught.value.field == place
    assert problem in caught.value.problem


def test_the_format_of_kubelets_before_1_20_is_named() -> None:
    document = json.loads(FILE)
    document["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = ["g0"]
    with pytest.raises(UnreadableStateFileError, match=r"Expected `object \| null`, got `array`"):
        read_device_state(json.dumps(document).encode(), PATH)


def test_a_response_that_is_not_base64_is_named() -> None:
    data = FILE.replace(b'"CgT/"', b'"C!T/"')
    with pytest.raises(UnreadableStateFileError, match=r"PodDeviceEntries\[0\]\.AllocResp"):
        read_device_state(data, PATH)
