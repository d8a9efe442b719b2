"""Cgroups that a pod or a user nests as deep as no call goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agent.reconcile.drivers import DirectoryCgroups
from cgroupfs.partitions import partitions
from cgroupfs.tree import descendants
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgroupfs.tree import CgroupTree


class Nested:
    """One cgroup in another: what these functions ask of a tree (the emulated one recurses)."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.left = depth
        self.last = "/".join([name] * depth)
        self.pids: tuple[int, ...] = (4711,)

    def read(self, _path: str, _file: str) -> str:
        return f"populated {len(self.pids)}\n"

    def read_many(self, path: str, _files: Sequence[str]) -> tuple[str | None, ...]:
        return "root\n" if path == self.last else "member\n", "3\n", "3\n", "3\n"

    def exists(self, _path: str) -> bool:
        return True

    def children(self, path: str) -> tuple[str, ...]:
        return () if len(path.split("/")) == self.left and path else (self.name,)

    def procs(self, path: str) -> tuple[int, ...]:
        return self.pids if path == self.last else ()

    def rmdir(self, path: str) -> None:
        assert len(path.split("/")) == self.left
        self.left -= 1


def of(nested: Nested) -> CgroupTree:
    return cast("CgroupTree", nested)


def test_they_are_removed_when_their_processes_have_ended() -> None:
    nested = Nested("d", 1500)
    pods = DirectoryCgroups(of(nested))
    assert pods.remove("d").processes == (4711,)
    nested.pids = ()
    assert pods.remove("d").removed
    assert nested.left == 0


def test_a_partition_is_found_below_them() -> None:
    nested = Nested("d", 1500)
    assert list(partitions(of(nested))) == [(nested.last, Mask.of(3))]


def test_what_no_path_reaches_is_left_out() -> None:
    name = "\N{GREEK SMALL LETTER ALPHA}" * 100  # of two bytes each
    assert len(list(descendants(of(Nested(name, 1500)), ""))) == 4096 // 201
