"""As many pods at once as a kubelet takes by default, a part of them with CPUs of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside.agent import samples
from tests.guest.inside.beside import Node, own, pod
from tests.guest.inside.checks import wait_until
from tests.guest.inside.kubelet import amounts, container

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

#: The kubelet's default (`maxPods`).
PODS: Final = 110
#: One CPU each; two more stay for the others.
EXCLUSIVE: Final = 12
#: Seconds that an emulated machine has for all of their sandboxes.
LONG: Final = 3600.0
MEMORY_MIB: Final = 48
#: What the fake kubelet asks of containerd at a time, and seconds that it waits for an answer.
CALLS: Final = 6
REQUEST: Final = 600
#: Results that no request of the runtime may have here, as the metric names them.
BAD: Final = ("rejected", "late", "failed")


def run(guest: Guest) -> None:
    """Run them all, compare sets, and delete them all."""
    # All pods are there at once. An emulated machine that starts all of their sandboxes at once has
    # each of containerd's own limits of time passed, and half of its time would go into lists.
    calls = (f"--request={REQUEST}", f"--at-once={CALLS}")
    node = Node.started(guest, habits=(*calls, "--poll=2", "--look=10"), sealed=True)
    checks, kubelet = node.checks, node.kubelet
    uids = {}
    for number in range(PODS):
        name = f"crowd-{number}"
        if number % (PODS // EXCLUSIVE) == 0 and number // (PODS // EXCLUSIVE) < EXCLUSIVE:
            app = own("app", 1)
        elif number % 2:
            app = container("app", amounts("10m", MEMORY_MIB))
        else:
            app = container("app")
        uids[name] = kubelet.put(pod(name, 1000 + number, app))
    exclusive = [f"crowd-{i * (PODS // EXCLUSIVE)}" for i in range(EXCLUSIVE)]

    def waiting() -> list[str]:
        state = kubelet.state()
        return [name for name, uid in uids.items() if state.get(uid, {}).get("phase") != "Running"]

    wait_until(lambda: not waiting(), LONG)
    checks.require("all pods run", not waiting(), waiting())
    sets = {name: node.cpus(uids[name], "app") for name in exclusive}
    checks.equal(
        "the exclusive ones have a CPU each", [len(each) for each in sets.values()], [1] * EXCLUSIVE
    )
    taken = frozenset().union(*sets.values())
    checks.equal("and no two the same", len(taken), EXCLUSIVE)
    shared = [name for name in uids if name not in sets]
    taken_too = {name: found for name in shared if (found := node.cpus(uids[name], "app") & taken)}
    checks.equal("no other pod has any of them", taken_too, {})
    checks.equal("no sandbox was rejected", kubelet.rejected_sandboxes(), [])
    page = node.agent.metrics()
    guest.log("metrics.txt", page)
    answers = _answers(page)
    # A container that runc could not start is created again.
    checks.check("the agent answered for each container", answers["answered"] >= PODS, answers)
    checks.equal("and always in time", [answers[result] for result in BAD], [0] * len(BAD), answers)
    for name in uids:
        kubelet.remove(name)
    wait_until(lambda: not node.allocations(), LONG)
    checks.equal("all allocations end", node.allocations(), set())


def _answers(page: str) -> dict[str, float]:
    """Return how many CreateContainer the agent has answered, by result, from its metrics."""
    found = samples(page)
    name = 'numawarden_runtime_requests_total{{method="CreateContainer",result="{}"}}'
    return {result: found[name.format(result)] for result in ("answered", *BAD)}
