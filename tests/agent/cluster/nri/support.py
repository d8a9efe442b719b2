"""What tests of NRI share: a clock, a handler that remembers, pods and containers."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from agent.cluster.nri.events import NriEvent
from agent.cluster.nri.session import NriSession
from tests.agent.server.support import FakeClock, until
from tests.fakes.nri_runtime import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from agent.cluster.nri.messages import (
        Adjustment,
        ContainerResources,
        PodSandbox,
        RuntimeContainer,
        RuntimeInfo,
    )
    from tests.fakes.nri_runtime import FakeRuntime, PluginConnection

POD: dict[str, Any] = {
    "id": "s1",
    "name": "web",
    "uid": "uid-1",
    "namespace": "default",
    "annotations": {"a": "b"},
    "linux": {"cgroup_parent": "/kubepods.slice/kubepods-poduid_1.slice"},
}
CONTAINER: dict[str, Any] = {
    "id": "c1",
    "pod_sandbox_id": "s1",
    "name": "app",
    "state": 1,
    "env": ["A=1", "B=x=y"],
    "linux": {"cgroups_path": "kubepods-poduid_1.slice:cri-containerd:c1"},
}

#: Which method of the handler an event calls.
NOTED = {
    NriEvent.RUN_POD_SANDBOX: "sandbox_started",
    NriEvent.STOP_POD_SANDBOX: "sandbox_stopped",
    NriEvent.REMOVE_POD_SANDBOX: "sandbox_removed",
    NriEvent.POST_START_CONTAINER: "container_started",
    NriEvent.STOP_CONTAINER: "container_stopped",
    NriEvent.REMOVE_CONTAINER: "container_removed",
}
ANSWERED = {
    NriEvent.CREATE_CONTAINER: "container_created",
    NriEvent.UPDATE_CONTAINER: "container_updated",
}
IGNORED = (NriEvent.POST_CREATE_CONTAINER, NriEvent.START_CONTAINER, NriEvent.POST_UPDATE_CONTAINER)


class ManualClock(FakeClock):
    """A clock that stands still for short waits, too, and remembers them all."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        await woken

    async def sleeping(self, times: int) -> None:
        """Return once something began to sleep so many times in all."""
        await until(lambda: len(self.slept) >= times)


class RecordingHandler:
    """Remembers the events, and answers as a test says.

    `fails` raises in the named method, `hangs` waits in it until it is cancelled.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: dict[str, Any] = {}
        self.repairs: Mapping[str, Adjustment] = {}
        self.adjustment: Adjustment | None = None
        self.update: Adjustment | None = None
        self.requested: ContainerResources | None = None
        self.synchronized: tuple[Sequence[PodSandbox], Sequence[RuntimeContainer]] = ((), ())
        self.runtime: RuntimeInfo | None = None
        self.fails: Mapping[str, BaseException] = {}
        self.hangs: frozenset[str] = frozenset()
        self.cancelled: list[str] = []
        self.fails_when_cancelled = False
        self.seconds = 0.0
        self.ended = asyncio.Event()
        #: Of each answer the method and the outcome, and the seconds.
        self.outcomes: list[tuple[str, str]] = []
        self.times: list[float] = []

    def observe(self, method: str, outcome: str, seconds: float) -> None:
        self.times.append(seconds)
        self.outcomes.append((method, outcome))

    def _note(self, method: str, text: str, value: object = None) -> None:
        self.events.append(f"{method} {text}".rstrip())
        self.seen[method] = value
        if method in self.fails:
            raise self.fails[method]

    async def _wait(self, method: str) -> None:
        if method in self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(method)
                if self.fails_when_cancelled:
                    raise RuntimeError("broken in the end") from None
                raise

    def configured(self, info: RuntimeInfo) -> None:
        self.runtime = info
        self._note("configured", info.name)

    async def synchronize(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[RuntimeContainer]
    ) -> Mapping[str, Adjustment]:
        self.synchronized = (sandboxes, containers)
        self._note("synchronize", f"{len(sandboxes)} {len(containers)}")
        await self._wait("synchronize")
        return self.repairs

    async def sandbox_started(self, sandbox: PodSandbox) -> None:
        self._note("sandbox_started", sandbox.name, sandbox)
        await self._wait("sandbox_started")

    def sandbox_stopped(self, sandbox: PodSandbox) -> None:
        self._note("sandbox_stopped", sandbox.name, sandbox)

    def sandbox_removed(self, sandbox: PodSandbox) -> None:
        self._note("sandbox_removed", sandbox.name, sandbox)

    def sandbox_updated(self, sandbox: PodSandbox) -> None:
        self._note("sandbox_updated", sandbox.name, sandbox)

    async def container_created(
        self, sandbox: PodSandbox, container: RuntimeContainer, seconds: float
    ) -> Adjustment | None:
        self.seconds = seconds
        self._note("container_created", f"{sandbox.name}/{container.name}", container)
        await self._wait("container_created")
        return self.adjustment

    async def container_updated(
        self,
        sandbox: PodSandbox,
        container: RuntimeContainer,
        requested: ContainerResources,
        seconds: float,
    ) -> Adjustment | None:
        assert seconds >= 0
        self.requested = requested
        self._note("container_updated", f"{sandbox.name}/{container.name}", container)
        await self._wait("container_updated")
        return self.update

    def container_started(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        self._note("container_started", f"{sandbox.name}/{container.name}", container)

    def container_stopped(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        self._note("container_stopped", f"{sandbox.name}/{container.name}", container)

    def container_removed(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        self._note("container_removed", f"{sandbox.name}/{container.name}", container)

    def disconnected(self, why: str) -> None:
        self.ended.set()
        self._note("disconnected", why)


@asynccontextmanager
async def serving(
    socket: Path,
    handler: RecordingHandler,
    clock: ManualClock | None = None,
    **options: Any,  # noqa: ANN401  # those of NriSession
) -> AsyncIterator[NriSession]:
    options.setdefault("observe", handler.observe)
    session = NriSession(socket, handler, clock or ManualClock(), **options)
    task = asyncio.create_task(session.serve())
    try:
        yield session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled(), f"the session ended by itself: {task.exception()!r}"


class Nri:
    """A runtime, and the handler of the session that serves it; options are those of `serving`."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.handler = RecordingHandler()
        self.clock = ManualClock()

    def serving(self, **options: Any) -> AbstractAsyncContextManager[NriSession]:  # noqa: ANN401
        return serving(self.runtime.socket, self.handler, self.clock, **options)

    @asynccontextmanager
    async def connected(self, **options: Any) -> AsyncIterator[PluginConnection]:  # noqa: ANN401
        """Run both; yield the connection once it is synchronized."""
        async with running(self.runtime), self.serving(**options):
            yield await self.runtime.plugin()
