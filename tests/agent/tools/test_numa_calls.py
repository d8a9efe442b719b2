"""Pages of processes and NUMA policies: what the kernel is asked, and what it answers."""

from __future__ import annotations

import ctypes
import errno
import platform

import pytest

from agent.managers.numa_policy import NumaMode, NumaPolicy
from agent.tools import numa_calls
from agent.tools.numa_calls import migrate, processes, set_numa_policy
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []

    def record(*arguments: ctypes.c_long | bytes) -> int:
        made.append(tuple(each if isinstance(each, bytes) else each.value for each in arguments))
        return 0

    monkeypatch.setattr(numa_calls, "_syscall", record)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return made


@pytest.mark.parametrize(
    ("old", "new", "size"), [("0", "1", 8), ("0-1", "62", 8), ("63", "64", 16), ("0", "200", 32)]
)
def test_the_kernel_is_told_both_sets_in_whole_words(
    calls: list[tuple[object, ...]], old: str, new: str, size: int
) -> None:
    migrate(7, Mask.parse(old), Mask.parse(new))
    [(number, pid, bits, *masks)] = calls
    assert (number, pid, bits) == (256, 7, 8 * size + 1)
    shown = [int.from_bytes(each, "little") for each in masks if isinstance(each, bytes)]
    assert shown == [Mask.parse(old).bits, Mask.parse(new).bits]
    assert {len(each) for each in masks if isinstance(each, bytes)} == {size}


@pytest.mark.parametrize(
    ("mode", "nodes", "number"),
    [
        (NumaMode.INTERLEAVE, "0-3", 3 | 1 << 14),
        (NumaMode.PREFERRED, "1", 5 | 1 << 15),
        (NumaMode.PREFERRED, "0,64", 5 | 1 << 15),
    ],
)
def test_a_numa_policy_is_a_mode_with_its_flag_and_nodes(
    calls: list[tuple[object, ...]], mode: NumaMode, nodes: str, number: int
) -> None:
    set_numa_policy(NumaPolicy(mode, Mask.parse(nodes)))
    [(call, asked, given, bits)] = calls
    assert isinstance(given, bytes)
    assert (call, asked, bits) == (238, number, 8 * len(given) + 1)
    assert Mask(int.from_bytes(given, "little")) == Mask.parse(nodes)


@pytest.mark.parametrize("code", [errno.ESRCH, errno.EPERM])
def test_a_process_that_has_ended_is_no_error_and_what_is_not_permitted_is(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(numa_calls, "_syscall", lambda *_: -1)
    monkeypatch.setattr(ctypes, "get_errno", lambda: code)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    if code == errno.ESRCH:
        migrate(7, Mask.of(0), Mask.of(1))
    else:
        with pytest.raises(PermissionError):
            migrate(7, Mask.of(0), Mask.of(1))


def test_a_machine_whose_number_is_not_known_is_not_asked(
    calls: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="not implemented"):
        migrate(7, Mask.of(0), Mask.of(1))
    assert calls == []


def test_the_processes_of_a_pod_are_those_of_all_its_cgroups() -> None:
    kernel = EmulatedKernel(Mask.of(0, 1), Mask.of(0))
    for path, pid in (("pod", 0), ("pod/c0", 3), ("pod/c1", 0), ("pod/c1/inner", 2), ("other", 4)):
        kernel.mkdir(path)
        if pid:
            kernel.spawn(path, pid)
    assert tuple(processes(kernel, ("pod", "pod/c0", "gone"))) == (3, 2)


def test_a_process_that_left_meanwhile_is_left_out() -> None:
    """Its id may be another process' by now, in another pod."""
    kernel = EmulatedKernel(Mask.of(0, 1), Mask.of(0))
    for path in ("pod", "other"):
        kernel.mkdir(path)
    for pid in (2, 3, 4):
        kernel.spawn("pod", pid)
    found = processes(kernel, ("pod",))
    assert next(found) == 2
    kernel.exit(3)
    kernel.spawn("other", 3)
    assert list(found) == [4]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENODEV, errno.EIO])
def test_a_threaded_cgroup_and_one_that_is_being_removed_have_none(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    kernel = EmulatedKernel(Mask.of(0, 1), Mask.of(0))
    for path in ("pod", "pod/vcpu"):
        kernel.mkdir(path)
    kernel.spawn("pod", 2)
    procs = kernel.procs

    def failing(path: str) -> tuple[int, ...]:
        if path == "pod/vcpu":
            raise OSError(code, "no", path)
        return procs(path)

    monkeypatch.setattr(kernel, "procs", failing)
    if code == errno.EIO:
        with pytest.raises(OSError, match="no"):
            tuple(processes(kernel, ("pod",)))
    else:
        assert tuple(processes(kernel, ("pod",))) == (2,)
