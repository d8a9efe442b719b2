"""Compare our decisions with recorded ones: `python -m tests.conformance [--vectors DIR]`."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.conformance.families import run_case
from tests.conformance.outcome import Outcome, Verdict
from tests.shared import shared_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN_SELECTION: Final = Path(__file__).parent / "selection"
_CHUNK: Final = 64
_SHOWN: Final = 5


@dataclass(slots=True)
class Tally:
    """How the cases of one family compare."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    wrong: list[tuple[str, Outcome]] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, outcome: Outcome) -> None:
        """Count one case."""
        self.verdicts[outcome.verdict] += 1
        self.rules.update(outcome.rules)
        if outcome.verdict is Verdict.WRONG:
            self.wrong.append((name, outcome))

    def line(self, family: str) -> str:
        """Return the family's summary."""
        equal, right, wrong = (self.verdicts[verdict] for verdict in Verdict)
        return (
            f"{family}: equal {equal}, right-instead-of-equal {right},"
            f" wrong {wrong} of {self.verdicts.total()}"
        )


def main() -> int:
    """Run every family of a directory; return 1 when any case is wrong or none was found."""
    arguments = _arguments()
    folder = arguments.vectors or _default_folder()
    files = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])
    if not files:
        print(f"conformance: no *.jsonl or *.jsonl.gz in {folder}", file=sys.stderr)
        return 1
    right = total = 0
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for file in files:
            tally = Tally()
            for outcomes in pool.map(_run_lines, _chunks(file, arguments.only)):
                for name, outcome in outcomes:
                    tally.add(name, outcome)
            print(tally.line(file.name.split(".")[0]), flush=True)
            for rule, cases in sorted(tally.rules.items()):
                print(f"  right instead by the rule '{rule}': {cases}")
            _show(tally, arguments.show)
            right += tally.verdicts.total() - tally.verdicts[Verdict.WRONG]
            total += tally.verdicts.total()
    print(f"conformance: {right} of {total}")
    return 0 if total and right == total else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--vectors", type=Path, help="directory of recorded cases")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--show", type=int, default=_SHOWN, help="differing cases to show")
    return parser.parse_args()


def _default_folder() -> Path:
    shared = shared_dir()
    recorded = shared / "vectors" if shared else _OWN_SELECTION
    return recorded if recorded.is_dir() else _OWN_SELECTION


def _chunks(file: Path, only: str) -> Iterator[list[str]]:
    chunk: list[str] = []
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            if only and only not in line[:300]:
                continue
            chunk.append(line)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    if chunk:
        yield chunk


def _run_lines(lines: list[str]) -> list[tuple[str, Outcome]]:
    cases = map(json.loads, lines)
    return [(case.get("name", "a case without a name"), run_case(case)) for case in cases]


def _show(tally: Tally, number: int) -> None:
    for name, outcome in tally.wrong[:number]:
        print(f"  {name}")
        for difference in outcome.differences[:6]:
            print(f"    {difference}")


if __name__ == "__main__":
    sys.exit(main())
