"""Topology hints: which sets of NUMA nodes can serve a request, and which are the narrowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

if TYPE_CHECKING:
    from agent.managers.hint_family import HintFamily


class Hint(NamedTuple):
    """One set of NUMA nodes that could serve a request (KEP-693, TopologyHint).

    `nodes` holds the node ids as bits; None means any node. It is a bare `int`, not a `Mask`,
    because a merge on eight nodes handles hundreds of them within a fraction of a millisecond.
    """

    nodes: int | None
    preferred: bool


NO_AFFINITY = Hint(None, preferred=False)

#: Hints as a list, or on a machine with many nodes as the rules that make the list.
Hints: TypeAlias = Union[Sequence[Hint], "HintFamily"]

#: What one provider says of one container or pod, by resource name. A resource mapped to None
#: has no preference; one mapped to an empty sequence cannot be served by any set of nodes.
#: An empty mapping is a provider without any preference.
ProviderHints: TypeAlias = Mapping[str, Hints | None]
