"""Draw how the time of one decision grows: `python -m tests.bench.growth [--svg FILE]`.

Processor time, the median: a bar per point, on a logarithmic scale, as text; with `--svg` as a
picture besides, the one of `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from math import log10
from pathlib import Path
from time import thread_time_ns
from typing import TYPE_CHECKING, Final

from agent.managers.admission import admit
from agent.managers.machine import Machine
from sysfs.described import regular_host
from tests.agent.pods.pods import app, guaranteed, pod
from tests.bench import hosts
from tests.bench.measure import measure
from tests.bench.panels import Panel, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Columns of a bar for a factor of ten; a bar begins at ten microseconds.
_PER_DECADE: Final = 20
_ASKED: Final = "cpu=4 memory=1Gi"


@dataclass(frozen=True, slots=True)
class Series:
    """What is varied, and a decision to measure for each value of it."""

    title: str
    decisions: tuple[tuple[int, Callable[[], object]], ...]


def main() -> int:
    """Measure every series, print the bars, and draw the picture where one is asked for."""
    parser = argparse.ArgumentParser(prog="growth", description=__doc__)
    parser.add_argument("--svg", type=Path, help="file for the picture")
    file = parser.parse_args().svg
    panels = [_measured(series) for series in _all_series()]
    for panel in panels:
        print(panel.title)
        for value, micros in panel.points:
            print(_bar(value, micros))
    if file is not None:
        file.write_text(picture(panels))
    return 0


def _measured(series: Series) -> Panel:
    points = [
        (value, measure("", run, clock=thread_time_ns).p50_us) for value, run in series.decisions
    ]
    return Panel(series.title, tuple(points))


def _bar(value: int, micros: float) -> str:
    length = max(1, round(_PER_DECADE * log10(micros / 10)))
    return f"{value:>6} {'#' * length} {micros:.0f} us"


def _all_series() -> Iterator[Series]:
    yield Series(
        "NUMA nodes (16 CPUs each)",
        tuple((number, _on(number, 1, 8)) for number in (1, 2, 4, 8, 16, 32, 64)),
    )
    yield Series(
        "CPUs (8 NUMA nodes)",
        tuple((16 * cores, _on(2, 4, cores)) for cores in (4, 16, 64, 256)),
    )
    yield Series("resources (16 NUMA nodes, 512 CPUs)", tuple(_by_resources()))
    yield Series("containers of the pod (2 NUMA nodes, 128 CPUs)", tuple(_by_containers()))
    yield Series("pods admitted (2 NUMA nodes, 128 CPUs)", tuple(_by_pods()))


def _on(packages: int, nodes: int, cores: int) -> Callable[[], object]:
    host = regular_host(packages, nodes, cores, memory_bytes=64 * hosts.GIB)
    rules = hosts.rules_of(Machine.of(host))
    return partial(admit, rules, rules.empty_ledger(), hosts.pod_of("new", _ASKED))


def _by_resources() -> Iterator[tuple[int, Callable[[], object]]]:
    rules = hosts.rules("16n512c")
    for number, asked in enumerate(hosts.RESOURCES[1:], start=2):
        yield number, partial(admit, rules, rules.empty_ledger(), hosts.pod_of("new", asked))


def _by_containers() -> Iterator[tuple[int, Callable[[], object]]]:
    rules = hosts.rules("2n128c")
    for number in (1, 4, 16):
        members = [app(f"c{i}", guaranteed("cpu=1 memory=1Gi")) for i in range(number)]
        yield number, partial(admit, rules, rules.empty_ledger(), pod(*members))


def _by_pods() -> Iterator[tuple[int, Callable[[], object]]]:
    rules = hosts.rules("2n128c")
    asked = hosts.pod_of("new", _ASKED)
    for number in (10, 250, 2500):
        yield number, partial(admit, rules, hosts.ledger_with(rules, number), asked)


if __name__ == "__main__":
    sys.exit(main())
