"""Whatever is done to the pods' cgroups: one reconcile later the kernel shows the ledger again.

In the order of `run`: systemd, its properties and its own rounds; the kernel's files, written by
others; weights and limits of memory; CPUs that come and go; another writer that does not stop; and
a lost checkpoint.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine, placements, snapshot, truth
from tests.guest.inside.agent import PROGRAM, SERVICE, Agent, samples
from tests.guest.inside.api import answer_to, ask
from tests.guest.inside.checks import wait_until
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.examples import start
from tests.guest.inside.pods import BACKGROUND, POD_SCOPE
from tests.guest.inside.starters import SystemdRun
from tests.guest.inside.workloads import stop_unit, systemd_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

EXAMPLES: Final = {example.name: example for example in POD_SCOPE}
MIXED: Final = EXAMPLES["pod-scope-mixed"]
#: Admitted, and none of its containers is ever started.
IDLE: Final = EXAMPLES["pod-scope-shared"]

SYSTEMD: Final = "reverted by systemd"
NARROW: Final = "parent too narrow"
OFFLINE: Final = "CPU offline"
CONTROLLER: Final = "controller lost"
UNKNOWN: Final = "unknown"

PAGE: Final = 4096
MIB: Final = 1 << 20
#: The memory of the host that the configuration keeps from pods, but for hard eviction.
KEPT: Final = 412 * MIB
THROTTLED: Final = 0.9
STATE: Final = Path("/var/lib/numawarden")
CPUS: Final = Path("/sys/devices/system/cpu")


@dataclass(slots=True)
class Story:
    """A host with a pod on the node's shared pool and a mixed pod, and how their cgroups are."""

    checks: Checks
    agent: Agent
    background: Workload
    pod: kernel.Cgroup
    mixed: dict[str, Workload]
    good: dict[str, str]

    @classmethod
    def begin(cls, guest: Guest) -> Story:
        """Start the agent and both pods."""
        agent = Agent(
            guest,
            memoryReservationPolicy="TieredReservation",
            memoryThrottlingFactor=THROTTLED,
        )
        agent.start()
        _, idle = start(guest.checks, agent, SystemdRun(), BACKGROUND)
        pod, mixed = start(guest.checks, agent, SystemdRun(), MIXED)
        story = cls(guest.checks, agent, idle[BACKGROUND.containers[0]], pod, mixed, {})
        story.check_placements()
        story.good = _settings()
        return story

    @property
    def own(self) -> Workload:
        """The container with CPUs of its own."""
        return self.mixed[MIXED.containers[0]]

    @property
    def shared(self) -> Workload:
        """One of those that share the rest of their pod's budget."""
        return self.mixed[MIXED.containers[1]]

    def check_placements(self) -> None:
        """Check that every container runs where the documents say."""
        placements.check_pod(self.checks, MIXED, self.mixed, self.pod, self.background)

    def changed(self) -> dict[str, tuple[str, str]]:
        """Return the settings of the pods' cgroups that are not as they were at first."""
        now = _settings()
        return snapshot.differences(self.good, {name: now.get(name, "-") for name in self.good})

    def metric(self, name: str) -> dict[str, float]:
        """Return the values of a metric by the value of its one label ("": it has none)."""
        found = {}
        for sample, value in samples(self.agent.metrics()).items():
            stem, _, labels = sample.partition("{")
            if stem == name:
                found[labels.partition('"')[2].partition('"')[0]] = value
        return found

    def drift(self) -> dict[str, float]:
        """Return how often something was found to differ, by cause."""
        return self.metric("numawarden_drift_found_total")

    def _risen(self, before: dict[str, float]) -> list[str]:
        return sorted(c for c, count in self.drift().items() if count > before.get(c, 0))

    def check_whole(self, what: str) -> None:
        """Check that everything is as in the ledger and no workload was touched."""
        self.checks.equal(f"{what}: every setting is what it was", self.changed(), {})
        document = ask("GET", "verify")
        self.checks.equal(f"{what}: the kernel's files", truth.differences(document), [])
        self.checks.check(f"{what}: verify agrees", document["agrees"], _differences(document))
        touched = snapshot.touched([self.background, *self.mixed.values()])
        self.checks.equal(f"{what}: no workload was touched", touched, [])

    def withstands(self, what: str, act: Callable[[], object], *causes: str) -> None:
        """Do something, reconcile once, and check that all is whole and the causes are reported."""
        before = self.drift()
        act()
        if causes:
            # systemd answers before it writes; the agent may see the write before we do.
            wait_until(lambda: self.changed() or self.drift() != before)
        answer = ask("POST", "reconcile")
        self.checks.equal(f"{what}: nothing is left to do", answer["differences"], [])
        self.checks.equal(f"{what}: the causes", self._risen(before), sorted(causes))
        self.check_whole(what)


def run(guest: Guest) -> None:
    """Provoke systemd, the kernel, and the agent."""
    story = Story.begin(guest)
    _systemd_goes_round(story)
    _properties(story)
    _other_writers(story)
    _limits(story)
    _controllers(story)
    _narrow_ancestor(story)
    _cgroup_removed(story)
    _cpus_offline(story)
    _pool_offline(story)
    _memory_qos(story)
    _beyond_its_limit(story)
    _fight(story)
    _checkpoint_lost(story)
    story.check_placements()


def _settings() -> dict[str, str]:
    return snapshot.settings(kernel.Cgroup("kubepods.slice"))


def _differences(document: dict[str, Any]) -> list[str]:
    cgroups = [found["detail"] for each in document["cgroups"] for found in each["differences"]]
    lacking = [f"{above['cgroup']} {above['lacking']}" for above in document["ancestors"]]
    return [
        *cgroups,
        *(line for line in lacking if not line.endswith("[]")),
        *document["differences"],
    ]


def _systemd_goes_round(story: Story) -> None:
    """Reload and reexec systemd, which then rewrites a slice's units when a new one comes."""
    for verb in ("daemon-reload", "daemon-reexec"):
        story.withstands(f"{verb}, then a new unit", partial(_with_new_unit, story, verb))


def _with_new_unit(story: Story, verb: str) -> None:
    command("systemctl", verb)
    systemd_run("sibling", story.pod.path.name)
    kept = f"{verb}: systemd writes what the agent recorded"
    story.checks.equal(kept, story.changed(), {})
    stop_unit("sibling")


def _properties(story: Story) -> None:
    """Another user sets properties: of a unit, of a sibling, of the pod's slice."""
    own, shared = story.own.cgroup.path.name, story.shared.cgroup.path.name

    def set_property(unit: str, *properties: str) -> Callable[[], object]:
        return lambda: command("systemctl", "set-property", "--runtime", unit, *properties)

    widened = set_property(own, "AllowedCPUs=0-15", "AllowedMemoryNodes=0-1", "CPUQuota=20%")
    story.withstands("set-property on the unit", widened, SYSTEMD)
    story.withstands("set-property on a sibling", set_property(shared, "CPUWeight=50"))
    story.withstands("a quota on a sibling", set_property(shared, "CPUQuota=10%"), SYSTEMD)
    narrowed = set_property(story.pod.path.name, "AllowedCPUs=0", "CPUQuota=10%")
    story.withstands("set-property on the slice", narrowed, SYSTEMD, NARROW)
    shown = command("systemctl", "show", "--value", "--property=AllowedCPUs", own).split()
    story.checks.equal(
        "systemd has the ledger's CPUs on record",
        kernel.ids(",".join(shown)),
        story.own.cgroup.cpus,
    )


def _other_writers(story: Story) -> None:
    """Another process writes the files; the agent's own watch may be first to see it."""
    nodes = machine.nodes_of(story.own.cgroup.cpus)
    elsewhere = next(node for node in machine.nodes() if node not in nodes)

    def write() -> None:
        story.own.cgroup.write("cpuset.cpus", "0-15")
        story.shared.cgroup.write("cpu.max", "5000 100000")
        story.own.cgroup.write("cpuset.mems", str(elsewhere))
        # The pod in the shared pool has no set of its own, but that of its class.
        kernel.Cgroup(story.background.cgroup.path.parent.parent).write("cpuset.cpus", "1")

    story.withstands("another writer", write, UNKNOWN)
    before = story.drift()
    story.own.cgroup.write("cpu.max", "7000 100000")
    story.checks.eventually("unasked: all is repaired", story.changed, {})
    counted = "unasked: it is counted"
    story.checks.eventually(counted, lambda: story.drift() != before, expected=True)


def _limits(story: Story) -> None:
    """Another process, and systemd, change weights and limits; containers keep their runtime's."""
    pod, tier = story.pod, story.background.cgroup.path.parent.parent

    def write() -> None:
        pod.write("memory.max", "max")
        pod.write("cpu.weight", "77")
        pod.write("hugetlb.2MB.max", "max")
        kernel.Cgroup(tier).write("cpu.weight", "77")

    story.withstands("limits that another process writes", write, UNKNOWN)
    unit = pod.path.name
    changed = ("systemctl", "set-property", "--runtime", unit, "MemoryMax=infinity", "CPUWeight=50")
    story.withstands("limits that are set in systemd", lambda: command(*changed), SYSTEMD)
    shown = command("systemctl", "show", "--property=MemoryMax,CPUWeight", unit).split()
    limit = f"MemoryMax={MIXED.budget << 30}"
    story.checks.equal("systemd has the limits on record", sorted(shown), ["CPUWeight=157", limit])


def _memory_qos(story: Story) -> None:
    """Memory is reserved and slowed down as KEP-2570 has it, and kubepods has what is allocatable.

    Another process, and systemd, take the reservation away; both are repaired.
    """
    checks, pod = story.checks, story.pod
    kubepods, budget = kernel.Cgroup(pod.path.parent), MIXED.budget << 30
    uid = "5526cafe-0000-4000-8000-00000000face"
    amounts = {"requests": {"memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "burst", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "burst", "image": "x", "resources": amounts}]},
    }
    status, _ = answer_to("POST", "pods", manifest)
    checks.equal("a Burstable pod: admitted", status, HTTPStatus.CREATED)
    burst = systemd_run("burst", f"kubepods-burstable-pod{uid.replace('-', '_')}.slice")

    def shown() -> dict[str, str]:
        below = kernel.Cgroup(burst.cgroup.path.parent)
        places = {
            ("kubepods", kubepods): ("memory.min", "memory.low", "memory.max", "cpu.weight"),
            ("burstable", kernel.Cgroup(below.path.parent)): ("memory.min", "memory.low"),
            ("its pod", below): ("memory.min", "memory.low", "memory.high"),
            ("its container", burst.cgroup): ("memory.low", "memory.high"),
            ("guaranteed", pod): ("memory.min", "memory.low", "memory.high"),
            ("its own", story.own.cgroup): ("memory.min", "memory.high"),
        }
        return {
            f"{place}: {file}": cgroup.read(file)
            for (place, cgroup), files in places.items()
            for file in files
        }

    requested = 64 * MIB
    high = int(requested + THROTTLED * (256 * MIB - requested)) // PAGE * PAGE
    expected = {
        "kubepods: memory.min": str(budget + requested),
        "kubepods: memory.low": str(requested),
        "kubepods: memory.max": str(_total_memory() - KEPT),
        # 14 CPUs: 14,336 shares of 262,144 at most.
        "kubepods: cpu.weight": "547",
        "burstable: memory.min": "0",
        "burstable: memory.low": str(requested),
        "its pod: memory.min": "0",
        "its pod: memory.low": str(requested),
        "its pod: memory.high": "max",
        "its container: memory.low": str(requested),
        "its container: memory.high": str(high),
        "guaranteed: memory.min": str(budget),
        "guaranteed: memory.low": "0",
        "guaranteed: memory.high": "max",
        "its own: memory.min": str(MIXED.cpus[0] << 30),
        "its own: memory.high": "max",
    }
    checks.eventually("memory is reserved", shown, expected)

    _reclaimed(story, uid, burst.cgroup)

    def write() -> None:
        burst.cgroup.write("memory.high", "max")
        pod.write("memory.min", "0")

    before = story.drift()
    write()
    checks.equal("repaired", ask("POST", "reconcile")["differences"], [])
    checks.check("and counted", story.drift() != before, story.drift())
    command("systemctl", "set-property", "--runtime", kubepods.path.name, "MemoryMin=0")
    checks.equal("repaired in systemd", ask("POST", "reconcile")["differences"], [])
    checks.equal("all of it", shown(), expected)
    stop_unit("burst")
    ask("DELETE", f"pods/{uid}")
    checks.eventually("given back", lambda: kubepods.read("memory.min"), str(budget))


def _reclaimed(story: Story, uid: str, burst: kernel.Cgroup) -> None:
    """Read more of a disk than the container may keep in memory: the agent says what that did."""
    root = Path("/").stat().st_dev
    disk = Path(f"/sys/dev/block/{os.major(root)}:{os.minor(root)}").resolve().name
    read = f"dd if=/dev/{disk} of=/dev/null bs=1M count=300"
    command("sh", "-c", f"echo $$ >{burst.path}/cgroup.procs && {read}")
    events = dict(line.split() for line in burst.read("memory.events").splitlines())
    high = int(events["high"])
    story.checks.check("memory is reclaimed", high, events)
    causes = story.agent.show(uid)["slow"]["causes"]
    said = [each["message"] for each in causes if each["cause"] == "reclaimed"]
    story.checks.equal("and said to be", said, [f"reached memory.high {high} times"], causes)


def _total_memory() -> int:
    """Return the memory of all nodes in bytes, as the kernel shows it."""
    files = Path("/sys/devices/system/node").glob("node*/meminfo")
    lines = (line.split() for file in files for line in file.read_text().splitlines())
    return sum(int(words[3]) << 10 for words in lines if words[2] == "MemTotal:")


def _beyond_its_limit(story: Story) -> None:
    """Admit a pod that already uses more than its limit: it is reported, and not killed."""
    uid = "5526cafe-0000-4000-8000-00000000beef"
    name = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    hungry = systemd_run("hungry", name)
    pod = kernel.Cgroup(hungry.cgroup.path.parent)
    in_use = int(pod.read("memory.current"))
    limit = in_use // 2 // PAGE * PAGE
    amounts = {"requests": {"cpu": "100m"}, "limits": {"memory": str(limit)}}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "hungry", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "hungry", "image": "x", "resources": amounts}]},
    }
    what = "a pod beyond its limit"
    status, answer = answer_to("POST", "pods", manifest)
    story.checks.equal(f"{what}: admitted", status, HTTPStatus.CREATED)
    enforcement = answer["pod"]["enforcement"]
    found = [line for line in enforcement["differences"] if "more than that is in use" in line]
    story.checks.check(f"{what}: reported", not enforcement["enforced"] and found, enforcement)
    ask("POST", "reconcile")
    story.checks.equal(f"{what}: not limited", pod.read("memory.max"), "max")
    story.checks.check(f"{what}: not killed", hungry.untouched, pod.read("memory.events"))
    undone = story.drift()
    stop_unit("hungry")
    lean = partial(pod.read, "memory.max")
    story.checks.eventually(f"{what}: limited once it ended", lean, str(limit))
    story.checks.equal(f"{what}: no other writer is reported", story.drift(), undone)
    ask("DELETE", f"pods/{uid}")
    story.checks.eventually(f"{what}: removed", lambda: pod.exists, expected=False)
    story.withstands(f"{what}, and gone", lambda: None)


def _controllers(story: Story) -> None:
    """Without its controllers a cgroup loses every setting; none comes back with them."""
    pods = (story.pod.path, story.background.cgroup.path.parent)
    tiers = (pods[1].parent, pods[0].parent)

    def strip() -> None:
        # A tier keeps what one of its pods has, and the agent may give that back in between.
        with story.agent.paused():
            for path in (*pods, *tiers):
                kernel.Cgroup(path).write("cgroup.subtree_control", "-cpuset -cpu -hugetlb")

    story.withstands("controllers taken away", strip, CONTROLLER)


def _narrow_ancestor(story: Story) -> None:
    """Narrow the cgroup of all pods: that is reported and repaired like any other."""
    top = kernel.Cgroup("kubepods.slice")
    narrow = partial(top.write, "cpuset.cpus", "0-1")
    story.withstands("a narrow ancestor", narrow, UNKNOWN, NARROW)
    contested = story.metric("numawarden_contested_cgroups")
    story.checks.equal("a narrow ancestor: no conflict is reported", contested, {"": 0.0})


def _cgroup_removed(story: Story) -> None:
    """Remove the cgroup of a pod whose containers are still to come, in both ways."""
    status, admitted = answer_to("POST", "pods", IDLE.manifest)
    story.checks.require("an idle pod: admitted", status == HTTPStatus.CREATED, admitted)
    good, pod = story.good, story.agent.cgroup_of(IDLE.uid)
    story.good = _settings()
    # Its first container needs its controllers; until then systemd may take them back.
    del story.good[f"{pod.path.name}/cgroup.subtree_control"]
    story.withstands("its directory removed", pod.path.rmdir, UNKNOWN)
    stopped = ("systemctl", "stop", pod.path.name)
    story.withstands("its slice stopped", lambda: command(*stopped), UNKNOWN)
    ask("DELETE", f"pods/{IDLE.uid}")
    story.checks.eventually("an idle pod: removed", lambda: pod.exists, expected=False)
    story.good = good
    story.check_whole("without the idle pod")


def _cpus_offline(story: Story) -> None:
    """One CPU of two, then both: the allocation stays, is reported, and returns with the CPUs."""
    allocated = sorted(story.own.cgroup.cpus)
    for gone in (allocated[:1], allocated):
        _offline(story, gone, allocated)


def _offline(story: Story, gone: list[int], allocated: list[int]) -> None:
    what = f"CPUs {gone} offline"
    before = story.drift()
    _switch(gone, "0")
    left = frozenset(allocated) - frozenset(gone)
    story.checks.eventually(f"{what}: reported as a violation", partial(_violations, story), 1.0)
    found = [violation["rule"] for violation in story.agent.status()["invalid"]]
    story.checks.equal(f"{what}: the status has it", found, [OFFLINE])
    for _ in range(6):
        ask("POST", "reconcile")
    if left:
        story.checks.equal(f"{what}: runs on what is left", story.own.cgroup.cpus, left)
        cause = story.drift().get(OFFLINE, 0) - before.get(OFFLINE, 0)
        story.checks.equal(f"{what}: counted once for the pod and the container", cause, 2)
        shown = attempt(PROGRAM, "check", "--cgroups")
        story.checks.equal(f"{what}: check exits with", shown.status, 7)
        story.checks.check(f"{what}: check --cgroups says why", OFFLINE in shown.stdout, shown)
    else:
        budget = story.pod.cpus - frozenset(gone)
        story.checks.equal(f"{what}: runs in its budget", story.own.cgroup.cpus, budget)
    contested = story.metric("numawarden_contested_cgroups")
    story.checks.equal(f"{what}: no conflict is reported", contested, {"": 0.0})
    cpus = story.agent.show(MIXED.uid)["containers"][0]["cpus"]
    story.checks.equal(f"{what}: the allocation stays", kernel.ids(cpus), frozenset(allocated))
    _admits_elsewhere(story, what, gone)
    _switch(gone, "1")
    story.checks.eventually(f"{what}, and back: by itself", story.changed, {})
    story.checks.eventually(f"{what}, and back: no violation", partial(_violations, story), 0.0)
    story.withstands(f"{what}, and back", lambda: None)


def _pool_offline(story: Story) -> None:
    """Half of the shared pool is cordoned, then the rest goes offline: CPUs of no pod are left."""
    pool = sorted(story.background.cgroup.cpus)
    half = len(pool) // 2
    cordoned, gone = pool[:half], pool[half:]  # the first CPU of a machine cannot go offline
    what = f"CPUs {cordoned} cordoned, {gone} offline"
    asked = {"target": ",".join(map(str, cordoned)), "reason": "guest"}
    ask("POST", "cordon", asked)
    used = partial(kernel.affinity, story.background.pid)
    story.checks.eventually(f"{what}: first on the rest", used, frozenset(gone))
    _switch(gone, "0")
    free = frozenset(cordoned)
    story.checks.eventually(f"{what}: on CPUs of no pod", lambda: used() <= free, expected=True)
    story.checks.equal(f"{what}: those are of no pod", used() & story.pod.cpus, frozenset())
    story.checks.equal(f"{what}: the pod's stay", story.own.cgroup.cpus & free, frozenset())
    _switch(gone, "1")
    ask("POST", "uncordon", asked)
    story.checks.eventually(f"{what}, and back: by itself", story.changed, {})
    story.withstands(f"{what}, and back", lambda: None)


def _violations(story: Story) -> float | None:
    return story.metric("numawarden_invalid_allocations").get(OFFLINE)


def _admits_elsewhere(story: Story, what: str, gone: list[int]) -> None:
    answer = ask("POST", "pods?dryRun=true", IDLE.manifest)
    given = kernel.ids(answer["pod"]["cpus"]) & frozenset(gone)
    story.checks.equal(f"{what}: a new pod gets none of them", given, frozenset())


def _switch(cpus: list[int], state: str) -> None:
    for cpu in cpus:
        (CPUS / f"cpu{cpu}" / "online").write_text(state)


def _fight(story: Story) -> None:
    """Repeat the same write: the agent pauses its repairs, and repairs when the writer stops."""
    wrong = "0-15"
    contested = "numawarden_contested_cgroups"

    def provoked() -> bool:
        if story.own.cgroup.read("cpuset.cpus") != wrong:
            story.own.cgroup.write("cpuset.cpus", wrong)
        return story.metric(contested)[""] == 1.0

    story.checks.check("a fight: the agent gives way", wait_until(provoked))
    document = ask("GET", "verify")
    story.checks.equal("a fight: verify reports it", document["agrees"], expected=False)
    said = f"cpuset.cpus of /{story.own.cgroup.path.relative_to(kernel.CGROUPS)} shows {wrong}"
    found = _differences(document)
    story.checks.check("a fight: verify says where", any(said in line for line in found), found)
    postponed = story.metric("numawarden_repairs_postponed_total")
    story.checks.equal("a fight: pauses reported", postponed, {"": 1.0})
    story.checks.eventually("a fight that ended: all is repaired", story.changed, {})
    log = command("journalctl", "--no-pager", f"--unit={SERVICE}", "-o", "cat")
    times = log.count("cgroup is being modified by another writer, backing off")
    story.checks.equal("a fight: said in the log", times, 1)
    story.withstands("after the fight", lambda: None)


def _checkpoint_lost(story: Story) -> None:
    """Spoil the checkpoint while no agent runs: the next one recovers what the kernel shows."""
    file = STATE / "checkpoint.json"
    allocated = story.agent.show(MIXED.uid)
    story.agent.stop()
    spoiled = file.read_bytes()[:-9]
    file.write_bytes(spoiled)
    story.agent.start()
    kept = [each.read_bytes() for each in STATE.glob("checkpoint.json.*")]
    story.checks.equal("a spoiled checkpoint: kept aside", kept, [spoiled])
    restarts = command("systemctl", "show", "--value", "--property=NRestarts", SERVICE).strip()
    story.checks.equal("a spoiled checkpoint: no restart", restarts, "0")
    shown = story.agent.status()["conditions"]
    conditions = " ".join(each["message"] for each in shown)
    story.checks.check(
        "a spoiled checkpoint: reported", "checkpoint.json." in conditions, conditions
    )
    story.checks.equal("recovered: every setting is what it was", story.changed(), {})
    recovered = {pod["uid"]: pod["exclusiveCpus"] for pod in story.agent.pods()}
    story.checks.equal(
        "recovered: the same CPUs", recovered, {MIXED.uid: allocated["exclusiveCpus"]}
    )
    for example in (MIXED, BACKGROUND):
        status, answer = answer_to("POST", "pods", example.manifest)
        story.checks.check(f"{example.name}: again", status < HTTPStatus.BAD_REQUEST, answer)
    cpus = [each["cpus"] for each in story.agent.show(MIXED.uid)["containers"]]
    story.checks.equal("again: the same", cpus, [each["cpus"] for each in allocated["containers"]])
    story.withstands("with a new checkpoint", lambda: None)
