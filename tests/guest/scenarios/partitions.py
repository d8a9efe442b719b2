"""Partitions of the kernel around exclusive CPUs: made, broken, repaired, ended in each way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.guest.inside import isolated, kernel, machine
from tests.guest.inside.agent import CONFIG, PROGRAM, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Have the kernel take the CPUs; break that, kill the agent, have another pod come and go."""
    checks, all_cpus = guest.checks, machine.cpus()
    before, agent = isolated.settings(), Agent(guest)
    isolated.begin_restless()
    agent.configure(agent={"isolation": {"partitions": "asked"}})
    for drop_in in ("isolation.conf", "partitions.conf"):
        isolated.permit(guest, drop_in)
    agent.start()
    pod = isolated.pod_of(
        "partition", isolated.POD, {"isolation.numawarden.dev/partition": "isolated"}
    )
    own = kernel.ids(agent.admit(pod)["pod"]["exclusiveCpus"])
    workload = systemd_run("own", isolated.SLICE)
    ask("POST", "reconcile")
    guest.log("partition", attempt(PROGRAM, "show", isolated.POD).stdout)
    _partitioned(checks, agent, "partition", own)
    checks.equal("partition: the pod has its CPUs", kernel.affinity(workload.pid), own)
    of_work = own & isolated.mask_of(Path("/sys/devices/virtual/workqueue/cpumask").read_text())
    checks.equal("partition: CPUs of unbound workqueues that are exclusive", of_work, frozenset())

    _listed_beside(guest, agent, own)
    command("systemctl", "daemon-reload")
    agent.kill()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "partition after a kill", own)
    beside = isolated.pod_of(
        "beside", isolated.OTHER, {"isolation.numawarden.dev/partition": "root"}
    )
    both = own | kernel.ids(agent.admit(beside)["pod"]["exclusiveCpus"])
    ask("POST", "reconcile")
    checks.equal(
        "two partitions: CPUs of services", isolated.effective("system.slice"), all_cpus - both
    )
    agent.remove(isolated.OTHER)
    _partitioned(checks, agent, "once that is removed, the partition", own)
    _partitions_end(checks, agent, own, before)


def _listed_beside(guest: Guest, agent: Agent, own: frozenset[int]) -> None:
    """Have a cgroup beside list a CPU of the partition, which the kernel keeps or makes invalid."""
    checks, free = guest.checks, machine.cpus() - own
    other = isolated.CGROUPS / "kubepods.slice/other"
    other.mkdir()
    (other / "cpuset.cpus").write_text(f"{min(free)},{min(own)}")
    ask("POST", "reconcile")
    if kernel.keeps_partitions():
        left = isolated.effective("kubepods.slice/other")
        checks.equal("partition: a cgroup that lists its CPU does not have it", left, {min(free)})
    else:
        guest.log("invalid-partition", "\n".join(isolated.conditions(agent)))
        named = [each for each in isolated.conditions(agent) if "isolated invalid (" in each]
        checks.check(
            "partition: invalid, in the kernel's words", len(named) == 1, isolated.conditions(agent)
        )
        shown = attempt(PROGRAM, "check", "--cgroups")
        checks.check("partition: check --cgroups names it", "invalid" in shown.stdout, shown)
    agrees = ask("GET", "verify")["agrees"]
    checks.equal("partition: its pod is enforced all the same", agrees, expected=True)
    other.rmdir()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "repaired", own)


def _partitions_end(
    checks: Checks, agent: Agent, own: frozenset[int], before: dict[str, str]
) -> None:
    """End the partition by command, by the configuration, and with its pod."""
    agent.stop()
    restored = attempt(PROGRAM, "isolation", "restore", "--config", CONFIG)
    checks.check("partition: restore succeeds", restored.ok, restored)
    _unpartitioned(checks, "partition ended by command", before)
    agent.start()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "partition after the next start", own)
    agent.configure(agent={"isolation": {}})
    agent.restart()
    ask("POST", "reconcile")
    _unpartitioned(checks, "partitions switched off", before)
    agent.configure(agent={"isolation": {"partitions": "isolated"}})
    agent.restart()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "partitions switched on", own)
    command("systemctl", "stop", "own.service")
    agent.remove(isolated.POD)
    ask("POST", "reconcile")
    _unpartitioned(checks, "partition of a removed pod", before)


def _partitioned(checks: Checks, agent: Agent, when: str, own: frozenset[int]) -> None:
    free = machine.cpus() - own
    checks.equal(f"{when}: no condition", isolated.conditions(agent), [])
    checks.equal(f"{when}: isolated CPUs", isolated.set_of("cpuset.cpus.isolated"), own)
    slices = {name: isolated.effective(name) for name in isolated.HOST}
    checks.equal(f"{when}: CPUs of services", slices, dict.fromkeys(isolated.HOST, free))
    checks.equal(f"{when}: CPUs of PID 1", kernel.affinity(1), free)
    reclaiming = {isolated.name_of(thread): cpus for thread, cpus in isolated.threads()}
    nodes = {
        name: kernel.ids(Path(f"/sys/devices/system/node/node{name[-1]}/cpulist").read_text())
        for name in reclaiming
        if name.startswith(("kswapd", "kcompactd"))
    }
    shown = {name: reclaiming[name] for name in nodes}
    desired = {name: cpus - own or free for name, cpus in nodes.items()}
    checks.equal(f"{when}: CPUs of threads that reclaim memory of nodes", shown, desired)


def _unpartitioned(checks: Checks, when: str, before: dict[str, str]) -> None:
    checks.equal(f"{when}: isolated CPUs", isolated.set_of("cpuset.cpus.isolated"), frozenset())
    exclusive = isolated.set_of("kubepods.slice/cpuset.cpus.exclusive")
    checks.equal(f"{when}: exclusive CPUs of the pods", exclusive, frozenset())
    isolated.check_as_before(checks, when, before)
