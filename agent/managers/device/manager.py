"""The device manager: devices of an inventory, aligned with CPUs and memory (KEP-693, KEP-3573)."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import field

from agent.managers.allocations.allocation import DEVICES
from agent.managers.allocations.demand import ResourceDemand
from agent.managers.allocations.from_parts import PodPart
from agent.managers.allocations.ledger import Taken
from agent.managers.assessment.violation import Rule, Violation
from agent.managers.decision import Question, Reason, Rejected, Rejection, Sample, Unanswered, gauge
from agent.managers.device.assignment import assign_devices, device_hints, reusable_devices_after
from agent.managers.errors import ManagerError
from agent.managers.policy import PluginDevice
from agent.managers.resource_manager import ResourceManager
from agent.pods.quantity import MAX_INT64
from agent.pods.requests import aggregate
from agent.pods.requirements import near_nodes
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.demand import ContainerDemand, PodRequest
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.draft import Draft
    from agent.managers.host_policy import HostPolicy
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import Hints, ProviderHints
    from agent.pods.quantity import Quantity
    from sysfs.mask import Mask

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
    """

    allocated: dict[str, frozenset[str]] = field(default_factory=dict)
    reusable: dict[str, frozenset[str]] = field(default_factory=dict)


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
        """Return the devices that a pod requests; pods of any QoS class may have them."""
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
        """Return the number of devices that a container or a pod demands."""
        return demanded.get(resource, 0)

    def start(self, rules: HostPolicy, part: TakenDevices) -> DeviceDraft:  # noqa: ARG002  (of any policy)
        """Return the draft of a pod, with the devices of all other pods."""
        return DeviceDraft(allocated={resource: taken.ids for resource, taken in part.items()})

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        """Return the sets of nodes from which the container's devices are reached."""
        return _hints(draft, container.part(DEVICES)) | _near(draft)

    def pod_hints(self, draft: Draft) -> ProviderHints:
        """Return the sets of nodes from which the pod's devices are reached."""
        return _hints(draft, draft.demand.parts[DEVICES].pod) | _near(draft)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        """Allocate the container's devices, from the hint's nodes as far as these suffice.

        Raises `Unanswered` with the questions to all device plugins that have a preference.
        """
        own = _own(draft)
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
        """Return how many devices are free on each NUMA node; one counts on all of its nodes."""
        return _free(draft, resource)

    def allocatable(self, rules: HostPolicy) -> Mapping[str, int]:
        """Return the number of healthy devices of each resource that are not cordoned."""
        return {
            resource: sum(device.healthy for device in inventory)
            for resource, inventory in rules.devices.items()
        }

    def beyond_allocatable(self, rules: HostPolicy, part: TakenDevices, resource: str) -> int:
        """Return how many allocated devices of a resource are gone, cordoned or not healthy."""
        taken = part.get(resource)
        if taken is None:
            return 0
        healthy = {device.id for device in rules.devices.get(resource, ()) if device.healthy}
        return len(taken.ids - healthy)

    def violations(
        self,
        rules: HostPolicy,
        ledger: Ledger,  # noqa: ARG002  (follows from the allocations)
        offline: Mask,  # noqa: ARG002  (CPUs)
    ) -> Callable[[PodAllocation], Iterable[Violation]]:
        """Return a function that returns the violations of one allocation after the other."""

        @cache
        def usable(resource: str) -> Mapping[str, bool]:
            devices = rules.policy.devices.get(resource, ())
            return {device.id: device.healthy or device.away for device in devices}

        earlier: set[tuple[str, str]] = set()
        return partial(_violations, usable, earlier)

    def samples(self, rules: HostPolicy, ledger: Ledger) -> Iterator[Sample]:
        """Yield how many devices of each resource are allocated, and free."""
        for resource, devices in rules.devices.items():
            allocated = allocated_devices(ledger).get(resource, _NONE)
            free = [device for device in devices if device.healthy and device.id not in allocated]
            yield Sample(DEVICE_COUNT, (resource, "allocated"), len(allocated))
            yield Sample(DEVICE_COUNT, (resource, "free"), len(free))

    def empty(self, rules: HostPolicy) -> TakenDevices:  # noqa: ARG002  (of any policy)
        """Return that no device is allocated."""
        return {}

    def loaded(self, saved: None, allocations: Iterable[PodAllocation]) -> TakenDevices:  # noqa: ARG002  (follows from the allocations)
        """Return the devices of all pods."""
        part: TakenDevices = {}
        for allocation in allocations:
            part = _added(part, allocation)
        return part

    def charged(
        self,
        rules: HostPolicy,  # noqa: ARG002  (of any policy)
        part: TakenDevices,
        allocation: PodAllocation,
    ) -> TakenDevices:
        """Return the devices of all pods with those of one more."""
        return _added(part, allocation)

    def released(
        self,
        rules: HostPolicy,  # noqa: ARG002  (of any policy)
        part: TakenDevices,
        allocation: PodAllocation,
    ) -> TakenDevices:
        """Return the devices of all pods without those that only this pod has."""
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
    annotations = draft.demand.pod.annotations
    nodes = near_nodes(annotations) & draft.rules.machine.node_mask if annotations else EMPTY
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
