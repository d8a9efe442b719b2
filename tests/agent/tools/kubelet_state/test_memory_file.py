from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.allocations.allocation import MemoryBlock
from agent.tools.kubelet_state.errors import UnreadableStateFileError
from agent.tools.kubelet_state.memory_file import (
    MemoryFileVersion,
    MemoryNode,
    MemoryState,
    MemoryTable,
    encode_memory_document,
    memory_document,
    read_memory_state,
    write_memory_state,
)
from sysfs.mask import Mask
from tests.strategies import built

PATH = Path("dir/memory_manager_state")
V1, V2 = MemoryFileVersion

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
    assert write_memory_state(MemoryState("Static"), V2) == expected


@given(state=STATES)
def test_what_is_written_is_read_and_written_again_byte_for_byte(state: MemoryState) -> None:
    data = write_memory_state(state, V2)
    assert read_memory_state(data, PATH) == state
    assert write_memory_state(read_memory_state(data, PATH), V2) == data


def test_nodes_are_in_the_order_of_their_numbers_as_text() -> None:
    node = MemoryNode(0, Mask.of(0), {})
    data = write_memory_state(MemoryState("Static", {2: node, 10: node, 1: node}), V1)
    assert data.index(b'"1":') < data.index(b'"10":') < data.index(b'"2":')
    assert read_memory_state(data, PATH).nodes.keys() == {1, 2, 10}


def test_budgets_are_never_written_where_the_format_has_none() -> None:
    state = MemoryState("Static", pods={"u": (MemoryBlock("memory", 1, Mask.of(0)),)})
    with pytest.raises(ValueError, match="version v1 has no pod entries"):
        encode_memory_document(memory_document(state), V1)


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
        read_memory_state(content.encode(), PATH)
    assert caught.value.field.startswith(field)
    assert str(caught.value).startswith(f"{PATH}: {field}")
