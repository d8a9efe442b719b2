"""What is measured: each function yields the figures of one family."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from agent.api.pod_resources import Listing
from agent.managers.admission import admit, remove
from agent.managers.ledger import Ledger
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.state.store import Store
from sysfs.described import write_tree
from sysfs.discover import discover
from tests.bench import agents, hosts, nri
from tests.bench.drawn import drawn
from tests.bench.enforcing import enforcing
from tests.bench.growth import growing
from tests.bench.measure import Figure, in_turns, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.decision import Decision
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from agent.state.checkpoint import Checkpoint
    from tests.bench.measure import Rest

#: A variant of a figure, and what is timed.
Case: TypeAlias = "tuple[str, Callable[[], object]]"

#: Time for each decision: a 99th percentile of fewer runs is that of one bad moment.
DECISIONS_NS: Final = 500_000_000
_STATES: Final = ("empty", "half", "fragmented", "full90")
_POLICIES: Final = (
    (TopologyManagerPolicy.BEST_EFFORT, False),
    (TopologyManagerPolicy.RESTRICTED, True),
    (TopologyManagerPolicy.SINGLE_NUMA_NODE, False),
)


def decide() -> Iterator[Figure]:
    """Decide an admission alone: occupancy, resources, policies, options, pods already admitted.

    All of one host in turns: they are compared with one target, and with each other.
    """
    for name in hosts.HOSTS:
        cases = [case for cases in _DECISIONS for case in cases(name)]
        named = [(f"decide/{name}/{variant}", run) for variant, run in cases]
        yield from in_turns(named, budget_ns=DECISIONS_NS)


def _occupied(name: str) -> Iterator[Case]:
    """One to six resources, then a pod of an eighth of the machine by each policy."""
    rules = hosts.rules(name)
    wide = len(rules.assignable_cpus) // 8
    asked = hosts.pod_of("new", f"cpu={wide} memory={wide // 2}Gi hugepages-2Mi={wide}Mi")
    for state in _STATES:
        ledger = hosts.ledger_on(name, state)
        for number, text in enumerate(hosts.RESOURCES, start=1):
            by = hosts.rules(name, memory=False) if number == 1 else rules
            yield f"{state}-{number}r", partial(admit, by, ledger, hosts.pod_of("new", text))
        for policy, closest in _POLICIES:
            by = hosts.rules(name, policy, closest=closest)
            variant = f"{state}-wide-{policy}{'-closest' * closest}"
            yield variant, partial(admit, by, ledger, asked)


def _pod_level(name: str) -> Iterator[Case]:
    budget = hosts.pod_level_pod("new")
    for scope in TopologyManagerScope:
        rules = hosts.rules(name, scope=scope)
        for state in ("empty", "fragmented"):
            run = partial(admit, rules, hosts.ledger_on(name, state), budget)
            yield f"podlevel-{scope}-{state}", run


def _crowded(name: str) -> Iterator[Case]:
    rules = hosts.rules(name)
    asked = hosts.guaranteed_pod("new", 4)
    for pods in agents.ADMITTED:
        yield f"pods{pods}", partial(admit, rules, hosts.ledger_with(rules, pods), asked)


def _by_option(name: str) -> Iterator[Case]:
    ledger = hosts.ledger_on(name, "fragmented")
    asked = hosts.guaranteed_pod("new", 4)
    for option in hosts.OPTIONS[1:]:
        rules = hosts.rules(
            name,
            TopologyManagerPolicy.BEST_EFFORT,
            TopologyManagerScope.CONTAINER,
            **dict.fromkeys(option, True),
        )
        yield "+".join(option).replace("_", "-"), partial(admit, rules, ledger, asked)


def _devices(name: str) -> Iterator[Case]:
    """Two resources of devices: listed in the configuration, and of plugins that prefer some."""
    rules = hosts.rules(name)
    preferring = replace(rules.policy, preferring=frozenset(rules.policy.devices))
    plugins = replace(rules, policy=preferring)
    asked = hosts.pod_of("new", "cpu=4 memory=1Gi example.com/gpu=1 example.com/nic=1")
    ledger = hosts.ledger_on(name, "fragmented")
    yield "fragmented-devices-listed", partial(admit, rules, ledger, asked)
    yield "fragmented-devices-plugins", partial(_asking, plugins, ledger, asked)


def _asking(rules: EffectivePolicy, ledger: Ledger, asked: Pod) -> Decision:
    decision = admit(rules, ledger, asked)
    while decision.suspended is not None:
        preferred = {each: tuple(each.available) for each in decision.suspended.questions}
        decision = decision.suspended.resume(preferred)
    return decision


def _gated(name: str) -> Iterator[Case]:
    """Decide a pod without pod-level resources, with PodLevelResourceManagers on and off."""
    ledger = hosts.ledger_on(name, "fragmented")
    asked = hosts.guaranteed_pod("new", 4)
    for word, on in (("on", True), ("off", False)):
        rules = hosts.rules(name)
        gates = replace(rules.policy.gates, pod_level_resource_managers=on)
        by = replace(rules, policy=replace(rules.policy, gates=gates))
        yield f"gate-{word}", partial(admit, by, ledger, asked)


_DECISIONS: Final = (_occupied, _pod_level, _gated, _crowded, _by_option, _devices)


def removal() -> Iterator[Figure]:
    """Remove a pod again, beside few and beside many others, and with devices."""
    for name in hosts.HOSTS:
        rules = hosts.rules(name)
        cases: list[Case] = []
        for pods in agents.ADMITTED:
            others = hosts.ledger_with(rules, pods)
            for variant, asked in (("", hosts.RESOURCES[1]), ("-6r", hosts.RESOURCES[-1])):
                ledger = admit(rules, others, hosts.pod_of("new", asked)).ledger
                run = partial(remove, rules, ledger, "new")
                cases.append((f"remove/{name}/pods{pods}{variant}", run))
        yield from in_turns(cases)


def rejections() -> Iterator[Figure]:
    """Reject what a half-full host cannot align, alone and with its reason put into words."""
    for name in ("2n128c", "8n256c"):
        cases: list[Case] = []
        for policy in (TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE):
            rules, ledger = hosts.rules(name, policy), hosts.ledger_on(name, "half")
            for variant, asked in hosts.unalignable(rules, ledger):
                pod = hosts.pod_of("new", asked)
                figure = f"reject/{name}/{policy}-{variant}"
                cases.append((figure, partial(admit, rules, ledger, pod)))
                cases.append((f"{figure}-said", partial(_said, rules, ledger, pod)))
        yield from in_turns(cases)


def _said(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> str:
    rejection = admit(rules, ledger, pod).rejection
    return "" if rejection is None else rejection.message


def discovery() -> Iterator[Figure]:
    """Read a machine from its sysfs tree."""
    for name in ("2n128c", "8n256c", "64n4096c"):
        with TemporaryDirectory(prefix="numawarden-bench-") as folder:
            root = write_tree(hosts.host(name), Path(folder) / "host")
            yield measure(f"discover/{name}/tree", partial(discover, root), most=20)


def saving() -> Iterator[Figure]:
    """Save the state with 10, 250 and 2,500 pods, on tmpfs where there is one."""
    for pods, store, state in _stores():
        yield measure(f"save/2n128c/pods{pods}", partial(store.save, state), most=200)


def loading() -> Iterator[Figure]:
    """Load the state with 10, 250 and 2,500 pods."""
    for pods, store, state in _stores():
        store.save(state)
        yield measure(f"load/2n128c/pods{pods}", store.load, most=50)


def _stores() -> Iterator[tuple[int, Store, Checkpoint]]:
    rules = hosts.rules("2n128c")
    for pods in agents.ADMITTED:
        with agents.on_tmpfs() as folder, Store(folder) as store:
            yield pods, store, agents.state_of(rules, hosts.ledger_with(rules, pods))


def listing() -> Iterator[Figure]:
    """List 2,500 pods over podresources: first, after changes, and unchanged.

    They are copies of a pod that shares, or of one with CPUs and memory of its own.
    """
    rules = hosts.rules("2n128c")
    for variant, pod in (
        ("sharing", hosts.shared_pod("new")),
        ("exclusive", hosts.guaranteed_pod("new", 4)),
    ):
        allocation = admit(rules, rules.empty_ledger(), pod).allocation
        assert allocation is not None
        copies = [replace(allocation, uid=f"u-{number}") for number in range(2500)]
        ledger = Ledger.of(copies, {})
        one_more = ledger.with_allocation(allocation)
        name = f"list/2n128c/pods2500-{variant}"
        yield measure(f"{name}-first", partial(_list, None, rules, ledger), most=50)
        known = Listing()
        changes = partial(_list, known, rules, ledger, one_more)
        yield measure(f"{name}-two-changes", changes, most=200)
        yield measure(f"{name}-unchanged", partial(known.all, rules, one_more))


def _list(known: Listing | None, rules: EffectivePolicy, *ledgers: Ledger) -> None:
    """List one ledger after the other; without a listing nothing is known before."""
    listing = Listing() if known is None else known
    for ledger in ledgers:
        listing.all(rules, ledger)


def command_line() -> Iterator[Figure]:
    """Start the command line."""
    command = [str(Path(sys.executable).with_name("numawarden")), "--help"]
    run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    yield measure("cli/2n128c/help", run, most=10, budget_ns=3_000_000_000)


#: What is measured, in the order of the table, by the names that `--only` takes.
FAMILIES: Final[dict[str, Callable[[], Iterator[Figure | Rest]]]] = {
    "decide": decide,
    "drawn": drawn,
    "grow": growing,
    "admit": agents.admissions,
    "isolate": agents.isolated,
    "reject": rejections,
    "remove": removal,
    "discover": discovery,
    "enforce": enforcing,
    "reconcile": agents.reconciling,
    "save": saving,
    "load": loading,
    "list": listing,
    "nri": nri.answers,
    "start": agents.starts,
    "rest": agents.at_rest,
    "cli": command_line,
}
