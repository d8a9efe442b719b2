"""The topology manager's policies: one alignment out of the hints of all providers (KEP-693)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.errors import NodeDistancesError
from agent.managers.policy import TopologyManagerPolicy
from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.managers.topology.implicit_hints import HintFamily
from agent.managers.topology.merge import HintList, best_preferred, best_reachable, resource_lists
from agent.managers.topology.search_budget import SearchBudget
from agent.managers.topology.tiebreak import Order, by_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.managers.machine import Machine, MachineNode
    from agent.managers.policy import TopologyPolicy
    from agent.managers.topology.implicit_hints import Hints, ProviderHints
    from agent.managers.topology.tiebreak import Closest, Tiebreak

_INDIFFERENT = Hint(None, preferred=True)
_IMPOSSIBLE = Hint(None, preferred=False)


class DeferredMerge(Struct, frozen=True):
    """Listed hints of which no alignment is preferred, under a policy that admits no other.

    The alignment that is not admitted only explains the rejection.
    """

    lists: tuple[HintList, ...]
    nodes: int
    order: Order
    policy: TopologyManagerPolicy

    def best(self) -> Hint:
        """Return the alignment that is not admitted."""
        hint = _best_reachable(self.lists, self.nodes, self.order, SearchBudget())
        return _as_policy_has_it(self.policy, self.nodes, hint)


def merge_or_defer(
    machine: Machine,
    policy: TopologyPolicy,
    provider_hints: Sequence[ProviderHints],
    work: SearchBudget,
    sockets: Tiebreak | None = None,
) -> tuple[Hint | DeferredMerge, bool]:
    """Return the alignment of a container or pod on a machine, and whether it is admitted.

    Distances are read only with `prefer_closest_numa_nodes` (see `require_distances`). The hint's
    `nodes` is None where the providers leave the choice open (policy none, or single-numa-node
    without any preference), otherwise it is a non-empty mask. The choice is that of trying every
    permutation of hints. If families of hints exceed `work`, a better choice may have been missed;
    then `work` records this, and the choice is still the result of some permutation.

    `sockets` is the order of `align-by-socket`: of equally preferred sets of nodes the one on few
    sockets is chosen, of those the narrowest. With implicit hints (many nodes) that holds for
    preferred sets.

    An alignment that is not admitted is merged when the rejection is explained; only a search
    among many nodes is not deferred, since its steps count as the admission's.
    """
    kind, nodes = policy.policy, machine.node_mask.bits
    order = Order(_tiebreak(machine.closest, policy), sockets)
    if kind is TopologyManagerPolicy.NONE:
        return NO_AFFINITY, True
    lists = resource_lists(provider_hints, indifferent=_INDIFFERENT, impossible=_IMPOSSIBLE)
    if kind is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        lists = [_single_node(hints) for hints in lists]
    preferred = best_preferred(lists, nodes, order, work)
    if preferred is not None:
        return _as_policy_has_it(kind, nodes, Hint(preferred, preferred=True)), True
    best_effort = kind is TopologyManagerPolicy.BEST_EFFORT
    listed = tuple([hints for hints in lists if not isinstance(hints, HintFamily)])
    if len(listed) == len(lists) and not best_effort:
        return DeferredMerge(listed, nodes, order, kind), False
    hint = _best_reachable(lists, nodes, order, work)
    return _as_policy_has_it(kind, nodes, hint), best_effort


def require_distances(nodes: Iterable[MachineNode], policy: TopologyPolicy) -> None:
    """Check that the machine reports what `prefer-closest-numa-nodes` compares (KEP-3545).

    Raises `NodeDistancesError` naming the nodes that lack a distance to some node.
    """
    if not policy.prefer_closest_numa_nodes:
        return
    known = tuple(nodes)
    lacking = tuple(
        node.id for node in known if any(other.id not in node.distances for other in known)
    )
    if lacking:
        raise NodeDistancesError(lacking)


def _tiebreak(closest: Closest, policy: TopologyPolicy) -> Tiebreak:
    aligns = policy.policy is not TopologyManagerPolicy.SINGLE_NUMA_NODE
    return closest if policy.prefer_closest_numa_nodes and aligns else by_value


def _best_reachable(lists: Sequence[Hints], nodes: int, order: Order, work: SearchBudget) -> Hint:
    reachable = best_reachable(lists, nodes, order, work)
    return Hint(nodes if reachable is None else reachable, preferred=False)


def _as_policy_has_it(kind: TopologyManagerPolicy, nodes: int, hint: Hint) -> Hint:
    """Return a hint as the policy states it: single-numa-node leaves all nodes open."""
    single = kind is TopologyManagerPolicy.SINGLE_NUMA_NODE
    return Hint(None, hint.preferred) if single and hint.nodes == nodes else hint


def _single_node(hints: Hints) -> Sequence[Hint]:
    narrow = hints.single_nodes() if isinstance(hints, HintFamily) else hints
    return [
        hint
        for hint in narrow
        if hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)
    ]
