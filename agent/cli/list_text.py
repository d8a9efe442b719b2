"""All pods as text or as a table: `PodListDocument`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from agent.api.documents.rejections import RUNS_SHARED
from agent.cli.admission_text import failed_verb
from agent.cli.common import typed_name
from agent.cli.lines import moment, table
from agent.cli.pod_text import (
    container_lines,
    lasting_containers,
    origin_text,
    state_lines,
    state_text,
    state_word,
)
from agent.pods.model import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.pods import PodDocument, PodListDocument
    from agent.api.documents.rejections import FailedPodDocument

#: `LACKS` are the qualities that some container of the pod does not have.
_COLUMNS: Final = ("POD", "QOS", "STATE", "CONTAINERS", "EXCLUSIVE", "NODES", "LACKS")
_WIDE_COLUMNS: Final = ("DEVICES", "SOURCE", "ORIGIN", "UID")
_FAILED_COLUMNS: Final = ("NOT ADMITTED", "STATE", "SINCE", "REASON")
_WIDE_FAILED_COLUMNS: Final = ("SOURCE", "UID", "MESSAGE")


def list_lines(pods: PodListDocument) -> Iterator[str]:
    """Yield each pod with its containers, then a line for each pod that is not admitted."""
    if not pods.pods:
        yield "no pods are admitted"
    for pod in pods.pods:
        source = f"from {pod.source}" if pod.source else ""
        origin = ", ".join(filter(None, (source, origin_text(pod))))
        yield "  ".join(filter(None, (full_name(pod), pod.qos, state_text(pod), origin)))
        yield from container_lines(pod)
        yield from state_lines(pod)
    for failed in pods.failed:  # `show` has the full reasons
        since = moment(failed.time)
        yield f"{_failed_name(failed)}  {failed_verb(failed)} since {since}  {failed.message}"


def list_table(pods: PodListDocument, *, wide: bool) -> Iterator[str]:
    """Yield a table of all pods, and a table of those that are not admitted unless it is empty.

    `wide` has more columns.
    """
    columns = (*_COLUMNS, *(_WIDE_COLUMNS if wide else ()))
    yield from table(columns, (_row(pod)[: len(columns)] for pod in pods.pods))
    if pods.failed:
        yield ""
        columns = (*_FAILED_COLUMNS, *(_WIDE_FAILED_COLUMNS if wide else ()))
        yield from table(columns, (_failed_row(pod)[: len(columns)] for pod in pods.failed))


def _row(pod: PodDocument) -> tuple[str, ...]:
    """Return the cells of `_COLUMNS` and `_WIDE_COLUMNS`."""
    lasting = lasting_containers(pod)
    found = lasting if pod.containers_found is None else pod.containers_found
    mems = dict.fromkeys(container.mems for container in pod.containers if container.mems)
    devices: Counter[str] = Counter()
    for container in pod.containers:
        of_kubelet = container.kubelet_devices
        devices.update({resource: len(ids) for resource, ids in container.devices.items()})
        devices.update({f"kubelet:{resource}": len(ids) for resource, ids in of_kubelet.items()})
    return (
        full_name(pod),
        pod.qos,
        state_word(pod),
        f"{found}/{lasting}",
        pod.exclusive_cpus,
        " ".join(mems),
        ",".join(dict.fromkeys(quality.quality for quality in pod.verdict if not quality.met)),
        ",".join(f"{resource}={count}" for resource, count in devices.items()),
        pod.source,
        pod.origin,
        pod.uid,
    )


def _failed_row(pod: FailedPodDocument) -> tuple[str, ...]:
    """Return the cells of `_FAILED_COLUMNS` and `_WIDE_FAILED_COLUMNS`."""
    state = "shared" if pod.reason == RUNS_SHARED else failed_verb(pod)
    since = moment(pod.time)
    return (_failed_name(pod), state, since, pod.reason, pod.source, pod.uid, pod.message)


def _failed_name(pod: FailedPodDocument) -> str:
    return typed_name(pod) or "a pod without a name"
