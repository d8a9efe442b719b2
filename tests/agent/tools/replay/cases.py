"""Recorded sequences, made up."""

from __future__ import annotations

import json


def line_of(*, reserved: str = "0", **changes: object) -> str:
    """Return a line with two CPUs on two nodes, policy static and restricted; no steps."""
    case: dict[str, object] = {
        "name": "made/up",
        "topology": {
            "cpus": [[0, 0, 0, 0, 0], [1, 1, 0, 0, -1], [2, 2, 1, 1, 1]],
            "numa": [
                {
                    "id": 0,
                    "memory": 1 << 30,
                    "distances": [10, 21],
                    "hugepages": [{"page_kb": 2048, "count": 4}],
                },
                {"id": 1, "memory": 1 << 30, "distances": [21, 10]},
            ],
        },
        "config": {
            "cpu": {"policy": "static", "reserved": reserved},
            "memory": {"policy": "None"},
            "topology": {"policy": "restricted", "scope": "container", "options": {}},
        },
        "steps": [],
        "expected": {"steps": [{"anything": None}]},
    }
    return json.dumps({**case, **changes})
