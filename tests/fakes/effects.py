"""Everything that an agent does to the world, counted, so that a test can stop or spoil each step.

One count goes through the checkpoint's files, the cgroup tree and systemd's bus, in the order in
which things are done. A step is an effect when it changes something, else a look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tests.fakes.kernel import Died, SteppedTree
from tests.fakes.one_by_one import SteppedSystemd

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from agent.state.store import Files
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd

_Result = TypeVar("_Result")
_FILES, _TREE, _BUS = "file", "cgroup", "bus"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its number from 1, who is asked (`file`, `cgroup`, `bus`), for what.

    `half` does a part of it, where a part can be done.
    """

    number: int
    where: str
    name: str
    subject: str
    is_effect: bool
    half: Callable[[], object] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.number}: {self.where} {self.name} {self.subject}"


#: Called with a step and what would do it; does it, or raises, or both.
Fault = Callable[[Step, Callable[[], object]], object]


@dataclass
class Effects:
    """Counts steps and passes each on to `fault`; with `looks` False only effects are counted."""

    fault: Fault | None = None
    looks: bool = True
    log: list[Step] = field(default_factory=list)
    #: Whether the process is gone.
    died: bool = False

    def do(
        self,
        act: Callable[[], _Result],
        where: str,
        name: str,
        subject: object = "",
        *,
        is_effect: bool = True,
        half: Callable[[], object] | None = None,
    ) -> _Result:
        if not is_effect and not self.looks:
            return act()
        step = Step(len(self.log) + 1, where, name, str(subject), is_effect, half)
        self.log.append(step)
        if self.fault is None:
            return act()
        try:
            return self.fault(step, act)  # type: ignore[return-value]  # what `act` returned
        except Died:
            self.died = True
            raise


def die_before(number: int) -> Fault:
    """Return a fault: the process is gone before a step, so that nothing follows."""

    def fault(step: Step, act: Callable[[], object]) -> object:
        if step.number >= number:
            raise Died(str(step))
        return act()

    return fault


def die_after(number: int) -> Fault:
    """Return a fault: a step is done, and the process gone before it hears of it."""

    def fault(step: Step, act: Callable[[], object]) -> object:
        if step.number > number:
            raise Died(str(step))
        result = act()
        if step.number == number:
            raise Died(str(step))
        return result

    return fault


def die_amid(number: int) -> Fault:
    """Return a fault: the process is gone when a part of a step is done."""

    def fault(step: Step, act: Callable[[], object]) -> object:
        if step.number < number:
            return act()
        if step.number == number and step.half is not None:
            step.half()
        raise Died(str(step))

    return fault


def fail(number: int, error: Exception, *, done: bool = False) -> Fault:
    """Return a fault: one step is answered with an error, although `done` perhaps."""

    def fault(step: Step, act: Callable[[], object]) -> object:
        if step.number != number:
            return act()
        if done:
            act()
        raise error

    return fault


def fail_all(where: str, name: str, error: Exception) -> Fault:
    """Return a fault: every step of one kind is answered with an error."""

    def fault(step: Step, act: Callable[[], object]) -> object:
        if (step.where, step.name) == (where, name):
            raise error
        return act()

    return fault


class CountedFiles:
    """`Files` whose every operation is a step."""

    def __init__(self, files: Files, effects: Effects) -> None:
        self._files = files
        self._effects, self._do = effects, effects.do

    def create(self, path: Path) -> int:
        return self._do(lambda: self._files.create(path), _FILES, "create", path.name)

    def write(self, fd: int, data: memoryview) -> int:
        def half() -> int:
            return self._files.write(fd, data[: len(data) // 2])

        return self._do(lambda: self._files.write(fd, data), _FILES, "write", half=half)

    def fsync(self, fd: int) -> None:
        self._do(lambda: self._files.fsync(fd), _FILES, "fsync")

    def close(self, fd: int) -> None:
        if self._effects.died:
            # The kernel closes what a process left open. No step: it may be the collector of
            # garbage that gets here, amid another test.
            self._files.close(fd)
            return
        self._do(lambda: self._files.close(fd), _FILES, "close")

    def rename(self, source: Path, target: Path) -> None:
        self._do(lambda: self._files.rename(source, target), _FILES, "rename", target.name)

    def sync_directory(self, path: Path) -> None:
        self._do(lambda: self._files.sync_directory(path), _FILES, "sync_directory")

    def remove(self, path: Path) -> None:
        self._do(lambda: self._files.remove(path), _FILES, "remove", path.name)

    def status(self, path: Path) -> os.stat_result:
        return self._do(
            lambda: self._files.status(path), _FILES, "status", path.name, is_effect=False
        )

    def read(self, path: Path) -> bytes:
        return self._do(lambda: self._files.read(path), _FILES, "read", path.name, is_effect=False)

    def names(self, path: Path) -> list[str]:
        return self._do(lambda: self._files.names(path), _FILES, "names", is_effect=False)

    def free(self, path: Path) -> int:
        return self._do(lambda: self._files.free(path), _FILES, "free", is_effect=False)


class CountedTree(SteppedTree):
    def __init__(self, tree: CgroupTree, effects: Effects) -> None:
        self.inner = tree
        self._do = effects.do

    def step(
        self, act: Callable[[], _Result], name: str, path: str, file: str = "", value: str = ""
    ) -> _Result:
        several = not file or "," in file
        subject = path if several else f"{path}/{file} {value}".rstrip()
        is_effect = name in ("write", "mkdir", "rmdir")
        return self._do(act, _TREE, name, subject, is_effect=is_effect)


class CountedSystemd(SteppedSystemd):
    def __init__(self, systemd: Systemd, effects: Effects) -> None:
        self.inner = systemd
        self._do = effects.do

    def step(self, act: Callable[[], _Result], name: str, unit: str) -> _Result:
        return self._do(act, _BUS, name, unit, is_effect=name in ("start", "set", "stop"))
