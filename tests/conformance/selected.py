"""The recorded cases that are kept with the project."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conformance.outcome import Case


def selected(family: str) -> list[Case]:
    """Return all kept cases of one family."""
    file = Path(__file__).parent / "selection" / f"{family}.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
