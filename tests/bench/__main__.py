"""Measure the whole path of an admission: `make bench` writes bench.json and prints a table.

`python -m tests.bench compare OLD.json NEW.json` sets two runs beside each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.families import FAMILIES

if TYPE_CHECKING:
    from tests.bench.measure import Figure


def main() -> int:
    """Run the benchmark or compare two runs."""
    arguments = _arguments()
    if arguments.compare:
        return _compare(*arguments.compare)
    figures = []
    print(f"{'name':44} {'n':>6} {'p50 us':>11} {'p99 us':>11} {'max us':>11}")
    chosen = [
        family for family in FAMILIES if family.__name__ in (arguments.only or [family.__name__])
    ]
    for family in chosen:
        for figure in family():
            print(_line(figure), flush=True)
            figures.append(figure)
    Path(arguments.output).write_text(
        json.dumps([figure.as_json() for figure in figures], indent=1) + "\n"
    )
    print(f"{len(figures)} figures in {arguments.output}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--output", default="bench.json", help="where the figures go")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="compare two runs")
    parser.add_argument("--only", nargs="+", help="measure only these: decide, choose, ...")
    return parser.parse_args()


def _line(figure: Figure) -> str:
    return (
        f"{figure.name:44} {figure.n:6} {figure.p50_us:11.1f}"
        f" {figure.p99_us:11.1f} {figure.max_us:11.1f}"
    )


def _compare(old_file: str, new_file: str) -> int:
    old, new = (
        {entry["name"]: entry["p50_us"] for entry in json.loads(Path(file).read_text())}
        for file in (old_file, new_file)
    )
    print(f"{'name':44} {'old p50 us':>11} {'new p50 us':>11} {'ratio':>7}")
    for name in sorted(old.keys() & new.keys()):
        print(f"{name:44} {old[name]:11.1f} {new[name]:11.1f} {new[name] / old[name]:7.2f}")
    for name in sorted(old.keys() ^ new.keys()):
        print(f"{name:44} {'only in ' + (old_file if name in old else new_file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
