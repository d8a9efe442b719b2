"""The agent stopped, restarted and killed: workloads stay as they are, nothing is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine, placements, snapshot
from tests.guest.inside.agent import Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import run as run_command
from tests.guest.inside.examples import start
from tests.guest.inside.pods import BACKGROUND, POD_SCOPE, Exclusive
from tests.guest.inside.starters import Podman, SystemdRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.starters import Starter
    from tests.guest.inside.workloads import Workload

EXAMPLES: Final = {example.name: example for example in POD_SCOPE}
MIXED: Final = EXAMPLES["pod-scope-mixed"]
LATE: Final = EXAMPLES["pod-scope-no-budget"]
EARLY: Final = EXAMPLES["pod-scope-all-guaranteed"]
REJECTED: Final = EXAMPLES["pod-scope-admission-failure"]

PODS: Final = Path("/sys/fs/cgroup/kubepods.slice")
CHECKPOINT: Final = Path("/var/lib/numawarden/checkpoint.json")

#: What a pod holds, without how that came about (which is not kept over a restart).
ALLOCATION: Final = (
    "uid",
    "name",
    "namespace",
    "qos",
    "cpus",
    "memory",
    "exclusiveCpus",
    "containers",
)


@dataclass(slots=True)
class Story:
    """A host with one pod on the node's shared pool and one mixed pod."""

    checks: Checks
    agent: Agent
    starter: Starter
    background: Workload
    pod: kernel.Cgroup
    mixed: dict[str, Workload]

    @classmethod
    def begin(cls, guest: Guest) -> Story:
        """Start the agent and both pods."""
        agent = Agent(guest)
        agent.start()
        _, idle = start(guest.checks, agent, SystemdRun(), BACKGROUND)
        starter = Podman(guest.work / "root")
        pod, mixed = start(guest.checks, agent, starter, MIXED)
        background = idle[BACKGROUND.containers[0]]
        return cls(guest.checks, agent, starter, background, pod, mixed)

    @property
    def running(self) -> list[Workload]:
        """All workloads."""
        return [self.background, *self.mixed.values()]

    def check_placements(self) -> None:
        """Check that every container runs where the documents say."""
        placements.check_pod(self.checks, MIXED, self.mixed, self.pod, self.background)


def run(guest: Guest) -> None:
    """Stop, start, kill; start containers and remove pods in between."""
    story = Story.begin(guest)
    story.check_placements()
    allocations = _allocations(story.agent)
    _leaves_alone(story, "SIGTERM", story.agent.stop)
    story.checks.equal("SIGTERM: it is stopped", story.agent.pid, 0)
    for what, act in (
        ("the next start", story.agent.start),
        ("SIGKILL", story.agent.kill),
        ("a restart", story.agent.restart),
    ):
        _leaves_alone(story, what, act)
        story.checks.equal(f"{what}: the same allocations", _allocations(story.agent), allocations)
    story.check_placements()
    _admits_once(story)
    _commands(story)
    _rolls_back(story)
    _starts_while_down(story)
    _removes_while_down(story)


def _allocations(agent: Agent) -> list[dict[str, Any]]:
    return [{key: pod[key] for key in ALLOCATION} for pod in agent.pods()]


def _leaves_alone(story: Story, what: str, act: Callable[[], None]) -> None:
    """Check that an act upon the agent changes no pod's cgroup and no process."""
    top = kernel.Cgroup("kubepods.slice")
    before = snapshot.settings(top)
    story.checks.check(f"{what}: there is something to change", before, len(before))
    act()
    changes = snapshot.differences(before, snapshot.settings(top))
    story.checks.equal(f"{what}: no cgroup changed", changes, {})
    story.checks.equal(f"{what}: no workload was touched", snapshot.touched(story.running), [])


def _admits_once(story: Story) -> None:
    """Check that admitting a pod again, after restarts, is the same admission."""
    allocations = _allocations(story.agent)
    answer = story.agent.admit(MIXED.manifest)
    story.checks.check("again: admitted", answer["admitted"], answer.get("rejection") or "")
    story.checks.check("again: it says so", answer["alreadyAdmitted"])
    story.checks.equal("again: no new allocation", _allocations(story.agent), allocations)


def _commands(story: Story) -> None:
    """Check that looking, a rejected pod and a container bound once more change nothing."""
    allocations = _allocations(story.agent)
    name = MIXED.containers[0]
    again = ("bind", MIXED.name, name, "--pid", str(story.mixed[name].pid))
    for command in (("status",), ("list",), ("show", MIXED.name), again):
        outcome = story.agent.cli(*command)
        story.checks.check(f"numawarden {command[0]}", outcome.ok, outcome.command)
    rejected = story.agent.cli("admit", story.agent.manifest(REJECTED.manifest))
    story.checks.equal("numawarden admit: rejected", rejected.status, 1)
    story.checks.equal("commands: no other allocation", _allocations(story.agent), allocations)


def _rolls_back(story: Story) -> None:
    """Put a checkpoint back in which the CPUs of a running pod are those of one that is gone."""
    checks, agent, starter = story.checks, story.agent, SystemdRun()
    checks.check("older: admitted", agent.admit(EARLY.manifest)["admitted"])
    older = CHECKPOINT.read_bytes()
    agent.remove(EARLY.uid)
    _, late = start(checks, agent, starter, LATE)
    ask("POST", "reconcile")  # the last container may have started only just now
    before = _cpus(late)
    agent.stop()
    CHECKPOINT.write_bytes(older)
    agent.start()
    checks.equal("older: who runs keeps its CPUs", _cpus(late), before)
    checks.equal(
        "older: no process was moved", snapshot.touched([*story.running, *late.values()]), []
    )
    uids = {pod["uid"] for pod in agent.pods()}
    checks.equal("older: who runs is known", uids, {BACKGROUND.uid, MIXED.uid, LATE.uid})
    conditions = [each["message"] for each in agent.status()["conditions"]]
    for what, uid in (("recovered", LATE.uid), ("the checkpoint allocates", EARLY.uid)):
        reported = [line for line in conditions if uid in line and what in line]
        checks.equal(f"older: reported that {uid} is {what}", len(reported), 1)
    taken = placements.exclusive_cpus(LATE, late)
    pool = story.background.cgroup.cpus
    checks.equal("older: no other pod has them", taken & pool, frozenset())
    checks.check("older: confirmed", agent.admit(LATE.manifest)["alreadyAdmitted"])
    checks.equal("older: the same CPUs", _cpus(late), before)
    name = LATE.containers[0]
    for command in (
        ("bind", LATE.name, name, "--pid", str(late[name].pid)),
        ("unbind", LATE.name, name),
    ):
        outcome = agent.cli(*command)
        checks.check(f"numawarden {command[0]}", outcome.ok, outcome.command)
    checks.equal("unbound: found by its name again", _cpus(late), before)
    _stops_a_slice(checks, agent.cgroup_of(LATE.uid), late)
    starter.close()
    agent.remove(LATE.uid)
    checks.eventually("its slice is gone", lambda: list(PODS.glob(f"*{_escaped(LATE.uid)}*")), [])


def _stops_a_slice(checks: Checks, pod: kernel.Cgroup, workloads: dict[str, Workload]) -> None:
    """Stop a slice as the agent stops that of a removed pod: what runs there is not ended."""
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
    call = ("org.freedesktop.systemd1.Manager", "StopUnit", "ss", pod.path.name)
    run_command("busctl", "call", *manager, *call, "ignore-dependencies")
    stopped = ("systemctl", "show", "--value", "--property=ActiveState", pod.path.name)
    checks.eventually("a stopped slice", lambda: run_command(*stopped).strip(), "inactive")
    touched = snapshot.touched(list(workloads.values()))
    checks.equal("a stopped slice: nothing in it was ended", touched, [])


def _escaped(uid: str) -> str:
    return uid.replace("-", "_")


def _cpus(workloads: dict[str, Workload]) -> dict[str, list[int]]:
    return {name: sorted(workload.cgroup.cpus) for name, workload in workloads.items()}


def _starts_while_down(story: Story) -> None:
    """Admit a pod, start its containers while no agent runs: the next one finds and pins them."""
    checks, agent, starter = story.checks, story.agent, SystemdRun()
    admitted = agent.cli("admit", agent.manifest(LATE.manifest))
    checks.require("late: numawarden admit", admitted.ok, admitted)
    starter.open(LATE, agent.cgroup_of(LATE.uid))
    agent.stop()
    before = snapshot.settings(story.pod)
    late = {name: starter.start(name) for name in LATE.containers}
    changes = snapshot.differences(before, snapshot.settings(story.pod))
    checks.equal("late: the other pod keeps its settings meanwhile", changes, {})
    agent.start()
    for name, placement in zip(LATE.containers, LATE.placements or (), strict=True):
        assert isinstance(placement, Exclusive)
        cgroup = late[name].cgroup
        pinned = f"late: {name} is found and pinned"
        checks.eventually(pinned, partial(_count, cgroup), placement.cpus)
    taken = placements.exclusive_cpus(LATE, late)
    checks.equal(
        "late: no other pod has its CPUs", taken & story.background.cgroup.cpus, frozenset()
    )
    checks.equal(
        "late: no process was moved", snapshot.touched([*story.running, *late.values()]), []
    )
    starter.close()
    removed = agent.cli("remove", LATE.uid)
    checks.check("late: numawarden remove", removed.ok, removed)


def _count(cgroup: kernel.Cgroup) -> int:
    return len(cgroup.cpus)


def _removes_while_down(story: Story) -> None:
    """Stop a pod's containers while no agent runs, then remove the pod: its allocation is free."""
    story.agent.stop()
    story.starter.close()
    story.agent.start()
    uids = [pod["uid"] for pod in story.agent.pods()]
    story.checks.equal("a pod without containers stays", uids, [BACKGROUND.uid, MIXED.uid])
    story.agent.remove(MIXED.uid)
    back = "all its CPUs are shared again"
    story.checks.eventually(back, lambda: story.background.cgroup.cpus, machine.cpus())
