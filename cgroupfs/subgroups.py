"""Pinning what a runtime put inside a container's cgroup together with the container.

crun (and podman with it) moves the process into `<scope>/container`. Pinning only the scope works
until somebody writes the inner one; pinning only the inner one never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgroupfs.names import runtime_subgroups
from cgroupfs.plan import Setting
from cgroupfs.state import CPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cgroupfs.tree import Tree


def with_subgroups(tree: Tree, settings: Iterable[Setting]) -> Iterator[Setting]:
    """Yield each container's setting, and the same sets for its runtime-made cgroup inside.

    The quota stays with the container alone: it counts for everything inside. Inner cgroups
    without the cpuset controller follow the container anyway and get nothing. Give it settings of
    containers only, not of pods.
    """
    for setting in settings:
        yield setting
        for inner in runtime_subgroups(tree, setting.cgroup):
            if tree.read_many(inner, (CPUS,)) != (None,):
                yield Setting(
                    inner,
                    cpus=setting.cpus,
                    mems=setting.mems,
                    exclusive=setting.exclusive,
                    move_memory=setting.move_memory,
                )
