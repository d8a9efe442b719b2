"""The agent killed again and again while pods come and go: no allocation or workload is lost."""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine, placements, single, snapshot
from tests.guest.inside.agent import SERVICE, Agent
from tests.guest.inside.api import answer_to, ask
from tests.guest.inside.checks import STUCK, Stopped, wait_until
from tests.guest.inside.examples import start
from tests.guest.inside.pods import BACKGROUND, POD_SCOPE
from tests.guest.inside.starters import SystemdRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

SEED: Final = 5526
KILLS: Final = 8
#: One of so many kills is followed by another while the agent starts again.
IN_START: Final = 4
#: What comes and goes, by its CPUs; together more than the host has, so that some are rejected.
CPUS: Final = {f"churn-{number}": 1 + number % 3 for number in range(7)}

MIXED: Final = next(example for example in POD_SCOPE if example.name == "pod-scope-mixed")
UNIT: Final = kernel.Cgroup(f"system.slice/{SERVICE}")
PODS: Final = kernel.Cgroup("kubepods.slice")


class Request(threading.Thread):
    """An admission or a removal under way; `answer` stays None without an answer."""

    def __init__(self, name: str, allocated: str | None) -> None:
        super().__init__(daemon=True)
        self.uid = single.uid_of(name)
        self.allocated = allocated
        self.answer: tuple[int, dict[str, Any]] | None = None
        self.seconds = 0.0
        self._manifest = single.pod(name, CPUS[name], "64Mi")

    def run(self) -> None:
        began = time.monotonic()
        try:
            if self.allocated is None:
                self.answer = answer_to("POST", "pods", self._manifest)
            else:
                self.answer = answer_to("DELETE", f"pods/{self.uid}")
        except (OSError, http.client.HTTPException):
            self.answer = None
        self.seconds = time.monotonic() - began

    @property
    def possible(self) -> tuple[str | None, ...]:
        """What may come of it: the CPUs its pod holds, None for no such pod, "" for any CPUs."""
        if self.answer is None:
            return (None, self.allocated or "")
        status, document = self.answer
        if self.allocated is not None:
            return (None,) if status == HTTPStatus.OK else ()
        if status == HTTPStatus.CREATED:
            return (document["pod"]["exclusiveCpus"],)
        return (None,) if status == HTTPStatus.CONFLICT else ()

    def __str__(self) -> str:
        what = "admission" if self.allocated is None else "removal"
        return f"{what} of {self.uid}: {self.answer[0] if self.answer else 'no answer'}"


@dataclass(slots=True)
class Churn:
    """Pods that come and go beside two that stay; `allocated` are the CPUs of the former by uid."""

    checks: Checks
    staying: list[Workload]
    pod: kernel.Cgroup
    mixed: frozenset[int]
    good: dict[str, str]
    chance: random.Random
    allocated: dict[str, str] = field(default_factory=dict)
    done: list[Request] = field(default_factory=list)
    pid: int = 0
    kills: int = 0
    restarts: list[float] = field(default_factory=list)

    @classmethod
    def begin(cls, guest: Guest) -> Churn:
        """Start the agent and the pods that stay."""
        agent = Agent(guest)
        agent.start()
        _, idle = start(guest.checks, agent, SystemdRun(), BACKGROUND)
        pod, mixed = start(guest.checks, agent, SystemdRun(), MIXED)
        ask("POST", "reconcile")  # the last container may have started only just now
        workloads = [*idle.values(), *mixed.values()]
        taken = placements.exclusive_cpus(MIXED, mixed)
        chance = random.Random(SEED)  # noqa: S311 - the same moments in every run
        return cls(guest.checks, workloads, pod, taken, snapshot.settings(pod), chance)

    def request(self) -> Request:
        """Return the next request: any pod goes if it is there and comes if it is not."""
        name = self.chance.choice(list(CPUS))
        return Request(name, self.allocated.get(single.uid_of(name)))

    def undisturbed(self, name: str) -> None:
        """Admit and remove a pod without a kill, to learn how long that takes."""
        for _ in range(2):
            request = Request(name, self.allocated.get(single.uid_of(name)))
            request.run()
            self.checks.equal(f"undisturbed: {request}", self.settle(request), [])

    def kill_during(self, request: Request) -> None:
        """Kill the agent at a random moment of a request, or soon after its answer."""
        typical = median(each.seconds for each in self.done if each.answer is not None)
        moment = self.chance.uniform(0, 1.5 * typical)
        request.start()
        time.sleep(moment)
        self.kill()
        request.join()

    def kill(self) -> None:
        """Kill the agent's process, another one than the last time."""
        self.pid = _await_another(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        self.kills += 1

    def restarted(self) -> None:
        """Wait until systemd has the agent running again; now and then kill it on the way."""
        began = time.monotonic()
        if self.restarts and self.chance.randrange(IN_START) == 0:
            _await_another(self.pid)
            time.sleep(self.chance.uniform(0, median(self.restarts)))
            self.kill()
            began = time.monotonic()
        if not wait_until(_ready, STUCK):
            raise Stopped("a restart")
        self.restarts.append(time.monotonic() - began)

    def settle(self, request: Request) -> list[str]:
        """Take over what came of a request; return what should not have."""
        self.done.append(request)
        pods = {pod["uid"]: pod for pod in ask("GET", "pods")["pods"]}
        found = {uid: pod["exclusiveCpus"] for uid, pod in pods.items() if _comes_and_goes(uid)}
        now, possible = found.get(request.uid), request.possible
        if now not in possible and not (now and "" in possible):
            wrong = [f"{request.uid} has {now}, expected one of {possible}"]
        else:
            wrong = []
        expected = {uid: cpus for uid, cpus in self.allocated.items() if uid != request.uid}
        if now is not None:
            expected[request.uid] = now
        self.allocated = found
        wrong += [] if found == expected else [f"allocated are {found}, expected {expected}"]
        return [*wrong, *self._twice(), *self._kernel(pods)]

    def apart(self) -> list[str]:
        """Return what of the kernel's sets overlaps, at whatever moment the agent died."""
        sets = {"background": self.staying[0].cgroup.cpus, "mixed": self.mixed}
        for path in PODS.path.glob("kubepods-pod*.slice"):
            try:
                shown = kernel.ids((path / "cpuset.cpus").read_text())
            except OSError:
                if path.exists():
                    raise
                continue  # systemd ends what it was asked to before the kill
            if path != self.pod.path and shown:
                sets[path.name] = shown
        return [
            f"{one} and {other} share {sorted(sets[one] & sets[other])}"
            for one, other in combinations(sets, 2)
            if sets[one] & sets[other]
        ]

    def untouched(self) -> list[str]:
        """Return what changed for the pods that stay."""
        changes = snapshot.differences(self.good, snapshot.settings(self.pod))
        return [*map(str, changes.items()), *snapshot.touched(self.staying)]

    def _twice(self) -> Iterator[str]:
        sets = {uid: kernel.ids(cpus) for uid, cpus in self.allocated.items()} | {
            MIXED.uid: self.mixed
        }
        for one, other in combinations(sets, 2):
            if sets[one] & sets[other]:
                yield f"{one} and {other} both have {sorted(sets[one] & sets[other])}"

    def _kernel(self, pods: Mapping[str, Any]) -> Iterator[str]:
        """Yield where the kernel's files are not what the ledger says."""
        for uid in (BACKGROUND.uid, MIXED.uid):
            if uid not in pods:
                yield f"{uid} is lost"
        there = {path.name for path in PODS.path.glob("kubepods-pod*.slice")} - {self.pod.path.name}
        desired = {f"kubepods-pod{uid.replace('-', '_')}.slice": uid for uid in self.allocated}
        if there != set(desired):
            yield f"slices are {sorted(there)}, expected {sorted(desired)}"
        for name in there & set(desired):
            uid, group = desired[name], kernel.Cgroup(PODS.path / name)
            want = (self.allocated[uid], pods[uid]["containers"][0]["mems"], "max 100000")
            shown = tuple(map(group.read, ("cpuset.cpus", "cpuset.mems", "cpu.max")))
            if shown != want or group.read("cpuset.cpus.effective") != want[0]:
                yield f"{name} shows {shown}, expected {want}"
        taken = self.mixed.union(*map(kernel.ids, self.allocated.values()))
        left = self.staying[0].cgroup.cpus
        if left != machine.cpus() - taken:
            yield f"the shared pool is {sorted(left)}, taken are {sorted(taken)}"
        differences = [line for pod in pods.values() for line in pod["enforcement"]["differences"]]
        yield from differences


def run(guest: Guest, kills: int = KILLS) -> None:
    """Kill the agent so many times, then remove all pods."""
    churn = Churn.begin(guest)
    checks = churn.checks
    checks.check(f"{kills} kills", condition=True, detail=f"the chance's seed is {SEED}")
    churn.undisturbed("churn-1")
    while churn.kills < kills:
        request = churn.request()
        churn.kill_during(request)
        name = f"kill {churn.kills}, {request}"
        checks.equal(f"{name}: no CPU is two pods' meanwhile", churn.apart(), [])
        churn.restarted()
        checks.equal(f"{name}: ledger and kernel", churn.settle(request), [])
        checks.equal(f"{name}: who stays is untouched", churn.untouched(), [])
    checks.check("verify agrees", ask("GET", "verify")["agrees"])
    _figures(churn)
    _remove_all(churn)


def _figures(churn: Churn) -> None:
    """Check that the kills came before, amid and after what they were to disturb."""
    silent = sum(request.answer is None for request in churn.done)
    answered = len(churn.done) - silent
    churn.checks.check("requests without an answer", silent, silent)
    churn.checks.check("requests with one", answered, answered)
    restarts = f"{min(churn.restarts):.1f} to {max(churn.restarts):.1f} s"
    churn.checks.check("restarts", churn.restarts, f"{restarts}, {median(churn.restarts):.1f} s")


def _remove_all(churn: Churn) -> None:
    """Check that all CPUs are free again when everything is removed."""
    for uid in tuple(churn.allocated):
        ask("DELETE", f"pods/{uid}")
    left = churn.staying[0].cgroup.cpus
    churn.checks.equal("the end: the rest is shared", left, machine.cpus() - churn.mixed)
    for workload in churn.staying:
        os.kill(workload.pid, signal.SIGKILL)
    for uid in (BACKGROUND.uid, MIXED.uid):
        ask("DELETE", f"pods/{uid}")

    def slices() -> list[str]:
        return [path.name for path in PODS.path.rglob("*-pod*.slice")]

    churn.checks.eventually("the end: no cgroup of a pod is left", slices, [])
    churn.checks.equal("the end: no pod is left", ask("GET", "pods")["pods"], [])


def _comes_and_goes(uid: str) -> bool:
    return uid not in (BACKGROUND.uid, MIXED.uid)


def _await_another(pid: int) -> int:
    """Return the process of the agent, once systemd started another one than `pid`."""

    def others() -> list[int]:
        return [each for each in UNIT.processes if each != pid]

    if not wait_until(others):
        raise Stopped("a restart")
    return others()[0]


def _ready() -> bool:
    try:
        return bool(ask("GET", "status")["ready"])
    except (OSError, http.client.HTTPException):
        return False
