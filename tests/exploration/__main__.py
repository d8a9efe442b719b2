"""Explore all worlds of so many requests.

    python -m tests.exploration 1            part of `make test`
    python -m tests.exploration 2            in CI
    python -m tests.exploration 3 SECONDS    as many as that takes, in a fixed random order

Prints each broken scenario with a story that shows it; exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import structlog

from tests.exploration.search import Scenario, Tally, explore, scenarios


def main() -> int:
    """Explore, and print how much that was."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration")
    parser.add_argument("size", type=int, help="how many requests there are in a scenario")
    parser.add_argument("seconds", type=float, nargs="?", help="begin no scenario after so long")
    options = parser.parse_args()
    began = time.monotonic()
    latest = float("inf") if options.seconds is None else began + options.seconds
    todo = list(scenarios(options.size))
    random.Random(options.size).shuffle(todo)  # noqa: S311  # so that long ones are not the last
    explored: list[Tally] = []
    with ProcessPoolExecutor(os.cpu_count(), initializer=_quiet) as pool:
        tallies = pool.map(_explore, todo, [latest] * len(todo))
        for scenario, tally in zip(todo, tallies, strict=True):
            if tally.broken:
                print(f"BROKEN: {scenario}: {tally.broken}", flush=True)
            if tally.states:
                explored.append(tally)
    broken = sum(bool(tally.broken) for tally in explored)
    states, stories = (
        sum(getattr(tally, name) for tally in explored) for name in ("states", "stories")
    )
    cut = sum(tally.cut for tally in explored)
    print(
        f"{options.size} requests: {len(explored)} of {len(todo)} scenarios ({cut} cut short),"
        f" {states} states, {stories} stories, {broken} broken, {time.monotonic() - began:.0f} s"
    )
    return 1 if broken or not explored else 0


def _quiet() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def _explore(scenario: Scenario, latest: float) -> Tally:
    return Tally() if time.monotonic() > latest else explore(scenario, latest)


if __name__ == "__main__":
    sys.exit(main())
