from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.api.documents.admissions import BindRequest
from agent.managers.allocation import Origin
from agent.managers.bindings import Binding
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.metrics import TOPOLOGY_ADMISSION_REQUESTS
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    Policy,
)
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import load_pod
from agent.reconcile.report import EnforcementReport
from agent.server import metrics as names
from agent.server.admissions import LONGEST_GROUP, MOST_AT_ONCE
from agent.server.configured import ConfiguredHost
from agent.server.controller import Controller
from agent.server.errors import CheckpointFailedError
from agent.server.exposition import Metrics
from agent.server.kernel import KernelEnforcement
from agent.server.limits import Caller
from agent.server.queue import Worker, called_by
from agent.server.resizes import Resize
from agent.server.state import AgentState
from agent.server.steps import Steps
from agent.state.checkpoint import Checkpoint, CheckpointIOError
from agent.state.store import Store
from sysfs.described import regular_host
from sysfs.mask import EMPTY, Mask
from tests.agent.reconcile.pods import observed_cgroups, unenforced
from tests.agent.server.support import OTHER_UID, UID, FakeClock, in_loop, manifest, two_packages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from agent.api.documents.admissions import AdmissionDocument
    from agent.managers.allocation import PodAllocation
    from agent.managers.machine import MachineNode
    from agent.pods.model import Pod
    from agent.reconcile.target import Desired
    from sysfs.host import Host


@dataclass
class Recorder(KernelEnforcement, Store):
    """A checkpoint and a kernel that note in which order they are asked, and fail when asked to."""

    log: list[str] = field(default_factory=list)
    saved: list[Checkpoint] = field(default_factory=list)
    save_error: Exception | None = None
    outcome: EnforcementReport = field(default_factory=EnforcementReport)
    targets: list[Desired] = field(default_factory=list)

    def save(self, state: Checkpoint) -> int:
        self.log.append("save")
        if self.save_error is not None:
            raise self.save_error
        self.saved.append(state)
        return 1

    def check(self) -> None:
        pass

    def free(self) -> int:
        return 1 << 30

    def _note(self, action: str, target: Desired) -> EnforcementReport:
        self.log.append(action)
        self.targets.append(target)
        return self.outcome

    def enforce(self, target: Desired, *uids: str, move_memory: bool = False) -> EnforcementReport:
        del move_memory
        return self._note(" ".join(("enforce", *(uid[:1] for uid in uids))), target)

    def release(self, target: Desired, allocation: PodAllocation) -> EnforcementReport:
        return self._note(f"release {allocation.uid[:1]}", target)

    def reconcile(self, target: Desired, *, insist: bool = False) -> EnforcementReport:
        del insist
        return self._note("reconcile", target)

    def count_intruders(self, target: Desired, outcome: EnforcementReport, online: Mask) -> None:
        del target, outcome, online

    def lacking_memory(self, target: Desired, nodes: Iterable[MachineNode]) -> None:
        del target, nodes

    def locate(
        self, target: Desired, allocation: PodAllocation, container: str, request: BindRequest
    ) -> Binding:
        del target
        return Binding(allocation.uid, container, str(request.cgroup))


def disk_full(*, replaced: bool = False) -> CheckpointIOError:
    full = OSError(28, "No space left on device")
    return CheckpointIOError("writing", Path("/state/checkpoint.json"), full, replaced=replaced)


def rules(*, static_memory: bool = False, host: Host | None = None) -> EffectivePolicy:
    cpu = CpuPolicy(CpuManagerPolicy.STATIC, reserved=Mask.of(0))
    memory = MemoryPolicy(
        MemoryManagerPolicy.STATIC if static_memory else MemoryManagerPolicy.NONE,
        MappingProxyType({0: MappingProxyType({"memory": 1 << 30})}),
    )
    return EffectivePolicy(
        Machine.of(host or two_packages()), Policy(cpu=cpu, memory=memory), MANAGERS
    )


@asynccontextmanager
async def keeping(
    recorder: Recorder, in_force: EffectivePolicy | None = None, host: Host | None = None
) -> AsyncIterator[Controller]:
    """Run a controller's queue until the block ends."""
    in_force = in_force or rules()
    configured = ConfiguredHost(host or two_packages(), in_force)
    state = AgentState(configured, Checkpoint(in_force.empty_ledger()))
    worker, metrics = Worker(state.parts.progress), Metrics(in_force.managers)
    controller = Controller(Steps(state, metrics, recorder, recorder, worker, FakeClock()))
    serving = asyncio.create_task(controller.queue.serve())
    try:
        yield controller
    finally:
        controller.queue.stop()
        await serving
        controller.worker.close()


def pod(name: str = "web", uid: str = UID, cpu: str = "2") -> Pod:
    return load_pod(manifest(name, uid, cpu=cpu), "test")


def unenforced_pod(*details: str, uid: str = UID) -> EnforcementReport:
    return EnforcementReport(differences=tuple(unenforced(each, uid) for each in details))


@in_loop
async def test_the_checkpoint_is_saved_before_the_kernel_is_touched() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        assert (await controller.admit(pod())).admitted
        assert list(recorder.saved[0].ledger.allocations) == [UID]
        assert recorder.targets[0].ledger is recorder.saved[0].ledger
        await controller.remove(UID)
    assert recorder.log == ["save", "enforce 1", "save", "release 1"]
    assert not recorder.saved[1].ledger.allocations


@in_loop
async def test_a_save_that_is_in_place_but_maybe_not_durable_stands_and_is_repeated() -> None:
    recorder = Recorder(save_error=disk_full(replaced=True))
    async with keeping(recorder) as controller:
        assert (await controller.admit(pod())).admitted
        await controller.reconcile()
        (line,) = controller.state.condition_lines()
        assert "may be lost" in line
        recorder.save_error = None
        await controller.reconcile()
        assert controller.state.condition_lines() == ()
    assert list(recorder.saved[-1].ledger.allocations) == [UID]


@in_loop
async def test_a_pod_that_is_not_enforced_is_admitted_and_tried_again_when_it_is_asked_for() -> (
    None
):
    recorder = Recorder(outcome=unenforced_pod("cpuset.cpus: Permission denied"))
    async with keeping(recorder) as controller:
        failures = partial(controller.metrics.counters.value, names.ENFORCEMENT_FAILURES)
        with controller.events.watch() as watcher:
            answer = await controller.admit(pod())
            controller.events.close()
            published = [event.type async for event in watcher]
        assert published == ["PodNotEnforced", "PodAdmitted"]
        assert answer.pod is not None
        assert answer.pod.enforcement.differences == ("cpuset.cpus: Permission denied",)
        assert UID in controller.state.ledger.allocations
        assert controller.state.reading().unenforced_pods == 1
        assert "is not enforced: cpuset.cpus" in controller.state.condition_lines()[0]
        await controller.reconcile()
        assert failures() == 1
        recorder.outcome = unenforced_pod("another reason")
        await controller.reconcile()
        assert failures() == 2
        recorder.outcome = EnforcementReport()
        again = await controller.admit(pod())
        assert again.already_admitted
        assert again.pod is not None
        assert again.pod.enforcement.enforced
        assert controller.state.condition_lines() == ()
    assert recorder.log == ["save", "enforce 1", "reconcile", "reconcile", "enforce 1"]


@in_loop
async def test_the_specification_of_an_imported_pod_is_saved_and_enforced_once() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await controller.admit(pod())
        state, ledger = controller.state, controller.state.ledger
        known = ledger.allocations[UID]
        imported = replace(known, spec_digest="", origin=Origin.IMPORTED)
        ledger = replace(ledger, allocations=MappingProxyType({UID: imported}))
        state.durable = replace(state.durable, ledger=ledger)
        recorder.log.clear()
        with capture_logs() as log:
            assert (await controller.admit(pod())).already_admitted
        found = [(line["event"], line["containers"][0]["sharing"]) for line in log]
        assert found == [("pod matched", "own")]
        assert recorder.saved[-1].ledger.allocations[UID].spec_digest == known.spec_digest
        await controller.admit(pod())
    assert recorder.log == ["save", "enforce 1"]


@in_loop
@pytest.mark.parametrize(
    "some",
    [
        EnforcementReport(pods=frozenset({OTHER_UID})),
        replace(unenforced_pod("failed", uid=OTHER_UID), compared=False),
    ],
    ids=["of another pod", "not compared"],
)
async def test_conditions_stay_until_what_they_are_about_is_compared(
    some: EnforcementReport,
) -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await controller.admit(pod())
        controller.outcomes.note_failure("its CDI file is missing", (UID,))
        controller.outcomes.note_failure("the shared pool is the former one", ())
        recorder.outcome = some
        await controller.admit(pod("db", OTHER_UID))
        lines = "; ".join(controller.state.condition_lines())
        assert "its CDI file is missing" in lines
        # What no pod lacks alone is above all pods, and compared with each of them.
        assert ("the shared pool is the former one" in lines) is not some.compared
        recorder.outcome = EnforcementReport()
        await controller.reconcile()
        assert controller.state.condition_lines() == ()


@pytest.mark.parametrize(
    ("fit", "reason", "asked"),
    [(None, "UnexpectedAdmissionError", 1), (NodeFit(max_pods=110), "OutOfcpu", 0)],
)
@in_loop
async def test_a_rejected_pod_is_counted_and_only_where_the_node_has_room_timed_as_aligned(
    fit: NodeFit | None, reason: str, asked: int
) -> None:
    """The kubelet observes what its topology manager decided, which may not be asked."""
    recorder, in_force = Recorder(), replace(rules(), policy=replace(rules().policy, fit=fit))
    async with keeping(recorder, in_force) as controller:
        answer = await controller.admit(pod(cpu="64"))
        assert answer.rejection is not None
        counters = controller.metrics.counters
        assert counters.value(names.ADMISSIONS, "rejected") == 1
        assert counters.value(names.REJECTIONS, answer.rejection.reason) == 1
        assert counters.value(TOPOLOGY_ADMISSION_REQUESTS) == asked
        assert controller.metrics.admission_duration.count == 1
        assert controller.metrics.decision_duration.count == asked
        assert answer.rejection.reason == reason
    assert recorder.log == []


@in_loop
async def test_drift_is_counted_by_cause_and_the_outcome_by_result() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await controller.reconcile()
        agreed = controller.state.observed.last_agreement
        recorder.outcome = EnforcementReport(drift=(unenforced("another value", UID),) * 3)
        await controller.reconcile()
        recorder.outcome = EnforcementReport(differences=(unenforced("the tree is gone"),))
        assert (await controller.reconcile()).differences == ("the tree is gone",)
        assert controller.state.condition_lines() == ("the tree is gone",)
        value = controller.metrics.counters.value
        drift = [value(each, "unknown") for each in (names.DRIFT_FOUND, names.DRIFT_REPAIRED)]
        assert drift == [3, 3]
        assert [value(names.RECONCILES, r) for r in ("clean", "repaired", "failed")] == [1, 1, 1]
        assert controller.state.observed.last_agreement == agreed
        assert controller.metrics.reconcile_duration.count == 3


def charged(controller: Controller) -> int:
    nodes = memory_charge(controller.state.ledger).values()
    return sum(node.reserved["memory"] for node in nodes)


@in_loop
async def test_the_memory_of_init_containers_is_freed_once_an_app_runs() -> None:
    amounts = b"{cpu: '2', memory: 4Gi}"
    init = b"spec:\n  initContainers:\n  - name: prepare\n    image: i\n    resources:\n"
    init += b"      requests: %s\n      limits: %s\n" % (amounts, amounts)
    text = manifest(memory="2Gi").replace(b"spec:\n", init)
    recorder = Recorder()
    async with keeping(recorder, rules(static_memory=True)) as controller:
        await controller.admit(load_pod(text, "test"))
        assert charged(controller) == 4 << 30
        recorder.outcome = EnforcementReport(cgroups=observed_cgroups("x", uid=UID, container="c0"))
        for _ in range(2):
            await controller.reconcile()
            assert charged(controller) == 2 << 30
            assert recorder.saved[-1].ledger is controller.state.ledger
            assert recorder.log.count("save") == 2


@in_loop
async def test_memory_that_was_added_can_be_given() -> None:
    recorder = Recorder()
    small = regular_host(packages=1, cores_per_node=8)
    async with keeping(recorder, rules(static_memory=True, host=small), small) as controller:
        await controller.admit(pod())
        larger = ConfiguredHost(two_packages(), rules(static_memory=True))
        recorder.save_error = disk_full()
        assert await controller.take_over(lambda: larger)
        assert memory_charge(controller.state.ledger).keys() == {0, 1}
        assert UID in controller.state.ledger.allocations
        recorder.save_error = None
        assert (await controller.admit(pod("db", OTHER_UID))).admitted
        assert controller.metrics.counters.value(names.HOST_CHANGES) == 1
        assert not await controller.take_over(lambda: larger)


@in_loop
async def test_a_comparison_that_failed_forgets_no_binding_of_a_removed_pod() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await controller.admit(pod())
        await controller.bind(UID, "c0", BindRequest(cgroup="x"))
        await controller.remove(UID)
        for outcome, left in (
            (EnforcementReport(differences=(unenforced("the cgroup tree failed"),)), 1),
            (EnforcementReport(cgroups=observed_cgroups("x")), 1),
            (EnforcementReport(ended=frozenset({"x"})), 0),
        ):
            recorder.outcome = outcome
            await controller.reconcile()
            assert len(controller.state.durable.bindings) == left


@in_loop
async def test_cgroups_of_a_part_are_watched_beside_the_rest_and_none_for_ever() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        recorder.outcome = EnforcementReport(cgroups=observed_cgroups("a", "b"))
        await controller.reconcile()
        recorder.outcome = EnforcementReport(cgroups=observed_cgroups("c"), pods=frozenset({UID}))
        await controller.admit(pod())
        assert controller.outcomes.cgroups == {"a", "b", "c"}
        for number in range(5):
            own = f"kubepods/pod{number}"
            recorder.outcome = EnforcementReport(
                cgroups=observed_cgroups(own, "kubepods/a"), created=(own,), enabled=("kubepods",)
            )
            await controller.reconcile()
        assert controller.outcomes.cgroups == {"kubepods/pod4", "kubepods/a"}
        assert controller.outcomes.renewed == {"kubepods", "kubepods/pod4"}


@pytest.mark.parametrize("error", [ValueError("odd"), disk_full()], ids=["odd", "disk full"])
@in_loop
async def test_a_save_that_fails_for_whatever_reason_is_counted_and_tried_again(
    error: Exception,
) -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        recorder.save_error = error
        with pytest.raises((type(error), CheckpointFailedError)) as raised:
            await controller.admit(pod())
        expected = isinstance(error, CheckpointIOError)
        assert str(raised.value).startswith("nothing was changed") is expected
        assert controller.metrics.counters.value(names.CHECKPOINT_FAILURES) == 1
        assert controller.metrics.counters.value(names.ADMISSIONS, "failed") == expected
        assert controller.state.ledger.allocations == {}
        assert any(line.startswith("checkpoint: ") for line in controller.state.condition_lines())
        recorder.save_error = None
        await controller.reconcile()
        assert controller.state.condition_lines() == ()
        assert recorder.saved[-1].ledger.allocations == {}


@in_loop
async def test_a_resize_that_cannot_be_saved_leaves_no_error_that_nobody_retrieves() -> None:
    """It would be logged with its traceback as soon as garbage is collected."""
    recorder, unretrieved = Recorder(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: unretrieved.append(about))
    async with keeping(recorder) as controller:
        await controller.admit(pod())
        recorder.save_error = disk_full()
        with pytest.raises(CheckpointFailedError):
            await controller.resize(Resize(UID, "c0", 3000, None, Mask()))
        recorder.save_error = None
        assert str(controller.state.allocation(UID).exclusive_cpus) == "1,9"
        # The condition that it is not saved keeps the error until then.
        assert (await controller.resize(Resize(UID, "c0", 3000, None, Mask()))).admitted
        gc.collect()
        assert unretrieved == []


@in_loop
async def test_what_a_comparison_observes_is_true_whether_or_not_it_can_be_saved() -> None:
    orphaned = EnforcementReport(orphaned=frozenset({UID}))
    recorder = Recorder(outcome=orphaned, save_error=disk_full())
    async with keeping(recorder) as controller:
        assert (await controller.reconcile()).differences == ()
        assert controller.state.durable.orphaned == {UID}
        assert any("No space left" in line for line in controller.state.condition_lines())
        recorder.save_error = None
        await controller.reconcile()
        assert controller.state.condition_lines() == ()
        assert recorder.saved[-1].orphaned == {UID}


def uid(number: int) -> str:
    return f"{number:08}-2222-3333-4444-555555555555"


def pods(*cpus: str) -> list[Pod]:
    return [pod(f"pod{number}", uid(number), cpu) for number, cpu in enumerate(cpus)]


async def together(controller: Controller, asked: list[Pod]) -> list[AdmissionDocument]:
    return list(await asyncio.gather(*map(controller.admit, asked)))


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


class SlowClock(FakeClock):
    """Passes more of a group's time whenever it is asked."""

    def monotonic(self) -> float:
        self.now += LONGEST_GROUP / 4
        return self.now


@in_loop
async def test_a_group_has_a_bound_in_number_and_in_time() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        await together(controller, pods(*["10m"] * (MOST_AT_ONCE + 1)))
        assert recorder.log.count("save") == 2
        assert len(controller.state.ledger.allocations) == MOST_AT_ONCE + 1
    recorder = Recorder()
    async with keeping(recorder) as controller:
        controller.steps.clock = SlowClock()
        await together(controller, pods(*["10m"] * 8))
        assert 2 < recorder.log.count("save") < 8


@in_loop
async def test_root_comes_before_members_also_amid_their_group() -> None:
    recorder = Recorder()
    async with keeping(recorder) as controller:
        first, *rest = pods(*["10m"] * 20)
        with called_by(Caller("a")):
            waiting = [asyncio.create_task(controller.admit(each)) for each in rest]
        for left in (len(rest), len(rest) // 2):
            while controller.queue.waiting != left:  # noqa: ASYNC110  # it lasts a turn
                await asyncio.sleep(0)
        waiting.append(asyncio.create_task(controller.admit(first)))
        await asyncio.gather(*waiting)
        by_admission = [*controller.state.ledger.allocations]
        assert len(rest) // 2 <= by_admission.index(first.uid) < len(rest) - 1
        assert [each for each in by_admission if each != first.uid] == [each.uid for each in rest]


async def allocations(asked: list[Pod], *, at_once: bool) -> list[PodAllocation]:
    async with keeping(Recorder()) as controller:
        for group in [asked] if at_once else [[each] for each in asked]:
            await together(controller, group)
        return list(controller.state.ledger.allocations.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(("1", "2", "3", "6", "500m", "1500m")), max_size=20))
def test_pods_that_come_together_get_what_they_get_one_after_the_other(cpus: list[str]) -> None:
    asked = pods(*cpus)
    together_ = asyncio.run(allocations(asked, at_once=True))
    assert together_ == asyncio.run(allocations(asked, at_once=False))
