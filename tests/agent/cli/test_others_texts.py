"""Texts that others chose, from every door of the agent to everything it prints."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen
from uuid import uuid4

import pytest
import yaml

from agent.pods import model
from agent.server import log_output as logs
from tests.agent.cli.shell import Shell, in_background
from tests.agent.server.support import manifest
from tests.agent.server.test_log import configuring

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import World

EVIL: Final = "a\x1b]0;pwned\x07\n  CONDITION forged\r\x9b31m\u202e" + "y" * 5000
#: Longer is no line of text: a list of mistakes is cut, a mistake in it, too.
LONGEST: Final = 1500

ANNOTATIONS: Final = (
    *(model.isolation_annotation(each) for each in (
        model.INTERRUPTS, model.POWER, model.SMT, model.PARTITION, model.RESCTRL,
        model.MEMORY_CLASSES,
    )),
    model.END, model.UNIT, model.REQUIRE, model.NEAR_NODES, "example.com/note", EVIL,
)  # fmt: skip
#: Where a pod has a text of its user's.
PLACES: Final[tuple[tuple[str | int, ...], ...]] = (
    *(("metadata", "annotations", each) for each in ANNOTATIONS),
    *(("metadata", each) for each in ("name", "namespace", "uid", EVIL)),
    *(("metadata", "labels", each) for each in ("app", EVIL)),
    *(("spec", "containers", 0, each) for each in ("name", "image", EVIL)),
    *(("spec", "containers", 0, "resources", "limits", each) for each in ("cpu", EVIL)),
    ("spec", "nodeName"), ("spec", "restartPolicy"), ("kind",), ("apiVersion",),
)  # fmt: skip


def pods() -> list[bytes]:
    """Return pods, each with the text in one place."""
    made = []
    for number, (*above, last) in enumerate(PLACES):
        pod: Any = yaml.safe_load(manifest(f"web-{number}", str(uuid4()), cpu="1"))
        at: Any = pod
        for key in above:
            at = at[key] if isinstance(key, int) else at.setdefault(key, {})
        at[last] = EVIL
        made.append(json.dumps(pod).encode())
    return made


def demand_lines(text: str, longest: int = LONGEST) -> None:
    for line in text.splitlines():
        assert line.isprintable(), line
        assert len(line) <= longest, line


@pytest.mark.parametrize("log_format", [logs.CONSOLE, "json"])
def test_they_are_bounded_and_send_nothing_to_a_terminal(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    directory = world.manifest_directory()
    for number, pod in enumerate(pods()):
        (directory / f"{number}.json").write_bytes(pod)
    (directory / f"{EVIL[:100].replace('/', '')}.yaml").write_bytes(manifest())
    shell, stream = Shell(world, tmp_path, capsys), io.StringIO()
    with configuring():
        logs.configure(log_format, "info", stream)
        with in_background(world) as agent:
            for pod in pods():
                for name in ("admit", "fit", "diff"):
                    _, out, err = shell.run(name, shell.file(pod))
                    demand_lines(out + err)
            shell.run("admit", shell.file(manifest("own", cpu="1")))
            refused = (
                ["cordon", "5", "--reason", EVIL], ["show", EVIL], ["cordon", EVIL],
                ["bind", "own", "c0", "--cgroup", f"/{EVIL}"], ["bind", "own", EVIL, "--pid", "1"],
                ["attach", "--unit", EVIL, "--cpus", "1"], ["remove", EVIL], ["uncordon", EVIL],
            )  # fmt: skip
            for command in refused:
                code, out, err = shell.run(*command)
                assert code
                demand_lines(out + err, 2 * len(repr(EVIL)))
            shell.run("cordon", "5", "--reason", "y" * 256)
            for asked in (("status",), ("list",), ("history", "-n", "1000"), ("map",), ("check",)):
                demand_lines("".join(shell.run(*asked)[1:]))
                _, out, _ = shell.run(*asked, "-o", "json")
                assert json.loads(out)
                demand_lines(out, 2 * LONGEST)
                _, out, _ = shell.run(*asked, "-o", "yaml")
                assert yaml.safe_load(out)
            with urlopen(f"http://127.0.0.1:{agent.port}/metrics") as answer:
                demand_lines(answer.read().decode())
    written = stream.getvalue()
    assert "pwned" in written
    demand_lines(written, 48 << 10)
