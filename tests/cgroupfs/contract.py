"""What a cgroup v2 hierarchy does: the same tests for the emulated kernel and for the real one.

The emulated kernel runs them in `tests/cgroupfs/test_contract.py`; against a real kernel the same
file runs them when NUMAWARDEN_CGROUP_ROOT names the mount (as root, on a machine with at least
four CPUs, a node 0 with memory and no unit that minds CPUs being taken offline). Where versions of
the kernel differ a test has both answers (`cgroupfs.emulated.rules`).
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from cgroupfs.apply import HUGETLB, enable
from cgroupfs.emulated.rules import Rules, rules_of
from cgroupfs.settings import EXCLUSIVE, MEMBER, PARTITION, limit_text
from cgroupfs.tree import CgroupTree, KernelTree, join
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Lab(Protocol):
    """A hierarchy under test, with the means to act around it."""

    tree: CgroupTree
    #: An empty cgroup with +cpuset +cpu for its children, not yet any child.
    top: str
    rules: Rules
    #: The CPUs that the kernel's command line isolates.
    isolcpus: Mask

    def spawn(self, path: str) -> int:
        """Start a process in a cgroup and return its id."""
        ...

    def end(self, pid: int) -> None:
        """End a process that `spawn` started."""
        ...

    def set_online(self, cpu: int, *, online: bool) -> None:
        """Take one CPU offline or back."""
        ...

    def allowed(self, pid: int) -> tuple[Mask, Mask]:
        """Return the CPUs and memory nodes a process may use."""
        ...


class Emulation(CgroupTree, Protocol):
    """An emulated hierarchy, in memory or in files."""

    @property
    def rules(self) -> Rules: ...

    @property
    def isolcpus(self) -> Mask: ...

    def spawn(self, path: str, pid: int) -> None: ...

    def exit(self, pid: int) -> None: ...

    def set_online(self, cpus: Mask) -> None: ...


class EmulatedLab:
    """A lab around an emulated hierarchy."""

    def __init__(self, tree: Emulation) -> None:
        self.kernel = tree
        self.tree: CgroupTree = tree
        self.top = "lab"
        self.rules = tree.rules
        self.isolcpus = tree.isolcpus
        self._next = 100
        prepare(self.tree, self.top)

    def spawn(self, path: str) -> int:
        self._next += 1
        self.kernel.spawn("", self._next)
        self.tree.write(path, "cgroup.procs", str(self._next))
        return self._next

    def end(self, pid: int) -> None:
        self.kernel.exit(pid)

    def set_online(self, cpu: int, *, online: bool) -> None:
        now, one = Mask.parse(self.tree.read("", "cpuset.cpus.effective")), Mask.of(cpu)
        self.kernel.set_online(now | one if online else now - one)

    def allowed(self, pid: int) -> tuple[Mask, Mask]:
        home = next(path for path in self._walk("") if pid in self.tree.procs(path))
        texts = self.tree.read_many(home, ("cpuset.cpus.effective", "cpuset.mems.effective"))
        return Mask.parse(texts[0] or ""), Mask.parse(texts[1] or "")

    def _walk(self, path: str) -> Iterator[str]:
        yield path
        for name in self.tree.children(path):
            yield from self._walk(join(path, name))

    def close(self) -> None:
        """Nothing outlives the object."""


class KernelLab:
    """A lab in a real cgroup v2 mount; `close` removes everything again."""

    def __init__(self, root: Path) -> None:
        self.real = KernelTree(root)
        self.tree: CgroupTree = self.real
        self.top = "numawarden-contract"
        self.rules = rules_of(os.uname().release)
        self.isolcpus = Mask.parse(Path("/sys/devices/system/cpu/isolated").read_text())
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._offline: set[int] = set()
        prepare(self.tree, self.top)

    def spawn(self, path: str) -> int:
        process = subprocess.Popen(["sleep", "1000"])
        self._running[process.pid] = process
        self.tree.write(path, "cgroup.procs", str(process.pid))
        return process.pid

    def end(self, pid: int) -> None:
        process = self._running.pop(pid)
        process.kill()
        process.wait()

    def set_online(self, cpu: int, *, online: bool) -> None:
        Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(int(online)))
        (self._offline.discard if online else self._offline.add)(cpu)

    def allowed(self, pid: int) -> tuple[Mask, Mask]:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return Mask.parse(status["Cpus_allowed_list"]), Mask.parse(status["Mems_allowed_list"])

    def close(self) -> None:
        for pid in tuple(self._running):
            self.end(pid)
        for cpu in tuple(self._offline):
            self.set_online(cpu, online=True)
        remove(self.tree, self.top)
        self.real.close()


def prepare(tree: CgroupTree, top: str) -> None:
    """Create the empty `top` with the controllers enabled down to its children."""
    tree.write("", "cgroup.subtree_control", "+cpuset +cpu")
    tree.mkdir(top)
    tree.write(top, "cgroup.subtree_control", "+cpuset +cpu")


def remove(tree: CgroupTree, path: str) -> None:
    """Remove a cgroup and everything below it.

    Partitions end before: Linux 6.12 keeps an invalid one in its list of remote partitions, frees
    it, and crashes at one of the next (list_add corruption in update_prstate).
    """
    for name in tree.children(path):
        remove(tree, join(path, name))
    if tree.read_many(path, (PARTITION,)) not in ((None,), (f"{MEMBER}\n",)):
        tree.write(path, PARTITION, MEMBER)
    tree.rmdir(path)


def make(lab: Lab, name: str, **settings: str) -> str:
    """Create a cgroup under the lab's top with `cpus`, `mems`, `max` and what it `passes` on."""
    path = join(lab.top, name)
    lab.tree.mkdir(path)
    for key, value in settings.items():
        file = {"max": "cpu.max", "passes": "cgroup.subtree_control"}.get(key, f"cpuset.{key}")
        lab.tree.write(path, file, value)
    return path


def divide(lab: Lab, exclusive: Mapping[str, str], word: str) -> None:
    """Make partitions, the outer first, which have these of the CPUs of the lab's top."""
    for path, cpus in ({lab.top: next(iter(exclusive.values()))} | dict(exclusive)).items():
        lab.tree.write(path, EXCLUSIVE, cpus)
    for path in exclusive:
        lab.tree.write(path, PARTITION, word)


def make_limited(lab: Lab, name: str) -> str:
    """Create a cgroup that has the limits of memory and huge pages."""
    path = join(lab.top, name)
    enable(lab.tree, path, ("memory", HUGETLB))
    return make(lab, name)


def shown(lab: Lab, path: str, file: str) -> str:
    return lab.tree.read(path, file).strip()


def isolated(lab: Lab) -> Mask:
    """Return the CPUs of isolated partitions.

    With them are shown those of `isolcpus=`, on 6.12 until one of these had them.
    """
    return Mask.parse(shown(lab, "", "cpuset.cpus.isolated")) - lab.isolcpus


def becomes(lab: Lab, path: str, file: str, part: str) -> bool:
    """Return whether a file shows a part at once or in a moment.

    From 7.0 on a process that was reaped may count for a while (a second here, for a busy host).
    """
    until = time.monotonic() + 1
    while part not in lab.tree.read(path, file):
        if time.monotonic() > until:
            return False
    return True


def rejected(lab: Lab, path: str, file: str, value: str) -> int:
    """Write what must be rejected and return the errno."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the caller compares the errno
        lab.tree.write(path, file, value)
    assert caught.value.errno is not None
    return caught.value.errno


class Contract:
    """The tests; a subclass provides the fixture `lab`."""

    def test_a_new_cgroup_has_no_set_and_uses_its_parents(self, lab: Lab) -> None:
        path = make(lab, "pod")
        assert shown(lab, path, "cpuset.cpus") == ""
        assert shown(lab, path, "cpuset.mems") == ""
        assert shown(lab, path, "cpuset.cpus.effective") == shown(lab, "", "cpuset.cpus.effective")
        assert shown(lab, path, "cpuset.mems.effective") == shown(lab, "", "cpuset.mems.effective")

    def test_a_set_is_shown_in_list_form_and_in_effect_at_once(self, lab: Lab) -> None:
        path = make(lab, "pod", cpus="3,1,2", mems="0")
        assert shown(lab, path, "cpuset.cpus") == "1-3"
        assert shown(lab, path, "cpuset.cpus.effective") == "1-3"
        assert shown(lab, path, "cpuset.mems.effective") == "0"

    def test_a_running_process_is_confined_and_moved_at_once(self, lab: Lab) -> None:
        path = make(lab, "pod", cpus="0-1", mems="0")
        pid = lab.spawn(path)
        assert lab.allowed(pid) == (Mask.parse("0-1"), Mask.of(0))
        lab.tree.write(path, "cpuset.cpus", "2")
        assert lab.allowed(pid)[0] == Mask.of(2)

    @pytest.mark.parametrize(
        ("pod", "app", "then", "effective"),
        [
            ("2-3", "0-1", "", "2-3"),  # nothing is left: it silently gets its parent's
            ("1-2", "2-3", "", "2"),
            ("2-3", "0-1", "0-3", "0-1"),  # its own set comes to life
            ("0-3", "3", "0-2", "0-2"),  # not rejected
        ],
    )
    def test_a_child_gets_of_its_set_what_its_parent_has(
        self, lab: Lab, pod: str, app: str, then: str, effective: str
    ) -> None:
        parent = make(lab, "pod", cpus=pod, passes="+cpuset")
        child = make(lab, "pod/app", cpus=app)
        if then:
            lab.tree.write(parent, "cpuset.cpus", then)
        assert shown(lab, child, "cpuset.cpus") == app
        assert shown(lab, child, "cpuset.cpus.effective") == effective

    @pytest.mark.parametrize(
        ("value", "number"),
        [
            ("99999", errno.ERANGE),
            ("0-99999", errno.ERANGE),
            ("abc", errno.EINVAL),
            ("3-1", errno.EINVAL),
            ("1-", errno.EINVAL),
            ("-1", errno.EINVAL),
        ],
    )
    def test_a_bad_cpu_list_is_rejected_and_changes_nothing(
        self, lab: Lab, value: str, number: int
    ) -> None:
        path = make(lab, "pod", cpus="1")
        assert rejected(lab, path, "cpuset.cpus", value) == number
        assert shown(lab, path, "cpuset.cpus") == "1"

    def test_a_node_that_does_not_exist_is_invalid(self, lab: Lab) -> None:
        path = make(lab, "pod", mems="0")
        assert rejected(lab, path, "cpuset.mems", "9") == errno.EINVAL
        assert rejected(lab, path, "cpuset.mems", "60000") == errno.ERANGE
        assert shown(lab, path, "cpuset.mems") == "0"

    @pytest.mark.parametrize("blank", ["\n", " "])
    def test_a_set_is_cleared_by_blank_text_while_no_process_uses_it(
        self, lab: Lab, blank: str
    ) -> None:
        path = make(lab, "pod", cpus="1", mems="0")
        for file in ("cpuset.cpus", "cpuset.mems"):
            lab.tree.write(path, file, blank)
            assert shown(lab, path, file) == ""
        lab.spawn(path)
        lab.tree.write(path, "cpuset.cpus", blank)  # it was not set, so it may be cleared again
        used = make(lab, "used", cpus="1", mems="0")
        lab.spawn(used)
        for file, text in (("cpuset.cpus", "1"), ("cpuset.mems", "0")):
            if lab.rules.clears_used_sets:
                lab.tree.write(used, file, blank)
                assert shown(lab, used, file) == ""
                effective = f"{file}.effective"
                assert shown(lab, used, effective) == shown(lab, lab.top, effective)
            else:
                assert rejected(lab, used, file, blank) == errno.ENOSPC
                assert shown(lab, used, file) == text

    def test_no_bytes_are_rejected_before_the_kernel_ignores_them(self, lab: Lab) -> None:
        path = make(lab, "pod", cpus="1")
        with pytest.raises(ValueError, match="empty write"):
            lab.tree.write(path, "cpuset.cpus", "")
        assert shown(lab, path, "cpuset.cpus") == "1"

    def test_what_is_in_effect_cannot_be_written(self, lab: Lab) -> None:
        path = make(lab, "pod")
        assert rejected(lab, path, "cpuset.cpus.effective", "1") == errno.EINVAL

    def test_an_offline_cpu_leaves_and_comes_back(self, lab: Lab) -> None:
        path = make(lab, "pod", cpus="2-3")
        only = make(lab, "only", cpus="3")
        lab.set_online(3, online=False)
        assert shown(lab, path, "cpuset.cpus") == "2-3"
        assert shown(lab, path, "cpuset.cpus.effective") == "2"
        assert shown(lab, only, "cpuset.cpus.effective") == shown(lab, "", "cpuset.cpus.effective")
        lab.tree.write(only, "cpuset.cpus", "3")
        lab.set_online(3, online=True)
        assert shown(lab, path, "cpuset.cpus.effective") == "2-3"
        assert shown(lab, only, "cpuset.cpus.effective") == "3"

    def test_exclusive_cpus_are_given_from_the_top_down_and_to_one_sibling(self, lab: Lab) -> None:
        pod, other = make(lab, "pod"), make(lab, "other")
        lab.tree.write(pod, EXCLUSIVE, "2")
        assert shown(lab, pod, f"{EXCLUSIVE}.effective") == ""
        lab.tree.write(lab.top, EXCLUSIVE, "2-3")
        assert shown(lab, pod, EXCLUSIVE) == "2"
        lab.tree.write(pod, EXCLUSIVE, "2-3")
        assert shown(lab, pod, f"{EXCLUSIVE}.effective") == "2-3"
        assert rejected(lab, other, EXCLUSIVE, "3") == errno.EINVAL

    def test_exclusive_cpus_cannot_be_those_that_a_partition_beside_lists(self, lab: Lab) -> None:
        lab.tree.write(lab.top, "cpuset.cpus", "1-3")
        lab.tree.write(lab.top, PARTITION, "root")
        one, two = make(lab, "one", cpus="2"), make(lab, "two")
        lab.tree.write(one, PARTITION, "root")
        assert shown(lab, one, PARTITION) == "root"
        assert rejected(lab, two, EXCLUSIVE, "2-3") == errno.EINVAL
        lab.tree.write(two, EXCLUSIVE, "3")
        assert shown(lab, one, PARTITION) == "root"

    def test_an_isolated_partition_takes_its_cpus_from_everyone_else(self, lab: Lab) -> None:
        everyone, pod = make(lab, "everyone"), make(lab, "pod")
        divide(lab, {pod: "2-3"}, "isolated")
        assert shown(lab, pod, PARTITION) == "isolated"
        assert shown(lab, pod, "cpuset.cpus.effective") == "2-3"
        assert isolated(lab) == Mask.parse("2-3")
        taken = Mask.parse("2-3")
        for path in ("", everyone):
            assert taken.isdisjoint(Mask.parse(shown(lab, path, "cpuset.cpus.effective")))
        lab.tree.write(pod, PARTITION, "member")
        assert taken <= Mask.parse(shown(lab, everyone, "cpuset.cpus.effective"))

    @pytest.mark.parametrize("word", ["root", "isolated"])
    def test_a_cgroup_over_a_remote_partition_is_none_and_leaves_it_its_cpus(
        self, lab: Lab, word: str
    ) -> None:
        pod = make(lab, "pod")
        divide(lab, {pod: "2-3"}, "root")
        lab.tree.write(lab.top, PARTITION, word)
        reason = "Have remote partition underneath"
        assert shown(lab, lab.top, PARTITION) == f"{word} invalid ({reason})"
        assert shown(lab, pod, PARTITION) == "root"
        assert shown(lab, pod, "cpuset.cpus.effective") == "2-3"
        lab.tree.write(lab.top, PARTITION, "member")
        assert shown(lab, pod, PARTITION) == "root"

    @pytest.mark.parametrize("remote", [False, True])
    def test_cpus_that_the_command_line_isolates_are_not_of_every_partition(
        self, lab: Lab, *, remote: bool
    ) -> None:
        if not lab.isolcpus:
            pytest.skip("the kernel was booted without isolcpus=")
        pod = make(lab, "pod") if remote else lab.top
        reason = "partition config conflicts with housekeeping setup"
        for word in ("root", "isolated"):
            divide(lab, {pod: str(lab.isolcpus)}, word)
            valid = word == "isolated" if lab.rules.isolates_isolcpus else remote
            assert shown(lab, pod, PARTITION) == (word if valid else f"{word} invalid ({reason})")
            lab.tree.write(pod, PARTITION, "member")

    def test_a_bad_partition_word_is_rejected_and_an_impossible_one_is_not(self, lab: Lab) -> None:
        pod = make(lab, "pod", cpus="2")
        assert rejected(lab, pod, PARTITION, "mine") == errno.EINVAL
        lab.tree.write(pod, PARTITION, "isolated")
        assert shown(lab, pod, PARTITION).startswith("isolated invalid (")

    def test_a_partition_without_its_parents_cpus_is_invalid(self, lab: Lab) -> None:
        pod = make(lab, "pod")
        lab.tree.write(pod, EXCLUSIVE, "2")
        lab.tree.write(pod, PARTITION, "isolated")
        reason = "Invalid cpu list in cpuset.cpus.exclusive"
        assert shown(lab, pod, PARTITION) == f"isolated invalid ({reason})"

    def test_a_sibling_that_writes_the_same_cpu_breaks_the_partition_or_has_less(
        self, lab: Lab
    ) -> None:
        pod, other = make(lab, "pod"), make(lab, "other")
        divide(lab, {pod: "2-3"}, "isolated")
        kept = lab.rules.keeps_partitions
        for cpus in ("1-2", "1"):
            lab.tree.write(other, "cpuset.cpus", cpus)
            assert shown(lab, pod, PARTITION) == ("isolated" if kept else "isolated invalid")
            if kept:
                assert shown(lab, other, "cpuset.cpus.effective") == "1"

    def test_a_partition_inside_another_has_its_cpus_until_a_sibling_lists_one(
        self, lab: Lab
    ) -> None:
        pod = make(lab, "pod", passes="+cpuset")
        own, beside = make(lab, "pod/own", cpus="1"), make(lab, "pod/beside")
        divide(lab, {pod: "1-3", own: "1"}, "isolated")
        used = [shown(lab, path, "cpuset.cpus.effective") for path in (pod, own, beside)]
        assert used == ["2-3", "1", "2-3"]
        assert isolated(lab) == Mask.parse("1-3")
        kept = lab.rules.keeps_partitions
        lab.tree.write(beside, "cpuset.cpus", "1-2")
        assert shown(lab, own, PARTITION) == ("isolated" if kept else "isolated invalid")
        assert shown(lab, beside, "cpuset.cpus.effective") == ("2" if kept else "1-2")

    def test_a_partition_has_of_its_list_what_those_beside_have_left(self, lab: Lab) -> None:
        if not lab.rules.keeps_partitions:
            pytest.skip("up to Linux 6.19 one of them is invalid")
        lab.tree.write(lab.top, "cpuset.cpus", "1-3")
        lab.tree.write(lab.top, PARTITION, "root")
        first, second = make(lab, "first", cpus="1"), make(lab, "second")
        lab.tree.write(first, PARTITION, "root")
        lab.tree.write(second, "cpuset.cpus", "1-2")
        lab.tree.write(second, PARTITION, "root")
        lab.tree.write(first, "cpuset.cpus", "1-2")
        for path, cpus in ((first, "1"), (second, "2")):
            assert shown(lab, path, PARTITION) == "root"
            assert shown(lab, path, "cpuset.cpus") == "1-2"
            assert shown(lab, path, f"{EXCLUSIVE}.effective") == cpus
            assert shown(lab, path, "cpuset.cpus.effective") == cpus

    def test_a_partition_inside_one_that_ended_is_none_until_it_is_written_again(
        self, lab: Lab
    ) -> None:
        pod = make(lab, "pod", passes="+cpuset")
        own = make(lab, "pod/own", cpus="1")
        divide(lab, {pod: "1-3", own: "1"}, "root")
        lab.tree.write(pod, PARTITION, "member")
        assert shown(lab, own, PARTITION) == "root invalid (Parent is not a partition root)"
        # Whether it has CPUs of its own until it is written again depends on what was before.
        lab.tree.write(pod, PARTITION, "root")
        assert shown(lab, own, PARTITION) == "root"
        for word in ("member", "root"):
            lab.tree.write(own, PARTITION, word)
        assert shown(lab, own, "cpuset.cpus.effective") == "1"

    @pytest.mark.parametrize(
        ("value", "after"),
        [
            ("max", "max 50000"),
            ("20000", "20000 50000"),
            ("20000 40000", "20000 40000"),
            ("max 100000", "max 100000"),
            ("1000 1000", "1000 1000"),
            ("5000000 1000000", "5000000 1000000"),
        ],
    )
    def test_a_bandwidth_is_taken_and_keeps_the_period_it_does_not_name(
        self, lab: Lab, value: str, after: str
    ) -> None:
        path = make(lab, "pod", max="30000 50000")
        lab.tree.write(path, "cpu.max", value)
        assert shown(lab, path, "cpu.max") == after

    @pytest.mark.parametrize(
        "value", ["999", "0", "-1", "abc", "20000 999", "20000 1000001", "max 0", "\n"]
    )
    def test_a_bandwidth_out_of_bounds_is_invalid(self, lab: Lab, value: str) -> None:
        path = make(lab, "pod", max="30000 50000")
        assert rejected(lab, path, "cpu.max", value) == errno.EINVAL
        assert shown(lab, path, "cpu.max") == "30000 50000"

    def test_a_child_may_have_more_bandwidth_than_its_parent(self, lab: Lab) -> None:
        make(lab, "pod", max="10000 100000", passes="+cpu")
        child = make(lab, "pod/app", max="50000 100000")
        assert shown(lab, child, "cpu.max") == "50000 100000"

    def test_burst_and_quota_bound_each_other(self, lab: Lab) -> None:
        path = make(lab, "pod", max="30000 100000")
        assert rejected(lab, path, "cpu.max.burst", "30001") == errno.EINVAL
        lab.tree.write(path, "cpu.max.burst", "20000")
        assert rejected(lab, path, "cpu.max", "19999 100000") == errno.EINVAL

    @pytest.mark.parametrize(
        ("value", "number"), [("0", errno.ERANGE), ("10001", errno.ERANGE), ("abc", errno.EINVAL)]
    )
    def test_a_weight_has_bounds(self, lab: Lab, value: str, number: int) -> None:
        path = make(lab, "pod")
        assert rejected(lab, path, "cpu.weight", value) == number
        lab.tree.write(path, "cpu.weight", "10000")
        assert shown(lab, path, "cpu.weight") == "10000"

    @pytest.mark.parametrize(
        ("file", "unit"),
        [
            ("memory.max", PAGESIZE),
            ("hugetlb.2MB.max", 2 << 20),
            ("hugetlb.2MB.rsvd.max", 2 << 20),
        ],
    )
    def test_a_limit_is_shown_in_whole_pages(self, lab: Lab, file: str, unit: int) -> None:
        path = make_limited(lab, "pod")
        assert shown(lab, path, file) == "max"
        for written, text in (
            (3 * unit, 3 * unit),
            (3 * unit + unit - 1, 3 * unit),
            (unit - 1, 0),
            ("max", "max"),
            ((1 << 63) - 1, "max"),
        ):
            lab.tree.write(path, file, str(written))
            assert shown(lab, path, file) == str(text)
            if isinstance(written, int):
                assert limit_text(written, unit) == str(text)
        assert rejected(lab, path, file, "-1") == errno.EINVAL

    def test_a_disabled_controller_forgets_its_limits(self, lab: Lab) -> None:
        path = make_limited(lab, "pod")
        lab.tree.write(path, "memory.max", str(PAGESIZE))
        above = path.rpartition("/")[0]
        lab.tree.write(above, "cgroup.subtree_control", "-memory")
        lab.tree.write(above, "cgroup.subtree_control", "+memory")
        assert shown(lab, path, "memory.max") == "max"

    def test_without_the_controller_the_files_are_missing(self, lab: Lab) -> None:
        make(lab, "pod")
        child = make(lab, "pod/app")
        files = ("cpuset.cpus", "cpu.max", "cgroup.procs")
        assert [text is None for text in lab.tree.read_many(child, files)] == [True, True, False]
        with pytest.raises(FileNotFoundError):
            lab.tree.read(child, "cpuset.cpus")
        assert rejected(lab, child, "cpu.max", "max") == errno.ENOENT

    def test_what_the_parent_does_not_pass_on_cannot_be_enabled(self, lab: Lab) -> None:
        make(lab, "pod")
        child = make(lab, "pod/app")
        assert rejected(lab, child, "cgroup.subtree_control", "+cpuset") == errno.ENOENT

    @pytest.mark.parametrize("value", ["+nothing", "cpuset", "*cpuset"])
    def test_an_unknown_word_in_subtree_control_is_invalid(self, lab: Lab, value: str) -> None:
        path = make(lab, "pod")
        assert rejected(lab, path, "cgroup.subtree_control", value) == errno.EINVAL

    def test_a_controller_in_use_below_cannot_be_disabled(self, lab: Lab) -> None:
        make(lab, "pod", passes="+cpuset")
        make(lab, "pod/app")
        assert rejected(lab, lab.top, "cgroup.subtree_control", "-cpuset") == errno.EBUSY

    def test_disabling_a_controller_removes_the_files_and_forgets_the_values(
        self, lab: Lab
    ) -> None:
        path = make(lab, "pod", cpus="1", max="20000 100000")
        lab.tree.write(lab.top, "cgroup.subtree_control", "-cpuset -cpu")
        assert lab.tree.read_many(path, ("cpuset.cpus", "cpu.max")) == (None, None)
        lab.tree.write(lab.top, "cgroup.subtree_control", "+cpuset +cpu")
        assert shown(lab, path, "cpuset.cpus") == ""
        assert shown(lab, path, "cpu.max") == "max 100000"

    def test_subtree_control_and_controllers_are_shown_in_the_kernels_order(self, lab: Lab) -> None:
        pod = make(lab, "pod", passes="+cpu")
        lab.tree.write(pod, "cgroup.subtree_control", "+cpuset")
        assert shown(lab, pod, "cgroup.subtree_control") == "cpuset cpu"
        assert shown(lab, pod, "cgroup.controllers") == "cpuset cpu"

    def test_populated_shows_processes_here_and_below(self, lab: Lab) -> None:
        make(lab, "pod")
        child = make(lab, "pod/app")
        assert "populated 0" in lab.tree.read(join(lab.top, "pod"), "cgroup.events")
        pid = lab.spawn(child)
        assert "populated 1" in lab.tree.read(join(lab.top, "pod"), "cgroup.events")
        assert lab.tree.procs(child) == (pid,)
        lab.end(pid)
        assert becomes(lab, join(lab.top, "pod"), "cgroup.events", "populated 0")

    def test_a_process_stays_out_of_an_inner_cgroup_that_is_in_use(self, lab: Lab) -> None:
        pod = make(lab, "pod", passes="+cpuset")
        lab.spawn(make(lab, "pod/app"))
        with pytest.raises(OSError, match=r"\[Errno 16\]"):
            lab.spawn(pod)

    def test_a_process_beside_enabled_controllers_spoils_the_cgroups_below(self, lab: Lab) -> None:
        pod = make(lab, "pod", passes="+cpuset")
        child = make(lab, "pod/app")
        lab.spawn(pod)
        assert shown(lab, pod, "cgroup.type") == "domain threaded"
        assert shown(lab, child, "cgroup.type") == "domain invalid"
        with pytest.raises(OSError, match=rf"\[Errno {errno.EOPNOTSUPP}\]"):
            lab.spawn(child)

    def test_a_process_that_does_not_run_cannot_be_moved(self, lab: Lab) -> None:
        path = make(lab, "pod")
        assert rejected(lab, path, "cgroup.procs", "4194000") == errno.ESRCH
        assert rejected(lab, path, "cgroup.procs", "abc") == errno.EINVAL

    def test_a_cgroup_with_processes_or_children_is_not_removed(self, lab: Lab) -> None:
        path = make(lab, "pod")
        pid = lab.spawn(path)
        with pytest.raises(OSError, match=r"\[Errno 16\]"):
            lab.tree.rmdir(path)
        lab.end(pid)
        inner = make(lab, "pod/app")
        with pytest.raises(OSError, match=r"\[Errno 16\]"):
            lab.tree.rmdir(path)
        for each in (inner, path):
            lab.tree.rmdir(each)
        assert not lab.tree.exists(path)

    def test_a_cgroup_is_not_created_twice_nor_without_its_parent(self, lab: Lab) -> None:
        path = make(lab, "pod")
        with pytest.raises(FileExistsError):
            lab.tree.mkdir(path)
        with pytest.raises(FileNotFoundError):
            lab.tree.mkdir(join(lab.top, "no/pod"))

    def test_a_cgroup_that_is_gone_is_not_found(self, lab: Lab) -> None:
        path = make(lab, "pod")
        lab.tree.rmdir(path)
        assert rejected(lab, path, "cpuset.cpus", "1") == errno.ENOENT
        for act in (
            lambda: lab.tree.rmdir(path),
            lambda: lab.tree.read_many(path, ("cpuset.cpus",)),
            lambda: lab.tree.children(path),
            lambda: lab.tree.procs(path),
        ):
            with pytest.raises(FileNotFoundError):
                act()

    def test_children_are_listed_by_name_and_with_whether_they_have_children(
        self, lab: Lab
    ) -> None:
        for name in ("b", "c", "a", "b/inner"):
            make(lab, name)
        assert lab.tree.children(lab.top) == ("a", "b", "c")
        assert lab.tree.listed(lab.top) == {"a": False, "b": True, "c": False}
        lab.tree.rmdir(join(lab.top, "b/inner"))
        assert lab.tree.listed(lab.top) == {"a": False, "b": False, "c": False}
