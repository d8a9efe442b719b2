"""The CPU manager's topology hints: which NUMA nodes could serve a request for exclusive CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu.uneven_cores import most_by_set, most_in_whole_cores
from agent.managers.topology.hint import choices, is_listed, subset_sums
from agent.managers.topology.many_nodes import Cover, CoverDemand, HintFamily, Span
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions
    from agent.managers.topology.hint import Choice, Hint


def cpu_hints(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    available: Mask,
    reusable: Mask,
    request: int,
    *,
    whole: bool = False,
) -> Sequence[Hint]:
    """Return every set of NUMA nodes that can serve `request` CPUs, in the kubelet's order.

    `available` are the free CPUs, `reusable` those that the pod's init containers leave to the next
    container: a set of nodes must have all of them. Preferred are the sets of the fewest nodes that
    could serve the request on an empty host, reserved CPUs included (`generateCPUTopologyHints`).
    Nodes without CPUs are left out. An empty sequence: no set of nodes can serve the request. With
    `whole` only sets do whose free cores add up to the request.
    """
    fewest = topology.fewest_nodes(request)
    aligned = _socket_aligned(topology, fewest) if options.align_by_socket else frozenset()
    return [
        choice.preferred
        if choice.mask.bit_count() == fewest or choice.mask in aligned
        else choice.plain
        for choice in _serving(topology, available, reusable, request, whole=whole)
    ]


def cpu_hint_family(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    available: Mask,
    reusable: Mask,
    request: int,
    *,
    whole: bool = False,
) -> HintFamily:
    """Return the same hints as `cpu_hints`, as a family for a machine with many nodes.

    With `whole` perhaps also sets of several nodes whose free cores exceed the request.
    """
    usable = available.bits | reusable.bits
    room = {node.id: (node.cpus & usable).bit_count() for node in topology.nodes}
    if whole:
        room = _whole_rooms(topology, usable, request)
    cover = Cover(
        topology.node_bits,
        (CoverDemand.by_node(request, room),),
        topology.nodes_of(reusable).bits,
    )
    fewest = topology.fewest_nodes(request)
    span = _socket_span(topology, fewest) if options.align_by_socket else None
    return HintFamily((), None if cover.is_empty else cover, fewest, span)


def fits_in_whole_cores(topology: CpuTopology, whole: Mask, request: int) -> bool:
    """Return whether free whole cores add up to a request on as few nodes as an empty host needs.

    On a machine with many nodes several may be said to that together have more.
    """
    fewest = topology.fewest_nodes(request)
    rooms = sorted(_whole_rooms(topology, whole.bits, request).values(), reverse=True)
    enough = sum(rooms[:fewest]) >= request
    if not enough or fewest == 1 or not is_listed(topology.node_bits):
        return enough
    most = most_by_set(topology, whole.bits, request)
    sets = choices(topology.node_bits)
    return any(most[each.number] == request for each in sets if each.mask.bit_count() == fewest)


def _whole_rooms(topology: CpuTopology, free: int, request: int) -> dict[int, int]:
    """Return how many CPUs of a request each node can give in whole cores, at most."""
    return {
        node.id: most_in_whole_cores(topology, node.cpus & free, request) for node in topology.nodes
    }


def _serving(
    topology: CpuTopology, available: Mask, reusable: Mask, request: int, *, whole: bool
) -> list[Choice]:
    """Return the sets of nodes with enough free CPUs and all reusable ones."""
    required = topology.nodes_of(reusable).bits
    usable = available.bits | reusable.bits
    if whole:
        room = most_by_set(topology, usable, request)
    else:
        room = subset_sums([(node.cpus & usable).bit_count() for node in topology.nodes])
    return [
        choice
        for choice in choices(topology.node_bits)
        if room[choice.number] >= request and not required & ~choice.mask
    ]


def _socket_aligned(topology: CpuTopology, fewest: int) -> frozenset[int]:
    """Return the sets of nodes on as few sockets as `fewest` nodes need (KEP-3327).

    Where there are more sockets than nodes no set is aligned; the option is rejected there.
    """
    span = _socket_span(topology, fewest)
    if span is None:
        return frozenset()
    touched = [0]
    for node in topology.nodes:
        bits = sum(
            1 << position for position, group in enumerate(span.groups) if group >> node.id & 1
        )
        touched += [others | bits for others in touched]
    return frozenset(
        choice.mask
        for choice in choices(topology.node_bits)
        if touched[choice.number].bit_count() == span.touching
    )


def _socket_span(topology: CpuTopology, fewest: int) -> Span | None:
    """Return the sockets as groups of nodes, and how many of them an aligned set touches."""
    nodes_per_socket = topology.counts.nodes // topology.counts.sockets
    if not nodes_per_socket:
        return None
    groups = tuple(topology.nodes_of(Mask(socket.cpus)).bits for socket in topology.sockets)
    return Span(groups, -(-fewest // nodes_per_socket))
