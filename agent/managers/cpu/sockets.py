"""Keep a request to few sockets: `align-by-socket` (KEP-3327).

In go the host's topology, the free CPUs and the number of CPUs asked for. Out comes either the
order in which the topology manager prefers sets of NUMA nodes (`SocketOrder`), or the CPUs among
which a request is to be served (`on_fewer_sockets`). Nothing here chooses CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology, Groups


class SocketOrder(Struct, frozen=True):
    """The order of sets of NUMA nodes for a request; the set with the smallest key is the best.

    1. Sets whose sockets have room for the request come before sets whose sockets have not.
    2. Sets on few sockets come first.
    """

    #: Of each socket: its NUMA nodes (bits), and the number of its free CPUs.
    sockets: tuple[tuple[int, int], ...]
    #: The number of CPUs asked for.
    count: int

    @classmethod
    def of(cls, topology: CpuTopology, free: Mask, count: int) -> SocketOrder:
        """Return the order for a request of `count` CPUs while these CPUs are free."""
        return cls(
            tuple(
                (
                    sum(1 << node.id for node in topology.nodes_in_socket[socket.id]),
                    (socket.cpus & free.bits).bit_count(),
                )
                for socket in topology.sockets
            ),
            count,
        )

    def __call__(self, nodes: int) -> tuple[int, int]:
        """Return the key of a set of nodes (bits)."""
        rooms = [room for members, room in self.sockets if members & nodes]
        return int(sum(rooms) < self.count), len(rooms)


def on_fewer_sockets(
    topology: CpuTopology, available: Mask, chosen: Mask, *, whole_cores: bool
) -> Mask | None:
    """Return the available CPUs of the fewest sockets that have room for as many CPUs as `chosen`.

    None when no fewer sockets than those of `chosen` have room. With `whole_cores` only cores that
    are free as a whole count, and only their CPUs are returned.
    """
    touched = sum(1 for socket in topology.sockets if socket.cpus & chosen.bits)
    if touched <= 1:
        return None
    usable = topology.whole_cores_in(available) if whole_cores else available
    inside = with_room(topology.sockets, usable.bits, len(chosen))
    fewest = sum(1 for socket in topology.sockets if socket.cpus & inside)
    return Mask(inside) if fewest < touched and inside.bit_count() >= len(chosen) else None


def with_room(groups: Groups, free: int, count: int) -> int:
    """Return the `free` CPUs (bits) of the fewest groups that have `count` of them together.

    The groups with the most free CPUs are taken, except for the last one: of the groups that have
    all that is still missing, the one with the fewest free CPUs. Returns all `free` CPUs if the
    groups have fewer than `count`.
    """
    rooms = sorted((((group.cpus & free).bit_count(), group) for group in groups), reverse=True)
    inside = 0
    for place, (room, group) in enumerate(rooms):
        if room >= count:
            enough = (pair for pair in rooms[place:] if pair[0] >= count)
            last = min(enough, key=lambda pair: (pair[0], pair[1].id))[1]
            return inside | last.cpus & free
        inside |= group.cpus & free
        count -= room
    return free
