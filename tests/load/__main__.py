"""Keep a full host changing for ten minutes of virtual time: `make load`, `python -m tests.load`.

Once with cgroups that are plain directories, and once with those of systemd, whose bus hangs for a
minute in between. Prints a summary of each and exits 1 when anything was broken or grew. `--trace`
shows by tracemalloc where the additional memory was allocated (four times slower).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tracemalloc
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import structlog

from agent.api.client import AgentClient
from cgroupfs.names import Driver
from tests.agent.server.support import running
from tests.bench.measure import of_samples
from tests.load.churn import Churn, Course, HostSystemd, Pace, Usage, busy_world

if TYPE_CHECKING:
    from collections.abc import Sequence

#: So many bytes more at the end than before are still no growth: arenas of the allocator.
_SLACK = 8 << 20
#: The fake of systemd looks at all of its units with each call: so many pods are enough for it.
_SYSTEMD_PODS = 50
#: In the middle systemd's bus hangs for so many virtual seconds.
_SILENCE = 60.0
#: A client waits so many seconds for one answer, on however busy a machine.
_PATIENCE = 600.0


def main() -> int:
    """Run the load with each driver and print what came of it."""
    arguments = _arguments()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    if arguments.trace:
        tracemalloc.start(8)
    failed = 0
    for driver in Driver:
        with_systemd = driver is Driver.SYSTEMD
        pace = Pace(
            pods=min(arguments.pods, _SYSTEMD_PODS) if with_systemd else arguments.pods,
            containers=arguments.containers,
            seconds=arguments.minutes * 60,
            silence=_SILENCE if with_systemd else 0.0,
        )
        with TemporaryDirectory() as directory:
            course = asyncio.run(_run(Path(directory), pace, driver))
        print(f"{driver}, {pace.pods} pods of {pace.containers} containers:")
        failed |= _report(course)
    return failed


async def _run(directory: Path, pace: Pace, driver: Driver) -> Course:
    world = busy_world(directory, driver)
    host = HostSystemd.of(world) if driver is Driver.SYSTEMD else None
    async with running(world) as agent:
        agent.client = AgentClient(world.socket, timeout=_PATIENCE)
        return await Churn(agent, pace, host).run()


def _report(course: Course) -> int:
    full, end = course.usage
    print(
        f"{course.admitted} admitted, {course.rejected} rejected, {course.removed} removed,"
        f" {course.reconciled} reconciles; while the bus hung {course.silent} operations and"
        f" {course.silent_reconciles} reconciles, {course.deadlines} calls waited for it"
    )
    print("processor time of an answer, client and save included:")
    for kind, times in course.admissions.items():
        print(f"  {kind}: admission {_times(times)}, removal {_times(course.removals[kind])}")
    print(f"{full} -> {end}")
    if tracemalloc.is_tracing():
        for place in tracemalloc.take_snapshot().statistics("lineno")[:10]:
            print(f"  {place}")
    slack = {"resident": _SLACK, "traced": _SLACK}
    grown = [
        each.name
        for each in fields(Usage)
        if getattr(end, each.name) > getattr(full, each.name) + slack.get(each.name, 0)
    ]
    for line in course.broken[:20]:
        print(f"broken: {line}")
    print(f"{len(course.broken)} broken, grown: {', '.join(grown) or 'nothing'}")
    return 1 if course.broken or grown else 0


def _times(seconds: Sequence[float]) -> str:
    figure = of_samples("", [round(1e9 * each) for each in seconds])
    return f"p50 {figure.p50_us / 1000:.1f} ms p99 {figure.p99_us / 1000:.1f} ms"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--containers", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--trace", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
