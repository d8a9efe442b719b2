"""The life of an original: saved, kept beside what others write, given back, forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.isolation.originals import Custody, Originals, State
from cgroupfs.names import Driver
from sysfs.mask import EMPTY, Mask
from tests.agent.isolation.hosts import BOOT, FaultyPlaces, Host, quiet
from tests.agent.isolation.test_slices import Machine, administrator_sets
from tests.agent.reconcile.pods import exclusive, pod, target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME: Final = "proc/irq/5/smp_affinity_list"
ALL: Final = Mask.parse("0-7")
#: What is exclusive from then on, or (True) what an administrator sets.
STEPS: Final = st.lists(
    st.tuples(st.booleans(), st.sets(st.integers(1, 7), max_size=6).map(Mask.from_ids)), max_size=8
)


def without(chosen: Mask, taken: Mask, whole: Mask) -> Mask:
    """Return what is left of a set: the same, without what is exclusive, or all others."""
    return chosen - taken or whole - taken


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_original_is_saved_before_it_is_written_and_forgotten_when_it_shows_again(
    host: Host,
) -> None:
    places = FaultyPlaces(host.root)
    custody = Custody(places, Originals(host.state, BOOT))
    assert custody.state(NAME, "0-7\n") is State.UNTOUCHED
    custody.take({NAME: "0-7\n"})
    assert host.saved() == {NAME: "0-7\n"}
    custody.write(NAME, "0-1")
    assert custody.state(NAME, host.shows(NAME)) is State.OURS
    assert custody.state(NAME, "0-2\n") is State.CHANGED
    # After a start whatever it shows counts as the agent's.
    assert Custody(places, Originals(host.state, BOOT)).state(NAME, "0-2\n") is State.OURS
    assert custody.give_back([NAME]) == ({}, 1)
    assert (host.shows(NAME), host.saved()) == ("0-7\n", {})
    assert custody.state(NAME, host.shows(NAME)) is State.UNTOUCHED


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_file_has_what_was_chosen_last_without_what_is_exclusive(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[bool, Mask]]
) -> None:
    host = Host(tmp_path_factory.mktemp("host"))
    isolation, _ = host.start()
    chosen, taken = ALL, EMPTY
    for sets, cpus in [*steps, (False, EMPTY)]:
        if not sets:
            taken = cpus
        elif cpus and cpus != Mask.parse(host.shows(NAME)):
            chosen = cpus
            host.put(NAME, f"{cpus}\n")
        isolation.apply([quiet(str(taken))] if taken else [], (), thorough=True)
        assert Mask.parse(host.shows(NAME)) == without(chosen, taken, ALL)
    assert host.saved() == {}


@pytest.mark.parametrize("driver", Driver)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_slice_has_what_was_chosen_last_without_what_is_exclusive(
    tmp_path_factory: pytest.TempPathFactory, driver: Driver, steps: Sequence[tuple[bool, Mask]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"), driver)
    whole = Mask.parse("0-15")
    chosen, taken = whole, EMPTY
    for sets, cpus in [*steps, (False, EMPTY)]:
        if not sets:
            taken = cpus
        elif cpus and cpus != Mask.parse(machine.uses("system.slice")):
            chosen = cpus
            administrator_sets(machine, str(cpus))
        desired = target(pod(exclusive("main", str(taken)))) if taken else target()
        for _ in range(2):  # so that what was shown before is no longer the agent's
            machine.repair(desired)
        assert machine.uses("system.slice") == str(without(chosen, taken, whole))
    assert Originals(machine.state, BOOT).load() == {}
