"""Short sequences, as people write them."""

from __future__ import annotations

import json
from textwrap import indent
from typing import TYPE_CHECKING

from agent.tools.replay.reading import load_sequence

if TYPE_CHECKING:
    from pathlib import Path

    from agent.tools.replay.play import ReplaySequence

#: Two nodes of four cores with two threads, 16 GiB each; CPU 0 is reserved.
HEAD = """\
host: {shape: {}}
config: {cpuManagerPolicy: static, topologyManagerPolicy: restricted, reservedSystemCPUs: "0"}
"""


def admitting(name: str, cpus: int = 2, **more: object) -> str:
    """Return a step that admits a Guaranteed pod of one container `main`."""
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "main", "resources": {"requests": amounts, "limits": amounts}}
    pod = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"containers": [container]}}
    return json.dumps({"admit": pod, **more})


def text(*steps: str, head: str = HEAD) -> str:
    if not steps:
        return f"{head}steps: []\n"
    return head + "steps:\n" + "".join(indent(f"- {step}\n", "  ") for step in steps)


def sequence(folder: Path, *steps: str, head: str = HEAD) -> ReplaySequence:
    file = folder / "sequence.yaml"
    file.write_text(text(*steps, head=head))
    return load_sequence(file)
