"""Pods that are to be admitted at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.server.admissions import LONGEST_GROUP, MOST_AT_ONCE
from agent.server.limits import Caller
from agent.server.queue import called_by
from sysfs.mask import EMPTY
from tests.agent.server.support import FakeClock, in_loop
from tests.agent.server.test_controller import Recorder, keeping, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.api.documents import AdmissionDocument
    from agent.managers.allocation import PodAllocation
    from agent.pods.model import Pod
    from agent.server.controller import Controller


def uid(number: int) -> str:
    return f"{number:08}-2222-3333-4444-555555555555"


def pods(*cpus: str) -> list[Pod]:
    return [pod(f"pod{number}", uid(number), cpu) for number, cpu in enumerate(cpus)]


async def together(controller: Controller, asked: list[Pod]) -> list[AdmissionDocument]:
    return list(await asyncio.gather(*map(controller.admit, asked)))


async def turns(reached: Callable[[], bool]) -> None:
    """Let the loop take turns, one by one, until something is reached."""
    while not reached():  # noqa: ASYNC110  # it lasts a turn
        await asyncio.sleep(0)


@in_loop
async def test_pods_that_come_together_are_saved_and_enforced_once() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        answers = await together(controller, pods("2", "2", "2", "100m"))
        assert all(answer.admitted for answer in answers)
        assert recorder.log == ["save", "enforce 0 0 0 0"]
        taken = EMPTY
        for allocation in recorder.saved[0].ledger.allocations.values():
            assert not allocation.exclusive_cpus & taken
            taken |= allocation.exclusive_cpus
        assert len(taken) == 6
        assert recorder.targets[0].ledger is recorder.saved[0].ledger
        # What is said of the pool is what is enforced, also if others were decided after the pod.
        shared = answers[3].pod
        assert shared is not None
        assert shared.containers[0].cpus == str(controller.state.shared_cpus)


@in_loop
async def test_so_many_are_decided_at_once_at_most() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await together(controller, pods(*["10m"] * (MOST_AT_ONCE + 1)))
        assert recorder.log.count("save") == 2
        assert len(controller.state.ledger.allocations) == MOST_AT_ONCE + 1


class SlowClock(FakeClock):
    """Passes more of a group's time whenever it is asked."""

    def monotonic(self) -> float:
        self.now += LONGEST_GROUP / 4
        return self.now


@in_loop
async def test_pods_that_take_long_to_decide_do_not_keep_the_first_waiting() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        controller.steps.clock = SlowClock()
        await together(controller, pods(*["10m"] * 8))
        assert 2 < recorder.log.count("save") < 8


@in_loop
async def test_root_comes_before_members_and_each_lane_in_the_order_of_arrival() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        asked = pods(*"1111111")
        waiting = []
        for caller, each in zip("aaaabrr", asked, strict=True):
            with called_by(Caller(caller, privileged=caller == "r")):
                waiting.append(asyncio.create_task(controller.admit(each)))
        await asyncio.gather(*waiting)
        by_admission = [*controller.state.ledger.allocations]
        assert by_admission == [asked[n].uid for n in (5, 6, 0, 1, 2, 3, 4)]
        # A group is of one lane.
        assert recorder.log.count("save") == 2


@in_loop
async def test_members_pods_do_not_go_on_in_a_group_while_root_waits() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        first, *rest = pods(*["10m"] * 20)
        with called_by(Caller("a")):
            waiting = [asyncio.create_task(controller.admit(each)) for each in rest]
        await turns(lambda: controller.queue.waiting == len(rest))
        await turns(lambda: controller.queue.waiting == len(rest) // 2)
        waiting.append(asyncio.create_task(controller.admit(first)))
        await asyncio.gather(*waiting)
        before = [*controller.state.ledger.allocations].index(first.uid)
        assert len(rest) // 2 <= before < len(rest) - 1


async def _allocations(asked: list[Pod], *, at_once: bool) -> list[PodAllocation]:
    async with keeping(Recorder()) as controller:
        if at_once:
            await together(controller, asked)
        else:
            for each in asked:
                await controller.admit(each)
        return list(controller.state.ledger.allocations.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(("1", "2", "3", "6", "500m", "1500m")), max_size=20))
def test_pods_that_come_together_get_what_they_get_one_after_the_other(cpus: list[str]) -> None:
    asked = pods(*cpus)
    together_ = asyncio.run(_allocations(asked, at_once=True))
    assert together_ == asyncio.run(_allocations(asked, at_once=False))
