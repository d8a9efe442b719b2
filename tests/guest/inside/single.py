"""Pods of one container that asks for whole CPUs, and where they land."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.guest.inside import kernel, machine
from tests.guest.inside.pods import manifest, resources
from tests.guest.inside.workloads import stop_unit, systemd_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.guest.inside.agent import Agent
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.workloads import Workload


def pod(name: str, cpus: int, memory: str) -> dict[str, Any]:
    """Return the manifest of a Guaranteed pod with one container called `app`."""
    app = {"name": "app", "image": "example"} | resources(cpus, memory)
    return manifest(name, uid_of(name), containers=[app])


def uid_of(name: str) -> str:
    """Return the uid of the pod of a name."""
    return f"uid-{name}"


def admit(checks: Checks, agent: Agent, asked: dict[str, Any]) -> None:
    """Admit a pod; stops the scenario if it is rejected."""
    answer = agent.admit(asked)
    name = asked["metadata"]["name"]
    checks.require(f"{name}: admitted", answer["admitted"], answer.get("rejection") or "")


@contextmanager
def running(agent: Agent, name: str) -> Iterator[Workload]:
    """Run the pod's container for the time of a context."""
    unit = f"{name}-app"
    yield systemd_run(unit, agent.cgroup_of(uid_of(name)).path.name)
    stop_unit(unit)


def check_lands(
    checks: Checks,
    agent: Agent,
    asked: dict[str, Any],
    nodes: frozenset[int],
    memory_nodes: frozenset[int],
) -> None:
    """Start the pod's container: its CPUs and its memory must be of the given nodes."""
    name = asked["metadata"]["name"]
    cpus_asked = int(asked["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    with running(agent, name) as workload:
        cgroup = workload.cgroup
        checks.eventually(f"{name}: CPUs", lambda: len(cgroup.cpus), cpus_asked, cgroup)
        cpus = cgroup.cpus
        checks.equal(f"{name}: nodes of its CPUs", machine.nodes_of(cpus), nodes, cgroup)
        runs = partial(kernel.affinity, workload.pid)
        checks.eventually(f"{name}: runs on them", runs, cpus, cgroup)
        allowed = partial(kernel.memory_nodes, workload.pid)
        checks.eventually(f"{name}: nodes of its memory", allowed, memory_nodes, cgroup)
        checks.eventually(f"{name}: no quota", lambda: cgroup.millicores, None, cgroup)
