"""Keep a full host changing for ten minutes of virtual time: `make load`, `python -m tests.load`.

Prints a summary and exits 1 when anything was broken or grew. `--trace` tells by tracemalloc where
memory was allocated that was not there before (four times slower).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import structlog

from tests.agent.service.support import running
from tests.load.churn import Churn, Course, Pace, busy_world, own_descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

#: So many bytes more at the end than before are still no growth: arenas of the allocator.
_SLACK = 8 << 20


def main() -> int:
    """Run the load and print what came of it."""
    arguments = _arguments()
    pace = Pace(arguments.pods, arguments.containers, arguments.minutes * 60, arguments.rate)
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    if arguments.trace:
        tracemalloc.start(8)
    started = perf_counter()
    with TemporaryDirectory() as directory:
        course = asyncio.run(_run(Path(directory), pace))
    return _report(course, perf_counter() - started)


async def _run(directory: Path, pace: Pace) -> Course:
    async with running(busy_world(directory)) as agent:
        return await Churn(agent, pace).run()


def _report(course: Course, seconds: float) -> int:
    full, end = course.usage
    print(
        f"{course.admitted} admitted, {course.refused} refused, {course.removed} removed,"
        f" {course.reconciled} reconciles in {seconds:.0f} s"
    )
    print("processor time of an answer, client and save included:")
    for kind, times in course.admissions.items():
        print(f"  {kind}: admission {_times(times)}, removal {_times(course.removals[kind])}")
    print(
        f"resident {full.resident >> 20} -> {end.resident >> 20} MiB,"
        f" traced {full.traced >> 10} -> {end.traced >> 10} KiB,"
        f" descriptors {full.descriptors} -> {end.descriptors},"
        f" threads {full.threads} -> {end.threads}, tasks {full.tasks} -> {end.tasks}"
    )
    if tracemalloc.is_tracing():
        for place in tracemalloc.take_snapshot().statistics("lineno")[:10]:
            print(f"  {place}")
    grown = [
        *(["memory"] if end.resident > full.resident + _SLACK else []),
        *(["descriptors"] if end.descriptors > full.descriptors else []),
        *(["threads"] if end.threads > full.threads else []),
        *(["tasks"] if end.tasks > full.tasks else []),
    ]
    if "descriptors" in grown:
        print("\n".join(own_descriptors()))
    for line in course.broken[:20]:
        print(f"broken: {line}")
    print(f"{len(course.broken)} broken, grown: {', '.join(grown) or 'nothing'}")
    return 1 if course.broken or grown else 0


def _times(times: Sequence[float]) -> str:
    return f"p50 {_at(times, 50):.1f} ms p99 {_at(times, 99):.1f} ms"


def _at(times: Sequence[float], percent: int) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--containers", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--rate", type=float, default=2.0, help="operations a virtual second")
    parser.add_argument("--trace", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
