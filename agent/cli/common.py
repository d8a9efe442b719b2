"""What commands share: the connection to the agent, and pods by their names.

A mistake of the user or an error of the agent becomes a `CommandError` with its exit code here.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from agent.api.client import AgentClient, AgentError
from agent.api.documents.rejections import INVALID_MANIFEST, FailedPodDocument
from agent.cli.errors import CommandError, ExitCode, WrongFileError
from agent.cli.lines import moment
from agent.cli.options import TIMEOUT
from agent.pods.model import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.api.documents.admissions import AdmissionDocument, RemovalDocument
    from agent.api.documents.errors import ErrorBody
    from agent.api.documents.maintenance import CordonDocument
    from agent.api.documents.pods import PodDocument


_CODES: Final = {
    "PodNotFound": ExitCode.NOT_FOUND,
    "ContainerNotFound": ExitCode.NOT_FOUND,
    "BindingNotFound": ExitCode.NOT_FOUND,
    "ManagedByManifest": ExitCode.REJECTED,
    "ManagedByKubelet": ExitCode.REJECTED,
    "CordonRejected": ExitCode.REJECTED,
    "NotCordoned": ExitCode.REJECTED,
    "PodRemoved": ExitCode.REJECTED,
    "UnderPressure": ExitCode.REJECTED,
    "InvalidManifest": ExitCode.BAD_INPUT,
    "InvalidBinding": ExitCode.BAD_INPUT,
    "InvalidMove": ExitCode.BAD_INPUT,
    "InvalidResize": ExitCode.BAD_INPUT,
    "InvalidRequest": ExitCode.BAD_INPUT,
    "TooLarge": ExitCode.BAD_INPUT,
    "Forbidden": ExitCode.UNREACHABLE,
    "NotReady": ExitCode.UNREACHABLE,
    "Stopping": ExitCode.UNREACHABLE,
}


@contextmanager
def agent_at(socket_path: str, manifest: str | None = None) -> Iterator[AgentClient]:
    """Connect to the agent; its error responses raise `CommandError` with an exit code.

    Every call waits for as long as the `--timeout` of the running command says. Mistakes in a
    manifest are those of the file `manifest`, whose name the agent does not know.
    """
    try:
        yield AgentClient(socket_path, click.get_current_context().meta[TIMEOUT])
    except AgentError as rejected:
        code = _CODES.get(rejected.error.code, ExitCode.AGENT_FAILED)
        if manifest is not None and rejected.error.code == INVALID_MANIFEST:
            raise WrongFileError(_mistakes(rejected.error, manifest), code) from rejected
        raise CommandError(str(rejected), code) from rejected


def _mistakes(error: ErrorBody, file: str) -> str:
    """Return the mistakes in a manifest with its file and their lines."""
    if len(error.details) == 1:
        return f"{file}: {error.details[0]}"
    return "\n".join((f"{file}: {error.message}", *map(str, error.details)))


def find_pod(agent: AgentClient, named: str) -> PodDocument:
    """Return the pod with a uid, name or namespace/name; raises `CommandError`."""
    return one_pod(agent.pods(), named)


def one_pod(admitted: Iterable[PodDocument], named: str) -> PodDocument:
    """Return the pod with a uid, name or namespace/name; raises `CommandError`."""
    pods = [pod for pod in admitted if named in names_of(pod)]
    if not pods:
        raise unknown_pod(named)
    if len(pods) > 1:
        candidates = "\n".join(f"{full_name(pod)}  uid {pod.uid}" for pod in pods)
        message = f"{len(pods)} pods are called {named!r}; name one by its uid:\n{candidates}"
        raise CommandError(message, ExitCode.BAD_INPUT)
    return pods[0]


def unknown_pod(named: str) -> CommandError:
    """Return the error for a pod that the agent does not know."""
    file = ", and a pod is not named by its file" if os.path.isfile(named) else ""  # noqa: PTH113
    message = f"no pod {named!r} is admitted{file}; see 'numawarden list'"
    return CommandError(message, ExitCode.NOT_FOUND)


def names_of(pod: PodDocument | FailedPodDocument) -> tuple[str, str, str]:
    """Return the names of a pod on the command line."""
    return pod.uid, pod.name or pod.uid, full_name(pod)


def typed_name(pod: PodDocument | FailedPodDocument | AdmissionDocument | RemovalDocument) -> str:
    """Return what a user types for a pod: namespace/name, or the uid where no name is known."""
    return f"{pod.namespace}/{pod.name}" if pod.name else pod.uid


def cordon_line(cordon: CordonDocument) -> str:
    """Return one cordon: what, since when, why."""
    parts = [
        f"{name} {ids}" for name, ids in (("node", cordon.nodes), ("CPUs", cordon.cpus)) if ids
    ]
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"{' and '.join(parts)}, since {moment(cordon.since)}{why}"
