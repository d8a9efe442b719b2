from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.kubelet_state.cpu_file import (
    CpuFileVersion,
    CpuState,
    cpu_document,
    encode_cpu_document,
    read_cpu_state,
    write_cpu_state,
)
from agent.tools.kubelet_state.errors import UnreadableStateFileError
from sysfs.mask import Mask
from tests.agent.tools.kubelet_state.machines import cpu_state
from tests.strategies import built

PATH = Path("dir/cpu_manager_state")
V1, V2, V3 = CpuFileVersion

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
    assert write_cpu_state(state, V2) == (
        b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"u1":{"a":"1,9"},'
        b'"u2":{"b":"2,10","c":"3"}},"checksum":234496751}'
    )


def test_v3_is_written_as_a_kubelet_with_the_gate_writes_it() -> None:
    state = cpu_state("0-3,6-10,12-15", {"u3": {"x": "4"}}, {"u3": "4-5,11"})
    assert write_cpu_state(state, V3) == (
        b'{"policyName":"static","defaultCpuSet":"0-3,6-10,12-15","entries":{"u3":{"x":"4"}},'
        b'"podEntries":{"u3":{"cpuSet":"4-5,11"}},"checksum":602678579}'
    )


@given(state=STATES)
def test_what_is_written_is_read_and_written_again_byte_for_byte(state: CpuState) -> None:
    data = write_cpu_state(state, V3)
    assert read_cpu_state(data, PATH) == state
    assert write_cpu_state(read_cpu_state(data, PATH), V3) == data


@given(state=STATES, data=st.data())
def test_a_changed_byte_is_found(state: CpuState, data: st.DataObject) -> None:
    written = bytearray(write_cpu_state(state, V3))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] = data.draw(st.integers(0, 255))
    try:
        read = read_cpu_state(bytes(written), PATH)
    except UnreadableStateFileError:
        return
    # What does not matter may change; and a lost checksum is taken as the kubelet takes it.
    assert read == state or b'"checksum":' not in written or b'"checksum":0' in written


def test_budgets_are_never_written_where_the_format_has_none() -> None:
    with pytest.raises(ValueError, match="version v2 has no pod entries"):
        encode_cpu_document(cpu_document(cpu_state("0", pods={"u": "1"})), V2)


def test_v1_names_containers_by_the_ids_of_a_list() -> None:
    data = (
        b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"id1":"1,9",'
        b'"id2":"2,10","id3":"3"},"checksum":2715964068}'
    )
    owners = {"id1": ("u1", "a"), "id2": ("u2", "b"), "id3": ("u2", "c")}
    expected = cpu_state("0,4-8,11-15", {"u1": {"a": "1,9"}, "u2": {"b": "2,10", "c": "3"}})
    assert read_cpu_state(data, PATH, owners) == expected
    with pytest.raises(UnreadableStateFileError, match=r"\$\.entries\.id1: .*--containers FILE"):
        read_cpu_state(data, PATH)


@pytest.mark.parametrize("checksum", [b"", b',"checksum":0'])
def test_a_file_without_a_checksum_is_taken_as_the_kubelet_takes_it(checksum: bytes) -> None:
    data = b'{"policyName":"static","defaultCpuSet":"0-3"' + checksum + b', "later": [1]}'
    assert read_cpu_state(data, PATH) == cpu_state("0-3")


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
        ('{"entries":{"u":{"c":"1"},"i":"2"}}', "$.entries", "some are by container id"),
        ('{"entries":{"":{"c":"1"}}}', "$", "length >= 1"),
        (
            '{"entries":{"i":"2"},"podEntries":{"u":{"cpuSet":"3"}}}',
            "$.podEntries",
            "beside entries by container id",
        ),
        ('{"podEntries":{"u":{"cpuSet":"z"}}}', "$.podEntries.u.cpuSet", "'z' is not a number"),
    ],
)
def test_a_damaged_file_is_rejected_with_the_place_and_the_reason(
    content: str, field: str, problem: str
) -> None:
    with pytest.raises(UnreadableStateFileError) as caught:
        read_cpu_state(content.encode(), PATH)
    assert str(caught.value).startswith(f"{PATH}: {field}")
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)
