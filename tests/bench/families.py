"""What is measured: each function yields the figures of one family."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from agent.checkpoint.state import State, host_facts, policy_summary
from agent.checkpoint.store import Store
from agent.managers.admission import PROVIDERS, admit, remove
from agent.managers.cpu_assignment import take_by_topology
from agent.managers.demand import demand_of
from agent.managers.draft import Draft
from agent.managers.policy import CpuPolicyOptions, TopologyManagerPolicy, TopologyManagerScope
from agent.managers.topology_manager import merge
from sysfs.discover import discover
from sysfs.tree import write_tree
from tests.bench import hosts
from tests.bench.measure import Figure, measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.ledger import Ledger
    from agent.managers.hints import ProviderHints
    from agent.managers.rules import Rules

_HELD: Final = (10, 250, 2500)
_POLICIES: Final = (
    (TopologyManagerPolicy.BEST_EFFORT, False),
    (TopologyManagerPolicy.RESTRICTED, True),
    (TopologyManagerPolicy.SINGLE_NUMA_NODE, False),
)
_OPTIONS: Final = (
    "full_pcpus_only",
    "distribute_cpus_across_numa",
    "align_by_socket",
    "distribute_cpus_across_cores",
    "strict_cpu_reservation",
    "prefer_align_cpus_by_uncorecache",
)


def decide() -> Iterator[Figure]:
    """Decide an admission alone: occupancy, resources, policies, options, pods already held."""
    for name in hosts.HOSTS:
        rules = hosts.rules(name)
        yield from _decide_occupied(name)
        asked = hosts.guaranteed_pod("new", 4)
        for pods in _HELD:
            run = partial(admit, rules, hosts.held(rules, pods), asked)
            yield measure(f"decide/{name}/held{pods}", run)
        budget = hosts.pod_level_pod("new")
        run = partial(admit, rules, rules.empty_ledger(), budget)
        yield measure(f"decide/{name}/podlevel", run)
        for option in _OPTIONS:
            yield _decide_with(name, option)


def _decide_occupied(name: str) -> Iterator[Figure]:
    """One to six resources, then a pod of an eighth of the machine, on hosts in each state."""
    rules = hosts.rules(name)
    for state, ledger in _ledgers(rules).items():
        for number, text in enumerate(hosts.RESOURCES, start=1):
            by = hosts.rules(name, memory=False) if number == 1 else rules
            run = partial(admit, by, ledger, hosts.pod_of("new", text))
            yield measure(f"decide/{name}/{state}-{number}r", run)
        wide = len(rules.assignable_cpus) // 8
        asked = hosts.pod_of("new", f"cpu={wide} memory={wide // 2}Gi hugepages-2Mi={wide}Mi")
        for policy, closest in _POLICIES:
            by = hosts.rules(name, policy, closest=closest)
            run = partial(admit, by, ledger, asked)
            yield measure(f"decide/{name}/{state}-wide-{policy}{'-closest' * closest}", run)


def _ledgers(rules: Rules) -> dict[str, Ledger]:
    return {
        "empty": rules.empty_ledger(),
        "half": hosts.filled(rules, 0.5),
        "fragmented": hosts.fragmented(rules),
        "full90": hosts.filled(rules, 0.9),
    }


def _decide_with(name: str, option: str) -> Figure:
    rules = hosts.rules(
        name,
        TopologyManagerPolicy.BEST_EFFORT,
        TopologyManagerScope.CONTAINER,
        **{option: True},
    )
    asked = hosts.guaranteed_pod("new", 4)
    return measure(
        f"decide/{name}/{_spelled(option)}", partial(admit, rules, rules.empty_ledger(), asked)
    )


def removal() -> Iterator[Figure]:
    """Remove a pod again."""
    for name in hosts.HOSTS:
        rules = hosts.rules(name)
        ledger = admit(rules, hosts.held(rules, 250), hosts.guaranteed_pod("new", 4)).ledger
        yield measure(f"remove/{name}/held250", partial(remove, rules, ledger, "new"))


def hints_and_merge() -> Iterator[Figure]:
    """Ask every provider for hints, and merge them."""
    for name in hosts.HOSTS:
        rules = hosts.rules(name)
        ledger = hosts.fragmented(rules)
        for number, text in enumerate(hosts.RESOURCES[1:], start=2):
            draft = Draft.start(rules, ledger, demand_of(rules.policy, hosts.pod_of("new", text)))
            yield measure(f"hints/{name}/fragmented-{number}r", partial(_all_hints, draft))
            offered, topology = _all_hints(draft), rules.policy.topology
            run = partial(merge, rules.machine, topology, offered)
            yield measure(f"merge/{name}/fragmented-{number}r", run)


def _all_hints(draft: Draft) -> list[ProviderHints]:
    return [provider.pod_hints(draft) for provider in PROVIDERS]


def choose() -> Iterator[Figure]:
    """Choose CPUs with each option, a quarter of the machine."""
    for name in hosts.HOSTS:
        rules = hosts.rules(name)
        free = rules.assignable_cpus
        for option in ("", *_OPTIONS):
            options = CpuPolicyOptions(**({option: True} if option else {}))
            count = len(free) // 8 * 2
            yield measure(
                f"choose/{name}/{_spelled(option) or 'packed'}",
                partial(take_by_topology, rules.machine.cpus, options, free, count),
                most=300,
                budget_ns=150_000_000,
            )


def discovery() -> Iterator[Figure]:
    """Read a machine from its sysfs tree."""
    for name in ("2n128c", "8n256c", "64n4096c"):
        with TemporaryDirectory(prefix="numawarden-bench-") as folder:
            root = write_tree(hosts.host(name), Path(folder) / "host")
            yield measure(f"discover/{name}/tree", partial(discover, root), most=20)


def checkpoint() -> Iterator[Figure]:
    """Save and load the state with 10, 250 and 2,500 pods, on tmpfs where there is one."""
    rules = hosts.rules("2n128c")
    tmpfs = Path("/dev/shm")
    for pods in _HELD:
        state = _state(hosts.held(rules, pods))
        with TemporaryDirectory(dir=tmpfs if tmpfs.is_dir() else None) as folder:
            Path(folder).chmod(0o700)
            with Store(Path(folder)) as store:
                yield measure(f"save/2n128c/held{pods}", partial(store.save, state), most=200)
                yield measure(f"load/2n128c/held{pods}", store.load, most=50)


def _state(ledger: Ledger) -> State:
    rules = hosts.rules("2n128c")
    return State(
        ledger,
        boot_id="bench",
        host=host_facts(hosts.host("2n128c")),
        policy=policy_summary(rules.policy),
    )


def command_line() -> Iterator[Figure]:
    """Start the command line."""
    command = [str(Path(sys.executable).with_name("numawarden")), "--help"]
    run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    yield measure("cli/2n128c/help", run, most=10, budget_ns=3_000_000_000)


def _spelled(option: str) -> str:
    return option.replace("_", "-")


FAMILIES: Final = (
    decide,
    removal,
    hints_and_merge,
    choose,
    discovery,
    checkpoint,
    command_line,
)
