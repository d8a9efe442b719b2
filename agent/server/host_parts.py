"""The parts of the host that an agent works on: the kernel's own, or those of tests and the demo.

In go the configuration and the replacements (`Fakes`). Out come the parts (`HostParts`). If the
cgroup tree is replaced, the host's processes and runtimes are not read: none of them is in that
tree.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from agent.reconcile.diff import unknown_writer
from agent.reconcile.start_checks import open_tree
from agent.reconcile.tasks import read_tasks
from agent.runtimes import RuntimeFiles
from agent.server.host_reader import most_processes
from cgroupfs.tree import counts_huge_pages
from cgroupfs.writers import CgroupWriters, Fanotify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from agent.config.agent import AgentConfig
    from agent.reconcile.diff import WriterOf
    from agent.reconcile.tasks import Task
    from agent.runtimes import ContainerIdentifier
    from agent.server.plugs import Fakes
    from cgroupfs.tree import CgroupTree

log = structlog.get_logger(__name__)

#: Processes are those of the running kernel, whatever `agent.sysfsRoot` is.
PROC: Final = Path("/proc")


class HostParts(Struct, frozen=True):
    """The parts of one host."""

    tree: CgroupTree
    #: Identifies containers by the files of runtimes; None where there are none.
    identifier: ContainerIdentifier | None
    #: Reads the tasks of the host.
    tasks: Callable[[], Iterable[Task]] = tuple
    #: Names the process that wrote a file of the tree last.
    writer_of: WriterOf = unknown_writer
    #: Whether the kernel counts huge pages of hugetlbfs as memory of a cgroup.
    counts_huge_pages: bool = False
    #: How many processes the kernel allows; 0 if it is not known.
    most_processes: int = 0


def open_host(config: AgentConfig, fakes: Fakes, opened: ExitStack) -> HostParts:
    """Return the parts of the host; `opened` closes what was opened.

    Raises `EnforcementStartError` if the cgroup tree cannot be used.
    """
    if fakes.tree is None:
        return HostParts(
            open_tree(config.cgroup_mount),
            _identifier(fakes.runtimes or Path("/")),
            fakes.tasks or partial(read_tasks, PROC),
            _open_writers(config.cgroup_mount, opened),
            counts_huge_pages(PROC),
            most_processes(PROC),
        )
    return HostParts(
        fakes.tree,
        None if fakes.runtimes is None else _identifier(fakes.runtimes),
        fakes.tasks or tuple,
        fakes.writer_of,
    )


def _identifier(root: Path) -> ContainerIdentifier:
    return RuntimeFiles(root, lambda why: log.warning("runtime file unusable", why=why))


def _open_writers(mount: Path, opened: ExitStack) -> WriterOf:
    """Return what names the processes that write cgroup files, where the kernel reports them."""
    try:
        events = Fanotify(mount)
    except OSError as error:
        log.info("writers of cgroup files not known", why=error.strerror)
        return unknown_writer
    writers = CgroupWriters(mount, PROC, events)
    opened.callback(writers.close)
    log.info("writers of cgroup files are recorded")
    return writers.writer_of
