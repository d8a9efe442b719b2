"""Print the table of decisions: `python -m tests.bench.table bench.json [--svg docs/growth.svg]`.

Medians in milliseconds; with `--svg` the picture of how they grow is drawn besides.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from tests.bench.growth import SERIES
from tests.bench.hosts import HOSTS
from tests.bench.panels import Panel, picture

_STATES: Final = {"empty": "empty", "half": "half", "fragmented": "fragmented", "full90": "90 %"}
_COLUMNS: Final = {
    "1": "1r",
    "2": "2r",
    "4": "4r",
    "6": "6r",
    "wide, best-effort": "wide-best-effort",
    "wide, single": "wide-single-numa-node",
    "wide, closest": "wide-restricted-closest",
}


def main() -> None:
    """Print a row for each host and what is allocated on it."""
    parser = argparse.ArgumentParser(prog="table", description=__doc__)
    parser.add_argument("figures", type=Path, help="bench.json")
    parser.add_argument("--svg", type=Path, help="file for the picture")
    arguments = parser.parse_args()
    entries = json.loads(arguments.figures.read_text())
    micros = {entry["name"]: entry["p50_us"] for entry in entries}
    if arguments.svg is not None:
        arguments.svg.write_text(picture([_panel(series, micros) for series in SERIES]))
    print(f"| host | state | {' | '.join(_COLUMNS)} |")
    print("|---" * (2 + len(_COLUMNS)) + "|")
    for host in HOSTS:
        for state, shown in _STATES.items():
            names = [f"decide/{host}/{state}-{column}" for column in _COLUMNS.values()]
            print(f"| {host} | {shown} | {' | '.join(f'{micros[n] / 1000:.2f}' for n in names)} |")


def _panel(series: str, micros: dict[str, float]) -> Panel:
    stem = f"grow/{series}/"
    points = [(int(n.removeprefix(stem)), us) for n, us in micros.items() if n.startswith(stem)]
    return Panel(SERIES[series], tuple(points))


if __name__ == "__main__":
    main()
