"""Sessions of commands print what stands in `golden/`, each against a new agent.

`$` begins a command, whose exit code follows what it prints unless it is 0; `%` begins a step of
the host. With NUMAWARDEN_GOLDEN set the files are written anew: read what changed.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.server.conditions import STARTING_SECONDS
from tests.agent.cli.shell import in_background
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.cli.shell import Shell
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
        b"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec: {}\n"
    ),
    "compressed.yaml": b"\x1f\x8b\x08rest",
    "twice.yaml": manifest() + b"---\na: 1\n",
    "generated.yaml": manifest().replace(b"name: web", b"generateName: web-"),
    "short.yaml": b"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [a]}\n",
}
#: What differs from run to run, and what stands for it.
VARYING: Final = (
    (r"operation [0-9a-f]{12}", "operation OPERATION"),
    (r"\buid \d+, [^\s\[]+\[\d+\]", "uid USER, PROGRAM[PID]"),
    (r"numawarden \d+\.\S+ process \d+", "numawarden VERSION process PID"),
    (r"(?m)^(  host +)\S+,", r"\1HOST,"),
    (r"\d+ MiB are free", "N MiB are free"),
    (r"(?<=pod)[0-9a-f]{32}|\b[0-9a-f]{32}\b", "GENERATED"),
)


def replayed(shell: Shell, text: str) -> Iterator[str]:
    """Yield the lines of a session with what its commands print now."""
    for line in re.findall(r"(?m)^[$%#] .*$", text):
        yield line
        words = shlex.split(line.replace("OTHER-UID", OTHER_UID).replace("UID", UID))
        if words[0] == "%":
            step(shell.world, *words[1:])
        elif words[0] == "$":
            code, out, err = shell.run(*words[1:])
            yield from ordinary(shell.world, out + err).splitlines()
            if code:
                yield f"exit code {code}"


def ordinary(world: World, text: str) -> str:
    text = text.replace(str(world.directory), "DIRECTORY")
    text = text.replace(UID, "UID").replace(OTHER_UID, "OTHER-UID")
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    return text


def step(world: World, verb: str, *words: str) -> None:
    """Do what is no command: on the cgroups of the host, or to let time pass."""
    if verb == "later":
        world.clock.advance(STARTING_SECONDS)
        world.client().reconcile()
    elif verb == "spawn":
        world.kernel.spawn(words[0], int(words[1]))
    else:
        getattr(world.kernel, verb)(*words)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda file: file.stem)
def test_a_session_prints_what_it_did(
    session: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shell.directory)
    for name, content in FILES.items():
        shell.file(content, name)
    text = session.read_text()
    with in_background(shell.world):
        found = "".join(f"{line}\n" for line in replayed(shell, text))
    if os.environ.get("NUMAWARDEN_GOLDEN"):
        session.write_text(found)
    assert found == text
