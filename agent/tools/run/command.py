"""Starting a command in a pod of its own: the calling process becomes the command."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.client import AgentError, Unreachable
from agent.api.documents import BindRequest
from agent.tools.run.entering import enter, why_elsewhere
from agent.tools.run.environment import environment, not_given
from agent.tools.run.pod import CONTAINER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.api.client import AgentClient
    from agent.api.documents import ContainerDocument, PodDocument
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd

#: Signals that Python ignores; what is ignored stays so over an execve.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class NotStartedError(Exception):
    """A command was not started; the message says why and what to do."""


class NotConfinedError(NotStartedError):
    """The kernel does not confine the process to what was allocated."""


class OwnProcess(Struct, frozen=True):
    """The process that becomes the command, and how it reaches the host.

    `status` returns its `/proc/PID/status`. `execute` replaces it (`os.execve`): path of the
    program, arguments, environment.
    """

    pid: int
    tree: Callable[[], CgroupTree]
    systemd: Callable[[], Systemd]
    status: Callable[[], str]
    execute: Callable[[str, Sequence[str], Mapping[str, str]], None]


def this_process(mount: Path) -> OwnProcess:
    """Return this process, on the host whose cgroups are mounted at `mount`."""

    # Imported here: only one of the two is used, and D-Bus takes time.
    def tree() -> CgroupTree:
        from cgroupfs.tree import KernelTree  # noqa: PLC0415

        return KernelTree(mount)

    def systemd() -> Systemd:
        from systemd.bus import SystemBus  # noqa: PLC0415

        return SystemBus()

    return OwnProcess(os.getpid(), tree, systemd, Path("/proc/self/status").read_text, _become)


def start(
    caller: OwnProcess,
    agent: AgentClient,
    pod: PodDocument,
    program: str,
    arguments: Sequence[str],
    inherited: Mapping[str, str],
) -> None:
    """Let the caller become a command in the container of an admitted pod.

    Nothing follows after that, unless `OwnProcess.execute` stands in for it and returns.
    The cgroup exists, the agent has set it and the kernel confines the caller to the container's
    CPUs and memory nodes before the command's first instruction. If anything of that fails the pod
    is removed. Raises `NotStartedError`, `AgentError`, `OSError` and `SystemdError`.
    """
    try:
        container = _confine(caller, agent, pod)
        caller.execute(program, arguments, environment(pod, container, inherited))
    except BaseException:
        # The agent frees the pod in any case, but only after a while.
        with suppress(AgentError, Unreachable):
            agent.remove(pod.uid)
        raise


def _confine(caller: OwnProcess, agent: AgentClient, pod: PodDocument) -> ContainerDocument:
    """Move the caller into the cgroup of the pod's container, and return the container."""
    (container,) = pod.containers
    missing = not_given(container.delivery)
    if missing:
        raise NotStartedError(
            f"a process of the host cannot get {missing}; start a container instead"
        )
    if not pod.kernel:
        raise NotConfinedError(f"the cgroup of pod {pod.uid} does not exist; see the agent's log")
    pod_cgroup = pod.kernel[0].cgroup.strip("/")
    cgroup = enter(caller.pid, pod_cgroup, pod.uid, caller.tree, caller.systemd)
    bound = agent.bind(pod.uid, CONTAINER, BindRequest(cgroup=f"/{cgroup}"))
    lacking = "; ".join(bound.enforcement.differences)
    elsewhere = why_elsewhere(caller.status(), container)
    if lacking or elsewhere:
        detail = lacking or f"the kernel would let it run on {elsewhere}"
        raise NotConfinedError(f"the command was not started in /{cgroup}: {detail}")
    return container


def _become(program: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    os.execve(program, list(arguments), variables)  # noqa: S606  # it is what the user asked for
