"""Draw how the time of one decision grows: `python -m tests.bench.growth [--output FILE]`.

A bar per point, on a logarithmic scale, as text for `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.managers.admission import admit
from agent.managers.machine import Machine
from sysfs.shapes import regular_host
from tests.agent.pods.pods import app, guaranteed, pod
from tests.bench import hosts
from tests.bench.measure import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Columns of a bar for a factor of ten; a bar begins at ten microseconds.
_PER_DECADE: Final = 20
_ASKED: Final = "cpu=4 memory=1Gi"


def main() -> int:
    """Measure every series and print or write the plot."""
    parser = argparse.ArgumentParser(prog="growth", description=__doc__)
    parser.add_argument("--output", type=Path, help="file to write, else standard output")
    output = parser.parse_args().output
    text = "\n".join(line for draw in _SERIES for line in draw()) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)
    return 0


def _by_nodes() -> Iterator[str]:
    yield "NUMA nodes (16 CPUs each)"
    for packages in (1, 2, 4, 8, 16, 32, 64):
        machine = Machine.of(regular_host(packages, 1, 8, memory_bytes=64 * hosts.GIB))
        yield _bar(f"{packages}", _decision(machine))


def _by_cpus() -> Iterator[str]:
    yield "CPUs (8 NUMA nodes)"
    for cores in (4, 16, 64, 256):
        machine = Machine.of(regular_host(2, 4, cores, memory_bytes=64 * hosts.GIB))
        yield _bar(f"{16 * cores}", _decision(machine))


def _by_resources() -> Iterator[str]:
    yield "resources (16 NUMA nodes, 512 CPUs)"
    rules = hosts.rules("16n512c")
    for number, asked in enumerate(hosts.RESOURCES[1:], start=2):
        run = partial(admit, rules, rules.empty_ledger(), hosts.pod_of("new", asked))
        yield _bar(f"{number}", run)


def _by_containers() -> Iterator[str]:
    yield "containers of the pod (2 NUMA nodes, 128 CPUs)"
    rules = hosts.rules("2n128c")
    for number in (1, 4, 16):
        members = [app(f"c{i}", guaranteed("cpu=1 memory=1Gi")) for i in range(number)]
        yield _bar(f"{number}", partial(admit, rules, rules.empty_ledger(), pod(*members)))


def _by_pods() -> Iterator[str]:
    yield "pods held (2 NUMA nodes, 128 CPUs)"
    rules = hosts.rules("2n128c")
    for number in (10, 250, 2500):
        asked = hosts.pod_of("new", _ASKED)
        yield _bar(f"{number}", partial(admit, rules, hosts.held(rules, number), asked))


def _decision(machine: Machine) -> Callable[[], object]:
    rules = hosts.rules_of(machine)
    return partial(admit, rules, rules.empty_ledger(), hosts.pod_of("new", _ASKED))


def _bar(label: str, run: Callable[[], object]) -> str:
    micros = measure(label, run).p50_us
    length = max(1, round(_PER_DECADE * log10(micros / 10)))
    return f"{label:>6} {'#' * length} {micros:.0f} us"


_SERIES: Final = (_by_nodes, _by_cpus, _by_resources, _by_containers, _by_pods)

if __name__ == "__main__":
    sys.exit(main())
