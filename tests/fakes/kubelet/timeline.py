"""What the kubelet did and when, a line of JSON each, for those who follow it from outside."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class Timeline:
    """Steps in their order, kept in memory and, with a file, appended to it."""

    file: Path | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)

    def add(self, step: str, pod: str = "", container: str = "", **fields: object) -> None:
        given = {"pod": pod, "container": container, **fields}
        entry = {"t": round(time.monotonic(), 4), "step": step}
        entry |= {name: value for name, value in given.items() if value != ""}
        self.steps.append(entry)
        if self.file is not None:
            with self.file.open("a") as handle:
                handle.write(json.dumps(entry) + "\n")

    def names(self, pod: str) -> list[str]:
        return [
            f"{each['step']} {each.get('container', '')}".strip()
            for each in self.steps
            if each.get("pod") == pod
        ]
