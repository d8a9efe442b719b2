"""Generated families of sets of NUMA nodes, small enough to look at every set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from agent.managers.topology.hint import Hint
from agent.managers.topology.many_nodes import Cover, CoverDemand, HintFamily, Span
from sysfs.mask import Mask, iter_bits

if TYPE_CHECKING:
    from agent.managers.topology.distances import Distances


def yes(*nodes: int) -> Hint:
    return Hint(Mask.of(*nodes).bits, preferred=True)


def no(*nodes: int) -> Hint:
    return Hint(Mask.of(*nodes).bits, preferred=False)


def node_sets(most: int = 5) -> st.SearchStrategy[int]:
    """Draw the nodes of a machine as bits; ids are sparse."""
    ids = st.sets(st.integers(0, 11), min_size=1, max_size=most)
    return ids.map(lambda drawn: sum(1 << node for node in drawn))


def subsets(nodes: int) -> st.SearchStrategy[int]:
    """Draw some of the nodes, none and all of them included."""
    members = st.sets(st.sampled_from([1 << node for node in iter_bits(nodes)]))
    return members.map(sum)


def some_of(nodes: int) -> st.SearchStrategy[int]:
    """Draw one or more of the nodes."""
    return subsets(nodes).filter(bool)


@st.composite
def demands(draw: st.DrawFn, nodes: int) -> CoverDemand:
    """Draw a demand that all nodes together meet: amounts by node, or by places of several."""
    if draw(st.integers(0, 3)):
        most = draw(st.sampled_from([1, 2, 5]))
        amounts = {node: draw(st.integers(0, most)) for node in iter_bits(nodes)}
        places = CoverDemand.by_node(0, amounts).places
    else:
        pairs = st.tuples(some_of(nodes), st.integers(1, 2))
        places = tuple(draw(st.lists(pairs, min_size=1, max_size=4)))
    return CoverDemand(draw(st.integers(0, sum(amount for _, amount in places))), places)


@st.composite
def covers(draw: st.DrawFn, nodes: int) -> Cover:
    """Draw an upward-closed family; it is never empty."""
    domain = draw(st.one_of(st.just(nodes), some_of(nodes)))
    needs = draw(st.lists(demands(domain), min_size=1, max_size=3))
    required = draw(st.one_of(st.just(0), st.just(0), subsets(domain)))
    return Cover(domain, tuple(needs), required)


@st.composite
def spans(draw: st.DrawFn, nodes: int) -> Span:
    """Draw sockets of the nodes and how many of them to touch."""
    socket = {node: draw(st.integers(0, 2)) for node in iter_bits(nodes)}
    groups = (sum(1 << n for n in socket if socket[n] == number) for number in range(3))
    return Span(tuple(group for group in groups if group), draw(st.integers(1, 2)))


@st.composite
def hint_families(draw: st.DrawFn, nodes: int) -> HintFamily:
    """Draw families of hints: single masks, a cover, or both."""
    cover = draw(st.one_of(st.none(), covers(nodes), covers(nodes)))
    few = 1 if cover is None else 0
    masks = draw(st.sets(some_of(nodes), min_size=few, max_size=3))
    span = draw(spans(nodes)) if draw(st.integers(0, 3)) == 0 else None
    return HintFamily(tuple(masks), cover, draw(st.integers(1, 3)), span)


@st.composite
def distances_of(draw: st.DrawFn, nodes: int) -> Distances:
    """Draw distances between all nodes, not always the same both ways."""
    members = tuple(iter_bits(nodes))
    far = st.sampled_from([12, 20, 30])
    return {one: {o: 10 if o == one else draw(far) for o in members} for one in members}
