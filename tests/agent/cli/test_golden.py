"""Sessions of commands print what stands in `golden/`, each against a new agent.

`$` begins a command, whose exit code follows what it prints unless it is 0; `%` begins a step of
the host (`STEPS`). With NUMAWARDEN_GOLDEN set the files are written anew: read what changed.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.server.pod_records import STARTING_SECONDS
from sysfs.described import regular_host, with_memory_only_nodes, with_offline, write_tree
from sysfs.mask import Mask
from tests.agent.cli.shell import in_background
from tests.agent.server.support import OTHER_UID, UID, manifest
from tests.sysfs.hosts import with_isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.agent.cli.shell import Command
    from tests.agent.server.support import World

SESSIONS: Final = sorted(Path(__file__).with_name("golden").glob("*.txt"))
LAB: Final = b"namespace: lab"
FILES: Final = {
    "web.yaml": manifest(),
    "web-of-4.yaml": manifest(cpu="4"),
    "two.yaml": manifest(containers=2),
    "other.yaml": manifest("other", OTHER_UID, cpu="500m"),
    "lab.yaml": manifest("other", OTHER_UID).replace(b"namespace: shop", LAB),
    "lab-web.yaml": manifest("web", OTHER_UID).replace(b"namespace: shop", LAB),
    "whole.yaml": manifest("whole", OTHER_UID, cpu="3"),
    "many.yaml": manifest("many", OTHER_UID, cpu="10"),
    "huge.yaml": manifest("huge", "huge", cpu="64"),
    "unnamed.yaml": manifest("web", None, containers=2),
    "unnamed-of-4.yaml": manifest("web", None, cpu="4", containers=2),
    "unnamed-huge.yaml": manifest("web", None, cpu="64"),
    "odd.yaml": manifest().replace(b"spec:", b"spec:\n  numaPolicy: strict\n  affinity: {a: b}", 1),
    "wrong.yaml": manifest().replace(b"'2'", b"'-2'").replace(b"name: c0", b"name: C_0"),
    "wrong-db.yaml": manifest("db", None).replace(b"name: c0", b"name: C_0"),
    "broken.yaml": b"metadata:\n  name: [\n",
    "list.yaml": b"apiVersion: v1\nkind: PodList\nitems: []\n",
    "template.yaml": (
        b"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec: {template: {}}\n"
    ),
    "compressed.yaml": b"\x1f\x8b\x08rest",
    "twice.yaml": manifest() + b"---\na: 1\n",
    "generated.yaml": manifest().replace(b"name: web", b"generateName: web-"),
    "config.yaml": (
        b'cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: "true"}\n'
        b'systemReserved: {cpu: "1"}\nmemoryManagerPolicy: Static\n'
        b"topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"
        b"featureGates: {NodeSwap: true}\n"
        b"agent: {devices: {example.com/gpu: [{id: a}, {id: b, healthy: false}]}}\n"
    ),
    "static.yaml": b"cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n",
    "kubelet.yaml": (
        b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        b"clusterDomain: cluster.local\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    ),
    "short.yaml": b"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [a]}\n",
}
#: What differs from run to run, and what stands for it.
VARYING: Final = (
    (r"operation [0-9a-f]{12}", "operation OPERATION"),
    (r"\buid \d+(?: \(logged in as \d+\))?, [^\s\[]+\[\d+\]", "uid USER, PROGRAM[PID]"),
    (r"numawarden \d+\.\S+ process \d+", "numawarden VERSION process PID"),
    (r"(?m)^(  host +)\S+,", r"\1HOST,"),
    (r"\d+ MiB are free", "N MiB are free"),
    (r"(?<=pod)[0-9a-f]{32}|\b[0-9a-f]{32}\b", "GENERATED"),
)


#: Described hosts, whose trees a session lays out.
HOSTS: Final = {
    "small": regular_host(2, 1, 2, 1, memory_bytes=4 << 30, hugepages=[(2 << 20, 0)]),
    "threads": regular_host(packages=1, cores_per_node=4),
    "kept": regular_host(cores_per_node=4, threads=2),
    "memory": with_memory_only_nodes(
        regular_host(packages=2, cores_per_node=2, memory_bytes=3 << 30, hugepages=[(2 << 20, 8)]),
        [64 << 30],
    ),
    "marked": with_offline(
        with_isolated(regular_host(packages=1, cores_per_node=3), Mask.of(1, 4)), Mask.of(5)
    ),
    "large": regular_host(4, 16, 4, 2, uncores_per_node=2),
    "nodes": regular_host(2, 9, 14, 2),
}


def later(world: World) -> None:
    world.clock.advance(STARTING_SECONDS)
    world.client().reconcile()


def write(world: World, name: str, *words: str) -> None:
    file = world.directory / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(" ".join(words))


#: What is no command: on the cgroups and files of the host, or that time passes.
STEPS: Final[Mapping[str, Callable[..., object]]] = {
    "later": later,
    "group": lambda world, cgroup: world.kernel.mkdir(cgroup),
    "process": lambda world, cgroup, pid: world.kernel.spawn(cgroup, int(pid)),
    "setting": lambda world, *words: world.kernel.write(*words),
    "host": lambda world, name: write_tree(HOSTS[name], world.directory / name),
    "directory": lambda world, name: (world.directory / name).mkdir(mode=0o700),
    "write": write,
    "read": lambda world, name: (world.directory / name).read_text(),
}


def replayed(run: Command, world: World, text: str) -> Iterator[str]:
    """Yield the lines of a session with what its commands print now."""
    title, *lines = re.findall(r"(?m)\A.*$|^[$%] .*$", text)
    yield title
    for line in lines:
        yield line
        meant = line.replace("OTHER-UID", OTHER_UID).replace("UID", UID)
        kind, *words = shlex.split(meant.replace("DIRECTORY", str(world.directory)))
        if kind == "%":
            done = STEPS[words[0]](world, *words[1:])
            yield from (done if isinstance(done, str) else "").splitlines()
        else:
            code, out, err = run(*words)
            yield from (text.rstrip() for text in ordinary(world, out + err).splitlines())
            if code:
                yield f"exit code {code}"


def ordinary(world: World, text: str) -> str:
    text = text.replace(str(world.directory), "DIRECTORY")
    text = text.replace(UID, "UID").replace(OTHER_UID, "OTHER-UID")
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    return text


@pytest.mark.parametrize("session", SESSIONS, ids=lambda file: file.stem)
def test_a_session_prints_what_it_did(
    session: Path, world: World, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.directory)
    monkeypatch.setenv("NUMAWARDEN_SOCKET", str(world.socket))
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    text = session.read_text()
    with in_background(world):
        found = "".join(f"{line}\n" for line in replayed(run, world, text))
    if os.environ.get("NUMAWARDEN_GOLDEN"):
        session.write_text(found)
    assert found == text
