"""Marks of moments: two moments of a world with one mark go on alike.

A mark has where every task stands, with the local variables that decide how it goes on, and all
state that is not in a task. What only says when something was, or is text for people, is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.api.documents.admissions import AdmissionDocument
from agent.api.documents.status import ManifestDocument
from agent.managers.allocation import PodAllocation, Source
from agent.managers.decision import Decision
from agent.managers.ledger import Ledger
from agent.pods.model import Pod
from agent.reconcile.diff import Difference
from agent.server.configured import ConfiguredHost
from agent.server.decider import Admission, Proposal
from agent.server.intake import Entry, EntryOutcome, PodIntake
from agent.server.queue import Job, SerialQueue, Turns, Waiting
from agent.sources.source import SourceEntry
from agent.state.checkpoint import Checkpoint
from sysfs.mask import Mask
from tests.exploration.answers import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Of frames of the library the line is enough; what else they have are loops and timers.
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)
#: A value as nested tuples of what has a `repr` that is the same in each run.
Plain = tuple["Plain", ...] | str | int | bytes | None


def mark_of(tasks: Iterable[asyncio.Task[object]], *values: object) -> bytes:
    """Return the mark of a moment: all of its tasks, and all values that are not in a task."""
    whole = sorted(repr(_task(task)) for task in tasks), _all(values)
    return hashlib.blake2b(repr(whole).encode(), digest_size=12).digest()


def _of(value: object) -> Plain:
    """Return a value as far as it decides how a task goes on; its type where it does not."""
    rule = _RULES.get(type(value))
    if rule is not None:
        return rule(value)
    for base, of_base in _BASES:
        if isinstance(value, base):
            return of_base(value)
    return type(value).__name__


def _all(values: Iterable[object]) -> Plain:
    return tuple(map(_of, values))


def _set(values: Iterable[object]) -> Plain:
    return tuple(sorted(map(repr, map(_of, values))))


def _mapping(values: Mapping[Any, object]) -> Plain:
    return tuple((_of(key), _of(value)) for key, value in values.items())


def _fields(value: Any) -> Plain:  # noqa: ANN401  # any object with attributes
    """Return all attributes of an object whose state is its own."""
    return _mapping(value.__dict__)


def _future(future: asyncio.Future[object]) -> Plain:
    if not future.done():
        return "pending"
    if future.cancelled():
        return "cancelled"
    return _of(future.exception()) if future.exception() else _of(future.result())


def _task(task: asyncio.Task[object]) -> Plain:
    """Return where a task stands: each frame that waits, with its variables."""
    return (*_frames(task.get_coro()), task.cancelling())


def _frames(coroutine: object) -> Iterator[Plain]:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            ours = not code.co_filename.startswith(_ASYNCIO)
            variables = {n: v for n, v in frame.f_locals.items() if n != "self"} if ours else {}
            yield code.co_name, frame.f_lineno, _mapping(variables)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _allocation(allocation: PodAllocation) -> Plain:
    devices = tuple(str(container.devices) for container in allocation.containers)
    cpus = str(allocation.exclusive_cpus)
    return allocation.uid, cpus, devices, allocation.unprepared, str(allocation.source)


def _line(queue: SerialQueue) -> Plain:
    lanes = queue._lanes
    waiting = _all(lanes._urgent), _all(lanes._normal)
    return (*waiting, lanes._in_a_row, queue._stopping)


def _host(configured: ConfiguredHost) -> Plain:
    rules = configured.rules
    cpus = rules.cordoned_cpus, configured.host.online, rules.policy.cpu.reserved
    return (*map(str, cpus), len(rules.policy.devices))


_AS_IT_IS: Final[Callable[[Any], Plain]] = lambda value: value  # noqa: E731  # a rule of the table

_RULES: Final[Mapping[type, Callable[[Any], Plain]]] = {
    str: _AS_IT_IS,
    int: _AS_IT_IS,
    bool: _AS_IT_IS,
    bytes: _AS_IT_IS,
    type(None): _AS_IT_IS,
    float: lambda _: "a time",
    Mask: str,
    tuple: _all,
    list: _all,
    deque: _all,
    set: _set,
    frozenset: _set,
    Answer: repr,
    PodAllocation: _allocation,
    Source: str,
    Ledger: lambda ledger: _all(ledger.allocations.values()),
    Checkpoint: lambda saved: (_of(saved.ledger), str(saved.cordons), _set(saved.shared)),
    ConfiguredHost: _host,
    Difference: lambda difference: (str(difference.cause), difference.file),
    Pod: lambda pod: pod.uid,
    Decision: lambda decision: (decision.uid, _of(decision.allocation), _of(decision.ledger)),
    Proposal: lambda proposal: (
        _of(proposal.decision),
        proposal.suspended is not None,
        _of(proposal.replaced),
    ),
    Admission: lambda admission: (_of(admission.pod), _of(admission.outcome)),
    Job: lambda job: (job.action.__qualname__, _of(job.outcome)),
    Waiting: lambda waiting: _of(waiting.outcome),
    SerialQueue: _line,
    Turns: lambda turns: (turns._taken, _all(turns._lanes._urgent), _all(turns._lanes._normal)),
    PodIntake: _fields,
    Entry: lambda entry: _all((entry.says, entry.outcome, entry.starts, entry.admission is None)),
    EntryOutcome: lambda outcome: _all((outcome.pod, outcome.generation, outcome.document)),
    SourceEntry: lambda entry: (entry.key, _of(entry.pod)),
    ManifestDocument: lambda document: (document.file, document.state),
    AdmissionDocument: lambda answer: (answer.uid, answer.admitted),
}
_BASES: Final[tuple[tuple[type, Callable[[Any], Plain]], ...]] = (
    (asyncio.Future, _future),
    (Mapping, _mapping),
    (asyncio.Event, lambda event: event.is_set()),
    (asyncio.Lock, lambda lock: lock.locked()),
    (BaseException, repr),
    (Enum, str),
)
