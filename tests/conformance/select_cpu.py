"""Choose the recorded CPU decisions that are kept with the project.

`python -m tests.conformance.select_cpu VECTORS` rewrites `take`, `cpuhints` and `discover` in
`tests/conformance/selection`. Cases are sorted into kinds (what is asked, on which sort of host,
what came of it); from each kind in turn the next case is taken, small hosts first, until the family
has its number.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from tests.conformance.outcome import Case

_SELECTION: Final = Path(__file__).parent / "selection"


def _take_kind(case: Case) -> Hashable:
    if "error" in case["expected"]:
        return case["op"], "error", bool(case.get("irregular"))
    return (
        case["op"],
        case["strategy"],
        case.get("uncore"),
        case.get("group_size"),
        case["topology"]["num_sockets"],
        case["topology"]["num_numa"],
        bool(case.get("irregular")),
        "outside_available" in case,
        "expected_noalias" in case,
        "hang" in case["expected"],
    )


def _hints_kind(case: Case) -> Hashable:
    hints = case["expected"].get("hints")
    return (
        tuple(case["options"]),
        case["topology"]["num_numa"],
        bool(case.get("irregular")),
        bool(case["reusable"]),
        hints is None,
        not hints,
    )


def _discover_kind(case: Case) -> Hashable:
    expected = case["expected"]
    layout = case["name"].rpartition("-")[2]
    return layout, expected.get("cpus_per_core"), "error" in expected


_FAMILIES: Final[dict[str, tuple[int, Callable[[Case], Hashable]]]] = {
    "take": (900, _take_kind),
    "cpuhints": (250, _hints_kind),
    "discover": (40, _discover_kind),
}


def select(cases: list[Case], number: int, kind_of: Callable[[Case], Hashable]) -> list[Case]:
    """Return `number` cases that hold as many kinds as they can, in their recorded order."""
    kinds: defaultdict[Hashable, list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda case: len(case["topology"]["cpus"])):
        kinds[kind_of(case)].append(case)
    in_turn = [case for turn in zip_longest(*kinds.values()) for case in turn if case is not None]
    return sorted(in_turn[:number], key=lambda case: str(case["name"]))


def main() -> None:
    """Rewrite the selection from the folder of recorded cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vectors", type=Path)
    folder = parser.parse_args().vectors
    _SELECTION.mkdir(exist_ok=True)
    for family, (number, kind_of) in _FAMILIES.items():
        cases = list(_read(folder / f"{family}.jsonl.gz"))
        _write(_SELECTION / f"{family}.jsonl.gz", select(cases, number, kind_of))


def _read(file: Path) -> Iterator[Case]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _write(file: Path, cases: list[Case]) -> None:
    """Write without a time stamp, so that the same cases are the same bytes."""
    lines = "".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases)
    file.write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()
