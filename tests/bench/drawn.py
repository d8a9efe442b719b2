"""Drawn decisions: pods, policies, options and what is allocated already, by a fixed seed.

Processor time, the least of a few runs with nothing remembered of the question, so that a busy
machine does not matter. Beside the figure of a host stands the decision that took longest.
"""

from __future__ import annotations

import gc
from functools import partial
from random import Random
from time import thread_time_ns
from typing import TYPE_CHECKING, Final

from agent.managers.admission import admit
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.topology import many_nodes
from tests.agent.pods.pods import app, guaranteed, init, pod
from tests.bench import hosts
from tests.bench.measure import of_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from tests.bench.measure import Figure

_CASES: Final = 300


def drawn() -> Iterator[Figure]:
    """Decide drawn pods on each host."""
    for name in hosts.HOSTS:
        cases = [_case(name, number) for number in range(_CASES)]
        taken = {text: _least(decide) for text, decide in cases}
        yield of_samples(f"drawn/{name}", list(taken.values()))
        longest = max(taken, key=taken.__getitem__)
        yield of_samples(f"drawn/{name}/{longest}", [taken[longest]])


def _case(name: str, number: int) -> tuple[str, Callable[[], object]]:
    """Draw one decision on a host, and what it is in words."""
    draw = Random(f"1/{name}/{number}")  # noqa: S311  (the same cases in every run)
    options = draw.choice(hosts.OPTIONS)
    closest = draw.random() < 0.5
    policies = [
        policy
        for policy in TopologyManagerPolicy
        if policy is not TopologyManagerPolicy.SINGLE_NUMA_NODE or "align_by_socket" not in options
    ]
    policy, scope = draw.choice(policies), draw.choice(list(TopologyManagerScope))
    with_memory = draw.random() < 0.9
    rules = hosts.rules(
        name, policy, scope, closest=closest, memory=with_memory, **dict.fromkeys(options, True)
    )
    state = draw.choice(list(hosts.STATES))
    asked, text = _pod(draw, rules)
    words = [policy.value, scope.value, *(["closest"] if closest else []), *options, state, text]
    decide = partial(admit, rules, hosts.ledger_on(name, state), asked)
    return f"{number}: {' '.join(words)}", decide


def _pod(draw: Random, rules: EffectivePolicy) -> tuple[Pod, str]:
    """Draw a pod of one to three containers, or one with a budget that they share."""
    parts = draw.choice((1, 1, 1, 2, 3))
    cpus = max(1, int(len(rules.assignable_cpus) ** draw.random()))
    nodes = len(rules.machine.cpus.nodes)
    memory = max(1, int((nodes * 200) ** draw.random()))
    more = _more(draw, nodes)
    if draw.random() < 0.2:
        own = app("main", guaranteed(f"cpu={max(1, cpus - 1)} memory={max(1, memory // 2)}Gi"))
        budget = f"cpu={cpus + 1} memory={memory + 1}Gi"
        return pod(own, app("side"), of_pod=guaranteed(budget), uid="new"), f"budget {budget}"
    each = f"cpu={max(1, cpus // parts)} memory={max(1, memory // parts)}Gi{more}"
    members = [app(f"c{place}", guaranteed(each)) for place in range(parts)]
    if draw.random() < 0.2:
        members.append(init("first", guaranteed(each)))
    return pod(*members, uid="new"), f"{len(members)} x [{each}]"


def _more(draw: Random, nodes: int) -> str:
    """Draw up to four resources beside CPUs and memory, modest or nearly all there is."""
    more = ""
    for name, unit, each in (
        ("hugepages-2Mi", "Mi", 8192),
        ("hugepages-1Gi", "Gi", 8),
        ("example.com/gpu", "", 2),
        ("example.com/nic", "", 2),
    ):
        if draw.random() < 0.5:
            amount = max(1, int((nodes * each) ** draw.random() * 0.9))
            more += f" {name}={amount * 2 if unit == 'Mi' else amount}{unit}"
    return more


def _least(decide: Callable[[], object]) -> int:
    """Decide a few times and return the least that it took, in nanoseconds."""
    decide()
    times = []
    for _ in range(3):
        many_nodes._smallest.cache_clear()
        gc.collect(0)
        started = thread_time_ns()
        decide()
        times.append(thread_time_ns() - started)
    return min(times)
