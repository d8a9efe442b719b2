"""Topology hints: which sets of NUMA nodes can serve a request, and which are the narrowest."""

from __future__ import annotations

from typing import NamedTuple

from agent.values import Size  # noqa: TC001  # msgspec reads it at run time


class Hint(NamedTuple):
    """One set of NUMA nodes that could serve a request (KEP-693, TopologyHint).

    `nodes` holds the node ids as bits; None means any node. It is a bare `int`, not a `Mask`,
    because a merge on eight nodes handles hundreds of them within a fraction of a millisecond.
    """

    nodes: Size | None
    preferred: bool


NO_AFFINITY = Hint(None, preferred=False)
