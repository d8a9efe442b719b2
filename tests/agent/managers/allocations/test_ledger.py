"""What a ledger derives from its grants, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.allocations.ledger import ContainerGrant, Ledger, PodGrant
from agent.managers.allocations.shared_map import SharedMap
from agent.pods.model import ContainerKind, QosClass
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.hosts import make_rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

GPU, NIC = "example.com/gpu", "example.com/nic"
IDS = st.frozensets(st.sampled_from("abc"), max_size=2)
HOLDINGS = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 15), IDS, IDS), min_size=1, max_size=6
)


def grant(
    uid: str, cpus: int, more: int = 0, gpus: frozenset[str] = frozenset(),
    nics: frozenset[str] = frozenset(),
) -> PodGrant:  # fmt: skip
    """Return a pod of an init container and an app, whose devices may be the same."""
    devices = {GPU: tuple(sorted(gpus)), NIC: tuple(sorted(nics))}
    containers = (
        ContainerGrant("i", ContainerKind.INIT, cpus=Mask(cpus), devices={GPU: tuple(gpus)}),
        ContainerGrant("a", ContainerKind.APP, cpus=Mask(more), devices=devices),
    )
    return PodGrant(uid, "p", "default", QosClass.GUARANTEED, "", containers)


def derived(ledger: Ledger) -> tuple[object, ...]:
    """Return all that follows from the grants, worked out anew."""
    cpus, devices = EMPTY, dict[str, set[str]]()
    for one in ledger.grants.values():
        cpus |= one.exclusive_cpus
        for _, resource, device in one.held_devices():
            devices.setdefault(resource, set()).add(device)
    numbers = dict[tuple[str, str], int]()
    for one in ledger.grants.values():
        own = {("cpu", str(cpu)) for cpu in one.exclusive_cpus}
        own |= {(resource, device) for _, resource, device in one.held_devices()}
        for key in own:
            numbers[key] = numbers.get(key, 0) + 1
    again = {key: number - 1 for key, number in numbers.items() if number > 1}
    return cpus, devices, again


def said(ledger: Ledger) -> tuple[object, ...]:
    return ledger.exclusive_cpus, dict(ledger.devices), dict(ledger.held_again)


@given(HOLDINGS, st.randoms(use_true_random=False), st.booleans())
def test_what_several_pods_hold_is_free_once_the_last_of_them_ends(
    holdings: list[tuple[int, int, frozenset[str], frozenset[str]]],
    draw: Random,
    at_once: bool,  # noqa: FBT001  (hypothesis)
) -> None:
    grants = [grant(f"u-{number}", *held) for number, held in enumerate(holdings)]
    ledger = Ledger.of(grants, {}) if at_once else Ledger()
    for one in grants:
        ledger = ledger.with_grant(one)
        assert at_once or said(ledger) == derived(ledger)
    changed = draw.choice(grants)
    ledger = ledger.with_grant(grant(changed.uid, draw.randrange(16), gpus=frozenset("b")))
    assert list(ledger.grants) == [one.uid for one in grants]
    assert said(ledger) == derived(ledger)
    draw.shuffle(grants)
    for one in grants:
        ledger = ledger.without_grant(one.uid)
        assert said(ledger) == derived(ledger)
    assert ledger == Ledger(grants=ledger.grants)


class Watched(Mapping[str, PodGrant]):
    """Grants that note which of them are looked at."""

    def __init__(self, grants: Mapping[str, PodGrant]) -> None:
        self._grants = grants
        self.looked_at: set[str] = set()

    def __getitem__(self, uid: str) -> PodGrant:
        self.looked_at.add(uid)
        return self._grants[uid]

    def __iter__(self) -> Iterator[str]:
        self.looked_at.update(self._grants)
        return iter(self._grants)

    def __len__(self) -> int:
        return len(self._grants)


@pytest.mark.parametrize("twice", [False, True])
def test_a_removal_looks_at_no_other_pod(*, twice: bool) -> None:
    rules = make_rules()
    held = [grant(f"u-{cpu}", 1 << cpu, gpus=frozenset(str(cpu))) for cpu in range(1, 9)]
    twins = [grant("twin", 1 << 1, gpus=frozenset("1"))] if twice else []
    ledger = Ledger.of([*held, *twins], rules.empty_ledger().memory)
    watched = Watched(ledger.grants)
    left = remove(rules, replace(ledger, grants=SharedMap.of(watched)), "u-1")
    assert watched.looked_at == {"u-1"}
    assert said(left) == derived(left)
    assert (1 in left.exclusive_cpus) is twice
