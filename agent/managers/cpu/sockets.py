"""Choosing CPUs on few sockets for `align-by-socket` (KEP-3327).

The kubelet takes any set of as many NUMA nodes as a request needs, and so may split CPUs over two
sockets although one socket has room for all. Here sets of nodes, and the CPUs themselves, are
chosen on one socket if one has room, else on as few sockets as possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuGroup, CpuTopology, Groups


class SocketOrder(Struct, frozen=True):
    """Orders sets of NUMA nodes for a request of `count` CPUs; the smallest key is the best.

    `sockets` are the nodes of each socket, as bits, and its free CPUs. First come sets of nodes
    whose sockets have room, then those on few sockets.
    """

    sockets: tuple[tuple[int, int], ...]
    count: int

    @classmethod
    def of(cls, topology: CpuTopology, free: Mask, count: int) -> SocketOrder:
        """Return the order for a request while these CPUs are free."""
        nodes = topology.nodes_in_socket
        return cls(
            tuple(
                (sum(1 << node.id for node in nodes[socket.id]), _free(socket, free))
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
    """Return the available CPUs of the fewest sockets with room for as many CPUs as `chosen`.

    None when `chosen` touches no more sockets than that. With `whole_cores` only free physical
    cores count as room, and only they are returned. Of sockets that would do the fullest is taken.
    """
    touched = sum(1 for socket in topology.sockets if socket.cpus & chosen.bits)
    if touched <= 1:
        return None
    usable = topology.whole_cores_in(available) if whole_cores else available
    inside = with_room(topology.sockets, usable.bits, len(chosen))
    fewest = sum(1 for socket in topology.sockets if socket.cpus & inside)
    return Mask(inside) if fewest < touched and inside.bit_count() >= len(chosen) else None


def with_room(groups: Groups, free: int, count: int) -> int:
    """Return the `free` CPUs (bits) of the fewest groups that have `count`; all if none have.

    The groups with the most free CPUs are taken, as the last one the fullest that would do.
    """
    rooms = sorted((((group.cpus & free).bit_count(), group) for group in groups), reverse=True)
    inside = 0
    for place, (room, group) in enumerate(rooms):
        if room >= count:
            enough = (pair for pair in rooms[place:] if pair[0] >= count)
            fullest = min(enough, key=lambda pair: (pair[0], pair[1].id))[1]
            return inside | fullest.cpus & free
        inside |= group.cpus & free
        count -= room
    return free


def _free(socket: CpuGroup, free: Mask) -> int:
    return (socket.cpus & free.bits).bit_count()
