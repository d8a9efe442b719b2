"""Look for decisions that take long: `python -m tests.bench.worst [--host 64n4096c] [--cases 500]`.

Pods, policies, options and what is allocated already are drawn with a fixed seed, a case by its
host and number alone, so that `--case 17` looks at one again. The figures are processor time, the
lower of a few runs with nothing remembered of the question, so that a busy machine does not matter.
"""

from __future__ import annotations

import argparse
import gc
import sys
from cProfile import Profile
from dataclasses import dataclass
from random import Random
from time import thread_time_ns
from typing import TYPE_CHECKING

from agent.managers.admission import admit
from agent.managers.metrics import BOUNDED_CHOICES
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.topology import many_nodes
from tests.agent.pods.pods import app, guaranteed, init, pod
from tests.bench import hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


@dataclass(frozen=True, slots=True)
class Case:
    """One drawn decision: its rules, what is allocated (a state by name), and the pod."""

    number: int
    rules: EffectivePolicy
    state: str
    pod: Pod
    text: str

    @property
    def containers(self) -> int:
        """How many containers the pod has."""
        return len(self.pod.containers) + len(self.pod.init_containers)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a case took (microseconds of processor time) and whether its work was bounded."""

    case: Case
    micros: float
    bounded: int
    admitted: bool

    def __str__(self) -> str:
        outcome = "admitted" if self.admitted else "rejected"
        bounded = f", {self.bounded} bounded" if self.bounded else ""
        return (
            f"{self.micros / 1000:8.2f} ms #{self.case.number} {self.case.text}: {outcome}{bounded}"
        )


def main() -> int:
    """Try the cases of each host and print the distribution and the worst of them."""
    arguments = _arguments()
    for name in arguments.host:
        if arguments.case is not None:
            _profile(name, drawn(name, arguments.case, arguments.seed))
            continue
        measured = sorted(
            search(name, arguments.cases, arguments.seed), key=lambda figure: -figure.micros
        )
        _print(name, measured, arguments.show)
    return 0


def search(name: str, cases: int, seed: int) -> Iterator[Measured]:
    """Yield what each case of a host took."""
    for number in range(cases):
        yield tried(name, drawn(name, number, seed))


def drawn(name: str, number: int, seed: int) -> Case:
    """Draw one case of a host."""
    draw = Random(f"{seed}/{name}/{number}")  # noqa: S311  (the same cases in every run)
    options = draw.choice(hosts.OPTIONS)
    closest = draw.random() < 0.5
    policies = [
        policy
        for policy in TopologyManagerPolicy
        if policy is not TopologyManagerPolicy.SINGLE_NUMA_NODE or "align_by_socket" not in options
    ]
    policy = draw.choice(policies)
    scope = draw.choice(list(TopologyManagerScope))
    rules = hosts.rules(
        name,
        policy,
        scope,
        closest=closest,
        memory=draw.random() < 0.9,
        **dict.fromkeys(options, True),
    )
    state = draw.choice(list(hosts.STATES))
    asked, text = _pod(draw, rules)
    words = [policy.value, scope.value, *(["closest"] if closest else []), *options, state, text]
    return Case(number, rules, state, asked, " ".join(words))


def _pod(draw: Random, rules: EffectivePolicy) -> tuple[Pod, str]:
    """Draw a pod of one to three containers, or one with a budget that they share."""
    parts = draw.choice((1, 1, 1, 2, 3))
    cpus = max(1, int(len(rules.assignable_cpus) ** draw.random()))
    nodes = len(rules.machine.cpus.nodes)
    memory = max(1, int((nodes * 200) ** draw.random()))
    more = _more(draw, nodes)
    if draw.random() < 0.2:
        shared = app("side")
        own = app("main", guaranteed(f"cpu={max(1, cpus - 1)} memory={max(1, memory // 2)}Gi"))
        of_pod = guaranteed(f"cpu={cpus + 1} memory={memory + 1}Gi")
        return pod(own, shared, of_pod=of_pod, uid="new"), f"budget cpu={cpus + 1} {memory + 1}Gi"
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


def tried(name: str, case: Case) -> Measured:
    """Decide a case a few times and return the least that it took."""
    ledger = hosts.ledger_on(name, case.state)
    best: int | None = None
    decision = _decide(case, ledger)
    for _ in range(3):
        many_nodes._smallest.cache_clear()
        gc.collect(0)
        started = thread_time_ns()
        decision = _decide(case, ledger)
        taken = thread_time_ns() - started
        best = taken if best is None else min(best, taken)
    bounded = decision.counters.get((BOUNDED_CHOICES.name, ()), 0)
    return Measured(case, (best or 0) / 1000, bounded, decision.admitted)


def _decide(case: Case, ledger: Ledger) -> Decision:
    return admit(case.rules, ledger, case.pod)


def _print(name: str, measured: Sequence[Measured], show: int) -> None:
    single = [figure for figure in measured if figure.case.containers == 1]
    for text, some in (("all pods", measured), ("of one container", single)):
        times = sorted(figure.micros / 1000 for figure in some)
        at = ((share, times[len(times) * share // 100]) for share in (50, 90, 99) if times)
        figures = " ".join(f"p{share} {millis:.2f}" for share, millis in at)
        bounded = sum(1 for figure in some if figure.bounded)
        most = max(times, default=0)
        print(f"{name} {text}: {len(some)}, {figures} max {most:.2f} ms, {bounded} bounded")
    for figure in measured[:show]:
        print(figure, flush=True)


def _profile(name: str, case: Case) -> None:
    print(tried(name, case))
    profile = Profile()
    many_nodes._smallest.cache_clear()
    profile.runcall(_decide, case, hosts.ledger_on(name, case.state))
    profile.print_stats("tottime")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="worst", description=__doc__)
    parser.add_argument("--host", nargs="+", choices=list(hosts.HOSTS), default=list(hosts.HOSTS))
    parser.add_argument("--cases", type=int, default=300, help="cases of each host")
    parser.add_argument("--case", type=int, help="profile this case alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="worst cases to name")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
