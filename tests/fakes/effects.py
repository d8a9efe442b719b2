"""Everything that an agent does to the world, counted, so that a test can stop or spoil each step.

One count goes through the checkpoint's files, the cgroup tree and systemd's bus, in the order in
which things are done. A step is an effect when it changes something, else a look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tests.fakes.kernel import Died
from tests.fakes.one_by_one import OneByOne

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from agent.state.store import Files
    from cgroupfs.tree import CgroupTree, TreeLock
    from systemd.bus import ActiveState, Systemd
    from systemd.units import Property

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
        return self.fault(step, act)  # type: ignore[return-value]  # what `act` returned


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
        self._do = effects.do

    def create(self, path: Path) -> int:
        return self._do(lambda: self._files.create(path), _FILES, "create", path.name)

    def write(self, fd: int, data: memoryview) -> int:
        def half() -> int:
            return self._files.write(fd, data[: len(data) // 2])

        return self._do(lambda: self._files.write(fd, data), _FILES, "write", half=half)

    def fsync(self, fd: int) -> None:
        self._do(lambda: self._files.fsync(fd), _FILES, "fsync")

    def close(self, fd: int) -> None:
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


class CountedTree:
    def __init__(self, tree: CgroupTree, effects: Effects) -> None:
        self._tree = tree
        self._do = effects.do

    def read(self, path: str, file: str) -> str:
        where = f"{path}/{file}"
        return self._do(lambda: self._tree.read(path, file), _TREE, "read", where, is_effect=False)

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        return self._do(
            lambda: self._tree.read_many(path, files), _TREE, "read", path, is_effect=False
        )

    def write(self, path: str, file: str, value: str) -> None:
        what = f"{path}/{file} {value}"
        self._do(lambda: self._tree.write(path, file, value), _TREE, "write", what)

    def mkdir(self, path: str) -> None:
        self._do(lambda: self._tree.mkdir(path), _TREE, "mkdir", path)

    def rmdir(self, path: str) -> None:
        self._do(lambda: self._tree.rmdir(path), _TREE, "rmdir", path)

    def exists(self, path: str) -> bool:
        return self._do(lambda: self._tree.exists(path), _TREE, "exists", path, is_effect=False)

    def children(self, path: str) -> tuple[str, ...]:
        return self._do(lambda: self._tree.children(path), _TREE, "children", path, is_effect=False)

    def listed(self, path: str) -> dict[str, bool]:
        return self._do(lambda: self._tree.listed(path), _TREE, "listed", path, is_effect=False)

    def procs(self, path: str) -> tuple[int, ...]:
        return self._do(lambda: self._tree.procs(path), _TREE, "procs", path, is_effect=False)

    def lock(self) -> TreeLock:
        return self._tree.lock()


class CountedSystemd(OneByOne):
    def __init__(self, systemd: Systemd, effects: Effects) -> None:
        self._systemd = systemd
        self._do = effects.do

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        self._do(lambda: self._systemd.start_transient(unit, properties), _BUS, "start", unit)

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self._do(lambda: self._systemd.set_properties(unit, properties), _BUS, "set", unit)

    def stop(self, unit: str) -> None:
        self._do(lambda: self._systemd.stop(unit), _BUS, "stop", unit)

    def active_state(self, unit: str) -> ActiveState:
        return self._do(
            lambda: self._systemd.active_state(unit), _BUS, "state", unit, is_effect=False
        )

    def control_group(self, unit: str) -> str:
        return self._do(
            lambda: self._systemd.control_group(unit), _BUS, "cgroup", unit, is_effect=False
        )

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        return self._do(
            lambda: self._systemd.unit_properties(unit, *names),
            _BUS,
            "properties",
            unit,
            is_effect=False,
        )
