"""Measure the whole path of an admission: `make bench` writes bench.json and prints a table.

What a resident agent takes at rest goes beside it, into bench-rest.json. The targets come last, met
or not; the exit code is 0 either way. `--compare OLD.json NEW.json` sets two runs side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import structlog

from tests.bench.families import FAMILIES
from tests.bench.measure import Figure, Rest, Yardstick
from tests.bench.targets import verdicts


def main() -> int:
    """Run the benchmark or compare two runs."""
    arguments = _arguments()
    if arguments.compare:
        return _compare(*arguments.compare)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    print(f"{'name':58} {'n':>6} {'p50 us':>11} {'p99 us':>11} {'max us':>11}")
    figures: list[Figure] = []
    rest: Rest | None = None
    yardstick = Yardstick()
    for family in arguments.only or FAMILIES:
        for measured in FAMILIES[family]():
            yardstick.look()
            print(_line(measured), flush=True)
            if isinstance(measured, Rest):
                rest = measured
            else:
                figures.append(measured)
    print("", *verdicts(figures, rest), yardstick.line(), "", sep="\n")
    output = Path(arguments.output)
    _write(output, [figure.as_json() for figure in figures])
    if rest is not None:
        _write(output.with_name(f"{output.stem}-rest.json"), rest.as_json())
    print(f"{len(figures)} figures in {output}")
    return 0


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--output", default="bench.json", help="where the figures go")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="compare two runs")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, help="measure only these")
    return parser.parse_args()


def _line(measured: Figure | Rest) -> str:
    if isinstance(measured, Rest):
        mib = measured.resident_bytes / (1 << 20)
        return f"at rest: {mib:.1f} MiB resident, {measured.cpu_percent:.2f} % of one CPU"
    counted = (
        "" if measured.writes is None else f"  {measured.writes} writes, {measured.bus_calls} calls"
    )
    return (
        f"{measured.name:58} {measured.n:6} {measured.p50_us:11.1f}"
        f" {measured.p99_us:11.1f} {measured.max_us:11.1f}{counted}"
    )


def _compare(old_file: str, new_file: str) -> int:
    old, new = (
        {entry["name"]: entry["p50_us"] for entry in json.loads(Path(file).read_text())}
        for file in (old_file, new_file)
    )
    print(f"{'name':58} {'old p50 us':>11} {'new p50 us':>11} {'ratio':>7}")
    for name in sorted(old.keys() & new.keys()):
        print(f"{name:58} {old[name]:11.1f} {new[name]:11.1f} {new[name] / old[name]:7.2f}")
    for name in sorted(old.keys() ^ new.keys()):
        print(f"{name:58} {'only in ' + (old_file if name in old else new_file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
