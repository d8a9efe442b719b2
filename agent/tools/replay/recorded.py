"""Recorded sequences: files of JSON lines, each with a topology, a configuration and steps.

A line holds what the kubelet was given, in its own terms, and under `expected` what it answered.
The first is put into the terms of a sequence (`docs/replay.md`) and read as such; the second is not
looked at. Numbers of steps stay those of the recording.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

from agent.tools.replay.reading import IGNORED, ReplayError, read_sequence
from agent.yaml import Mistake, Plain, from_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.tools.replay.play import ReplaySequence

SUFFIXES: Final = (".jsonl", ".jsonl.gz")
#: What changes no decision: a container's end frees nothing before its pod ends.
_IGNORED: Final = frozenset({"stop", "set_state", "reconcile"})


def recorded_sequences(path: Path) -> Iterator[ReplaySequence]:
    """Yield the sequence of every line. Raises `ReplayError` naming the line, and `OSError`."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield recorded_sequence(line, f"{path}:{number}", path.parent)
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError) as error:
        raise ReplayError(str(path), (Mistake("", f"this cannot be read: {error}"),)) from error


def recorded_sequence(line: str, source: str, folder: Path) -> ReplaySequence:
    """Return the sequence of one line. Raises `ReplayError` with every mistake."""
    try:
        case = json.loads(line)
        document = from_plain(_document(case))
        defaults = bool(case.get("apply_defaults"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"not a recorded sequence ({type(error).__name__}: {error})"
        advice = "; a line needs topology, config and steps"
        raise ReplayError(source, (Mistake("", what + advice),)) from error
    return read_sequence(document, source, folder, lenient=True, defaults=defaults)


def config_document(config: Mapping[str, Any], gates: Mapping[str, bool]) -> dict[str, Plain]:
    """Return the configuration file's document that says what a recorded configuration says."""
    cpu, memory, topology = config["cpu"], config["memory"], config["topology"]
    reservation = dict(memory.get("node_allocatable_reservation") or {})
    if cpu.get("quantity") is not None:
        reservation["cpu"] = cpu["quantity"]
    return {
        "cpuManagerPolicy": cpu["policy"],
        "cpuManagerPolicyOptions": cpu.get("options") or {},
        "reservedSystemCPUs": cpu.get("reserved") or "",
        "systemReserved": reservation,
        "evictionHard": {"memory.available": "0"},
        "memoryManagerPolicy": memory["policy"],
        "reservedMemory": [
            {"numaNode": entry["numa"], "limits": entry["limits"]}
            for entry in memory.get("reserved") or ()
        ],
        "topologyManagerPolicy": topology["policy"],
        "topologyManagerScope": topology["scope"],
        "topologyManagerPolicyOptions": topology.get("options") or {},
        "featureGates": dict(gates),
        "agent": {"devices": _devices(config.get("devices") or {})},
    }


def _document(case: Mapping[str, Any]) -> Plain:
    in_force = {"config": case["config"], "gates": case.get("gates") or {}}
    return {
        "name": case.get("name") or "",
        "host": _host(case["topology"]),
        "config": config_document(in_force["config"], in_force["gates"]),
        "steps": [_step(step, in_force) for step in case["steps"]],
    }


def _step(step: Mapping[str, Any], in_force: dict[str, Any]) -> Plain:
    kind = step["op"]
    if kind == "admit":
        return {"admit": step["pod"]}
    if kind == "remove":
        return {"remove": step["uid"]}
    if kind == "start":
        return {"start": {"pod": step["uid"], "container": step["container"]}}
    if kind == "restart":
        return {"restart": _restart(step, in_force)}
    if kind in _IGNORED:
        return {IGNORED: kind}
    raise ValueError(f"unknown step {kind!r}")


def _restart(step: Mapping[str, Any], in_force: dict[str, Any]) -> Plain:
    in_force |= {key: step[key] for key in ("config", "gates") if key in step}
    restart: dict[str, Plain] = {
        "config": config_document(in_force["config"], in_force["gates"] or {})
    }
    if "topology" in step:
        restart["host"] = _host(step["topology"])
    return restart


def _host(topology: Mapping[str, Any]) -> Plain:
    return {
        "rows": {
            "cpus": topology["cpus"],
            "nodes": [
                {
                    "id": node["id"],
                    "memory": node.get("memory", 0),
                    "hugepages": {
                        f"{pages['page_kb']}Ki": pages["count"]
                        for pages in node.get("hugepages") or ()
                    },
                    "distances": node.get("distances") or None,
                }
                for node in topology["numa"]
            ],
        }
    }


def _devices(devices: Mapping[str, Any]) -> dict[str, Plain]:
    return {
        resource: [
            {
                "id": device["id"],
                "numaNodes": device["numa"] or [],
                "healthy": device["healthy"],
            }
            for device in inventory
        ]
        for resource, inventory in devices.items()
    }
