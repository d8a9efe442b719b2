"""Boots one guest, follows its console to the end mark, and judges the run."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.guest import emulator, job
from tests.guest.topologies import TOPOLOGIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import IO

    from tests.guest.cache import Cache
    from tests.guest.emulator import Emulator
    from tests.guest.image import Image
    from tests.guest.scenarios import Scenario

END: Final = re.compile(rb"guest-job: end nonce=(\w+) status=(\d+) uptime=\S+\s")
#: A check as the guest prints it: `FAIL   12.5 7 name: what was found`.
CHECK: Final = re.compile(r"^(ok|FAIL) +[\d.]+ \d+ (.*)$", re.MULTILINE)
#: Lines of a log shown after a failure.
TAIL: Final = 40


@dataclass(frozen=True, slots=True)
class Setup:
    """What every run shares: the cache, the image, QEMU, where results go, how patient to be."""

    store: Cache
    image: Image
    emulator: Emulator
    results: Path
    keep: bool = False
    patience: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one scenario ended; it passed when `problems` is empty."""

    scenario: str
    seconds: float
    checks: int
    problems: tuple[str, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the guest ended by itself, ran at least one check, and none failed."""
        return not self.problems

    def line(self) -> str:
        """Return the verdict in one line."""
        word = "PASS" if self.passed else "FAIL"
        return f"{word} {self.scenario:<24} {self.seconds:6.1f} s {self.checks:4d} checks"

    def report(self) -> str:
        """Return problems and the ends of the logs that tell why."""
        lines = [f"  - {problem}" for problem in self.problems]
        for name, text in self.logs.items():
            lines.append(f"  --- {name} (its last {TAIL} lines)")
            lines += [f"  | {line}" for line in text.splitlines()[-TAIL:]]
        return "\n".join(lines)


def run(setup: Setup, scenario: Scenario, contents: job.Contents, core: int) -> Verdict:
    """Run one scenario in a guest of its own, kept on one of the host's cores."""
    results = setup.results / scenario.name
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    scratch = setup.store.scratch(scenario.name)
    disks = emulator.Disks(
        scratch / "job.tar", scratch / "out.tar", results / "serial.log", contents.environment
    )
    nonce = secrets.token_hex(8)
    started = time.monotonic()
    try:
        job.pack(disks.job, scenario.name, nonce, contents)
        job.blank(disks.out)
        end = _boot(setup, scenario, disks, core, results)
        job.unpack(disks.out, results)
    finally:
        if not setup.keep:
            shutil.rmtree(scratch)
    return judge(scenario, nonce, end, results, time.monotonic() - started)


def judge(scenario: Scenario, nonce: str, console: bytes, results: Path, seconds: float) -> Verdict:
    """Judge a run by the end mark on its console and by the checks it recorded."""
    found = END.search(console)
    record = job.results(results) or {"checks": _printed(console)}
    checks = record.get("checks", [])
    assert isinstance(checks, list)
    problems = [f"check failed: {c['name']}: {c['detail']}" for c in checks if not c["passed"]]
    if record.get("error"):
        problems.append(f"the scenario stopped: {record['error']}")
    if not found:
        problems.append("the guest did not end by itself: no end mark on its console")
    elif found[1].decode() != nonce:
        problems.append("the end mark is not this run's")
    elif found[2] != b"0" and not problems:
        problems.append(f"the job ended with status {found[2].decode()}")
    if not checks:
        problems.append("no check ran")
    logs = _logs(results) if problems else {}
    return Verdict(scenario.name, seconds, len(checks), tuple(problems), logs)


def _printed(console: bytes) -> list[dict[str, object]]:
    """Return the checks of a guest that did not come to hand in its results."""
    text = console.decode(errors="replace").replace("\r", "")
    return [
        {"name": said, "passed": word == "ok", "detail": ""} for word, said in CHECK.findall(text)
    ]


def _boot(
    setup: Setup, scenario: Scenario, disks: emulator.Disks, core: int, results: Path
) -> bytes:
    """Run QEMU until the end mark, its own end or the timeout; return the console."""
    topology = TOPOLOGIES[scenario.topology]
    command = emulator.command(setup.emulator, setup.image, topology, disks)
    with (results / "qemu.log").open("wb") as log:
        process = subprocess.Popen(
            # A runner that is killed takes its guests along; nobody else would end them.
            ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **dict(setup.emulator.environment)},
        )
        assert process.stdout is not None
        try:
            deadline = time.monotonic() + scenario.timeout * setup.patience
            console = _follow(process.stdout, deadline)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    (results / "console.log").write_bytes(console.replace(b"\r", b""))
    return console


def _follow(stream: IO[bytes], deadline: float) -> bytes:
    """Read until the end mark, the end of the stream or the deadline (monotonic seconds)."""
    console = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not END.search(console):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                break
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                break
            console += chunk
    return console


def _logs(results: Path) -> dict[str, str]:
    """Return the logs worth reading after a failure."""
    wanted = [*sorted(results.glob("*.log")), *sorted(results.glob("logs/*"))]
    texts = {str(file.relative_to(results)): file.read_text(errors="replace") for file in wanted}
    return {name: text for name, text in texts.items() if text.strip()}
