"""A container runtime's files: what they say is used only where it concerns the pod."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from agent.runtimes import RuntimeFiles, RuntimeName
from tests.agent.bundles import ID, STATES, TASKS, bundle, cri, runc_state
from tests.agent.reconcile.pods import UID, mixed, path_of
from tests.fuzz.damage import damaged_bytes, damaged_document
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.fuzz.target import Check

#: Between the two files in an input; no JSON text holds it.
_BETWEEN: Final = b"\x1e"
_CGROUP: Final = f"{path_of(mixed())}/cri-containerd-{ID}.scope"


def _files() -> tuple[bytes, bytes]:
    with TemporaryDirectory() as root:
        cpu: dict[str, object] = {"cpus": "2-3", "quota": 140_000, "period": 100_000}
        state = {"cpuset_cpus": "4-5", "cpu_quota": 50_000, "cpu_period": 100_000}
        files = bundle(Path(root), cri("db"), cpu), runc_state(Path(root), state)
        first, second = (file.read_bytes() for file in files)
        return first, second


_BUNDLE, _STATE = _files()


def make_runtime_files(random: Random) -> bytes:
    """Draw a bundle and a state of runc, both or one of them damaged."""
    kind = random.randrange(3)
    parts = [
        _damaged(random, data) if kind != sound else data
        for sound, data in ((1, _BUNDLE), (0, _STATE))
    ]
    return _BETWEEN.join(parts)


def _damaged(random: Random, data: bytes) -> bytes:
    if not random.randrange(4):
        return damaged_bytes(random, data).replace(_BETWEEN, b"")
    return json.dumps(damaged_document(random, json.loads(data), most=3)).encode()


@contextmanager
def open_runtime_files() -> Iterator[Check]:
    """Give the check a root to write the files to."""
    with TemporaryDirectory() as root:
        config = Path(root, TASKS, ID, "config.json")
        state = Path(root, STATES, ID, "state.json")
        for file in (config, state):
            file.parent.mkdir(parents=True)
            file.touch(mode=0o600)

        def check(data: bytes) -> bool:
            first, _, second = data.partition(_BETWEEN)
            config.write_bytes(first)
            state.write_bytes(second)
            return _check(Path(root), first)

        yield check


def _check(root: Path, config: bytes) -> bool:
    lines: list[str] = []
    finder = RuntimeFiles(root, lines.append)
    found = finder.container_of(mixed(), _CGROUP)
    recorded = finder.remembered(_CGROUP)
    for line in lines:
        demand(line.isprintable(), f"reported is not a line: {line!r}")
    if found is not None:
        annotations = json.loads(config.decode(errors="replace"))["annotations"]
        demand(annotations["io.kubernetes.cri.sandbox-uid"] == UID, "it is another pod's")
        name = annotations.get("io.kubernetes.cri.container-name")
        kind = annotations["io.kubernetes.cri.container-type"]
        demand(
            found == RuntimeName(None if kind == "sandbox" else name),
            f"{found} is not what it says",
        )
    return found is not None and recorded is not None


RUNTIME_FILES: Final = Target("runtime-files", make_runtime_files, open_runtime_files, weight=2)
