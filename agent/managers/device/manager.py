"""The device manager: devices of an inventory, aligned with CPUs and memory (KEP-693, KEP-3573).

Devices are `PluginDevice`; the lowest ids are allocated first if the choice is free and no device
plugin has a preference. Hints and allocation of devices are pure functions of an inventory.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, lru_cache, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import field

from agent.managers.allocation import DEVICES
from agent.managers.decision import Question, Reason, Rejected, Rejection, Unanswered
from agent.managers.demand import PodPart, ResourceDemand
from agent.managers.errors import DeviceAllocationError, ManagerError, NoHealthyDevicesError
from agent.managers.ledger import Taken
from agent.managers.metrics import Sample, gauge
from agent.managers.policy import PluginDevice
from agent.managers.resource_manager import ResourceManager
from agent.managers.topology.hint import SearchBudget, SubsetIndex, choices, is_listed, subset_sums
from agent.managers.topology.many_nodes import Cover, CoverDemand, HintFamily, smallest
from agent.managers.violations import Rule, Violation
from agent.pods.quantity import MAX_INT64
from agent.pods.requests import aggregate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import PodAllocation
    from agent.managers.demand import ContainerDemand, PodDemand, PodRequest
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.resource_manager import Draft, Held
    from agent.managers.topology.hint import Hint
    from agent.managers.topology.many_nodes import Hints, ProviderHints
    from agent.pods.quantity import Quantity
    from sysfs.mask import Mask


#: Which of the available devices are preferred, given the required ones and how many are needed.
Preference: TypeAlias = "Callable[[frozenset[str], frozenset[str], int], tuple[str, ...]]"


def device_hints(
    nodes: int,
    inventory: Sequence[PluginDevice],
    count: int,
    allocated: Collection[str],
    reusable: Collection[str] = frozenset(),
    work: SearchBudget | None = None,
) -> tuple[Hint, ...] | HintFamily | None:
    """Return where `count` devices of one resource are free, narrow masks first.

    `allocated` are all allocated ids, including those that ended init containers of this pod leave
    (`reusable`). None means no preference: no device of the resource has a locality. Empty means
    impossible. Masks consist of the `nodes` of the machine (bits) that have devices of the
    resource, healthy or not (kubelet v1.36). Preferred are masks of the fewest nodes that would
    suffice if no device was allocated. A mask must contain all reusable devices. `work` notes when
    a budget was exceeded.
    """
    everything = tuple([device.nodes.bits for device in inventory])
    if not any(everything):
        return None
    places = [device.nodes.bits for device in _available(inventory, allocated)]
    if len(places) + len(reusable) < count:
        return ()
    again = [device.nodes.bits for device in inventory if device.id in reusable and device.nodes]
    places += again
    listed = is_listed(nodes)
    nodes &= reduce(or_, everything)
    if not listed:
        return _family(nodes, everything, places, count, again, work or SearchBudget())
    hints = _hints_of(nodes, everything, places, count)
    if not again:
        return hints
    return tuple(hint for hint in hints if all((hint.nodes or 0) & place for place in again))


def given_hints(
    nodes: int, places: Sequence[int], work: SearchBudget
) -> Sequence[Hint] | HintFamily:
    """Return the sets of nodes that reach each of some devices, narrow masks first.

    `places` are the nodes of each device, `nodes` those of the machine (bits). Preferred are the
    sets of the fewest nodes: which devices they are is settled, so that devices that would be
    nearer to each other do not count.
    """
    if not is_listed(nodes):
        cover = Cover(
            nodes, tuple(CoverDemand(1, ((place, 1),)) for place in dict.fromkeys(places))
        )
        return HintFamily((), None if cover.is_empty else cover, smallest(cover, work))
    reaching = [one for one in choices(nodes) if all(one.mask & place for place in places)]
    fewest = reaching[0].mask.bit_count() if reaching else 0
    return tuple(
        [one.preferred if one.mask.bit_count() == fewest else one.plain for one in reaching]
    )


def assign_devices(
    resource: str,
    inventory: Sequence[PluginDevice],
    count: int,
    hint: Hint,
    allocated: Collection[str],
    reusable: Collection[str] = frozenset(),
    preferred: Preference | None = None,
) -> tuple[str, ...]:
    """Return the ids of `count` devices for a container, sorted.

    First devices that ended init containers of the pod left, then devices on the hint's nodes, then
    any others; among equals those that the device plugin prefers, then the lowest ids. The plugin
    is asked (`preferred`) only where there is a choice, once: among the devices on the hint's nodes
    if these suffice, else among all (kubelet v1.36, devicesToAllocate).

    Raises `DeviceAllocationError` when too few healthy devices are free, `NoHealthyDevicesError`
    when no device is healthy.
    """
    if not any(device.healthy for device in inventory):
        raise NoHealthyDevicesError(resource, count, 0)
    given = sorted(reusable)[:count]
    needed = count - len(given)
    if not needed:
        return tuple(given)
    free = _available(inventory, allocated)
    if len(free) < needed:
        raise DeviceAllocationError(resource, needed, len(free))
    bits = hint.nodes or 0
    near = sorted([device.id for device in free if device.nodes.bits & bits])
    if needed == len(near):
        return tuple(sorted((*given, *near)))
    if needed < len(near):
        near = _preferred_first(near, near, given, count, preferred)
        return tuple(sorted((*given, *near[:needed])))
    others = sorted([device.id for device in free if not device.nodes.bits & bits])
    if len(near) + len(others) > needed:
        others = _preferred_first(others, others, (*given, *near), count, preferred)
    return tuple(sorted((*given, *near, *others[: needed - len(near)])))


def _preferred_first(
    ids: list[str],
    available: Iterable[str],
    given: Iterable[str],
    count: int,
    preferred: Preference | None,
) -> list[str]:
    """Return the ids with those that the device plugin prefers first.

    Ids that it prefers and that were not offered are ignored, as the kubelet ignores them.
    """
    if preferred is None:
        return ids
    required = frozenset(given)
    first = set(preferred(required.union(available), required, count))
    return sorted(ids, key=lambda each: each not in first)


def reusable_devices_after(
    reusable: frozenset[str], devices: Iterable[str], *, standard_init: bool
) -> frozenset[str]:
    """Return the devices that later containers of the pod may reuse after this container.

    Standard init containers leave theirs; sidecars and apps keep theirs.
    """
    return reusable | frozenset(devices) if standard_init else reusable - frozenset(devices)


def _available(inventory: Iterable[PluginDevice], allocated: Collection[str]) -> list[PluginDevice]:
    return [device for device in inventory if device.healthy and device.id not in allocated]


def _hints_of(
    nodes: int, everything: tuple[int, ...], places: Iterable[int], count: int
) -> tuple[Hint, ...]:
    """Return the masks that reach `count` of the places (masks of nodes)."""
    now = _reached(nodes, places)
    fewest = _fewest_nodes(nodes, everything, count)
    return tuple(
        [
            one.preferred if one.mask.bit_count() == fewest else one.plain
            for one in choices(nodes)
            if now[one.number] >= count
        ]
    )


@lru_cache(maxsize=64)
def _fewest_nodes(nodes: int, everything: tuple[int, ...], count: int) -> int:
    """Return how many nodes `count` devices would need if none were allocated."""
    if_unused = _reached(nodes, everything)
    masks = choices(nodes)
    return next((one.mask.bit_count() for one in masks if if_unused[one.number] >= count), 0)


def _family(
    nodes: int,
    everything: Iterable[int],
    places: Iterable[int],
    count: int,
    again: Iterable[int],
    work: SearchBudget,
) -> HintFamily:
    """Return the same hints as the list, as a family for a machine with many nodes."""
    each_again = tuple(CoverDemand(1, ((place, 1),)) for place in dict.fromkeys(again))
    cover = Cover(nodes, (_devices(count, places), *each_again))
    fewest = smallest(Cover(nodes, (_devices(count, everything),)), work)
    return HintFamily((), None if cover.is_empty else cover, fewest)


def _devices(count: int, places: Iterable[int]) -> CoverDemand:
    return CoverDemand(count, tuple(Counter(place for place in places if place).items()))


def _reached(nodes: int, places: Iterable[int]) -> list[int]:
    """Return for every subset of `nodes`, by its number, how many of the places it touches."""
    counts: dict[int, int] = {}
    for place in places:  # not a Counter: a few places take longer to hand over than to count
        counts[place] = counts.get(place, 0) + 1
    index = SubsetIndex.of(nodes)
    reached = subset_sums([counts.pop(one, 0) for one in index.ones])
    for place, count in counts.items():
        for number, subset in enumerate(index.subsets):
            if subset & place:
                reached[number] += count
    return reached


DEVICE_COUNT: Final = gauge(
    "numawarden_devices",
    "Healthy devices of a resource: allocated, or free.",
    "resource",
    "state",
)
#: What stands for the place near which a pod wants to be, beside the resources of devices.
NEAR: Final = "near"
#: The allocated devices of each resource, without resources of which none is allocated.
TakenDevices: TypeAlias = "Mapping[str, Taken[frozenset[str]]]"


class DeviceDraft(PodPart):
    """The devices of other pods, and those of the pod under admission.

    `containers` are ids by resource by name of the container. `allocated` are the ids of other
    pods and of this one, by resource, `reusable` those of standard init containers of this pod.
    `kept` are those of a running pod, as `containers`, None for a pod that is to be admitted.
    """

    allocated: dict[str, frozenset[str]] = field(default_factory=dict)
    reusable: dict[str, frozenset[str]] = field(default_factory=dict)
    kept: dict[str, Mapping[str, tuple[str, ...]]] | None = None

    def reuse(self, *containers: str) -> None:
        """Have containers of a running pod use again what they keep."""
        self.reusable = {}
        for name in containers:
            for resource, ids in (self.kept or {}).get(name, {}).items():
                self.reusable[resource] = self.reusable.get(resource, _NONE).union(ids)


@final
class DeviceManager(ResourceManager):
    """The manager of every resource of the device inventory.

    Amounts are numbers of devices by resource. Its part of a container's allocation are ids by
    resource. A budget (KEP-5526) has CPUs and memory only, so devices are allocated container by
    container. The kubelet waits with it until a container starts; by then another pod may have been
    admitted with the same device.
    """

    name = DEVICES
    gauges = (DEVICE_COUNT,)

    def demand(self, request: PodRequest) -> ResourceDemand:
        # Pods of any QoS class may have devices.
        inventory = request.policy.devices
        amounts = tuple(
            [_requests(each.resources.limits, inventory) for each in request.containers]
        )
        exclusive = tuple([any(each.values()) for each in amounts])
        return ResourceDemand(
            _of_pod(request, amounts) if any(amounts) else {},
            amounts,
            active=True,
            exclusive=exclusive,
            why=tuple([_WHY[each] for each in exclusive]),
        )

    def amount(self, demanded: Mapping[str, int], resource: str) -> int:
        return demanded.get(resource, 0)

    def start(self, rules: HostPolicy, part: TakenDevices, demand: PodDemand) -> DeviceDraft:
        return DeviceDraft(allocated={resource: taken.ids for resource, taken in part.items()})

    def hold(self, draft: Draft, held: Held) -> None:
        # A running pod keeps its devices, whatever has become of them.
        own = _own(draft)
        own.kept = {each.name: each.devices for each in held.allocation.containers if each.devices}
        for resource, ids in _of_allocation(held.allocation).items():
            own.allocated[resource] = own.allocated.get(resource, _NONE) | ids

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        if _own(draft).kept is not None:
            _own(draft).reuse(container.name)
        return _hints(draft, container.part(DEVICES)) | _near(draft)

    def pod_hints(self, draft: Draft) -> ProviderHints:
        if (kept := _own(draft).kept) is not None:
            _own(draft).reuse(*kept)
        return _hints(draft, draft.demand.parts[DEVICES].pod) | _near(draft)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        # All device plugins that have a preference are asked at once.
        own = _own(draft)
        if own.kept is not None:
            if devices := own.kept.get(container.name):
                own.containers[container.name] = devices
            return
        questions: list[Question] = []
        for resource, count in container.part(DEVICES).items():
            try:
                given = _assign(draft, container, resource, count, hint)
            except Unanswered as unanswered:
                questions.extend(unanswered.questions)
                continue
            if not given:
                continue
            own.containers.setdefault(container.name, {})[resource] = given
            own.allocated[resource] = own.allocated.get(resource, _NONE).union(given)
            own.reusable[resource] = reusable_devices_after(
                own.reusable.get(resource, _NONE), given, standard_init=container.is_standard_init
            )
        if questions:
            raise Unanswered(tuple(questions))

    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        return _free(draft, resource)

    def allocatable(self, rules: HostPolicy) -> Mapping[str, int]:
        return {
            resource: sum(device.healthy for device in inventory)
            for resource, inventory in rules.devices.items()
        }

    def beyond_allocatable(self, rules: HostPolicy, part: TakenDevices, resource: str) -> int:
        taken = part.get(resource)
        if taken is None:
            return 0
        healthy = {device.id for device in rules.devices.get(resource, ()) if device.healthy}
        return len(taken.ids - healthy)

    def violations(
        self,
        rules: HostPolicy,
        ledger: Ledger,
        offline: Mask,
    ) -> Callable[[PodAllocation], Iterable[Violation]]:
        @cache
        def usable(resource: str) -> Mapping[str, bool]:
            devices = rules.policy.devices.get(resource, ())
            return {device.id: device.healthy or device.away for device in devices}

        earlier: set[tuple[str, str]] = set()
        return partial(_violations, usable, earlier)

    def samples(self, rules: HostPolicy, ledger: Ledger) -> Iterator[Sample]:
        for resource, devices in rules.devices.items():
            allocated = allocated_devices(ledger).get(resource, _NONE)
            free = [device for device in devices if device.healthy and device.id not in allocated]
            yield Sample(DEVICE_COUNT, (resource, "allocated"), len(allocated))
            yield Sample(DEVICE_COUNT, (resource, "free"), len(free))

    def empty(self, rules: HostPolicy) -> TakenDevices:
        return {}

    def loaded(self, saved: None, allocations: Iterable[PodAllocation]) -> TakenDevices:
        part: TakenDevices = {}
        for allocation in allocations:
            part = _added(part, allocation)
        return part

    def charged(
        self,
        rules: HostPolicy,
        part: TakenDevices,
        allocation: PodAllocation,
    ) -> TakenDevices:
        return _added(part, allocation)

    def released(
        self,
        rules: HostPolicy,
        part: TakenDevices,
        allocation: PodAllocation,
    ) -> TakenDevices:
        ids = _of_allocation(allocation)
        if not ids:
            return part
        left = {**part, **{name: part.get(name, _UNUSED).removed(ids[name]) for name in ids}}
        return {name: taken for name, taken in left.items() if taken.ids}


def allocated_devices(ledger: Ledger) -> Mapping[str, frozenset[str]]:
    """Return the ids of all allocated devices, by resource."""
    taken: TakenDevices = ledger.parts.get(DEVICES, {})
    return {resource: of.ids for resource, of in taken.items()}


_NONE: frozenset[str] = frozenset()
_UNUSED: Taken[frozenset[str]] = Taken(_NONE)
#: The pod keeps the device, which may recover; another admission is for one that is gone.
_UNHEALTHY = "look at the device, and at the log of what provides it"
_WHY = {True: "its limits name devices of the inventory", False: "it requests no device"}


def _violations(
    usable: Callable[[str], Mapping[str, bool]],
    earlier: set[tuple[str, str]],
    allocation: PodAllocation,
) -> Iterator[Violation]:
    """Yield the violations of an allocation, and add its devices to the `earlier` ones."""
    own: set[tuple[str, str]] = set()
    for name, resource, device in allocation.allocated_devices():
        known = usable(resource).get(device)
        if known is None:
            message = f"has {resource} {device}, which is no longer in the inventory"
            yield Violation.of(allocation, Rule.DEVICE_MISSING, message, container=name)
        elif not known:
            message = f"has {resource} {device}, which is not healthy"
            yield Violation.of(allocation, Rule.DEVICE_UNHEALTHY, message, _UNHEALTHY, name)
        if (resource, device) in earlier - own:
            message = f"has {resource} {device}, which another pod has as well"
            rule, remedy = Rule.DEVICE_ALLOCATED_TWICE, "remove one of the pods"
            yield Violation.of(allocation, rule, message, remedy, name)
        own.add((resource, device))
    earlier |= own


def _own(draft: Draft) -> DeviceDraft:
    part: DeviceDraft = draft.parts[DEVICES]
    return part


def _requests(limits: Mapping[str, Quantity], inventory: Iterable[str]) -> dict[str, int]:
    """Return the number of devices by resource; for these, requests equal limits."""
    return {name: limits[name].value for name in inventory if name in limits}


def _of_pod(request: PodRequest, amounts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the most devices that the containers of a pod have at any one time."""
    devices = aggregate(request.pod, amounts)
    return {name: min(count, MAX_INT64) for name, count in devices.items()}


def _of_allocation(allocation: PodAllocation) -> dict[str, frozenset[str]]:
    """Return the ids of a pod's devices by resource; containers may use a device in turn."""
    devices: dict[str, frozenset[str]] = {}
    for container in allocation.containers:
        for resource, ids in container.devices.items():
            if ids:
                devices[resource] = devices.get(resource, _NONE).union(ids)
    return devices


def _added(part: TakenDevices, allocation: PodAllocation) -> TakenDevices:
    ids = _of_allocation(allocation)
    if not ids:
        return part
    return {**part, **{name: part.get(name, _UNUSED).added(ids[name]) for name in ids}}


def _near(draft: Draft) -> dict[str, Hints | None]:
    """Return the hints of a device that is on the nodes near which the pod wants to be.

    No pod allocates that device: it may be a network interface that all pods use.
    """
    nodes = draft.demand.asked.near_nodes & draft.rules.machine.node_mask
    if not nodes:
        return {}
    place = (PluginDevice(NEAR, nodes),)
    return {NEAR: device_hints(draft.rules.machine.node_mask.bits, place, 1, (), work=draft.work())}


def _hints(draft: Draft, requests: Mapping[str, int]) -> dict[str, Hints | None]:
    own = _own(draft)
    return {
        resource: device_hints(
            draft.rules.machine.node_mask.bits,
            draft.rules.devices[resource],
            count,
            own.allocated.get(resource, _NONE),
            own.reusable.get(resource, _NONE),
            draft.work(),
        )
        for resource, count in requests.items()
    }


def _assign(
    draft: Draft, container: ContainerDemand, resource: str, count: int, hint: Hint
) -> tuple[str, ...]:
    own, policy = _own(draft), draft.rules.policy
    try:
        return assign_devices(
            resource,
            draft.rules.devices[resource],
            count,
            hint,
            own.allocated.get(resource, _NONE),
            own.reusable.get(resource, _NONE),
            partial(_preferred, draft, resource) if resource in policy.preferring else None,
        )
    except ManagerError as error:
        rejection = Rejection(
            Reason.UNEXPECTED,
            error.message,
            remedy=error.remedy,
            resource=resource,
            container=container.name,
            asked=count,
            free=_free(draft, resource),
        )
        raise Rejected(rejection) from error


def _preferred(
    draft: Draft, resource: str, available: frozenset[str], required: frozenset[str], size: int
) -> tuple[str, ...]:
    return draft.answer(Question(resource, available, required, size))


def _free(draft: Draft, resource: str) -> dict[int, int]:
    own = _own(draft)
    taken = own.allocated.get(resource, _NONE) - own.reusable.get(resource, _NONE)
    free: dict[int, int] = {}
    for device in draft.rules.devices.get(resource, ()):
        if device.healthy and device.id not in taken:
            for node in device.nodes:
                free[node] = free.get(node, 0) + 1
    return free
