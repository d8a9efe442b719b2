"""The search: all stories of a world, depth first, each moment once.

A world cannot be copied. So each branch is played from the start, unchecked as far as another
story has come already; a moment whose mark was met before is not followed again.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from tests.exploration.stage import DISTURBANCES, KINDS
from tests.exploration.world import LONGEST, BrokenError, World

if TYPE_CHECKING:
    from collections.abc import Iterator


class Scenario(Struct, frozen=True):
    """The kinds of the requests in the order in which they come, and one disturbance."""

    kinds: tuple[str, ...]
    disturbance: str = ""

    def __str__(self) -> str:
        return f"{', '.join(self.kinds)}; {self.disturbance or 'nothing else'}"


class Tally(Struct):
    """How much was explored."""

    states: int = 0
    stories: int = 0
    #: Whether time was over before all was explored.
    cut: bool = False
    #: What is broken, with the story that shows it; "" for nothing.
    broken: str = ""


def scenarios(size: int) -> Iterator[Scenario]:
    """Yield all scenarios of so many requests."""
    for disturbance in DISTURBANCES:
        for kinds in itertools.product(KINDS, repeat=size):
            if _differs(kinds):
                yield Scenario(kinds, disturbance)


def _differs(kinds: tuple[str, ...]) -> bool:
    """Return whether kinds make a scenario of their own.

    There is one pod to replace, and one device of a kind; a pod that is asked for again was asked
    for before, and its name can be known only then.
    """
    if kinds[0] in {"again", "namesake"} or ("again" in kinds and kinds[0] in {"replaces", "left"}):
        return False
    return all(kinds.count(kind) <= 1 for kind in ("replaces", "comes", "fails", "hangs"))


def explore(scenario: Scenario, latest: float = float("inf")) -> Tally:
    """Play all stories of a scenario until `latest` (monotonic), at most to a broken one."""
    search = _Search(scenario)
    while search.left and not search.tally.broken:
        if time.monotonic() > latest:
            search.tally.cut = True
            break
        search.play(search.left.pop())
    return search.tally


class _Search:
    """The search through one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        #: The beginnings of stories that are still to be played.
        self.left: list[tuple[str, ...]] = [()]
        self.tally = Tally()
        self._met: set[bytes] = set()

    def play(self, beginning: tuple[str, ...]) -> None:
        """Play one story from its beginning until it ends or comes to a moment that was met."""
        world = World(self._scenario.kinds, self._scenario.disturbance)
        self.tally.stories += 1
        story = list(beginning)
        try:
            for choice in beginning[:-1]:
                world.do(choice, check=False)
            for choice in beginning[-1:]:
                world.do(choice)
            self._go_on(world, story)
        except BrokenError as error:
            self.tally.broken = f"{error} after {' | '.join(story)}"
        finally:
            world.close()

    def _go_on(self, world: World, story: list[str]) -> None:
        while self._meets(world):
            choices = world.choices()
            if not choices:
                world.check_end()
                return
            if len(story) == LONGEST:
                raise BrokenError("the story does not end")
            self.left.extend((*story, choice) for choice in choices[1:])
            story.append(choices[0])
            world.do(choices[0])

    def _meets(self, world: World) -> bool:
        """Return whether a moment is met for the first time."""
        mark = world.mark()
        if mark in self._met:
            return False
        self._met.add(mark)
        self.tally.states += 1
        return True
