from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.reconcile.tasks import ExclusiveTerritory, Task, intruding_tasks, read_tasks
from sysfs.mask import Mask

ONLINE = Mask.parse("0-7")
WEB = ExclusiveTerritory("web", Mask.parse("2-3"), ("pods/web", "elsewhere/bound"))
DB = ExclusiveTerritory("db", Mask.of(4), ("pods/db",))


NOWHERE: Final = ("", (), True)


@pytest.mark.parametrize(
    ("affinity", "cgroup", "kernel", "found"),
    [
        ("2-3", "pods/web", False, NOWHERE),
        ("2", "pods/web/c0/container", False, NOWHERE),
        ("2-3", "elsewhere/bound", False, NOWHERE),
        ("2", "pods/web2", False, ("2", ("web",), True)),  # a name that only begins alike
        ("3-4", "system.slice", False, ("3-4", ("web", "db"), True)),
        ("3-4", "pods/db", False, ("3", ("web",), True)),
        ("4", None, False, ("4", ("db",), True)),
        # What may run everywhere was not confined.
        ("0-7", "system.slice", False, ("2-4", ("web", "db"), False)),
        ("0-63", "system.slice", False, ("2-4", ("web", "db"), False)),
        # Kernel threads count unless they are bound to one CPU.
        ("3", "system.slice", True, NOWHERE),
        ("0-7", "system.slice", True, ("2-4", ("web", "db"), False)),
        ("0-1,5-7", "system.slice", False, NOWHERE),
    ],
)
def test_the_pods_whose_cpus_a_task_enters_that_is_not_at_home_there_are_named(
    affinity: str, cgroup: str | None, *, kernel: bool, found: tuple[str, tuple[str, ...], bool]
) -> None:
    task = Task(7, "x", Mask.parse(affinity), cgroup, kernel=kernel)
    intruding = [(str(f.cpus), f.pods, f.confined)
                 for f in intruding_tasks((task,), (WEB, DB), ONLINE)]  # fmt: skip
    assert intruding == [found] * (found is not NOWHERE)


@settings(deadline=None)
@given(
    affinity=st.sets(st.integers(0, 7), min_size=1),
    owners=st.dictionaries(st.integers(0, 7), st.integers(0, 2)),
    home=st.integers(0, 3),
)
def test_a_task_on_an_exclusive_cpu_of_another_pod_is_intruding(
    affinity: set[int], owners: dict[int, int], home: int
) -> None:
    lands = [
        ExclusiveTerritory(
            f"p{pod}", Mask.from_ids(c for c, p in owners.items() if p == pod), (f"p{pod}",)
        )
        for pod in range(3)
    ]
    expected = {cpu for cpu in affinity if cpu in owners and owners[cpu] != home}
    some = Task(1, "t", Mask.from_ids(affinity), f"p{home}")
    assert {cpu for f in intruding_tasks((some,), lands, ONLINE) for cpu in f.cpus} == expected


def test_threads_of_other_affinities_are_distinguished() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    ready, stop = threading.Event(), threading.Event()

    def narrowed() -> None:
        os.sched_setaffinity(0, allowed[:1])
        ready.set()
        stop.wait()

    thread = threading.Thread(target=narrowed)
    thread.start()
    try:
        assert ready.wait(10)
        own = [each for each in read_tasks(Path("/proc")) if each.pid == os.getpid()]
    finally:
        stop.set()
        thread.join()
    assert sum(each.threads for each in own) >= 2
    assert {Mask.from_ids(allowed), Mask.of(allowed[0])} <= {each.affinity for each in own}
    assert not any(each.kernel for each in own)


NAME_ITSELF = r"""
import ctypes
ctypes.CDLL(None).prctl(15, b"\xff\x1b[2J\nroot", 0, 0, 0)
print("named", flush=True)
input()
"""


def test_a_process_with_a_name_that_is_not_text_is_reported_on_one_line() -> None:
    command = [sys.executable, "-I", "-c", NAME_ITSELF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        names = [task.name for task in read_tasks(Path("/proc")) if task.pid == process.pid]
        process.communicate(b"\n")
    assert names == ["\\xff\\x1b[2J\\nroot"]


def test_a_process_that_ends_after_its_affinity_was_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / str(os.getpid()) / "task" / str(os.getpid())).mkdir(parents=True)
    assert not list(read_tasks(tmp_path))


def test_a_process_whose_cgroup_is_not_text_is_in_no_known_one(tmp_path: Path) -> None:
    own = tmp_path / str(os.getpid())
    (own / "task" / str(os.getpid())).mkdir(parents=True)
    (own / "cgroup").write_bytes(b"0::/user.slice/\xff\n")
    (found,) = [task for task in read_tasks(tmp_path) if task.pid == os.getpid()]
    assert found.cgroup is None
