"""The plugin's service on one connection: each request of the runtime becomes a call of a handler.

In: requests. Out: responses, in time. Whatever a handler does, only CreateContainer,
UpdateContainer and UpdatePodSandbox are answered with an error, and only if the handler rejects
them: any other error would be the runtime's error of the pod. Runtimes before containerd 2.2.6
leave a process and a record behind a sandbox that a plugin rejected, and do not start again.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import structlog
from google.protobuf.message import DecodeError

from agent.cluster.nri.deadline import LateError, within
from agent.cluster.nri.events import EVENTS, NriEvent, event_mask
from agent.cluster.nri.framing import LONGEST_SENT, NriProtocolError
from agent.cluster.nri.handler import ContainerRejectedError
from agent.cluster.nri.messages import (
    V1ALPHA1,
    ContainerResources,
    PodSandbox,
    RuntimeContainer,
    RuntimeInfo,
    adjustment_message,
    update_message,
    update_messages,
)
from agent.cluster.nri.ttrpc import TtrpcError, words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from agent.cluster.nri.handler import RuntimeHandler
    from agent.cluster.nri.ttrpc import RuntimeCall
    from agent.rpc.messages import Message

log = structlog.get_logger(__name__)

#: The part of the time for which the runtime waits that a handler gets.
_SHARE_OF_TIMEOUT: Final = 0.8
#: How long before the deadline of its handler a container that is not decided is rejected, in
#: seconds, so that the rejection has the handler's words.
_TO_REJECT: Final = 0.1
#: The most bytes of updates in a SynchronizeResponse.
_MOST_UPDATES: Final = LONGEST_SENT - (64 << 10)
#: The most bytes of all parts of one Synchronize: 20,000 pods of a few containers.
LONGEST_SYNCHRONIZE: Final = 256 << 20

ResultT = TypeVar("ResultT")
_Subject: TypeAlias = "Mapping[str, str]"


class PluginService:
    """Answers the requests of one connection.

    - `seconds` is the deadline of a handler, `synchronizing` that of `synchronize`.
    - `events` chooses what to subscribe to from a runtime that registered the plugin.
    - `synchronized` is called after the last part of Synchronize.
    - `observe` gets the method, the outcome and the seconds of each answer once it is written. An
      outcome is `answered`, `rejected`, `late` (after its deadline) or `failed` (the handler raised
      something else).
    """

    def __init__(
        self,
        handler: RuntimeHandler,
        synchronized: Callable[[], None],
        *,
        seconds: float,
        synchronizing: float,
        observe: Callable[[str, str, float], None],
        events: Callable[[RuntimeInfo], Collection[NriEvent]],
    ) -> None:
        self._handler = handler
        self._synchronized = synchronized
        self._seconds = seconds
        self._synchronizing = synchronizing
        self._observe = observe
        #: The events and outcomes of answers that are not written yet.
        self._outcomes: dict[RuntimeCall, tuple[str, str]] = {}
        self._events = events
        #: The parts of Synchronize until its last, and their bytes.
        self._received = 0
        self._sandboxes: list[PodSandbox] = []
        self._containers: list[RuntimeContainer] = []
        self._of_sandboxes: dict[int, Callable[[PodSandbox], Coroutine[None, None, None]]] = {
            NriEvent.RUN_POD_SANDBOX: handler.sandbox_started,
            NriEvent.STOP_POD_SANDBOX: partial(_calling, handler.sandbox_stopped),
            NriEvent.REMOVE_POD_SANDBOX: partial(_calling, handler.sandbox_removed),
        }
        self._of_containers: dict[int, Callable[[PodSandbox, RuntimeContainer], None]] = {
            NriEvent.POST_START_CONTAINER: handler.container_started,
            NriEvent.STOP_CONTAINER: handler.container_stopped,
            NriEvent.REMOVE_CONTAINER: handler.container_removed,
        }
        #: The runtime, once it registered the plugin.
        self.runtime: RuntimeInfo | None = None

    async def answer(self, call: RuntimeCall) -> bytes:
        """Return the response to a request of the runtime.

        Raises `TtrpcError` for a method that is not known, and for what the handler rejects;
        `NriProtocolError` for a request that cannot be read.
        """
        response = await self._response(call)
        data: bytes = response.SerializeToString()
        return data

    def written(self, call: RuntimeCall) -> None:
        """Report how long an answer took, which is written now."""
        outcome = self._outcomes.pop(call, None)
        if outcome is not None:
            self._observe(*outcome, perf_counter() - call.received)

    async def _response(self, call: RuntimeCall) -> Message:
        match call.method:
            case "Configure":
                return self._configure(_read("ConfigureRequest", call))
            case "Synchronize":
                return await self._synchronize(_read("SynchronizeRequest", call), call)
            case "CreateContainer":
                return await self._create(_read("ContainerEvent", call), call)
            case "UpdateContainer":
                return await self._update(_read("UpdateContainerRequest", call), call)
            case _:
                await self._note(call)
                return V1ALPHA1["Empty"]()

    async def _note(self, call: RuntimeCall) -> None:
        """Handle a request that is answered with an empty message."""
        match call.method:
            case "Shutdown":
                log.info("NRI runtime shuts down")
            case "StateChange":
                change = _read("StateChangeEvent", call)
                await self._event(change.event, change, call)
            case "UpdatePodSandbox":
                await self._update_sandbox(_read("UpdatePodSandboxRequest", call), call)
            case method:
                event = EVENTS.get(method)
                if event is None:
                    raise TtrpcError("UNIMPLEMENTED", f"method {words(method)}")
                kind = "PodEvent" if method.endswith("Sandbox") else "ContainerEvent"
                await self._event(event, _read(kind, call), call)

    def _configure(self, request: Message) -> Message:
        runtime = RuntimeInfo.of(request)
        self.runtime = runtime
        try:
            self._handler.configured(runtime)
        except Exception:  # the plugin is registered all the same
            log.exception("NRI handler failed", method="Configure")
        return V1ALPHA1["ConfigureResponse"](events=event_mask(self._events(runtime)))

    async def _synchronize(self, request: Message, call: RuntimeCall) -> Message:
        self._received += len(call.payload)
        if self._received > LONGEST_SYNCHRONIZE:
            raise NriProtocolError(f"more than {LONGEST_SYNCHRONIZE} bytes to synchronize")
        self._sandboxes += map(PodSandbox.of, request.pods)
        self._containers += map(RuntimeContainer.of, request.containers)
        if request.more:
            return V1ALPHA1["SynchronizeResponse"](more=True)
        self._received = 0
        sandboxes, self._sandboxes = self._sandboxes, []
        containers, self._containers = self._containers, []
        counts = {"pods": str(len(sandboxes)), "containers": str(len(containers))}
        work = self._repairs(tuple(sandboxes), tuple(containers))
        updates = await self._handle(call.method, call, counts, work) or []
        response = V1ALPHA1["SynchronizeResponse"](update=fitting(updates))
        # A request for the others could lock up a containerd before 2.4 (NRI before 0.12.1,
        # containerd issue 13733); comparisons write their cgroups.
        if more := len(updates) - len(response.update):
            log.warning("NRI containers not repaired", containers=more)
        self._synchronized()
        return response

    async def _repairs(
        self, sandboxes: tuple[PodSandbox, ...], containers: tuple[RuntimeContainer, ...]
    ) -> list[Message]:
        return update_messages(await self._handler.synchronize(sandboxes, containers))

    async def _create(self, request: Message, call: RuntimeCall) -> Message:
        sandbox, container = PodSandbox.of(request.pod), RuntimeContainer.of(request.container)
        seconds = self._seconds_for(call)

        async def adjusted() -> Message:
            adjustment = await self._handler.container_created(sandbox, container, seconds)
            if adjustment is None:
                return V1ALPHA1["CreateContainerResponse"]()
            return V1ALPHA1["CreateContainerResponse"](adjust=adjustment_message(adjustment))

        subject = _subject(sandbox, container)
        response = await self._handle(call.method, call, subject, adjusted(), may_reject=True)
        return response or V1ALPHA1["CreateContainerResponse"]()

    async def _update(self, request: Message, call: RuntimeCall) -> Message:
        sandbox, container = PodSandbox.of(request.pod), RuntimeContainer.of(request.container)
        requested = ContainerResources.of(request.linux_resources)
        seconds = self._seconds_for(call)

        async def updated() -> Message:
            adjustment = await self._handler.container_updated(
                sandbox, container, requested, seconds
            )
            if adjustment is None:
                return V1ALPHA1["UpdateContainerResponse"]()
            update = update_message(container.id, adjustment, ignore_failure=True)
            return V1ALPHA1["UpdateContainerResponse"](update=[update])

        subject = _subject(sandbox, container)
        response = await self._handle(call.method, call, subject, updated(), may_reject=True)
        return response or V1ALPHA1["UpdateContainerResponse"]()

    async def _update_sandbox(self, request: Message, call: RuntimeCall) -> None:
        requested = ContainerResources.of(request.linux_resources)
        sandbox = PodSandbox.of(request.pod).with_resources(requested)
        work = _calling(self._handler.sandbox_updated, sandbox)
        await self._handle(call.method, call, _subject(sandbox), work, may_reject=True)

    async def _event(self, number: int, request: Message, call: RuntimeCall) -> None:
        """Pass an event on to the handler; one that it has no method for is ignored."""
        sandbox = PodSandbox.of(request.pod)
        of_sandbox = self._of_sandboxes.get(number)
        if of_sandbox is not None:
            work = of_sandbox(sandbox)
            await self._handle(NriEvent(number).method, call, _subject(sandbox), work)
        of_container = self._of_containers.get(number)
        if of_container is not None:
            container = RuntimeContainer.of(request.container)
            subject = _subject(sandbox, container)
            work = _calling(of_container, sandbox, container)
            await self._handle(NriEvent(number).method, call, subject, work)

    async def _handle(
        self,
        method: str,
        call: RuntimeCall,
        subject: _Subject,
        work: Coroutine[None, None, ResultT],
        *,
        may_reject: bool = False,
    ) -> ResultT | None:
        """Return what a handler returns, None if it failed or was late.

        Raises `TtrpcError` if the handler rejected the request and `may_reject`.
        """
        outcome = "failed"
        try:
            result = await within(self._deadline(method, call), work)
            outcome = "answered"
        except LateError:
            outcome = "late"
            log.warning("NRI handler late", method=method, **subject)
            return None
        except ContainerRejectedError as error:
            if not may_reject:
                log.error("NRI handler failed", method=method, why=str(error), **subject)  # noqa: TRY400  # not a defect that a traceback shows
                return None
            outcome = "rejected"
            raise TtrpcError(error.code, error.message) from error
        except Exception:  # an error would be the runtime's error of the pod
            log.exception("NRI handler failed", method=method, **subject)
            return None
        else:
            return result
        finally:
            self._outcomes[call] = method, outcome

    def _seconds_for(self, call: RuntimeCall) -> float:
        """Return how long the handler may take for a request that it may reject."""
        spent = perf_counter() - call.received
        return max(0.0, self._deadline(call.method, call) - spent - _TO_REJECT)

    def _deadline(self, method: str, call: RuntimeCall) -> float:
        seconds = self._synchronizing if method == "Synchronize" else self._seconds
        timeouts = [call.seconds]
        if self.runtime is not None:
            timeouts.append(self.runtime.request_timeout_ms / 1000)
        return min([seconds, *(_SHARE_OF_TIMEOUT * each for each in timeouts if each)])


def fitting(updates: list[Message]) -> list[Message]:
    """Return as many updates as fit in one message, in their order, the first in any case."""
    size = 0
    for at, update in enumerate(updates):
        # The tag and the length of the update in its list have at most 6 bytes.
        size += update.ByteSize() + 6
        if at and size > _MOST_UPDATES:
            return updates[:at]
    return updates


def _read(kind: str, call: RuntimeCall) -> Message:
    try:
        return V1ALPHA1[kind].FromString(call.payload)
    except DecodeError as error:
        raise NriProtocolError(f"a request of {call.method} that is not protobuf") from error


def _subject(sandbox: PodSandbox, container: RuntimeContainer | None = None) -> _Subject:
    subject = {"pod": f"{sandbox.namespace}/{sandbox.name}", "uid": sandbox.uid}
    if container is not None:
        subject["container"] = container.name
    return subject


async def _calling(function: Callable[..., None], *values: object) -> None:
    function(*values)
