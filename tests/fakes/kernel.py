"""A tree that can fail: counts what is done to another tree, and makes it go wrong on request."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from cgroupfs.settings import CPU_MAX, CpuMax
from cgroupfs.state import read_state
from cgroupfs.tree import parent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cgroupfs.state import CgroupState
    from cgroupfs.tree import CgroupTree, TreeLock

_Result = TypeVar("_Result")


class Died(BaseException):
    """The process was killed here: not an `Exception`, so that no handler survives it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a tree that changes something or could fail."""

    number: int
    name: str
    path: str
    file: str = ""
    value: str = ""


#: Called before an operation is done; raises to make it fail.
Fault = Callable[[Operation], None]


def die_at(number: int) -> Fault:
    """Return a fault: the process is gone before the nth operation (from 1)."""

    def fault(operation: Operation) -> None:
        if operation.number >= number:
            raise Died(str(operation))

    return fault


def reject_writes(path: str, file: str, code: int) -> Fault:
    """Return a fault: every write of one file is rejected with an errno."""

    def fault(operation: Operation) -> None:
        if (operation.name, operation.path, operation.file) == ("write", path, file):
            raise OSError(code, os.strerror(code), path)

    return fault


class SteppedTree:
    """A `CgroupTree` around another, whose every operation is a `step`."""

    inner: CgroupTree

    def step(
        self, act: Callable[[], _Result], name: str, path: str, file: str = "", value: str = ""
    ) -> _Result:
        raise NotImplementedError

    def read(self, path: str, file: str) -> str:
        return self.step(lambda: self.inner.read(path, file), "read", path, file)

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        return self.step(lambda: self.inner.read_many(path, files), "read", path, ",".join(files))

    def write(self, path: str, file: str, value: str) -> None:
        self.step(lambda: self.inner.write(path, file, value), "write", path, file, value)

    def mkdir(self, path: str) -> None:
        self.step(lambda: self.inner.mkdir(path), "mkdir", path)

    def rmdir(self, path: str) -> None:
        self.step(lambda: self.inner.rmdir(path), "rmdir", path)

    def exists(self, path: str) -> bool:
        return self.step(lambda: self.inner.exists(path), "exists", path)

    def children(self, path: str) -> tuple[str, ...]:
        return self.step(lambda: self.inner.children(path), "children", path)

    def listed(self, path: str) -> dict[str, bool]:
        return self.step(lambda: self.inner.listed(path), "listed", path)

    def procs(self, path: str) -> tuple[int, ...]:
        return self.step(lambda: self.inner.procs(path), "procs", path)

    def lock(self) -> TreeLock:
        return self.inner.lock()


@dataclass
class FaultyTree(SteppedTree):
    """A tree that logs every operation but `exists` and asks `fault` before doing it."""

    inner: CgroupTree
    fault: Fault | None = None
    log: list[Operation] = field(default_factory=list)

    @property
    def writes(self) -> list[tuple[str, str, str]]:
        return [(op.path, op.file, op.value) for op in self.log if op.name == "write"]

    def step(
        self, act: Callable[[], _Result], name: str, path: str, file: str = "", value: str = ""
    ) -> _Result:
        if name == "exists":
            return act()
        operation = Operation(len(self.log) + 1, name, path, file, value)
        self.log.append(operation)
        if self.fault is not None:
            self.fault(operation)
        return act()


def quota(quota_us: int | None = None) -> dict[str, str]:
    """Return a `cpu.max` of so many microseconds in 100,000 as a value; None is unlimited."""
    return {CPU_MAX: str(CpuMax(quota_us))}


def effective_cpus(tree: CgroupTree, path: str) -> str:
    """Return the CPUs that a cgroup has; without the cpuset controller it has its parent's."""
    text = tree.read_many(path, ("cpuset.cpus.effective",))[0]
    return effective_cpus(tree, parent(path)) if text is None else text.strip()


def read_states(tree: CgroupTree, paths: Iterable[str]) -> dict[str, CgroupState]:
    """Read several cgroups by path; those that are gone are left out."""
    found = ((path, read_state(tree, path)) for path in paths)
    return {path: state for path, state in found if state is not None}
