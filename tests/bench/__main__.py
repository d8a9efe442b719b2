"""Measure the whole path of an admission: `make bench` writes bench.json and prints its figures.

What a resident agent takes at rest goes beside it, into bench-rest.json. The targets come last, met
or not; the exit code is 0 either way. `--compare OLD.json NEW.json` sets two runs side by side.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import structlog

from tests.bench.families import FAMILIES
from tests.bench.measure import Figure, Rest, Yardstick
from tests.bench.targets import verdicts


def main() -> None:
    """Run the benchmark or compare two runs."""
    arguments = _arguments()
    if arguments.compare:
        _compare(*arguments.compare)
        return
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    print(f"{'name':58} {'n':>6} {'p50 us':>11} {'p99 us':>11} {'max us':>11}")
    figures: list[Figure] = []
    rest: Rest | None = None
    yardstick = Yardstick()
    for family in arguments.only or FAMILIES:
        for measured in FAMILIES[family]():
            yardstick.look()
            if isinstance(measured, Rest):
                rest = measured
                print(rest, flush=True)
            else:
                figures.append(measured)
                print(measured, flush=True)
    print("", *verdicts(figures, rest), yardstick.figure(), "", sep="\n")
    output = Path(arguments.output)
    output.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    if rest is not None:
        file = output.with_name(f"{output.stem}-rest.json")
        file.write_text(json.dumps(asdict(rest), indent=1) + "\n")
    print(f"{len(figures)} figures in {output}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--output", default="bench.json", help="where the figures go")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="compare two runs")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, help="measure only these")
    return parser.parse_args()


def _compare(*files: str) -> None:
    old, new = (
        {entry["name"]: entry["p50_us"] for entry in json.loads(Path(file).read_text())}
        for file in files
    )
    print(f"{'name':58} {'old p50 us':>11} {'new p50 us':>11} {'ratio':>7}")
    for name in sorted(old.keys() & new.keys()):
        print(f"{name:58} {old[name]:11.1f} {new[name]:11.1f} {new[name] / old[name]:7.2f}")
    for name in sorted(old.keys() ^ new.keys()):
        print(f"{name:58} only in {files[name not in old]}")


if __name__ == "__main__":
    main()
