"""Print the table of decisions: `python -m tests.bench.table bench.json`.

Medians in milliseconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

_HOSTS: Final = ("2n128c", "8n256c", "16n512c", "34n", "64n4096c")
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


def main() -> int:
    """Print a row for each host and what is allocated on it."""
    entries = json.loads(Path(sys.argv[1]).read_text())
    medians = {entry["name"]: entry["p50_us"] / 1000 for entry in entries}
    print(f"| host | state | {' | '.join(_COLUMNS)} |")
    print("|---" * (2 + len(_COLUMNS)) + "|")
    for host in _HOSTS:
        for state, shown in _STATES.items():
            names = [f"decide/{host}/{state}-{column}" for column in _COLUMNS.values()]
            print(f"| {host} | {shown} | {' | '.join(f'{medians[n]:.2f}' for n in names)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
