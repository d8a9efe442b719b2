"""One pass over the host-wide settings: read, save, write, read back, and note what came of it.

In go the settings that places are to have; out come what could not be as asked and how many were
written (`Pass`). A place is written only after its original was saved
(`agent.isolation.originals`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent.isolation.originals import ImmovableError
from agent.isolation.places import PLACE_ERRORS, why_not
from agent.isolation.report import MOST_NAMED
from agent.isolation.rows import text_to_write
from agent.text import some_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.isolation.originals import Custody
    from agent.isolation.places import HostPlaces
    from agent.isolation.report import LateInterrupt
    from agent.isolation.rows import DesiredSetting


class Pass(Struct):
    """What came of one pass."""

    #: What is not as asked, by subject.
    conditions: dict[str, str]
    #: Whether all settings are compared.
    thorough: bool
    #: Why a place is not as it should be, by place.
    failed: dict[str, str] = field(default_factory=dict)
    #: The items of which the host lacks settings, each with why.
    missing: set[tuple[str, str]] = field(default_factory=set)
    #: The interrupts that still come to exclusive CPUs.
    late: list[LateInterrupt] = field(default_factory=list)
    written: int = 0

    def lines(self) -> Mapping[str, str]:
        """Return what is not as asked, by subject."""
        lines = dict(self.conditions)
        for item in sorted({item for item, _ in self.missing}):
            why = "; ".join(sorted(why for of, why in self.missing if of == item))
            lines[f"isolation {item}"] = f"{item} changes less than asked: {why}"
        for why in sorted({*self.failed.values()}):
            places = [f"/{place}" for place, reason in self.failed.items() if reason == why]
            lines[f"isolation {places[0]}"] = (
                f"not as desired: {some_of(places, MOST_NAMED)}: {why}"
            )
        if self.late:
            late = some_of(sorted(map(str, self.late)), MOST_NAMED)
            lines["isolation interrupts"] = f"still delivered to exclusive CPUs: {late}"
        return MappingProxyType(lines)


class _Change(Struct, frozen=True):
    """A place that is to be written."""

    name: str
    shown: str
    text: str


class SettingWriter:
    """Writes places; `immovable` ones are not tried again while they show the same."""

    def __init__(self, places: HostPlaces, custody: Custody) -> None:
        self._places = places
        self._custody = custody
        #: What the kernel would not have written, by place: the text that was there then.
        self._immovable: dict[str, str] = {}

    def hold(self, pass_: Pass, desired: Mapping[str, DesiredSetting]) -> None:
        """Have the places of `desired`, by name, show what they are to."""
        changes: list[_Change] = []
        #: What new places show, which is saved before the first write.
        new: dict[str, str] = {}
        #: Places that are as they should be without the agent.
        untouched: set[str] = set()
        # 1. Read all, and see which have to change.
        for name, setting in desired.items():
            if self._places.at(name).many and not pass_.thorough:
                self._places.keep_open(name)  # most are written
            try:
                shown = self._places.read(name)
                original = self._custody.original(name, shown)
                text = text_to_write(setting, shown, original)
            except FileNotFoundError:
                if setting.row.missing:
                    pass_.missing.add((setting.row.item, setting.row.missing))
            except PLACE_ERRORS as error:
                pass_.failed[name] = why_not(error)
            else:
                if text is not None and self._immovable.get(name) != shown:
                    changes.append(_Change(name, shown, text))
                    new |= {name: shown} if original is None else {}
                elif original is None:
                    untouched.add(name)
        # 2. Save what these had.
        self._custody.take(new)
        self._custody.forget(untouched)
        # 3. Write them, and once more those that failed: one may depend on another, as the lowest
        #    frequency on the highest.
        failed = [change for change in changes if not self._write(pass_, change, last=False)]
        for change in failed:
            self._write(pass_, change, last=True)
        # 4. Forget what was saved and could not be written.
        self._custody.forget({name for name in new if not self._custody.wrote(name)})

    def _write(self, pass_: Pass, change: _Change, *, last: bool) -> bool:
        """Write a place; return False where that is to be tried again, which `last` rules out."""
        try:
            self._custody.write(change.name, change.text, many=not pass_.thorough)
        except ImmovableError:
            self._immovable[change.name] = change.shown
        except FileNotFoundError:
            pass  # it has ended
        except PLACE_ERRORS as error:
            if last:
                pass_.failed[change.name] = why_not(error)
            return False
        else:
            pass_.written += 1
        return True
