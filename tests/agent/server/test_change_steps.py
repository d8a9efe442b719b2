"""No change that was saved is answered as if it failed, no failed one as if it was saved."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from agent.api.documents import BindRequest, CordonRequest, Document, encode
from agent.progress import EndedError
from agent.server.errors import RequestError
from tests.agent.server.support import OTHER_UID, UID, in_loop
from tests.agent.server.test_controller import Recorder, keeping, pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.server.controller import Controller
    from agent.state.checkpoint import Checkpoint


async def nothing(_controller: Controller) -> None:
    return


async def admitted(controller: Controller) -> None:
    assert (await controller.admit(pod())).admitted


async def bound(controller: Controller) -> None:
    await admitted(controller)
    await bind(controller)


async def cordoned(controller: Controller) -> None:
    await controller.cordon(CordonRequest(target="4-5"))


async def unconfirmed(controller: Controller) -> None:
    """Admit a pod that the kernel does not have as it should."""
    await admitted(controller)
    record = controller.state.observed.records.of(UID)
    assert not record.unenforced
    controller.outcomes.failed("before", (UID,))


async def bind(controller: Controller) -> object:
    return await controller.bind(UID, "c0", BindRequest(cgroup="x"))


async def two(controller: Controller) -> object:
    asked = (pod(), pod("db", OTHER_UID))
    return list(await asyncio.gather(*map(controller.admit, asked)))


#: What is asked, and what was done before.
CHANGES: Final[dict[str, tuple[Callable[[Controller], Awaitable[object]], object]]] = {
    "admit": (lambda controller: controller.admit(pod()), nothing),
    "admit two": (two, nothing),
    "admit again": (lambda controller: controller.admit(pod()), unconfirmed),
    "replace": (
        lambda controller: controller.admit(pod(uid=OTHER_UID, cpu="3"), replace_pod=True),
        admitted,
    ),
    "remove": (lambda controller: controller.remove(UID), admitted),
    "bind": (bind, admitted),
    "unbind": (lambda controller: controller.unbind(UID, "c0"), bound),
    "cordon": (lambda controller: controller.cordon(CordonRequest(target="4-5")), nothing),
    "uncordon": (lambda controller: controller.uncordon(CordonRequest(target="4")), cordoned),
}
ERRORS: Final = (ValueError("plan"), OSError(5, "Input/output error"), asyncio.CancelledError())


class Calls:
    """Counts the calls to the collaborators of the controller, and lets one of them fail."""

    def __init__(self, fails: int = -1, error: BaseException | None = None) -> None:
        self.log: list[str] = []
        self._fails = fails
        self._error = error

    def wrap(self, owner: object, *names: str) -> None:
        """Replace methods of an object by ones that are counted."""
        for name in names:
            method = getattr(owner, name)
            wrapped = self._coroutine if inspect.iscoroutinefunction(method) else self._call
            setattr(owner, name, partial(wrapped, name, method))

    def _count(self, name: str) -> None:
        self.log.append(name)
        if len(self.log) - 1 == self._fails:
            assert self._error is not None
            raise self._error

    def _call(
        self, name: str, method: Callable[..., object], *args: object, **kw: object
    ) -> object:
        self._count(name)
        return method(*args, **kw)

    async def _coroutine(
        self, name: str, method: Callable[..., Awaitable[object]], *args: object, **kw: object
    ) -> object:
        self._count(name)
        return await method(*args, **kw)


async def played(name: str, calls: Calls) -> tuple[object, Checkpoint, Checkpoint, bool]:
    """Ask for a change; return the answer or the error, the state before and after, and whether.

    The last is whether all is enforced, as far as is known.
    """
    ask, before = CHANGES[name]
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await before(controller)  # type: ignore[operator]
        former = controller.state.durable
        calls.wrap(recorder, "save", "locate", "admitted", "removed", "changed")
        calls.wrap(controller.worker, "run")
        calls.wrap(controller.outcomes, "note")
        calls.wrap(controller.rejections, "admitted")
        calls.wrap(controller.metrics.counters, "add")
        calls.wrap(controller.steps, "publish")
        calls.wrap(controller, "publish")
        calls.wrap(controller.state.parts.cdi_files, "write", "remove")
        try:
            answer: object = await ask(controller)
        except (RequestError, ValueError, OSError, EndedError) as error:
            answer = error
        state = controller.state
        well = not state.observed.records.unenforced and not state.observed.unenforced
        return answer, former, state.durable, well


@pytest.mark.parametrize("name", CHANGES)
@in_loop
async def test_whatever_fails_the_answer_says_what_is_saved(name: str) -> None:
    calls = Calls()
    answer, former, after, _ = await played(name, calls)
    assert not isinstance(answer, Exception), answer
    # "admit again" saves nothing; all it does is repair.
    saved = calls.log.index("save") if "save" in calls.log else -1
    assert (former == after) == (saved < 0)
    for number, call in enumerate(calls.log):
        error = ERRORS[number % len(ERRORS)]
        what = f"{call}, call {number}: {error!r}"
        found, former, now, well = await played(name, Calls(number, error))
        if number > saved:
            assert not isinstance(found, Exception), what
            assert str(now) == str(after), what
            lacking = isinstance(found, Document) and b'"enforced":false' in encode(found)
            assert lacking or not well, what
        else:
            assert isinstance(found, Exception), what
            assert str(now) == str(former), what
            assert well, what


@in_loop
async def test_a_pod_that_could_not_be_enforced_is_admitted_and_says_why() -> None:
    calls = Calls()
    await played("admit", calls)
    answer, *_ = await played("admit", Calls(calls.log.index("admitted"), ValueError("plan")))
    text = encode(answer).decode()  # type: ignore[arg-type]
    assert '"admitted":true' in text
    assert "internal error (ValueError: plan); see the agent log" in text
