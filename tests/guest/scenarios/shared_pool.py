"""The shared pool is written once: sixty pods inherit it, whatever others write below.

Then a dozen Guaranteed pods inherit it from the cgroup that `agent.sharedCgroup` makes, beside one
that stands in the kubelet's place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine
from tests.guest.inside.agent import Agent
from tests.guest.inside.api import ask
from tests.guest.inside.checks import wait_until
from tests.guest.inside.commands import run as command
from tests.guest.inside.watch import Watch
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

PODS: Final = 60
#: A container for each pod, delegated as a runtime's scopes are; the instance is the pod's uid.
CONTAINER: Final = """[Service]
Slice=kubepods-burstable-pod%i.slice
ExecStart=/bin/busybox sleep 1000000
Delegate=yes
"""
#: Guaranteed pods that share a cgroup, and that cgroup.
TOGETHER: Final = tuple(f"5526cafe-0000-4000-9000-{number:012x}" for number in range(12))
SHARED: Final = "kubepods-shared.slice"
UNITS: Final = Path("/run/systemd/system")
ABOVE: Final = kernel.Cgroup("kubepods.slice")
CLASS: Final = kernel.Cgroup("kubepods.slice/kubepods-burstable.slice")
OWN: Final = "5526cafe-0000-4000-8000-00000000beef"
GUARANTEED: Final = "5526cafe-0000-4000-8000-00000000f00d"


def run(guest: Guest) -> None:
    """Fill the pool, take CPUs from it and give them back; then have others write."""
    agent = Agent(guest, agent={"sharedCgroup": False})
    agent.start()
    checks = guest.checks
    pods = [_cgroup_of(_uid(number)) for number in range(PODS)]
    for number in range(PODS):
        answer = agent.admit(_pod(f"pool-{number}", _uid(number), cpu="10m", limit="2"))
        checks.check(f"pool-{number} is admitted", answer["admitted"], answer)
    (UNITS / "pool@.service").write_text(CONTAINER)
    command("systemctl", "start", *(_unit(number) for number in range(PODS)))
    containers = [kernel.Cgroup(pod.path / _unit(n)) for n, pod in enumerate(pods)]
    running = [container.processes[0] for container in containers]
    agent.admit(_pod("beside", GUARANTEED, cpu="500m", limit="500m"))
    running.append(systemd_run("beside", _slice(GUARANTEED)).pid)
    _reconcile()
    everything = machine.cpus()
    _in_pool(checks, "at first", running, everything)
    _inherit(checks, "at first", pods)

    answer = agent.admit(_pod("own", OWN, cpu="4", limit="4"))
    checks.check("the exclusive pod is admitted", answer["admitted"], answer)
    exclusive = kernel.ids(answer["pod"]["exclusiveCpus"])
    own = systemd_run("own", _slice(OWN))
    _reconcile()
    checks.equal("the exclusive pod has its CPUs", kernel.affinity(own.pid), exclusive)
    pool = everything - exclusive
    _in_pool(checks, "beside an exclusive pod", running, pool)
    _inherit(checks, "beside an exclusive pod", pods)
    checks.equal("the class carries the pool", kernel.ids(CLASS.read("cpuset.cpus")), pool)
    checks.equal("and systemd knows it", _allowed("kubepods-burstable.slice"), pool)
    checks.equal("of no pod", _allowed(*(pod.path.name for pod in pods)), frozenset())

    command("systemctl", "daemon-reload")
    late = systemd_run("late", _slice(_uid(PODS - 1)))
    _in_pool(checks, "after a reload", [*running, late.pid], pool)

    _strays(checks, agent, (pods[-1], containers[-2]), running, pool)
    _older_version(checks, agent, (*pods, *containers), running, (own.pid, exclusive), pool)

    command("systemctl", "stop", "own.service")
    agent.remove(OWN)
    _in_pool(checks, "once the exclusive pod is removed", running, everything)
    checks.equal("nothing is left to report", _conditions(agent), [])
    _one_cgroup(checks, agent, running[-1])


def _one_cgroup(checks: Checks, agent: Agent, beside: int) -> None:
    """Have Guaranteed pods share a cgroup; the one whose cgroup exists stays where it is."""
    agent.stop()
    agent.configure()
    agent.start()
    running = [beside]
    for number, uid in enumerate(TOGETHER):
        agent.admit(_pod(f"together-{number}", uid, cpu="100m", limit="100m"))
        running.append(systemd_run(f"together-{number}", _slice(uid)).pid)
    _reconcile()
    pods = [_cgroup_of(uid) for uid in TOGETHER]
    everything = machine.cpus()
    for answer in (agent.admit(_pod("own", OWN, cpu="4", limit="4")), {}):
        pool = everything - (kernel.ids(answer["pod"]["exclusiveCpus"]) if answer else frozenset())
        when = f"with a pool of {len(pool)} CPUs"
        _in_pool(checks, when, running, pool)
        _inherit(checks, when, pods)
        cgroup = kernel.Cgroup(kernel.slice_path(SHARED))
        checks.equal(f"{when}: the shared one has it", kernel.ids(cgroup.read("cpuset.cpus")), pool)
        checks.equal(f"{when}: systemd knows it", _allowed(SHARED), pool)
        checks.equal(f"{when}: of no pod", _allowed(*(p.path.name for p in pods)), frozenset())
        checks.equal(f"{when}: it is found so", _reconcile()["found"], {})
        if answer:
            agent.remove(OWN)
    checks.equal("nothing of them is left to report", _conditions(agent), [])


def _strays(
    checks: Checks,
    agent: Agent,
    cgroups: tuple[kernel.Cgroup, kernel.Cgroup],
    running: list[int],
    pool: frozenset[int],
) -> None:
    """Have another process write a set into a pod and a container: reported and neutralized."""
    one = min(pool)
    # What is written in the middle of a comparison is repaired by that one, and not called drift:
    # after two of them the one that the agent's own watch asked for has ended.
    _reconcile()
    _reconcile()
    with agent.paused():
        for cgroup in cgroups:
            cgroup.write("cpuset.cpus", str(one))
        checks.equal("a set of its own confines", kernel.affinity(running[PODS - 2]), {one})
    _reconcile()
    _in_pool(checks, "after other writers", running, pool)
    drift = agent.status()["drift"]
    for cgroup in cgroups:
        path = f"/{cgroup.path.relative_to(kernel.CGROUPS)}"
        named = [each for each in drift if each["cgroup"] == path and each["file"] == "cpuset.cpus"]
        checks.equal(f"the drift of {path} is named", [e["observed"] for e in named], [str(one)])
        whole = kernel.ids(cgroup.read("cpuset.cpus"))
        checks.equal(f"{path} has all CPUs", whole, machine.cpus())
    checks.equal("the next comparison finds nothing", _reconcile()["found"], {})


def _older_version(
    checks: Checks,
    agent: Agent,
    cgroups: tuple[kernel.Cgroup, ...],
    running: list[int],
    own: tuple[int, frozenset[int]],
    pool: frozenset[int],
) -> None:
    """Leave cgroups as an older version did, sets in each pod and container; start this one."""
    agent.stop()
    text = ",".join(map(str, sorted(pool)))
    for cgroup in cgroups:
        cgroup.write("cpuset.cpus", text)
    CLASS.write("cpuset.cpus", ABOVE.read("cpuset.cpus.effective"))
    with Watch({"first": running[0], "last": running[PODS - 1]}) as watch:
        agent.start()
        _reconcile()
    pid, exclusive = own
    seen = set().union(*watch.seen.values())
    checks.check("samples were taken", watch.looks, seen)
    checks.equal("no sample meets the exclusive CPUs", [s for s in seen if s & exclusive], [])
    checks.equal("the exclusive pod keeps its CPUs", kernel.affinity(pid), exclusive)
    _in_pool(checks, "taken over", running, pool)
    kept = {kernel.ids(cgroup.read("cpuset.cpus")) for cgroup in cgroups}
    checks.equal("the sets of pods and containers are neutralized", kept, {machine.cpus()})
    checks.equal("the class carries the pool again", kernel.ids(CLASS.read("cpuset.cpus")), pool)


def _in_pool(checks: Checks, when: str, running: Iterable[int], pool: frozenset[int]) -> None:
    wait_until(lambda: all(kernel.affinity(pid) == pool for pid in running))
    elsewhere = {pid: kernel.affinity(pid) for pid in running}
    elsewhere = {pid: cpus for pid, cpus in elsewhere.items() if cpus != pool}
    checks.equal(f"{when}: every process runs in the pool", elsewhere, {})


def _inherit(checks: Checks, when: str, pods: Iterable[kernel.Cgroup]) -> None:
    inside = (filter(Path.is_dir, pod.path.iterdir()) for pod in pods)
    cgroups = [*(pod.path for pod in pods), *(path for paths in inside for path in paths)]
    files = [path / "cpuset.cpus" for path in cgroups]
    own = {str(file): file.read_text().strip() for file in files if file.exists()}
    own = {file: text for file, text in own.items() if text}
    checks.equal(f"{when}: no pod or container has a set of its own", own, {})


def _reconcile() -> dict[str, Any]:
    """Compare the kernel with the ledger, repair, and return what was found."""
    return ask("POST", "reconcile")


def _conditions(agent: Agent) -> list[str]:
    conditions = [each["message"] for each in agent.status()["conditions"]]
    assert isinstance(conditions, list)
    return conditions


def _allowed(*units: str) -> frozenset[int]:
    """Return the CPUs that systemd has on record of these units together."""
    shown = command("systemctl", "show", "--value", "--property=AllowedCPUs", *units)
    return kernel.ids(",".join(shown.replace(" ", ",").split()))


def _unit(number: int) -> str:
    return f"pool@{_uid(number).replace('-', '_')}.service"


def _uid(number: int) -> str:
    return f"5526cafe-0000-4000-8000-{number:012x}"


def _slice(uid: str) -> str:
    middle = "" if uid in (OWN, GUARANTEED) else "-shared" if uid in TOGETHER else "-burstable"
    return f"kubepods{middle}-pod{uid.replace('-', '_')}.slice"


def _cgroup_of(uid: str) -> kernel.Cgroup:
    return kernel.Cgroup(kernel.slice_path(_slice(uid)))


def _pod(name: str, uid: str, *, cpu: str, limit: str) -> Mapping[str, object]:
    exact = cpu == limit
    requests = {"cpu": cpu, "memory": "16Mi" if exact else "1Mi"}
    limits = {"cpu": limit, "memory": "16Mi" if exact else "64Mi"}
    container = {
        "name": "own" if uid == OWN else "c",
        "image": "example-image",
        "resources": {"requests": requests, "limits": limits},
    }
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container]},
    }
