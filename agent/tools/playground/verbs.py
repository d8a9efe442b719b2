"""The commands of the playground's shell: what a runtime, systemd and an accident do to a host.

`python -m agent.tools.playground.verbs VERB`, with the directory of the host in `PLAYGROUND`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import click

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.pods.identity import full_name
from agent.tools.playground.embedded import PATIENCE, start_containers
from agent.tools.playground.errors import PlaygroundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: How often an agent that starts again is asked, in seconds.
_PAUSE: Final = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run a verb and return its exit status; what is wrong is printed as one line."""
    name, *rest = arguments
    folder = Path(os.environ["PLAYGROUND"])
    try:
        _VERBS[name](folder, rest)
    except (PlaygroundError, AgentError, Unreachable) as error:
        click.echo(f"{name}: {error}", err=True)
        return 1
    return 0


def _start_containers(folder: Path, arguments: Sequence[str]) -> None:
    client = _client(folder)
    uid = _uid(client, "start-containers", arguments)
    for cgroup in start_containers(client, folder / "cgroup", uid):
        click.echo(f"mkdir {cgroup.relative_to(folder)}")


def _cgroup_of(folder: Path, arguments: Sequence[str]) -> None:
    uid = _uid(_client(folder), "cgroup-of", arguments)
    click.echo(next(path for path in (folder / "cgroup").rglob("pod*") if path.name == f"pod{uid}"))


def _crash_agent(folder: Path, _arguments: Sequence[str]) -> None:
    _end_agent(folder, signal.SIGKILL)


def _restart_agent(folder: Path, _arguments: Sequence[str]) -> None:
    _end_agent(folder, signal.SIGTERM)


def _agent_log(folder: Path, _arguments: Sequence[str]) -> None:
    click.echo((folder / "agent.log").read_text(errors="replace"), nl=False)


def _end_agent(folder: Path, number: signal.Signals) -> None:
    """Send a signal to the agent if there is one, and return when the next one answers."""
    client = _client(folder)
    before = None
    with suppress(Unreachable):  # the last one could not start; the configuration may be mended
        status = client.status()
        before = status.started
        os.kill(status.pid, number)
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        with suppress(Unreachable):  # the agent that ended no longer answers, the next one not yet
            if client.status().started != before:
                return
        sleep(_PAUSE)
    raise PlaygroundError("the agent does not start again; see agent-log")


def _client(folder: Path) -> AgentClient:
    return AgentClient(folder / "agent.sock", timeout=PATIENCE)


def _uid(client: AgentClient, verb: str, arguments: Sequence[str]) -> str:
    """Return the uid of the pod that is named by its name, namespace/name or uid."""
    if len(arguments) != 1:
        raise PlaygroundError(f"give the pod: {verb} POD")
    pods = client.pods()
    for pod in pods:
        if arguments[0] in (pod.name, full_name(pod), pod.uid):
            return pod.uid
    known = ", ".join(full_name(pod) for pod in pods) or "none"
    raise PlaygroundError(f"no pod {arguments[0]!r} is admitted; admitted: {known}")


_VERBS: Final[Mapping[str, Callable[[Path, Sequence[str]], None]]] = {
    "start-containers": _start_containers,
    "cgroup-of": _cgroup_of,
    "crash-agent": _crash_agent,
    "restart-agent": _restart_agent,
    "agent-log": _agent_log,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
