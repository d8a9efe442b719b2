#!/usr/bin/env python3
"""Compares the phases of `measure.sh`: a row for each document of `numawarden interference`.

Counts are for each CPU and second, so that phases of different length can be compared. Python's
standard library is enough: the documents may be compared on another host.
"""

import json
import sys
from pathlib import Path
from typing import Any

HEADER = ("PHASE", "TASKS/s", "TASKS us/s", "INTERRUPTS/s", "SOFTIRQS/s", "TICKS/s", "LONGEST us")


def row(name: str, document: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the report: means over all CPUs, and the longest of all interruptions."""
    cpus = document["cpus"]
    per = (len(cpus) * document["seconds"]) or 1.0
    tasks = [task for cpu in cpus for task in cpu["tasks"]]
    sums = (
        sum(task["times"] for task in tasks),
        sum(task["seconds"] for task in tasks) * 1e6,
        sum(sum(cpu["interrupts"].values()) for cpu in cpus),
        sum(sum(cpu["softirqs"].values()) for cpu in cpus),
        sum(cpu["ticks"] for cpu in cpus),
    )
    longest = [cpu["longestSeconds"] for cpu in cpus if cpu["longestSeconds"] is not None]
    shown = f"{max(longest) * 1e6:.1f}" if longest else "-"
    return (name.partition("-")[2], *(f"{each / per:.2f}" for each in sums), shown)


def report(directory: Path) -> str:
    """Return the report of a directory of documents, in the order of their names."""
    rows: list[tuple[str, ...]] = [HEADER]
    notes: list[str] = []
    for file in sorted(directory.glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        rows.append(row(file.stem, document))
        notes += [f"{rows[-1][0]}: {note}" for note in document["notes"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join((*lines, *notes, ""))


if __name__ == "__main__":
    sys.stdout.write(report(Path(sys.argv[1])))
