"""The files of the kubelet's CPU and memory managers, read and written byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import MemoryBlock
from agent.tools.kubelet_state.cpu import CPU_FORMAT, CpuState
from agent.tools.kubelet_state.format import (
    StateForm,
    UnreadableStateFileError,
    fnv1a_32,
    go_json,
    go_map,
    go_slice,
)
from agent.tools.kubelet_state.memory import MEMORY_FORMAT, MemoryNode, MemoryState, MemoryTable
from sysfs.mask import Mask
from tests.agent.tools.kubelet_state.machines import cpu_state
from tests.strategies import built

PATH: Final = Path("dir/state")
#: Without budgets, with them, and as a kubelet from v1.37 on writes them.
PLAIN, BUDGETS, V1_37 = StateForm

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
MASKS = st.sets(st.integers(0, 300), max_size=8).map(Mask.from_ids)
SIZES = st.integers(0, (1 << 64) - 1)
NODES = st.sets(st.integers(0, 63), min_size=1, max_size=4).map(Mask.from_ids)
BLOCKS = st.lists(built(MemoryBlock, NAMES, SIZES, NODES), min_size=1, max_size=2).map(tuple)
TABLES = st.dictionaries(NAMES, built(MemoryTable, SIZES, SIZES, SIZES, SIZES, SIZES))
CPU_STATES = built(
    CpuState,
    NAMES,
    MASKS,
    st.dictionaries(NAMES, st.dictionaries(NAMES, MASKS, min_size=1, max_size=3), max_size=3),
    st.dictionaries(NAMES, MASKS, max_size=3),
)
MEMORY_STATES = built(
    MemoryState,
    NAMES,
    st.dictionaries(
        st.integers(0, 63), built(MemoryNode, st.integers(0, 9), NODES, TABLES), max_size=3
    ),
    st.dictionaries(NAMES, st.dictionaries(NAMES, BLOCKS, min_size=1, max_size=2), max_size=2),
    st.dictionaries(NAMES, BLOCKS, max_size=2),
)
#: One pod with a budget of CPUs 4-7, as v1.37 writes it.
CPU_V1_37 = (
    b'{"policyName":"static","defaultCpuSet":"0-3","entries":{"u1":{"c1":"4-5","c2":"6-7"}},'
    b'"checksum":2085611527,"data":"{\\"policyName\\":\\"static\\",\\"defaultCpuSet\\":\\"0-3\\",'
    b'\\"entries\\":{\\"u1\\":{\\"c1\\":\\"4-5\\",\\"c2\\":\\"6-7\\"}},\\"podEntries\\":{\\"u1\\":'
    b'{\\"cpuSet\\":\\"4-7\\"}}}","dataChecksum":1527049277}'
)
CPU_STATE = cpu_state("0-3", {"u1": {"c1": "4-5", "c2": "6-7"}}, {"u1": "4-7"})
GIB: Final = 1 << 30
#: A node of 2 GiB and a pod with a budget of one, as v1.37 writes them.
MEMORY_V1_37 = (
    b'{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":'
    b'{"total":2147483648,"systemReserved":0,"allocatable":2147483648,"reserved":1073741824,"free"'
    b':1073741824}},"cells":[0]}},"entries":{"u1":{"c1":[{"numaAffinity":[0],"type":"memory",'
    b'"size":1073741824}]}},"checksum":1916873330,"data":"{\\"policyName\\":\\"Static\\",'
    b'\\"machineState\\":{\\"0\\":{\\"numberOfAssignments\\":1,\\"memoryMap\\":{\\"memory\\":{'
    b'\\"total\\":2147483648,\\"systemReserved\\":0,\\"allocatable\\":2147483648,\\"reserved\\":'
    b'1073741824,\\"free\\":1073741824}},\\"cells\\":[0]}},\\"entries\\":{\\"u1\\":{\\"c1\\":[{'
    b'\\"numaAffinity\\":[0],\\"type\\":\\"memory\\",\\"size\\":1073741824}]}},\\"podEntries\\":{'
    b'\\"u1\\":{\\"memoryBlocks\\":[{\\"numaAffinity\\":[0],\\"type\\":\\"memory\\",\\"size\\":'
    b'1073741824}]}}}","dataChecksum":1698972409}'
)
MEMORY_STATE = MemoryState(
    "Static",
    {0: MemoryNode(1, Mask.of(0), {"memory": MemoryTable(2 * GIB, 0, 2 * GIB, GIB, GIB)})},
    {"u1": {"c1": (MemoryBlock("memory", GIB, Mask.of(0)),)}},
    {"u1": (MemoryBlock("memory", GIB, Mask.of(0)),)},
)


class Kept(NamedTuple):
    """A manager's format, a state with a budget, and its file of v1.37."""

    form: Any
    state: Any
    file: bytes
    states: st.SearchStrategy[Any]


CPU: Final = Kept(CPU_FORMAT, CPU_STATE, CPU_V1_37, CPU_STATES)
MEMORY: Final = Kept(MEMORY_FORMAT, MEMORY_STATE, MEMORY_V1_37, MEMORY_STATES)
BOTH = pytest.mark.parametrize("kept", [CPU, MEMORY], ids=["CPU", "memory"])


@pytest.mark.parametrize(
    ("kept", "form", "state", "file"),
    [
        (
            CPU,
            PLAIN,
            cpu_state("0,4-8,11-15", {"u2": {"c": "3", "b": "2,10"}, "u1": {"a": "1,9"}}),
            (
                b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"u1":{"a":"1,9"},'
                b'"u2":{"b":"2,10","c":"3"}},"checksum":234496751}'
            ),
        ),
        (
            CPU,
            BUDGETS,
            cpu_state("0-3,6-10,12-15", {"u3": {"x": "4"}}, {"u3": "4-5,11"}),
            (
                b'{"policyName":"static","defaultCpuSet":"0-3,6-10,12-15","entries":{"u3":{"x":"4"}},'
                b'"podEntries":{"u3":{"cpuSet":"4-5,11"}},"checksum":602678579}'
            ),
        ),
        (
            MEMORY,
            BUDGETS,
            MemoryState("Static"),
            b'{"policyName":"Static","machineState":{},"checksum":3708929156}',
        ),
        (CPU, V1_37, CPU_STATE, CPU_V1_37),
        (MEMORY, V1_37, MEMORY_STATE, MEMORY_V1_37),
    ],
)
def test_a_file_is_written_as_a_kubelet_writes_it_and_read(
    kept: Kept, form: StateForm, state: object, file: bytes
) -> None:
    assert kept.form.write(state, form) == file
    assert kept.form.read(file, PATH) == state


@BOTH
def test_a_kubelet_that_knows_no_data_reads_its_containers(kept: Kept) -> None:
    outer = json.loads(kept.file)
    del outer["data"], outer["dataChecksum"]
    assert kept.form.read(json.dumps(outer).encode(), PATH) == replace(kept.state, pods={})


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        (CPU, {"defaultCpuSet": "9", "entries": {"other": {"c": "1"}}}),
        (CPU, {"checksum": 1}),
        (CPU, {"checksum": 0, "entries": None}),
        (CPU, {"podEntries": {"u9": {"cpuSet": "1"}}}),
        (MEMORY, {"checksum": 1, "entries": {}, "machineState": {}}),
    ],
)
def test_what_stands_around_the_data_does_not_count(kept: Kept, change: dict[str, Any]) -> None:
    changed = json.dumps(json.loads(kept.file) | change).encode()
    assert kept.form.read(changed, PATH) == kept.state


def with_data(text: str) -> bytes:
    outer = json.loads(CPU_V1_37) | {"data": text, "dataChecksum": fnv1a_32(f"(string){text}")}
    return json.dumps(outer).encode()


def test_later_fields_in_the_data_are_passed_over() -> None:
    data = json.loads(json.loads(CPU_V1_37)["data"])
    data["originals"] = {"u1": {"c1": {"original": "4"}}}
    assert CPU_FORMAT.read(with_data(json.dumps(data)), PATH) == CPU_STATE


@pytest.mark.parametrize("form", [BUDGETS, V1_37])
@BOTH
@given(data=st.data())
def test_what_is_written_is_read_and_written_again_byte_for_byte(
    kept: Kept, form: StateForm, data: st.DataObject
) -> None:
    state = data.draw(kept.states)
    file = kept.form.write(state, form)
    assert kept.form.read(file, PATH) == state
    assert kept.form.write(kept.form.read(file, PATH), form) == file


@given(state=CPU_STATES, data=st.data())
def test_a_changed_byte_is_found(state: CpuState, data: st.DataObject) -> None:
    written = bytearray(CPU_FORMAT.write(state, BUDGETS))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] = data.draw(st.integers(0, 255))
    try:
        read = CPU_FORMAT.read(bytes(written), PATH)
    except UnreadableStateFileError:
        return
    # What does not matter may change; and a lost checksum is taken as the kubelet takes it.
    assert read == state or b'"checksum":' not in written or b'"checksum":0' in written


@BOTH
def test_budgets_are_never_written_where_the_format_has_none(kept: Kept) -> None:
    with pytest.raises(ValueError, match="without budgets has no pod entries"):
        kept.form.write(kept.state, PLAIN)


def test_nodes_are_in_the_order_of_their_numbers_as_text() -> None:
    node = MemoryNode(0, Mask.of(0), {})
    data = MEMORY_FORMAT.write(MemoryState("Static", {2: node, 10: node, 1: node}), PLAIN)
    assert data.index(b'"1":') < data.index(b'"10":') < data.index(b'"2":')
    assert MEMORY_FORMAT.read(data, PATH).nodes.keys() == {1, 2, 10}


@pytest.mark.parametrize("checksum", [b"", b',"checksum":0'])
def test_a_file_without_a_checksum_is_taken_as_the_kubelet_takes_it(checksum: bytes) -> None:
    data = b'{"policyName":"static","defaultCpuSet":"0-3"' + checksum + b', "later": [1]}'
    assert CPU_FORMAT.read(data, PATH) == cpu_state("0-3")


#: Names containers by id.
V1: Final = b'{"defaultCpuSet":"0,4-8","entries":{"id1":"1,9","id2":"2,10"}}'


@pytest.mark.parametrize(
    ("kept", "content", "field", "problem"),
    [
        (CPU, CPU_V1_37.replace(b"1527049277", b"1"), "$.dataChecksum", "says 1, the text"),
        (CPU, CPU_V1_37.replace(b',"dataChecksum":1527049277', b""), "$.dataChecksum", "says 0, "),
        (CPU, CPU_V1_37.replace(b"0-3\\", b"0-2\\"), "$.dataChecksum", "says 1527049277, the text"),
        (CPU, b'{"checksum":0,"dataChecksum":7}', "$.data", "missing beside dataChecksum"),
        (CPU, b'{"data":5}', "$.data", "Expected `str`, got `int`"),
        (CPU, with_data("{"), "$.data", "not a complete JSON document"),
        (CPU, with_data('{"defaultCpuSet":"x"}'), "$.data.defaultCpuSet", "'x' is not a number"),
        (CPU, with_data('{"entries":{"u":{"c":[]}}}'), "$.data.entries[...]", "Expected `str`"),
        (CPU, with_data('{"entries":{"id":"1"}}'), "$.data.entries", "Expected `object`, got `st"),
        (CPU, b"", "$", "the file is empty"),
        (CPU, b"{", "$", "not a complete JSON document"),
        (CPU, b"[]", "$", "Expected `object`, got `array`"),
        (CPU, b'{"defaultCpuSet":"0-3","checksum":1}', "$.checksum", "says 1, the content has "),
        (CPU, b'{"defaultCpuSet":"a-b"}', "$.defaultCpuSet", "'a-b' is not a number"),
        (CPU, b'{"defaultCpuSet":"15-0"}', "$.defaultCpuSet", "range '15-0' runs backwards"),
        (CPU, b'{"defaultCpuSet":" 0-15 "}', "$.defaultCpuSet", "white space"),
        (CPU, b'{"entries":{"u":{"c":"x"}}}', "$.entries.u.c", "'x' is not a number"),
        (CPU, V1, "$.entries", "Expected `object`, got `str`"),
        (CPU, b'{"entries":{"":{"c":"1"}}}', "$", "length >= 1"),
        (CPU, b'{"podEntries":{"u":{"cpuSet":"z"}}}', "$.podEntries.u.cpuSet", "'z' is not a n"),
        (MEMORY, MEMORY_V1_37.replace(b"1698972409", b"1"), "$.dataChecksum", "says 1, the text"),
        (MEMORY, b'{"dataChecksum":1}', "$.data", "missing beside dataChecksum"),
        (MEMORY, b"", "$", "the file is empty"),
        (MEMORY, b'{"policyName":"Static","machineState":{},"checksum":5}', "$.checksum", "says 5"),
        (MEMORY, b'{"machineState":{"0":{"cells":[-1]}}}', "$.machineState", ""),
        (MEMORY, b'{"machineState":{"0":{"cells":[1000000000000]}}}', "$.machineState", ""),
        (MEMORY, b'{"entries":{"u":{"c":[{"type":"memory","size":-1}]}}}', "$.entries", ""),
        (MEMORY, b'{"entries":{"u":"c"}}', "$.entries", ""),
    ],
)
def test_a_damaged_file_is_rejected_with_the_place_and_the_reason(
    kept: Kept, content: bytes, field: str, problem: str
) -> None:
    with pytest.raises(UnreadableStateFileError) as caught:
        kept.form.read(content, PATH)
    assert str(caught.value).startswith(f"{PATH}: {field}")
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "written"),
    [
        # The published test vectors.
        *(
            (fnv1a_32(""), 0x811C9DC5),
            (fnv1a_32("a"), 0xE40C292C),
            (fnv1a_32("foobar"), 0xBF9CF968),
        ),
        (go_map({"b": "2", "a": "1"}), "map[a:1 b:2]"),
        (go_map({}), "map[]"),
        (go_map(None), "<nil>"),
        (go_slice([0, 1]), "[0 1]"),
        (go_slice([]), "[]"),
        (go_slice(None), "<nil>"),
        # What HTML would read.
        (go_json({"a": "<&>\u2028\u00e9"}), '{"a":"\\u003c\\u0026\\u003e\\u2028\u00e9"}'.encode()),
    ],
)
def test_values_are_written_as_go_writes_them(found: object, written: object) -> None:
    assert found == written
