"""The sets of the cgroups beside the pods': they do without the exclusive CPUs of pods.

In go the exclusive CPUs; out come the `Setting`s of the cgroups at the top of the tree, which the
enforcer writes with those of the pods, so that they shrink before a pod is given CPUs. What a
cgroup had, and what systemd has on record of its unit, is saved before it is narrowed for the
first time. A cgroup that cannot be saved stays as it is, and so does one that uses no exclusive
CPU, and another program's partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.isolation.originals import State
from agent.isolation.places import (
    PLACE_ERRORS,
    set_of_slice,
    set_of_unit,
    slices_of,
    why_not,
)
from agent.state.checkpoint import CheckpointIOError
from cgroupfs.plan import Setting
from sysfs.mask import Mask
from systemd.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.isolation.originals import Custody
    from agent.isolation.places import HostPlaces


class BesidePods(Struct, frozen=True):
    """Which cgroups at the top of the tree stand beside the pods': all that are not named here."""

    #: The cgroup of all pods.
    pods: str
    #: Names of cgroups that are left alone; a `*` at the end stands for anything.
    excepted: tuple[str, ...]

    def of(self, at_top: Iterable[str]) -> list[str]:
        """Return those of the cgroups at the top, sorted."""
        of_pods = self.pods.partition("/")[0]
        return sorted(name for name in at_top if name != of_pods and not self._is_excepted(name))

    def _is_excepted(self, name: str) -> bool:
        return any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for pattern in self.excepted
        )


class HostSlices:
    """The sets of the cgroups beside the pods': in the tree, and of units with systemd.

    `units`: systemd has the host's slices on record, so that their properties are saved, too.
    """

    def __init__(
        self, places: HostPlaces, custody: Custody, beside: BesidePods, *, units: bool
    ) -> None:
        self._places = places
        self._custody = custody
        self.beside = beside
        self._units = units
        #: Whether systemd is asked what it has on record of slices whose cgroups are as written.
        self._compares = False
        #: The places that are narrower than they would be.
        self.held: frozenset[str] = frozenset()
        #: Why slices use exclusive CPUs, by subject: what they had could not be saved.
        self.unsaved: dict[str, str] = {}

    def compare_units(self) -> None:
        """Have the next call of `narrowed` ask systemd, too."""
        self._compares = self._units

    def narrowed(self, whole: Mask, usable: Mask, stay: Mask | None) -> Iterable[Setting]:
        """Save what slices have that are to be narrower; return what these are to have.

        `whole` are all CPUs, `usable` those that no pod has exclusively. Slices without a set are
        to `stay` on these.
        """
        if whole and not usable:
            return ()  # there is nowhere to go: they stay as they are
        home = (stay or whole) & usable or usable
        self.held, self.unsaved = frozenset(), {}
        if home == whole:
            return ()
        settings: dict[str, Setting] = {}
        new: dict[str, str] = {}
        # 1. What each has, and what it is to have.
        for name in self._followers():
            place, unit = set_of_slice(name), set_of_unit(name)
            try:
                changed = self._originals_of(name)
            except FileNotFoundError:
                self.held |= {place, unit}  # systemd keeps a unit's property for the next
                continue
            except PLACE_ERRORS as error:
                self.held |= {place, unit}  # what is narrowed stays so
                self.unsaved[f"isolation {name}"] = f"{name} uses exclusive CPUs: {why_not(error)}"
                continue
            before = changed[place] if place in changed else self._custody.originals[place]
            original = Mask.parse(before) & whole
            # All CPUs are what a slice without a set was given back.
            cpus = home if original == whole else original & usable or home
            if cpus != (original or whole):
                settings[place] = Setting(name, cpus=cpus)
                self.held |= {place, unit}
                new |= changed
        self._compares = False
        # 2. Save that; one that is not saved is not narrowed.
        try:
            self._custody.take(new)
        except CheckpointIOError as error:
            self.unsaved["isolation hostSlices"] = f"the host's slices use all CPUs: {error}"
        saved = self._custody.originals
        for place in settings.keys() & saved:
            for name in {place, set_of_unit(settings[place].cgroup)} & saved.keys():
                self._custody.will_write(name, str(settings[place].cpus))
        return [setting for place, setting in settings.items() if place in saved]

    def _followers(self) -> Sequence[str]:
        """Return the cgroups that are there beside the pods', and units that were narrowed.

        Where the tree cannot be listed there are none, and what is narrowed stays so.
        """
        narrowed = slices_of(self._custody.originals)
        names = frozenset(narrowed.values())
        try:
            there = self._places.at_top()
            partitions = {name for name in there - names if self._places.is_apart(name)}
        except PLACE_ERRORS as error:
            self.held = frozenset(narrowed) | {set_of_unit(name) for name in names}
            self.unsaved["isolation hostSlices"] = (
                f"new cgroups at the top may use exclusive CPUs, they cannot be listed: "
                f"{why_not(error)}"
            )
            return ()
        return self.beside.of(there - partitions | {name for name in names if unit_of(name)})

    def _originals_of(self, name: str) -> Mapping[str, str]:
        """Return what a slice and its unit had, as far as that is not saved already."""
        place, unit = set_of_slice(name), set_of_unit(name)
        shown = self._places.read(place)
        state = self._custody.state(place, shown)
        if state is State.OURS and not self._compares:
            return {}
        changed = {} if state is State.OURS else {place: shown}
        if not self._units or unit_of(name) is None:
            return changed
        try:
            recorded = self._places.read(unit)
        except FileNotFoundError:
            recorded = ""
        except PLACE_ERRORS:
            if state is State.UNTOUCHED:
                raise
            return {}  # the next comparison says who wrote it
        if self._custody.state(unit, recorded) is not State.OURS:
            return {**changed, unit: recorded}
        if not self._places.at(place).same(shown, recorded):
            return changed
        # systemd may write what it had on record of the agent's before.
        originals = self._custody.originals
        return {place: originals.get(place, originals[unit])}
