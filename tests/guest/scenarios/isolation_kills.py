"""The agent killed at random moments of admissions and removals, with every item of isolation on.

After each restart nothing of the host may use exclusive CPUs; in the end the host is as before.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from tests.guest.inside import isolated, kernel
from tests.guest.inside.agent import Agent
from tests.guest.inside.api import answer_to, ask
from tests.guest.inside.checks import Stopped, wait_until
from tests.guest.inside.commands import run as command
from tests.guest.inside.workloads import systemd_run
from tests.guest.scenarios.isolation import ISOLATION

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

SEED: Final = 5526
KILLS: Final = 20
#: Pods that come and go, by name: of one, two and three CPUs.
UIDS: Final = {f"churn-{cpus}": f"5526cafe-0000-4000-8000-0000000151a{cpus}" for cpus in (1, 2, 3)}


class Request(threading.Thread):
    """An admission of a pod, or its removal where there is one, whose answer may never come."""

    def __init__(self, name: str, *, there: bool) -> None:
        super().__init__(daemon=True)
        self.what = f"{'removal' if there else 'admission'} of {name}"
        self.seconds = 0.0
        self.answered = False
        uid = UIDS[name]
        pod = isolated.pod_of(name, uid, main=name[-1])
        self._asked = ("DELETE", f"pods/{uid}") if there else ("POST", "pods", pod)

    def run(self) -> None:
        began = time.monotonic()
        try:
            answer_to(*self._asked)
            self.answered = True
        except (OSError, http.client.HTTPException):
            pass
        self.seconds = time.monotonic() - began


def run(guest: Guest) -> None:
    """Kill the agent twenty times; then remove all pods and compare the host."""
    checks, agent = guest.checks, Agent(guest)
    isolated.begin_restless()
    for file in (isolated.LOOPBACK, isolated.DEFAULT_STEERING):
        file.write_text("ffff")
    for drop_in in ("isolation.conf", "partitions.conf"):
        isolated.permit(guest, drop_in)
    isolated.configure(agent, **ISOLATION, partitions="root")
    before = isolated.settings()
    agent.start()
    stays = kernel.ids(agent.admit(isolated.pod_of("stays", isolated.POD))["pod"]["exclusiveCpus"])
    systemd_run("own", isolated.SLICE)
    chance = random.Random(SEED)  # noqa: S311 - the same moments in every run
    # Undisturbed, to learn how long a request takes.
    undisturbed = [Request(min(UIDS), there=there) for there in (False, True)]
    for each in undisturbed:
        each.run()
        checks.require(f"undisturbed {each.what}", each.answered, f"{each.seconds:.2f} s")
    typical, answered = undisturbed[0].seconds, 0
    for number in range(1, KILLS + 1):
        there = {pod["uid"] for pod in agent.pods()}
        name = chance.choice(sorted(UIDS))
        request = Request(name, there=UIDS[name] in there)
        moment, pid = chance.uniform(0, 1.5 * typical), agent.pid
        request.start()
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        request.join()
        if not wait_until(lambda killed=pid: agent.is_ready() and agent.pid not in (0, killed)):  # type: ignore[misc]
            raise Stopped("a restart")
        answered += request.answered
        ask("POST", "reconcile")
        when = f"kill {number}, {moment:.2f} s into the {request.what}"
        own = frozenset().union(*(kernel.ids(pod["exclusiveCpus"]) for pod in agent.pods()))
        checks.check(f"{when}: the pod that stays has its CPUs", stays <= own, own)
        checks.equal(f"{when}: CPUs of services", own & isolated.allowed(), frozenset())
        checks.equal(f"{when}: interrupts", isolated.touching(own), [])
        of_kernel = {isolated.name_of(thread) for thread, cpus in isolated.threads() if own & cpus}
        checks.equal(f"{when}: threads of the kernel", of_kernel, set())
        checks.equal(f"{when}: no condition", isolated.conditions(agent), [])
    checks.check("requests that were answered", 0 < answered < KILLS, answered)
    command("systemctl", "stop", "own.service")
    for pod in agent.pods():
        agent.remove(pod["uid"])
    ask("POST", "reconcile")
    isolated.check_as_before(checks, "once all pods are removed", before)
    checks.equal("once all pods are removed: what is the agent's", isolated.originals(), [])
