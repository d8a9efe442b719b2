"""How the time of one decision grows, by what is varied; `table --svg` draws it."""

from __future__ import annotations

from functools import partial
from time import thread_time_ns
from typing import TYPE_CHECKING, Final

from agent.managers.admission import admit
from agent.managers.machine import Machine
from sysfs.described import regular_host
from tests.agent.pods.pods import app, guaranteed, pod
from tests.bench import hosts
from tests.bench.measure import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from tests.bench.measure import Figure

_ASKED: Final = "cpu=4 memory=1Gi"
#: What is varied, by the part of a figure's name; the picture has a panel for each.
SERIES: Final = {
    "nodes": "NUMA nodes (16 CPUs each)",
    "cpus": "CPUs (8 NUMA nodes)",
    "resources": "resources (16 NUMA nodes, 512 CPUs)",
    "containers": "containers of the pod (2 NUMA nodes, 128 CPUs)",
    "pods": "pods admitted (2 NUMA nodes, 128 CPUs)",
}


def growing() -> Iterator[Figure]:
    """Decide one admission for each value of what is varied; processor time."""
    for series, value, rules, ledger, asked in _decisions():
        run = partial(admit, rules, ledger, asked)
        yield measure(f"grow/{series}/{value}", run, clock=thread_time_ns)


def _decisions() -> Iterator[tuple[str, int, EffectivePolicy, Ledger, Pod]]:
    asked = hosts.pod_of("new", _ASKED)
    shapes = [("nodes", number, (number, 1, 8)) for number in (1, 2, 4, 8, 16, 32, 64)]
    shapes += [("cpus", 16 * cores, (2, 4, cores)) for cores in (4, 16, 64, 256)]
    for series, value, shape in shapes:
        rules = hosts.rules_of(Machine.of(regular_host(*shape, memory_bytes=64 * hosts.GIB)))
        yield series, value, rules, rules.empty_ledger(), asked
    rules = hosts.rules("16n512c")
    for number, text in enumerate(hosts.RESOURCES[1:], start=2):
        yield "resources", number, rules, rules.empty_ledger(), hosts.pod_of("new", text)
    rules = hosts.rules("2n128c")
    for number in (1, 4, 16):
        members = [app(f"c{place}", guaranteed("cpu=1 memory=1Gi")) for place in range(number)]
        yield "containers", number, rules, rules.empty_ledger(), pod(*members)
    for number in (10, 250, 2500):
        yield "pods", number, rules, hosts.ledger_with(rules, number), asked
