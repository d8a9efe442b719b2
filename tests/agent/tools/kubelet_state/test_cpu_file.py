from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.tools.kubelet_state.cpu import CPU_FORMAT, CpuState
from agent.tools.kubelet_state.format import StateForm, UnreadableStateFileError, fnv1a_32
from sysfs.mask import Mask
from tests.agent.tools.kubelet_state.machines import cpu_state
from tests.strategies import built

PATH = Path("dir/cpu_manager_state")
V2, V3, V4 = StateForm
#: The versions that have budgets.
WITH_BUDGETS = pytest.mark.parametrize("version", [V3, V4])

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
MASKS = st.sets(st.integers(0, 300), max_size=8).map(Mask.from_ids)
STATES = built(
    CpuState,
    NAMES,
    MASKS,
    st.dictionaries(NAMES, st.dictionaries(NAMES, MASKS, min_size=1, max_size=3), max_size=3),
    st.dictionaries(NAMES, MASKS, max_size=3),
)


def test_v2_is_written_as_a_kubelet_without_the_gate_writes_it() -> None:
    state = cpu_state("0,4-8,11-15", {"u2": {"c": "3", "b": "2,10"}, "u1": {"a": "1,9"}})
    assert CPU_FORMAT.write(state, V2) == (
        b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"u1":{"a":"1,9"},'
        b'"u2":{"b":"2,10","c":"3"}},"checksum":234496751}'
    )


def test_v3_is_written_as_a_kubelet_with_the_gate_writes_it() -> None:
    state = cpu_state("0-3,6-10,12-15", {"u3": {"x": "4"}}, {"u3": "4-5,11"})
    assert CPU_FORMAT.write(state, V3) == (
        b'{"policyName":"static","defaultCpuSet":"0-3,6-10,12-15","entries":{"u3":{"x":"4"}},'
        b'"podEntries":{"u3":{"cpuSet":"4-5,11"}},"checksum":602678579}'
    )


#: One pod with a budget of CPUs 4-7, as v1.37 writes it.
V1_37 = (
    b'{"policyName":"static","defaultCpuSet":"0-3","entries":{"u1":{"c1":"4-5","c2":"6-7"}},'
    b'"checksum":2085611527,"data":"{\\"policyName\\":\\"static\\",\\"defaultCpuSet\\":\\"0-3\\",'
    b'\\"entries\\":{\\"u1\\":{\\"c1\\":\\"4-5\\",\\"c2\\":\\"6-7\\"}},\\"podEntries\\":{\\"u1\\":'
    b'{\\"cpuSet\\":\\"4-7\\"}}}","dataChecksum":1527049277}'
)
WITH_BUDGET = cpu_state("0-3", {"u1": {"c1": "4-5", "c2": "6-7"}}, {"u1": "4-7"})


def test_v4_is_written_as_a_kubelet_from_v1_37_on_writes_it_and_read() -> None:
    assert CPU_FORMAT.write(WITH_BUDGET, V4) == V1_37
    assert CPU_FORMAT.read(V1_37, PATH) == WITH_BUDGET


def test_a_kubelet_that_knows_no_v4_reads_its_containers() -> None:
    outer = json.loads(V1_37)
    del outer["data"], outer["dataChecksum"]
    expected = replace(WITH_BUDGET, pods={})
    assert CPU_FORMAT.read(json.dumps(outer).encode(), PATH) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"defaultCpuSet": "9", "entries": {"other": {"c": "1"}}},
        {"checksum": 1},
        {"checksum": 0, "entries": None},
        {"podEntries": {"u9": {"cpuSet": "1"}}},
    ],
)
def test_what_stands_around_the_data_of_v4_does_not_count(change: dict[str, Any]) -> None:
    changed = json.dumps(json.loads(V1_37) | change).encode()
    assert CPU_FORMAT.read(changed, PATH) == WITH_BUDGET


def with_data(text: str) -> bytes:
    outer = json.loads(V1_37) | {"data": text, "dataChecksum": fnv1a_32(f"(string){text}")}
    return json.dumps(outer).encode()


def test_later_fields_in_the_data_of_v4_are_passed_over() -> None:
    data = json.loads(json.loads(V1_37)["data"])
    data["originals"] = {"u1": {"c1": {"original": "4"}}}
    assert CPU_FORMAT.read(with_data(json.dumps(data)), PATH) == WITH_BUDGET


@pytest.mark.parametrize(
    ("content", "field", "problem"),
    [
        (V1_37.replace(b"1527049277", b"1527049278"), "$.dataChecksum", "says 1527049278, the"),
        (V1_37.replace(b',"dataChecksum":1527049277', b""), "$.dataChecksum", "says 0, the text"),
        (V1_37.replace(b"0-3\\", b"0-2\\"), "$.dataChecksum", "says 1527049277, the text"),
        (b'{"checksum":0,"dataChecksum":7}', "$.data", "missing beside dataChecksum"),
        (b'{"data":5}', "$.data", "Expected `str`, got `int`"),
        (with_data("{"), "$.data", "not a complete JSON document"),
        (with_data('{"defaultCpuSet":"x"}'), "$.data.defaultCpuSet", "'x' is not a number"),
        (with_data('{"entries":{"u":{"c":[]}}}'), "$.data.entries[...]", "Expected `str`"),
        (with_data('{"entries":{"id":"1"}}'), "$.data.entries", "Expected `object`, got `str`"),
    ],
)
def test_damaged_data_of_v4_is_rejected_with_the_place_and_the_reason(
    content: bytes, field: str, problem: str
) -> None:
    with pytest.raises(UnreadableStateFileError) as caught:
        CPU_FORMAT.read(content, PATH)
    assert caught.value.field.startswith(field)
    assert problem in caught.value.problem


@WITH_BUDGETS
@given(state=STATES)
def test_what_is_written_is_read_and_written_again_byte_for_byte(
    version: StateForm, state: CpuState
) -> None:
    data = CPU_FORMAT.write(state, version)
    assert CPU_FORMAT.read(data, PATH) == state
    assert CPU_FORMAT.write(CPU_FORMAT.read(data, PATH), version) == data


@given(state=STATES, data=st.data())
def test_a_changed_byte_is_found(state: CpuState, data: st.DataObject) -> None:
    written = bytearray(CPU_FORMAT.write(state, V3))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] = data.draw(st.integers(0, 255))
    try:
        read = CPU_FORMAT.read(bytes(written), PATH)
    except UnreadableStateFileError:
        return
    # What does not matter may change; and a lost checksum is taken as the kubelet takes it.
    assert read == state or b'"checksum":' not in written or b'"checksum":0' in written


def test_budgets_are_never_written_where_the_format_has_none() -> None:
    with pytest.raises(ValueError, match="without budgets has no pod entries"):
        CPU_FORMAT.write(cpu_state("0", pods={"u": "1"}), V2)


def test_v1_which_names_containers_by_id_is_rejected() -> None:
    data = (
        b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"id1":"1,9",'
        b'"id2":"2,10","id3":"3"},"checksum":2715964068}'
    )
    with pytest.raises(UnreadableStateFileError, match=r"\$\.entries.*Expected `object"):
        CPU_FORMAT.read(data, PATH)


@pytest.mark.parametrize("checksum", [b"", b',"checksum":0'])
def test_a_file_without_a_checksum_is_taken_as_the_kubelet_takes_it(checksum: bytes) -> None:
    data = b'{"policyName":"static","defaultCpuSet":"0-3"' + checksum + b', "later": [1]}'
    assert CPU_FORMAT.read(data, PATH) == cpu_state("0-3")


@pytest.mark.parametrize(
    ("content", "field", "problem"),
    [
        ("", "$", "the file is empty"),
        ("{", "$", "not a complete JSON document"),
        ("[]", "$", "Expected `object`, got `array`"),
        ('{"defaultCpuSet":"0-3","checksum":1}', "$.checksum", "says 1, the content has "),
        ('{"defaultCpuSet":"a-b"}', "$.defaultCpuSet", "'a-b' is not a number"),
        ('{"defaultCpuSet":"15-0"}', "$.defaultCpuSet", "range '15-0' runs backwards"),
        ('{"defaultCpuSet":" 0-15 "}', "$.defaultCpuSet", "white space"),
        ('{"entries":{"u":{"c":"x"}}}', "$.entries.u.c", "'x' is not a number"),
        ('{"entries":{"u":{"c":"1"},"i":"2"}}', "$.entries[...]", "Expected `object`, got `str`"),
        ('{"entries":{"":{"c":"1"}}}', "$", "length >= 1"),
        ('{"podEntries":{"u":{"cpuSet":"z"}}}', "$.podEntries.u.cpuSet", "'z' is not a number"),
    ],
)
def test_a_damaged_file_is_rejected_with_the_place_and_the_reason(
    content: str, field: str, problem: str
) -> None:
    with pytest.raises(UnreadableStateFileError) as caught:
        CPU_FORMAT.read(content.encode(), PATH)
    assert str(caught.value).startswith(f"{PATH}: {field}")
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)
