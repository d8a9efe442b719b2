"""No change that was saved is answered as if it failed, no failed one as if it was saved."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from agent.api.documents.admissions import BindRequest
from agent.api.documents.document import Document, encode
from agent.api.documents.maintenance import CordonRequest
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


async def unconfirmed(controller: Controller) -> None:
    """Admit a pod that the kernel does not have as it should."""
    await admitted(controller)
    controller.outcomes.note_failure("before", (UID,))


async def bind(controller: Controller) -> object:
    return await controller.bind(UID, "c0", BindRequest(cgroup="x"))


async def cordon(controller: Controller) -> object:
    return await controller.cordon(CordonRequest(target="4-5"))


async def two(controller: Controller) -> object:
    asked = (pod(), pod("db", OTHER_UID))
    return list(await asyncio.gather(*map(controller.admit, asked)))


#: What is asked, and what was done before.
_Step: TypeAlias = "Callable[[Controller], Awaitable[object]]"
CHANGES: Final[dict[str, tuple[_Step, _Step]]] = {
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
    "cordon": (cordon, nothing),
    "uncordon": (lambda controller: controller.uncordon(CordonRequest(target="4")), cordon),
}
ERRORS: Final = (ValueError("plan"), OSError(5, "Input/output error"), asyncio.CancelledError())


class Calls:
    """Counts the calls to the collaborators of the controller, and lets one of them fail."""

    def __init__(self, fails: int = -1, error: BaseException | None = None) -> None:
        self.log: list[str] = []
        self._fails = fails
        self._error = error

    def wrap(self, owner: object, *names: str) -> None:
        """Replace methods of an object, also those that return an awaitable, by counted ones."""
        for name in names:
            setattr(owner, name, partial(self._call, name, getattr(owner, name)))

    def _call(
        self, name: str, method: Callable[..., object], *args: object, **kw: object
    ) -> object:
        self.log.append(name)
        if len(self.log) - 1 == self._fails:
            assert self._error is not None
            raise self._error
        return method(*args, **kw)


async def played(name: str, calls: Calls) -> tuple[object, Checkpoint, Checkpoint, bool]:
    """Ask for a change; return the answer or the error, the state before and after, and whether.

    The last is whether all is enforced, as far as is known.
    """
    ask, before = CHANGES[name]
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await before(controller)
        former = controller.state.durable
        calls.wrap(recorder, "save", "locate", "enforce", "release")
        calls.wrap(controller.worker, "run")
        calls.wrap(controller.outcomes, "note")
        calls.wrap(controller.rejections, "forget")
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
            text = encode(found) if isinstance(found, Document) else b""
            lacking = b'"enforced":false' in text
            assert lacking or not well, what
            if lacking and isinstance(error, ValueError):
                assert b"internal error (ValueError: plan); see the agent log" in text, what
        else:
            assert isinstance(found, Exception), what
            assert str(now) == str(former), what
            assert well, what
