"""Which CPUs serve a request or a reservation: the static policy's choice.

In go the free CPUs, a number and the policy options. Out comes a set of that many free CPUs; the
same input always gives the same set. The rules are those of the kubelet v1.36
(`staticPolicy.takeByTopology` and `cpu_assignment.go`), and of its documents where these differ:

1. **Distribute** (`distribute-cpus-across-numa`): the fewest nodes that can give equal shares in
   whole groups of CPUs give them (`distribution`).
2. **Pack** what is not distributed: take whole NUMA nodes and sockets, then whole caches, then
   whole cores, as long as they fit, and then single CPUs (`CpuAccumulator`).
3. **Uneven hosts**, where cores, sockets or caches differ in size: compare the packed CPUs with
   other choices, and take the narrowest (`narrowest`). A small group that fits can push the rest
   onto another node, or fill small cores although large cores are free.
4. **Few sockets** (`align-by-socket`, KEP-3327): if fewer sockets than those of the choice have
   room, choose again on the fewest that have (`on_fewer_sockets`). The kubelet takes any set of as
   many NUMA nodes as are needed: it may split CPUs over two sockets although one has room for all.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.amounts import cpus_text
from agent.managers.cpu.topology import core_order, inner_order, lowest, rank, rank_nodes
from agent.managers.cpu.uneven import fewest_cores
from agent.managers.errors import ManagerError
from agent.managers.topology.hint import SearchBudget
from agent.managers.versions import NEWEST, KubernetesVersion
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.managers.cpu.topology import CpuGroup, CpuTopology, Groups
    from agent.managers.policy import CpuPolicyOptions

    Fill: TypeAlias = Callable[[int], int]


def take_by_topology(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    available: Mask,
    count: int,
    work: SearchBudget | None = None,
    version: KubernetesVersion = NEWEST,
    least_nodes: int = 0,
) -> Mask:
    """Choose `count` of the `available` CPUs by the policy options.

    CPUs that the topology does not know are not available. `least_nodes` above 1 has CPUs
    distributed over that many nodes, if these can give equal shares, on whatever sockets. `work`
    says afterwards whether a better choice may have been missed. Raises `NotEnoughCpusError`.
    """
    strategy = strategy_of(topology, options, version)
    if least_nodes > 1:
        strategy = replace(strategy, least_nodes=least_nodes)
    cpus = take(topology, strategy, available, count, work)
    if not options.align_by_socket or strategy.least_nodes:
        return cpus
    inside = on_fewer_sockets(topology, available, cpus, whole_cores=strategy.whole_cores)
    return cpus if inside is None else take(topology, strategy, inside, count, work)


def take(
    topology: CpuTopology,
    strategy: Strategy,
    available: Mask,
    count: int,
    work: SearchBudget | None = None,
) -> Mask:
    """Choose `count` of the `available` CPUs; raises `NotEnoughCpusError`."""
    free = available.bits & topology.all.bits
    if count > free.bit_count():
        raise NotEnoughCpusError(count, free.bit_count())
    if count <= 0:
        return EMPTY
    cpus = None
    if strategy.group_size is not None and count % strategy.group_size == 0:
        cpus = _distributed(topology, strategy, free, count, work)
    if cpus is None:
        return Mask(_packed(topology, strategy, free, count))
    if _is_torn(topology, strategy, cpus):  # whole cores matter more than equal shares
        packed = _packed(topology, strategy, free, count)
        cpus = min(cpus, packed, key=partial(_torn, topology))
    return Mask(cpus)


class Strategy(Struct, frozen=True):
    """The policy options, as far as they say how CPUs are chosen."""

    #: Distribute in groups of so many CPUs; None: pack onto few NUMA nodes.
    group_size: int | None = None
    #: Take single CPUs across cores.
    spread: bool = False
    #: Prefer whole uncore caches, when packing.
    uncore: bool = False
    #: Whole physical cores are asked for.
    whole_cores: bool = False
    #: Spread by the host's cores, instead of by the CPUs' numbers.
    core_by_core: bool = False
    #: Distribute over so many nodes, if these can give equal shares.
    least_nodes: int = 0

    @property
    def by_cache(self) -> bool:
        """Whether uncore caches affect the choice."""
        return self.uncore and self.group_size is None


def strategy_of(
    topology: CpuTopology, options: CpuPolicyOptions, version: KubernetesVersion
) -> Strategy:
    """Return how CPUs are chosen under the policy options of a Kubernetes version."""
    group_size = None
    if options.distribute_cpus_across_numa:
        group_size = topology.cpus_per_core if options.full_pcpus_only else 1
    return Strategy(
        group_size=group_size,
        spread=options.distribute_cpus_across_cores,
        uncore=options.prefer_align_cpus_by_uncorecache,
        whole_cores=options.full_pcpus_only,
        core_by_core=version.rules.spreading_goes_core_by_core,
    )


def _packed(topology: CpuTopology, strategy: Strategy, free: int, count: int) -> int:
    """Fill the fullest places first (kubelet `takeByTopologyNUMAPacked`).

    On an uneven host there may be narrower choices.
    """
    fill = partial(_filled, topology, strategy, count)
    caches_alike = topology.uncores_alike or not strategy.by_cache
    if topology.cores_alike and topology.sockets_alike and caches_alike:
        return fill(free)
    return narrowest(topology, strategy, free, count, fill)


def _filled(topology: CpuTopology, strategy: Strategy, count: int, free: int) -> int:
    accumulator = CpuAccumulator(topology, free, count, whole_cores=strategy.whole_cores)
    steps = [accumulator.take_full_outer, accumulator.take_full_inner]
    if strategy.by_cache:
        steps.append(accumulator.take_uncore)
    if strategy.spread and strategy.core_by_core:
        steps.append(accumulator.take_remaining_core_by_core)
    elif strategy.spread:
        steps.append(accumulator.take_remaining_spread)
    elif topology.cores_alike:
        steps += [accumulator.take_full_cores, accumulator.take_remaining_packed]
    else:
        steps.append(accumulator.take_fewest_cores)
    for step in steps:
        if accumulator.need:
            step()
    return accumulator.taken


def _distributed(
    topology: CpuTopology, strategy: Strategy, free: int, count: int, work: SearchBudget | None
) -> int | None:
    """Take the same number from each node that is needed (`takeByTopologyNUMADistributed`).

    None when no nodes can give equal shares. `prefer-align-cpus-by-uncorecache` plays no part.
    """
    group_size = strategy.group_size or 1
    shares = distribution(topology, free, count, group_size, work, strategy.least_nodes)
    if shares is None:
        return None
    cpus = 0
    for node in shares:
        portions = (node.base, *(group_size,) * node.extra_groups)
        for portion in portions if topology.cores_alike else (sum(portions),):
            cpus |= _packed(topology, strategy, node.cpus & ~cpus, portion)
    return cpus


_MILLICORES_PER_CPU: Final = 1000


class ReservationError(ManagerError):
    """The reservation does not fit the host; the static policy cannot start."""


class EmptyReservationError(ReservationError):
    """No CPU is reserved, so shared containers could end up without CPUs."""

    def __init__(self) -> None:
        super().__init__(
            "the static CPU manager policy needs at least one reserved CPU, none is configured",
            "set reservedSystemCPUs, or cpu in systemReserved or kubeReserved",
        )


class ReservationTooLargeError(ReservationError):
    """The reservation exceeds the online CPUs of the host."""

    def __init__(self, asked: int, online: int) -> None:
        self.asked = asked
        self.online = online
        super().__init__(
            f"unable to reserve {asked} CPUs: {online} are online",
            "lower cpu in systemReserved and kubeReserved",
        )


def reserve_cpus(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    millicores: int,
    version: KubernetesVersion = NEWEST,
) -> Mask:
    """Return the CPUs for `millicores` (systemReserved + kubeReserved), rounded up.

    They are chosen as for a container, by the same policy options: `distribute-cpus-across-numa`
    reserves on every node. But `full-pcpus-only` guarantees whole cores to containers only: where
    cores differ, the reservation uses as few as possible. Raises `EmptyReservationError` or
    `ReservationTooLargeError`.
    """
    count = -(-millicores // _MILLICORES_PER_CPU)
    if count <= 0:
        raise EmptyReservationError
    try:
        strategy = replace(strategy_of(topology, options, version), whole_cores=False)
        return take(topology, strategy, topology.all, count)
    except NotEnoughCpusError as error:
        raise ReservationTooLargeError(error.asked, error.available) from error


class NotEnoughCpusError(ManagerError):
    """A request for more CPUs than are free."""

    def __init__(self, asked: int, available: int) -> None:
        self.asked = asked
        self.available = available
        super().__init__(
            f"{cpus_text(asked)} asked, {available} available",
            "ask for fewer CPUs, or wait until another pod ends",
        )


@final
class CpuAccumulator:
    """One request while it is packed: `taken` CPUs (bits) so far, `need` more of the `free` CPUs.

    A group of CPUs is taken if all its CPUs are free and no more than are needed. The kubelet asks
    instead whether an average group would be free: where groups differ in size it takes CPUs that
    are not free, and skips groups that are. `whole_cores` says that whole cores are asked for.
    """

    __slots__ = ("free", "levels", "need", "taken", "topology", "whole_cores")

    def __init__(
        self, topology: CpuTopology, free: int, need: int, *, whole_cores: bool = False
    ) -> None:
        self.topology = topology
        self.levels = topology.levels
        self.free = free
        self.need = need
        self.taken = 0
        self.whole_cores = whole_cores

    def take_full_outer(self) -> None:
        """Take free NUMA nodes (or sockets, where these are the outer level) that fit."""
        if self.need >= self.levels.smallest_outer:
            self._take_whole(rank(self.levels.outer, self.free))

    def take_full_inner(self) -> None:
        """Take free sockets (or NUMA nodes) that fit."""
        if self.need >= self.levels.smallest_inner:
            self._take_whole(inner_order(self.topology, self.free))

    def take_uncore(self) -> None:
        """Take free uncore caches that fit, then the rest from the first cache that has enough.

        This is `prefer-align-cpus-by-uncorecache` (KEP-4800). Caches stand in the order of their
        NUMA nodes, then by free CPUs, then by id. Where they differ in size, one cache that can
        give all is preferred to several, and large ones are taken before small ones.
        """
        order = self._uncore_order(self.free)
        while self.need:
            fitting = [
                cache for cache in order if cache.size <= self.need and not cache.cpus & ~self.free
            ]
            if not (fitting and self.topology.uncores_alike):
                self._take_all_from_one(order)
                if not (fitting and self.need):
                    return
            self._claim(max(fitting, key=lambda cache: cache.size).cpus)

    def take_full_cores(self) -> None:
        """Take free physical cores that fit; all cores are of one size."""
        self._take_whole(self._whole_core_order(self.free))

    def take_remaining_packed(self) -> None:
        """Take single CPUs, filling up the cores with the fewest free CPUs first."""
        for core in core_order(self.topology, self.free):
            if not self.need:
                return
            self._take_lowest(core.cpus)

    def take_fewest_cores(self) -> None:
        """Take all needed CPUs on as few cores as possible, where cores differ in size."""
        self._claim(fewest_cores(self.topology, self.free, self.need, whole=self.whole_cores))

    def take_remaining_spread(self) -> None:
        """Take single CPUs by socket in ascending order (`distribute-cpus-across-cores`).

        It spreads over cores because Linux commonly numbers the first threads of all cores before
        the second ones. So does a kubelet without `VersionRules.spreading_goes_core_by_core`.
        """
        for socket in self._socket_order():
            if not self.need:
                return
            self._take_lowest(socket.cpus)

    def take_remaining_core_by_core(self) -> None:
        """Take single CPUs by socket, one of each core in turn, whatever their numbers are.

        The same with `VersionRules.spreading_goes_core_by_core`. The cores with the fewest free
        CPUs come first.
        """
        for socket in self._socket_order():
            cores = rank(self.topology.cores_in_socket[socket.id], self.free)
            while self.need and self.free & socket.cpus:
                for core in cores:
                    if not self.need:
                        return
                    inside = core.cpus & self.free
                    self._claim(inside & -inside)

    def _socket_order(self) -> Iterable[CpuGroup]:
        inner = self.topology.numa_first
        return (
            inner_order(self.topology, self.free) if inner else rank(self.levels.outer, self.free)
        )

    def _claim(self, cpus: int) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.need -= cpus.bit_count()

    def _take_lowest(self, cpus: int) -> None:
        self._claim(lowest(cpus & self.free, self.need))

    def _take_whole(self, groups: Iterable[CpuGroup]) -> None:
        for group in groups:
            if not self.need:
                return
            if group.size <= self.need and not group.cpus & ~self.free:
                self._claim(group.cpus)

    def _take_all_from_one(self, caches: Iterable[CpuGroup]) -> None:
        """Take all needed CPUs from the first cache that has enough, or nothing."""
        for cache in caches:
            inside = cache.cpus & self.free
            if inside.bit_count() == self.need and inside == cache.cpus:
                cpus = inside
            elif self.topology.cores_alike:
                cpus = self._free_in_first_cores(cache)
            elif inside.bit_count() >= self.need:
                cpus = fewest_cores(self.topology, inside, self.need, whole=self.whole_cores)
            else:
                continue
            if cpus.bit_count() == self.need:
                self._claim(cpus)
                return

    def _free_in_first_cores(self, cache: CpuGroup) -> int:
        """Return the free CPUs (bits) of the cache's first cores that have some.

        The kubelet counts cores, not free CPUs: as many cores as the need would fill if they were
        free. When that gives more than is needed of an odd number, one CPU is dropped. A cache
        whose first cores are partly busy is skipped even if it has room (the kubelet's rule).
        """
        threads = self.topology.cpus_per_core
        cores = -(-self.need // threads)
        inside = cache.cpus & self.free
        found = 0
        for core in self.topology.cores_in_uncore[cache.id]:
            if not cores:
                break
            if core.cpus & inside:
                found |= core.cpus & self.free
                cores -= 1
        if self.need % 2 and threads > 1 and found.bit_count() > self.need:
            found ^= 1 << found.bit_length() - 1
        return found

    def _whole_core_order(self, free: int) -> Iterator[CpuGroup]:
        """Yield only the cores that are free: the same order without counting all the others."""
        for inner in inner_order(self.topology, free):
            cores = self.levels.cores_of[inner.id]
            yield from (core for core in cores if not core.cpus & ~free)

    def _uncore_order(self, free: int) -> list[CpuGroup]:
        inside = self.topology.uncores_in_node
        nodes = rank_nodes(self.topology, free)
        return [cache for node in nodes for cache in rank(inside[node.id], free)]


#: On hosts of up to this many nodes every set of nodes is compared where the best is not evident.
#: On larger hosts only if the budget of work has a step for each deal. If not, only the nodes with
#: the most room are considered: a valid choice, and nearly always the same.
MAX_NODES_COMPARED: Final = 8


class NodeShare(NamedTuple):
    """One NUMA node (its free CPUs as bits) gives `base` CPUs, then `extra_groups` groups."""

    cpus: int
    base: int
    extra_groups: int


class Distribution(NamedTuple):
    """How the groups that do not divide evenly are dealt to the nodes, and what that gains."""

    gain: int
    #: Nodes (positions), and how many of these groups each gives.
    given: tuple[tuple[int, int], ...]


def distribution(
    topology: CpuTopology,
    free: int,
    count: int,
    group_size: int,
    work: SearchBudget | None = None,
    least_nodes: int = 0,
) -> list[NodeShare] | None:
    """Return what each node gives, or None when no set of nodes can give equal shares.

    `count` is a multiple of `group_size` (CPUs). Shares are whole groups; the groups that do not
    divide evenly are fewer than the nodes. The number of nodes is the fewest that will do; with
    `least_nodes` it is the first that will do of that number, larger numbers, then smaller ones.
    `least_nodes` is ignored if there are fewer groups, or fewer nodes with free CPUs. `work` says
    afterwards whether a better choice may have been missed.
    """
    nodes = rank_nodes(topology, free)
    room = [(node.cpus & free).bit_count() for node in nodes]
    fewest, most = _node_range(topology, count, group_size, len(nodes))
    least = max(fewest, least_nodes) if least_nodes <= most else fewest
    for number in (*range(least, most + 1), *range(least - 1, fewest - 1, -1)):
        shares = _Shares(room, number, count // group_size, group_size)
        if shares.possible:
            chosen, deal = shares.best(work or SearchBudget())
            extra = dict(deal.given)
            return [
                NodeShare(nodes[index].cpus & free, shares.base, extra.get(index, 0))
                for index in chosen
            ]
    return None


def _node_range(
    topology: CpuTopology, count: int, group_size: int, nodes_with_room: int
) -> tuple[int, int]:
    """Return the fewest and the most nodes that could serve so many CPUs."""
    groups = count // group_size
    all_groups = _ceil_div(topology.counted.cpus, group_size)
    groups_per_node = _ceil_div(all_groups, topology.counted.nodes)
    return _ceil_div(groups, groups_per_node), min(groups, nodes_with_room)


class _Shares:
    """All ways in which `number` of the nodes give `groups` groups in equal shares.

    The best leaves the free CPUs of **all** nodes with the smallest standard deviation. What is
    left over in total is the same for each, so the best is where

        gain = sum over the nodes of (2 * free - given) * given

    is largest: an exact integer. The kubelet rounds a float to three decimals, which can only
    matter when nodes differ by more than a hundred CPUs. Of equal gains the first wins: sets of
    nodes in lexicographic order, and of one set the deals in the order of `_deals`.
    """

    def __init__(self, room: Sequence[int], number: int, groups: int, group_size: int) -> None:
        self.room = room
        self.number = number
        self.size = group_size
        self.base = groups // number * group_size
        self.remaining = groups % number
        self.roomiest = _largest(room, range(len(room)), number)

    @property
    def possible(self) -> bool:
        """Whether any nodes can: if the nodes with the most room cannot, no others can."""
        left = [self.room[index] - self.base for index in self.roomiest]
        return min(left) >= 0 and sum(room // self.size for room in left) >= self.remaining

    def best(self, work: SearchBudget) -> tuple[Sequence[int], Distribution]:
        """Return the chosen nodes (positions in order) and how the remaining groups are dealt.

        More room never gains less from an equal share, so without a remainder the roomiest nodes
        are best. With one they still are if all the nodes that give an extra group have almost
        the same room: then one group from each is the best that any choice could do.
        """
        if not self.remaining:
            return self.roomiest, Distribution(0, ())
        singles = self._single_groups(self.roomiest)
        if singles is not None:
            left = [self.room[index] for index, _ in singles.given]
            if max(left) - min(left) <= self.size:
                return self.roomiest, singles
        if len(self.room) > MAX_NODES_COMPARED and not work.take(self._all_deals()):
            return self.roomiest, _most_gain(self._roomiest_deals())
        return self._best_of_all(_most_gain(self._deals(self.roomiest)))

    def _all_deals(self) -> int:
        """Return an upper bound on how many deals there are to compare."""
        smaller = sum(comb(self.number, size) for size in range(1, self.remaining))
        return comb(len(self.room), self.number) * (1 + smaller)

    def _best_of_all(self, known: Distribution) -> tuple[Sequence[int], Distribution]:
        """Compare all sets of nodes that could gain at least as much as the roomiest one."""
        equal_gain = 2 * self.base
        bound = equal_gain * sum(self.room[index] for index in self.roomiest) + known.gain
        spare = self._most_that_extra_can_gain()
        best: tuple[int, Sequence[int], Distribution] | None = None
        for chosen in combinations(range(len(self.room)), self.number):
            equal = equal_gain * sum(self.room[index] for index in chosen)
            if equal + spare < bound or min(self.room[index] for index in chosen) < self.base:
                continue
            if sum((self.room[i] - self.base) // self.size for i in chosen) < self.remaining:
                continue
            deal = _most_gain(self._deals(chosen))
            if best is None or equal + deal.gain > best[0]:
                best = equal + deal.gain, chosen, deal
        return (self.roomiest, known) if best is None else best[1:]

    def _most_that_extra_can_gain(self) -> int:
        """Return an upper bound: each remaining group comes from the node where it gains most."""
        left = [self.room[index] - self.base for index in self.roomiest]
        gain = 0
        for _ in range(self.remaining):
            fullest = max(range(len(left)), key=left.__getitem__)
            gain += self.size * (2 * left[fullest] - self.size)
            left[fullest] -= self.size
        return gain

    def _deals(self, chosen: Sequence[int]) -> Iterator[Distribution | None]:
        """Yield the deals in order: from larger sets of nodes to smaller, then lexicographic."""
        able = [index for index in chosen if self.room[index] - self.base >= self.size]
        yield self._single_groups(chosen)
        for size in range(min(self.remaining - 1, len(able)), 0, -1):
            for members in combinations(able, size):
                yield self._round_robin(members)

    def _roomiest_deals(self) -> Iterator[Distribution | None]:
        """Yield some deals of the roomiest nodes: for each size the members with the most room."""
        able = [index for index in self.roomiest if self.room[index] - self.base >= self.size]
        yield self._single_groups(self.roomiest)
        for size in range(min(self.remaining - 1, len(able)), 0, -1):
            yield self._round_robin(_largest(self.room, able, size))

    def _single_groups(self, chosen: Sequence[int]) -> Distribution | None:
        """Take one group from as many nodes as groups remain, from those with the most room."""
        able = [index for index in chosen if self.room[index] - self.base >= self.size]
        if len(able) < self.remaining:
            return None
        return self._deal((index, 1) for index in _largest(self.room, able, self.remaining))

    def _round_robin(self, members: Sequence[int]) -> Distribution | None:
        """Deal the groups one by one in order; a node without a whole group is passed over."""
        most = {index: (self.room[index] - self.base) // self.size for index in members}
        if sum(most.values()) < self.remaining:
            return None
        given = dict.fromkeys(members, 0)
        remaining = self.remaining
        while remaining:
            for index in members:
                if remaining and given[index] < most[index]:
                    given[index] += 1
                    remaining -= 1
        return self._deal(given.items())

    def _deal(self, given: Iterable[tuple[int, int]]) -> Distribution:
        dealt = tuple(given)
        gain = 0
        for index, groups in dealt:
            cpus = groups * self.size
            gain += cpus * (2 * (self.room[index] - self.base) - cpus)
        return Distribution(gain, dealt)


def _most_gain(deals: Iterable[Distribution | None]) -> Distribution:
    possible = [deal for deal in deals if deal is not None]
    return max(possible, key=lambda deal: deal.gain)  # the first of equal ones


def _largest(values: Sequence[int], positions: Iterable[int], number: int) -> list[int]:
    """Return the positions of the `number` largest values in order; of equal ones the first."""
    return sorted(sorted(positions, key=lambda index: (-values[index], index))[:number])


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)


class SocketOrder(Struct, frozen=True):
    """The order of sets of NUMA nodes for a request: sets whose sockets have room, on few sockets.

    The smallest key is the best.
    """

    #: The nodes of each socket, as bits, and how many free CPUs it has.
    sockets: tuple[tuple[int, int], ...]
    #: How many CPUs are requested.
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
    """Return the available CPUs of the fewest sockets that have room for the `chosen` CPUs.

    None when `chosen` is on no more sockets than these. With `whole_cores` only CPUs in free
    physical cores count, and only they are returned.
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

    They are the groups with the most free CPUs, except the last: that has the fewest that will do.
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


#: The most nodes of which each is tried by itself or left out, and each set of fewer is tried.
_MOST_NODES: Final = 8


def narrowest(topology: CpuTopology, strategy: Strategy, free: int, count: int, fill: Fill) -> int:
    """Return `count` of the `free` CPUs (bits): what `fill` takes, or a narrower choice.

    The best choice, where the first rule that differs decides, has

    1. no CPU beside a busy CPU of its core that a whole free core could replace (`_needless`);
    2. the most CPUs in whole cores, where whole cores are asked for;
    3. the fewest NUMA nodes, then sockets, then caches where the strategy asks for them, then
       cores.

    It has no more CPUs beside busy ones than `fill` has, unless that avoids needless ones. Where
    CPUs are spread, only nodes and sockets count, and it is on no more cores than `fill`.
    """
    kinds = [topology.nodes, topology.sockets]
    if strategy.by_cache:
        kinds.append(topology.uncores)
    first = fill(free)
    if strategy.spread:
        most = _touched(topology.cores, first)

        def place(cpus: int) -> tuple[int, ...]:
            touched = (_touched(groups, cpus) for groups in kinds)
            return (_touched(topology.cores, cpus) > most, *touched)

        filled = (first, *map(fill, _fewest_groups(topology, free, count, first)))
        best = min(filled, key=place)
        fewer = map(fill, _fewer_nodes(topology, free, count, first, best))
        return min((best, *fewer), key=place)
    if _is_evidently_narrowest(topology, strategy, free, first, kinds):
        return first

    def width(cpus: int) -> tuple[int, ...]:
        near = free & _around(kinds, cpus) if strategy.by_cache else free
        torn = _torn(topology, cpus) if strategy.whole_cores else 0
        touched = (_touched(groups, cpus) for groups in (*kinds, topology.cores))
        return (_needless(topology, near, cpus), torn, *touched)

    most = _beside_busy(topology, free, first)
    choices = _choices(topology, strategy, free, count, fill, first, kinds)
    best = min((c for c in choices if _beside_busy(topology, free, c) <= most), key=width)
    needless, torn, *_ = width(best)
    if not topology.cores_alike and (torn or (needless and not strategy.by_cache)):
        anywhere = fewest_cores(topology, free, count, whole=strategy.whole_cores)
        best = min((best, anywhere), key=width)
    for region in _fewer_nodes(topology, free, count, first, best):
        inside = (fill(region), fewest_cores(topology, region, count, whole=strategy.whole_cores))
        choices = (c for c in inside if _beside_busy(topology, free, c) <= most)
        best = min((best, *choices), key=width)
    return best


def unbroken(topology: CpuTopology, free: int, cpus: int) -> int:
    """Return whole cores of the `free` CPUs (bits) in place of `cpus`, where those break a core.

    A core is broken if the rest of it is free: another container would get that. `cpus` stay if the
    same nodes and sockets do not have as many CPUs in whole cores.
    """
    if not any(core.cpus & cpus and core.cpus & ~cpus & free for core in topology.cores):
        return cpus
    near = free & _around((topology.nodes, topology.sockets), cpus)
    instead = fewest_cores(topology, near, cpus.bit_count(), whole=True)
    return cpus if _torn(topology, instead) else instead


def _is_evidently_narrowest(
    topology: CpuTopology, strategy: Strategy, free: int, cpus: int, kinds: Sequence[Groups]
) -> bool:
    """Return whether `cpus` are in one group of each kind, on as few cores as the largest."""
    largest = max(core.size for core in topology.cores)
    return (
        all(any(not cpus & ~group.cpus for group in groups) for groups in kinds)
        and (_touched(topology.cores, cpus) - 1) * largest < cpus.bit_count()
        and not _needless(topology, free, cpus)
        and not _is_torn(topology, strategy, cpus)
    )


def _choices(
    topology: CpuTopology,
    strategy: Strategy,
    free: int,
    count: int,
    fill: Fill,
    first: int,
    kinds: Sequence[Groups],
) -> Iterator[int]:
    """Yield what `fill` takes of several regions and, where cores differ, the fewest cores there.

    The regions are all CPUs, the fewest groups, the nodes of `first` without one of them, since it
    may not be needed, and, where whole cores are asked for, each node (and cache) with room, since
    the fullest may have none.
    """
    regions = [free, *_fewest_groups(topology, free, count, first)]
    touched = [node.cpus & free for node in topology.nodes if node.cpus & first]
    without_one = [sum(touched) & ~each for each in touched[:_MOST_NODES]]
    regions += [cpus for cpus in without_one if cpus.bit_count() >= count]
    if strategy.whole_cores and len(topology.nodes) <= _MOST_NODES:
        caches = topology.uncores if strategy.by_cache else ()
        inside = [place.cpus & free for place in (*topology.nodes, *caches)]
        regions += [cpus for cpus in inside if cpus.bit_count() >= count]
    for region in dict.fromkeys(regions):
        filled = first if region == free else fill(region)
        yield filled
        if not topology.cores_alike:
            around = region & _around(kinds, filled)
            yield fewest_cores(topology, around, count, whole=strategy.whole_cores)


def _fewest_groups(topology: CpuTopology, free: int, count: int, first: int) -> Iterator[int]:
    """Yield the free CPUs (bits) of the fewest nodes and sockets that have room for `count`.

    Where a socket has several nodes, first the fewest sockets, as the kubelet; then the fewest
    nodes on any sockets, unless these are on more sockets than `first`, the kubelet's choice.
    """
    nodes, sockets = topology.nodes, topology.sockets
    by_node = with_room(sockets, with_room(nodes, free, count), count)
    if not topology.numa_first:
        yield with_room(nodes, with_room(sockets, free, count), count)
    if topology.numa_first or _touched(sockets, by_node) <= _touched(sockets, first):
        yield by_node


def _fewer_nodes(
    topology: CpuTopology, free: int, count: int, first: int, best: int
) -> Iterator[int]:
    """Yield the free CPUs (bits) of each set of fewer nodes than those of `best` that has room.

    Where a socket has several nodes, they are on no more sockets than `first`, the kubelet's
    choice.
    """
    nodes, sockets = topology.nodes, topology.sockets
    if len(nodes) > _MOST_NODES:
        return
    most = len(sockets) if topology.numa_first else _touched(sockets, first)
    rooms = [node.cpus & free for node in nodes]
    for number in range(1, _touched(nodes, best)):
        for inside in map(sum, combinations(rooms, number)):
            if inside.bit_count() >= count and _touched(sockets, inside) <= most:
                yield inside


def _around(kinds: Sequence[Groups], cpus: int) -> int:
    """Return the CPUs (bits) of the groups of every kind that `cpus` (bits) touch."""
    inside = -1
    for groups in kinds:
        inside &= sum(group.cpus for group in groups if group.cpus & cpus)
    return inside


def _touched(groups: Groups, cpus: int) -> int:
    return sum(1 for group in groups if group.cpus & cpus)


def _torn(topology: CpuTopology, cpus: int) -> int:
    """Return how many CPUs are on cores that `cpus` do not have as a whole."""
    return sum((core.cpus & cpus).bit_count() for core in topology.cores if core.cpus & ~cpus)


def _is_torn(topology: CpuTopology, strategy: Strategy, cpus: int) -> bool:
    return strategy.whole_cores and not topology.cores_alike and _torn(topology, cpus) > 0


def _needless(topology: CpuTopology, free: int, cpus: int) -> bool:
    """Return whether a whole core could replace the CPUs that are beside busy ones of their core.

    Such a core is free, not chosen, and has no more CPUs than they are.
    """
    beside_busy = _beside_busy(topology, free, cpus)
    return any(
        core.size <= beside_busy and not core.cpus & ~(free & ~cpus) for core in topology.cores
    )


def _beside_busy(topology: CpuTopology, free: int, cpus: int) -> int:
    """Return how many CPUs are on cores that are not free as a whole."""
    return sum((core.cpus & cpus).bit_count() for core in topology.cores if core.cpus & ~free)
