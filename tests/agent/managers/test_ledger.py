"""What a ledger derives from its allocations, and at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.allocation import ContainerAllocation, PodAllocation
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.device.manager import allocated_devices
from agent.managers.ledger import SharedMap
from agent.managers.memory.state import memory_charge
from agent.managers.rules import charged
from agent.pods.model import ContainerKind, QosClass
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from agent.managers.ledger import Ledger

RULES = make_rules(memory=False)
GPU, NIC = "example.com/gpu", "example.com/nic"
IDS = st.frozensets(st.sampled_from("abc"), max_size=2)
RESOURCES = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 15), IDS, IDS), min_size=1, max_size=6
)


def allocation(
    uid: str, cpus: int, more: int = 0, gpus: frozenset[str] = frozenset(),
    nics: frozenset[str] = frozenset(),
) -> PodAllocation:  # fmt: skip
    """Return a pod of an init container and an app, whose devices may be the same."""
    devices = {GPU: tuple(sorted(gpus)), NIC: tuple(sorted(nics))}
    containers = (
        ContainerAllocation("i", ContainerKind.INIT, cpus=Mask(cpus), devices={GPU: tuple(gpus)}),
        ContainerAllocation("a", ContainerKind.APP, cpus=Mask(more), devices=devices),
    )
    return PodAllocation(uid, "p", "default", QosClass.GUARANTEED, "", containers)


def derived(ledger: Ledger) -> tuple[object, ...]:
    """Return all that follows from the allocations, worked out again."""
    cpus, devices = EMPTY, dict[str, set[str]]()
    for one in ledger.allocations.values():
        cpus |= one.exclusive_cpus
        for _, resource, device in one.allocated_devices():
            devices.setdefault(resource, set()).add(device)
    numbers = Counter[tuple[str, object]]()
    for one in ledger.allocations.values():
        numbers.update({("cpu", cpu) for cpu in one.exclusive_cpus})
        numbers.update({(resource, device) for _, resource, device in one.allocated_devices()})
    again = {key: number - 1 for key, number in numbers.items() if number > 1}
    return cpus, devices, again


def said(ledger: Ledger) -> tuple[object, ...]:
    layers = [("cpu", layer) for layer in ledger.parts["cpu"].again]
    for resource, taken in ledger.parts["devices"].items():
        layers += [(resource, layer) for layer in taken.again]
    again = Counter((name, each) for name, layer in layers for each in layer)
    return exclusive_cpus(ledger), dict(allocated_devices(ledger)), dict(again)


@given(RESOURCES, st.randoms(use_true_random=False), st.booleans())
def test_what_several_pods_hold_is_free_once_the_last_of_them_ends(
    resources: list[tuple[int, int, frozenset[str], frozenset[str]]],
    draw: Random,
    at_once: bool,  # noqa: FBT001  (hypothesis)
) -> None:
    allocations = [allocation(f"u-{number}", *single) for number, single in enumerate(resources)]
    empty = RULES.empty_ledger()
    ledger = ledger_with(*allocations) if at_once else empty
    for one in allocations:
        ledger = charged(RULES, ledger, one)
        assert at_once or said(ledger) == derived(ledger)
    changed = draw.choice(allocations)
    ledger = charged(
        RULES, ledger, allocation(changed.uid, draw.randrange(16), gpus=frozenset("b"))
    )
    assert list(ledger.allocations) == [one.uid for one in allocations]
    assert said(ledger) == derived(ledger)
    draw.shuffle(allocations)
    for one in allocations:
        ledger = remove(RULES, ledger, one.uid)
        assert said(ledger) == derived(ledger)
    assert ledger == empty


class Watched(Mapping[str, PodAllocation]):
    """Allocations that note which of them are looked at."""

    def __init__(self, allocations: Mapping[str, PodAllocation]) -> None:
        self._allocations = allocations
        self.looked_at: set[str] = set()

    def __getitem__(self, uid: str) -> PodAllocation:
        self.looked_at.add(uid)
        return self._allocations[uid]

    def __iter__(self) -> Iterator[str]:
        self.looked_at.update(self._allocations)
        return iter(self._allocations)

    def __len__(self) -> int:
        return len(self._allocations)


@pytest.mark.parametrize("twice", [False, True])
def test_a_removal_looks_at_no_other_pod(*, twice: bool) -> None:
    rules = make_rules()
    single = [allocation(f"u-{cpu}", 1 << cpu, gpus=frozenset(str(cpu))) for cpu in range(1, 9)]
    twins = [allocation("twin", 1 << 1, gpus=frozenset("1"))] if twice else []
    ledger = ledger_with(*single, *twins, memory=memory_charge(rules.empty_ledger()))
    watched = Watched(ledger.allocations)
    left = remove(rules, replace(ledger, allocations=SharedMap.of(watched)), "u-1")
    assert watched.looked_at == {"u-1"}
    assert said(left) == derived(left)
    assert (1 in exclusive_cpus(left)) is twice
