"""Boots one guest, follows its console to the end mark, and judges the run."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import shutil
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.guest import clock, emulator, job
from tests.guest.topologies import TOPOLOGIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import IO

    from tests.guest.cache import Cache
    from tests.guest.clock import Stamp
    from tests.guest.emulator import Emulator
    from tests.guest.image import Image
    from tests.guest.scenarios import Scenario

START: Final = b"guest-job: start "
END: Final = re.compile(rb"guest-job: end nonce=(\w+) status=(\d+) uptime=\S+\s")
#: A check as the guest prints it: `FAIL   12.5 7 name: what was found`.
CHECK: Final = re.compile(r"^(ok|FAIL) +[\d.]+ \d+ (.*)$", re.MULTILINE)
#: A line of the console for `clock` alone.
STAMP: Final = re.compile(r"^guest-job: clock .*\n", re.MULTILINE)
#: Lines of a log shown after a failure.
TAIL: Final = 40
#: Seconds without a word after which a guest is dead: it stamps every five.
SILENCE: Final = 900.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What every run shares: the cache, the image, QEMU, where results go, how patient to be.

    `tsc_khz` is the frequency of the host's time stamp counter, None where it is not known.
    """

    store: Cache
    image: Image
    emulator: Emulator
    results: Path
    tsc_khz: int | None = None
    keep: bool = False
    patience: float = 1.0


@dataclass(frozen=True, slots=True)
class Console:
    """What a guest said, and when: `stamps` are its clock's readings against the host's."""

    said: bytes
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one scenario ended; it passed when `problems` is empty.

    Without `booted` the machine was not as it has to be: nothing is known of the scenario.
    """

    scenario: str
    seconds: float
    checks: int
    problems: tuple[str, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    booted: bool = True

    @property
    def passed(self) -> bool:
        """Whether the guest booted and ended by itself, ran at least one check, and none failed."""
        return not self.problems

    def line(self) -> str:
        """Return the verdict in one line."""
        word = "PASS" if self.passed else "FAIL" if self.booted else "BOOT"
        return f"{word} {self.scenario:<24} {self.seconds:6.1f} s {self.checks:4d} checks"

    def report(self) -> str:
        """Return the ends of the logs that show why, and last what was wrong."""
        lines = []
        for name, text in self.logs.items():
            lines.append(f"  --- {name} (its last {TAIL} lines)")
            lines += [f"  | {line}" for line in text.splitlines()[-TAIL:]]
        return "\n".join([*lines, self.differed()])

    def differed(self) -> str:
        """Return what was wrong, a line each."""
        return "\n".join(f"  - {problem}" for problem in self.problems)


def run(setup: Setup, scenario: Scenario, contents: job.Contents, core: int) -> Verdict:
    """Run one scenario in a guest of its own, kept on one of the host's cores."""
    results = setup.results / scenario.name
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    scratch = setup.store.scratch(scenario.name)
    kubernetes = contents.kubernetes
    disks = emulator.Disks(
        *(scratch / "job.tar", scratch / "out.tar", results / "serial.log"),
        contents.environment,
        kubernetes.disk if kubernetes else None,
    )
    nonce = secrets.token_hex(8)
    try:
        with ExitStack() as stack:
            files: Mapping[str, str] = {}
            if kubernetes:
                place = results / "control-plane"
                files = stack.enter_context(kubernetes.control_plane(place)).files()
            job.pack(disks.job, scenario.name, nonce, contents, files)
            job.blank(disks.out)
            started = time.monotonic()
            console = _boot(setup, scenario, disks, core, results)
            job.unpack(disks.out, results)
    finally:
        if not setup.keep:
            shutil.rmtree(scratch)
    return judge(scenario, nonce, console, results, time.monotonic() - started)


def judge(
    scenario: Scenario, nonce: str, console: Console, results: Path, seconds: float
) -> Verdict:
    """Judge a run by its boot, by the end mark on its console and by the checks it recorded.

    What a guest checked that did not boot as it has to counts for nothing.
    """
    record = job.results(results) or {"checks": _printed(console.said)}
    checks = record.get("checks", [])
    assert isinstance(checks, list)
    boot = boot_problem(console)
    problems = [boot] if boot else _problems(record, checks, END.search(console.said), nonce)
    logs = _logs(results) if problems else {}
    return Verdict(scenario.name, seconds, len(checks), tuple(problems), logs, not boot)


def boot_problem(console: Console) -> str:
    """Return why a guest is not the machine that a scenario needs; empty if it is."""
    if START not in console.said:
        return "the guest did not boot: its job never started; see serial.log and qemu.log"
    wrong = clock.problem(console.stamps)
    return f"the guest did not boot as it has to: {wrong}" if wrong else ""


def _problems(
    record: Mapping[str, object],
    checks: list[dict[str, object]],
    found: re.Match[bytes] | None,
    nonce: str,
) -> list[str]:
    """Return what was wrong with a scenario whose guest booted."""
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
    return problems


def _printed(console: bytes) -> list[dict[str, object]]:
    """Return the checks of a guest that did not come to hand in its results."""
    text = console.decode(errors="replace").replace("\r", "")
    return [
        {"name": said, "passed": word == "ok", "detail": ""} for word, said in CHECK.findall(text)
    ]


def _boot(
    setup: Setup, scenario: Scenario, disks: emulator.Disks, core: int, results: Path
) -> Console:
    """Run QEMU until the end mark, its own end, a wrong clock or a timeout; return the console."""
    topology = TOPOLOGIES[scenario.topology]
    command = emulator.command(setup.emulator, setup.image, topology, disks, setup.tsc_khz)
    if scenario.reboots:
        command.remove(emulator.NO_REBOOT)
    heard = results / "console.log"
    with (results / "qemu.log").open("wb") as log, heard.open("wb", buffering=0) as written:
        process = subprocess.Popen(
            # A runner that is killed takes its guests along; no other process would end them.
            ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **dict(setup.emulator.environment)},
        )
        assert process.stdout is not None
        try:
            deadline = time.monotonic() + scenario.timeout * setup.patience
            console = follow(process.stdout, deadline, SILENCE * setup.patience, written)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    return console


def follow(stream: IO[bytes], deadline: float, silence: float, log: IO[bytes]) -> Console:
    """Read until the end mark, the end of the stream, or until the guest's clock is wrong.

    Stops at the deadline (monotonic seconds) and after `silence` seconds without a word. What is
    said goes to `log` at once, for observers.
    """
    said, unread = b"", b""
    seen: list[Stamp] = []
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not END.search(said) and not clock.is_wrong(seen):
            left = min(silence, deadline - time.monotonic())
            if not selector.select(max(0.0, left)):
                break
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                break
            said += chunk
            log.write(chunk.replace(b"\r", b""))
            whole, newline, unread = (unread + chunk).rpartition(b"\n")
            for stamp in clock.stamps(whole + newline, time.monotonic()):
                if seen and stamp.guest < seen[-1].guest:
                    seen.clear()  # it was booted again
                seen.append(stamp)
    return Console(said, tuple(seen))


def _logs(results: Path) -> dict[str, str]:
    """Return the logs worth reading after a failure."""
    desired = [*sorted(results.glob("*.log")), *sorted(results.glob("logs/*"))]
    texts = {
        str(file.relative_to(results)): STAMP.sub("", file.read_text(errors="replace"))
        for file in desired
    }
    return {name: text for name, text in texts.items() if text.strip()}
