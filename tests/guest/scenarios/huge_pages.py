"""Pods with huge pages, where these count as memory (memory_hugetlb_accounting) and where not.

systemd mounts the option from 259 on; here the tree is mounted again without and with it. Each pod
uses all that it asked for, gets ENOMEM from mmap for a page more, and is killed for memory beyond
its limit. Pages that a program beside the pods has are missed, by a warning and a condition.
"""

from __future__ import annotations

import errno
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel, single
from tests.guest.inside.agent import PROGRAM, Agent
from tests.guest.inside.api import answer_to
from tests.guest.inside.commands import Outcome, attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

OPTION: Final = "memory_hugetlb_accounting"
PAGES: Final = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
MIB: Final = 1 << 20
MEMORY: Final = 48
HUGE: Final = 64
#: What a program beside the pods takes of the 96 MiB in huge pages of node 0.
TAKEN: Final = 80
ASKED: Final = ("--memory", f"{MEMORY}Mi", "--hugepages", f"2Mi={HUGE}Mi")
#: Seconds after which a process that touches its pages is stuck.
LONG: Final = 120.0

#: Maps and touches MiB of huge pages, then of others; says what its pod's memory.max is.
TOUCH: Final = """
import mmap, pathlib, sys
huge, plain = (int(word) << 20 for word in sys.argv[1:])
own = pathlib.Path("/proc/self/cgroup").read_text().strip().partition("::/")[2]
try:
    pages = mmap.mmap(-1, huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
except OSError as error:
    sys.exit(error.errno)
for offset in range(0, huge, 2 << 20):
    pages[offset] = 1
for number in range(plain >> 20):
    sys.modules[str(number)] = b"x" * (1 << 20)
maps = pathlib.Path("/proc/self/numa_maps").read_text().splitlines()
on = [word for line in maps if " huge " in line for word in line.split() if word[:1] == "N"]
print(pathlib.Path("/sys/fs/cgroup", own, "memory.max").read_text().strip(), *on, flush=True)
sys.stdin.read()
"""


def run(guest: Guest) -> None:
    """Run the same pods under both ways to mount the tree."""
    for node in (0, 1):
        Path(PAGES.format(node)).write_text("48")
    script = guest.work / "touch.py"
    script.write_text(TOUCH)
    agent = Agent(guest)
    for counted in (False, True):
        _mount(guest, counted=counted)
        agent.start()
        _pods(guest, script, counted=counted)
        if not counted:
            _taken(guest.checks, agent, script)
        agent.stop()


def _mount(guest: Guest, *, counted: bool) -> None:
    """Mount the tree again with or without the option."""
    options = ["remount", "nosuid", "nodev", "noexec", "nsdelegate", "memory_recursiveprot"]
    options += [OPTION] if counted else []
    command("mount", "-t", "cgroup2", "-o", ",".join(options), "cgroup2", kernel.CGROUPS)
    lines = Path("/proc/self/mounts").read_text().splitlines()
    (shown,) = [line for line in lines if line.split()[2] == "cgroup2"]
    guest.checks.require(
        f"mounted {'with' if counted else 'without'}", (OPTION in shown) is counted
    )


def _pods(guest: Guest, script: Path, *, counted: bool) -> None:
    checks, when = guest.checks, "counted as memory" if counted else "not counted"

    def touch(*asked: str, huge: int, plain: int = 0) -> Outcome:
        program = ("/usr/bin/python3", script, str(huge), str(plain))
        return attempt(PROGRAM, "run", "-q", "--cpus", "1", *asked, "--", *program, timeout=LONG)

    whole = touch(*ASKED, huge=HUGE)
    checks.check(f"{when}: all huge pages of a pod are used", whole.ok, whole)
    limit = MEMORY + HUGE if counted else MEMORY
    most, *_ = whole.stdout.split()
    checks.equal(f"{when}: memory.max", most, str(limit * MIB))
    # More CPUs than one node has.
    even = touch(*ASKED, "--cpus", "10", "--interleave", huge=HUGE)
    each = HUGE // 2 // 2
    checks.equal(
        f"{when}: huge pages evenly", even.stdout.split()[1:], [f"N0={each}", f"N1={each}"]
    )
    both = touch(*ASKED, huge=HUGE, plain=MEMORY // 2)
    checks.check(f"{when}: and half of its memory", both.ok, both)
    beyond = touch(*ASKED, huge=HUGE, plain=2 * MEMORY)
    checks.equal(f"{when}: more memory than asked is killed", beyond.status, -signal.SIGKILL)
    more = touch(*ASKED, huge=HUGE + 2)
    checks.equal(f"{when}: mmap of a page more", more.status, errno.ENOMEM, more)
    none = touch("--memory", f"{HUGE}Mi", huge=2)
    checks.equal(f"{when}: mmap without huge pages", none.status, errno.ENOMEM, none)


def _taken(checks: Checks, agent: Agent, script: Path) -> None:
    """Have a program beside the pods use most pages of node 0."""
    on_node = ("systemd-run", "--quiet", "--scope", "-p", "AllowedMemoryNodes=0")
    program = (*on_node, "/usr/bin/python3", str(script), str(TAKEN), "0")
    pod = single.pod("paged", 1, f"{MEMORY}Mi")
    pod["spec"]["containers"][0]["resources"]["limits"]["hugepages-2Mi"] = f"{HUGE}Mi"
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdin is not None
        assert taker.stdout is not None
        taker.stdout.readline()
        _, answer = answer_to("POST", "pods?advice=true", pod)
        warnings = [str(line) for line in answer.get("warnings", ())]
        given, near, *_ = [*warnings, "", ""]
        left = f"{HUGE} MiB of hugepages-2Mi on node 0, which could give {96 - TAKEN} MiB now"
        checks.check("what a program has is missed", left in given, answer)
        checks.check("as much as it has", f"others use at least {TAKEN} MiB" in given, given)
        checks.check("the other node has it", 'near-nodes: "1"' in near, near)
        checks.equal("a condition names it", _conditions(), ["MemoryAvailable"])
        taker.stdin.close()
    checks.equal("until the program ends", _conditions(), [])
    agent.remove(single.uid_of("paged"))


def _conditions() -> list[str]:
    """Return the types of the conditions after a comparison."""
    answer_to("POST", "reconcile", {})
    _, status = answer_to("GET", "status")
    return [condition["type"] for condition in status["conditions"]]
