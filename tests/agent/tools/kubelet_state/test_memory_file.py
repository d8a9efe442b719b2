from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import MemoryBlock
from agent.tools.kubelet_state.format import StateForm, UnreadableStateFileError
from agent.tools.kubelet_state.memory import MEMORY_FORMAT, MemoryNode, MemoryState, MemoryTable
from sysfs.mask import Mask
from tests.strategies import built

PATH = Path("dir/memory_manager_state")
V1, V2, V3 = StateForm
#: The versions that have budgets.
WITH_BUDGETS = pytest.mark.parametrize("version", [V2, V3])

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
SIZES = st.integers(0, (1 << 64) - 1)
NODES = st.sets(st.integers(0, 63), min_size=1, max_size=4).map(Mask.from_ids)
BLOCKS = st.lists(built(MemoryBlock, NAMES, SIZES, NODES), min_size=1, max_size=2).map(tuple)
TABLES = st.dictionaries(NAMES, built(MemoryTable, SIZES, SIZES, SIZES, SIZES, SIZES))
STATES = built(
    MemoryState,
    NAMES,
    st.dictionaries(
        st.integers(0, 63), built(MemoryNode, st.integers(0, 9), NODES, TABLES), max_size=3
    ),
    st.dictionaries(NAMES, st.dictionaries(NAMES, BLOCKS, min_size=1, max_size=2), max_size=2),
    st.dictionaries(NAMES, BLOCKS, max_size=2),
)


def test_an_empty_state_is_written_as_a_kubelet_with_the_gate_writes_it() -> None:
    expected = b'{"policyName":"Static","machineState":{},"checksum":3708929156}'
    assert MEMORY_FORMAT.write(MemoryState("Static"), V2) == expected


GIB = 1 << 30
#: A node of 2 GiB and a pod with a budget of one, as v1.37 writes them.
V1_37 = (
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
WITH_BUDGET = MemoryState(
    "Static",
    {0: MemoryNode(1, Mask.of(0), {"memory": MemoryTable(2 * GIB, 0, 2 * GIB, GIB, GIB)})},
    {"u1": {"c1": (MemoryBlock("memory", GIB, Mask.of(0)),)}},
    {"u1": (MemoryBlock("memory", GIB, Mask.of(0)),)},
)


def test_v3_is_written_as_a_kubelet_from_v1_37_on_writes_it_and_read() -> None:
    assert MEMORY_FORMAT.write(WITH_BUDGET, V3) == V1_37
    assert MEMORY_FORMAT.read(V1_37, PATH) == WITH_BUDGET


def test_a_kubelet_that_knows_no_v3_reads_its_containers() -> None:
    outer = json.loads(V1_37)
    del outer["data"], outer["dataChecksum"]
    read = MEMORY_FORMAT.read(json.dumps(outer).encode(), PATH)
    assert read == replace(WITH_BUDGET, pods={})


def test_what_stands_around_the_data_of_v3_does_not_count() -> None:
    changed = json.loads(V1_37) | {"checksum": 1, "entries": {}, "machineState": {}}
    assert MEMORY_FORMAT.read(json.dumps(changed).encode(), PATH) == WITH_BUDGET


@pytest.mark.parametrize(
    ("content", "field", "problem"),
    [
        (V1_37.replace(b"1698972409", b"1698972408"), "$.dataChecksum", "says 1698972408"),
        (V1_37.replace(b',"dataChecksum":1698972409', b""), "$.dataChecksum", "says 0, the text"),
        (b'{"dataChecksum":1}', "$.data", "missing beside dataChecksum"),
    ],
)
def test_damaged_data_of_v3_is_rejected_with_the_place_and_the_reason(
    content: bytes, field: str, problem: str
) -> None:
    with pytest.raises(UnreadableStateFileError) as caught:
        MEMORY_FORMAT.read(content, PATH)
    assert caught.value.field.startswith(field)
    assert problem in caught.value.problem


@WITH_BUDGETS
@given(state=STATES)
def test_what_is_written_is_read_and_written_again_byte_for_byte(
    version: StateForm, state: MemoryState
) -> None:
    data = MEMORY_FORMAT.write(state, version)
    assert MEMORY_FORMAT.read(data, PATH) == state
    assert MEMORY_FORMAT.write(MEMORY_FORMAT.read(data, PATH), version) == data


def test_nodes_are_in_the_order_of_their_numbers_as_text() -> None:
    node = MemoryNode(0, Mask.of(0), {})
    data = MEMORY_FORMAT.write(MemoryState("Static", {2: node, 10: node, 1: node}), V1)
    assert data.index(b'"1":') < data.index(b'"10":') < data.index(b'"2":')
    assert MEMORY_FORMAT.read(data, PATH).nodes.keys() == {1, 2, 10}


def test_budgets_are_never_written_where_the_format_has_none() -> None:
    state = MemoryState("Static", pods={"u": (MemoryBlock("memory", 1, Mask.of(0)),)})
    with pytest.raises(ValueError, match="without budgets has no pod entries"):
        MEMORY_FORMAT.write(state, V1)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("", "$"),
        ("{", "$"),
        ('{"policyName":"Static","machineState":{},"checksum":5}', "$.checksum"),
        ('{"machineState":{"0":{"cells":[-1]}}}', "$.machineState"),
        ('{"machineState":{"0":{"cells":[1000000000000]}}}', "$.machineState"),
        ('{"entries":{"u":{"c":[{"type":"memory","size":-1}]}}}', "$.entries"),
        ('{"entries":{"u":"c"}}', "$.entries"),
    ],
)
def test_a_damaged_file_is_rejected_with_the_place(content: str, field: str) -> None:
    with pytest.raises(UnreadableStateFileError) as caught:
        MEMORY_FORMAT.read(content.encode(), PATH)
    assert caught.value.field.startswith(field)
    assert str(caught.value).startswith(f"{PATH}: {field}")
