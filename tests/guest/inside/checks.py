"""Checks: each is recorded with its outcome, printed as it falls, and never stops a scenario."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Between two checks of something that is awaited, in seconds.
PAUSE: Final = 0.2
#: Seconds until what must come has to be there. A host at load 10 makes a guest ten times slower,
#: and a wait that succeeds costs nothing.
PATIENCE: Final = 300.0
#: The same once a check has failed: the scenario is lost, and the first failure is the most useful.
HURRIED: Final = 60.0
#: Seconds after which a program or a request is stuck.
STUCK: Final = 600.0


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about the guest, and whether it is true."""

    name: str
    passed: bool
    detail: str


class Stopped(Exception):  # noqa: N818 - it is a verdict, not a mistake of the harness
    """A condition that the rest of a scenario needs was not met."""


@dataclass(slots=True)
class Checks:
    """The checks of one scenario, in order."""

    done: list[Check] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def check(self, name: str, condition: object, detail: object = "") -> bool:
        """Record whether a statement holds; `detail` is what was found."""
        outcome = Check(name, bool(condition), str(detail))
        self.done.append(outcome)
        word = "ok  " if outcome.passed else "FAIL"
        seconds = time.monotonic() - self.started
        print(f"{word} {seconds:6.1f} {len(self.done)} {name}: {outcome.detail}", flush=True)
        return outcome.passed

    def equal(self, name: str, found: object, expected: object, where: object = "") -> bool:
        """Record whether `found` is as expected; `where` is reported when it is not."""
        same = found == expected
        return self.check(name, same, found if same else difference(found, expected, where))

    def eventually(
        self, name: str, found: Callable[[], object], expected: object, where: object = ""
    ) -> bool:
        """Record whether something becomes what is expected in good time (`PATIENCE`).

        A file or a process that is not there (yet) is something else than what is expected.
        """

        def answer() -> object:
            try:
                return found()
            except OSError as error:
                return error

        last = answer()
        deadline = time.monotonic() + (HURRIED if self.failed else PATIENCE)
        while last != expected and time.monotonic() < deadline:
            time.sleep(PAUSE)
            last = answer()
        return self.equal(name, last, expected, where)

    def require(self, name: str, condition: object, detail: object = "") -> None:
        """Record a statement and stop the scenario unless it holds."""
        if not self.check(name, condition, detail):
            raise Stopped(name)

    @property
    def failed(self) -> list[Check]:
        """The checks that did not hold."""
        return [check for check in self.done if not check.passed]


def difference(found: object, expected: object, where: object = "") -> str:
    """Return what was found and what was expected; of two dictionaries only what differs."""
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [key for key in found | expected if found.get(key) != expected.get(key)]
        found = {key: found[key] for key in keys if key in found}
        expected = {key: expected[key] for key in keys if key in expected}
    place = f" in {where}" if where else ""
    return f"found {_shown(found)}, expected {_shown(expected)}{place}"


def _shown(value: object) -> str:
    """Return a value as it is read: the members of a set in their order."""
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(repr, sorted(value)))}}}"
    return repr(value)


def wait_until(predicate: Callable[[], object], timeout: float = PATIENCE) -> bool:
    """Ask until the answer is true, or `timeout` seconds have passed; return whether it was."""
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True
