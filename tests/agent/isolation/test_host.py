"""Host-wide settings: kept off exclusive CPUs, verified, and restored to the byte."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PowerClass
from agent.isolation.originals import ORIGINALS_NAME
from agent.isolation.places import HostPlaces
from agent.isolation.report import LateInterrupt
from agent.isolation.rows import isolated_cpus
from agent.managers.policy import IsolationMode
from agent.pods.model import INTERRUPTS, OWN_DEVICES, POWER
from agent.state.store import OsFiles
from sysfs.mask import Mask
from tests.agent.isolation.hosts import (
    ALWAYS,
    FILES,
    QUEUES,
    FaultyPlaces,
    Host,
    asking,
    die_before,
    powered,
    quiet,
    reject,
    reject_once,
)
from tests.fakes.kernel import Died

if TYPE_CHECKING:
    from collections.abc import Mapping

IRQ: Final = "proc/irq/{}/smp_affinity_list"
#: What is desired of the host's files beside a pod on CPUs 2 and 3.
NARROWED: Final = FILES | {
    "proc/irq/default_smp_affinity": "f3\n",
    IRQ.format(5): "0-1,4-7\n",
    IRQ.format(6): "0-1,4-7\n",
    "sys/devices/virtual/workqueue/cpumask": "f3\n",
    "proc/sys/kernel/watchdog_cpumask": "0-1,4-7\n",
    f"{QUEUES}/tx-0/xps_cpus": "f3\n",
    "proc/sys/net/core/rps_default_mask": "f3\n",
}
CPU: Final = "sys/devices/system/cpu/cpu2"
POWER_FILES: Final = {
    f"{CPU}/power/pm_qos_resume_latency_us": "0\n",
    f"{CPU}/cpufreq/scaling_governor": "schedutil\n",
    f"{CPU}/cpufreq/scaling_min_freq": "800000\n",
}
FAST: Final = PowerClass(resume_latency="n/a", governor="performance", min_frequency="3000000")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def with_power(
    host: Host, power: PowerClass = FAST, files: Mapping[str, str] = POWER_FILES
) -> None:
    """Have CPU 2 show these files, and a class `fast` beside what is always isolated."""
    host.config = replace(ALWAYS, power_classes={"fast": power})
    for name, text in files.items():
        host.put(name, text)


# Shows in differences.md: isolation
def test_what_touches_exclusive_cpus_leaves_them_and_nothing_else_is_written(host: Host) -> None:
    isolation, places = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert host.all() == NARROWED
    assert isolation.report.conditions == {}
    assert set(places.writes) == {name for name in FILES if NARROWED[name] != FILES[name]}
    places.writes.clear()
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert places.writes == []


_CPUS = st.sets(st.integers(1, 7), min_size=1).map(Mask.from_ids)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(_CPUS, max_size=3), max_size=6), st.data())
def test_which_pods_ever_come_and_go_nothing_touches_them_and_all_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[Mask]], data: st.DataObject
) -> None:
    host = Host(tmp_path_factory.mktemp("host"))
    irqs = {IRQ.format(n): str(data.draw(_CPUS)) + "\n" for n in range(5, 8)}
    before = FILES | irqs
    for name, text in irqs.items():
        host.put(name, text)
    isolation, _ = host.start()
    for step in steps:
        pods = [quiet(str(cpus), uid) for cpus, uid in zip(step, "abc", strict=False)]
        exclusive = Mask.from_ids(cpu for cpus in step for cpu in cpus)
        isolation.apply(pods, (), thorough=data.draw(st.booleans()))
        if data.draw(st.booleans()):
            isolation, _ = host.start()
        for name in irqs:
            shown = Mask.parse(host.shows(name))
            assert shown
            assert shown.isdisjoint(exclusive)
    isolation.apply([], (), thorough=False)
    assert host.all() == before
    assert host.saved() == {}


@pytest.mark.parametrize("first", [True, False], ids=["while-it-is-given", "while-it-is-taken"])
@pytest.mark.parametrize("thorough", [True, False], ids=["comparison", "admission"])
@pytest.mark.parametrize("completes", [True, False], ids=["completed", "undone"])
def test_after_a_death_before_any_write_the_next_start_completes_or_undoes(
    host: Host, *, first: bool, completes: bool, thorough: bool
) -> None:
    for number in range(1, 20):
        host.fault = die_before(number) if first else lambda _: None
        isolation, _ = host.start()
        try:
            isolation.apply([quiet("2-3")], (), thorough=thorough)
            host.fault = die_before(number)
            isolation.apply([], (), thorough=thorough)
        except Died:
            pass
        else:
            assert number > 6
            return
        host.fault = lambda _: None
        isolation, _ = host.start()
        isolation.apply([quiet("2-3")] if completes else [], (), thorough=True)
        assert host.all() == (NARROWED if completes else FILES)
        isolation.apply([], (), thorough=True)
        assert host.all() == FILES
        assert host.saved() == {}


@pytest.mark.parametrize("name", [name for name in NARROWED if NARROWED[name] != FILES[name]])
def test_a_write_that_fails_is_a_condition_and_nothing_is_left_of_it(host: Host, name: str) -> None:
    isolation, _ = host.start()
    host.fault = reject(name, errno.EROFS)
    isolation.apply([quiet("2-3")], (), thorough=True)
    (condition,) = isolation.report.conditions.values()
    assert condition.startswith(f"not as desired: /{name}: Read-only file system")
    assert "deploy/isolation.conf" in condition
    assert host.all() == NARROWED | {name: FILES[name]}
    assert name not in host.saved()
    host.fault = lambda _: None
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert (host.all(), isolation.report.conditions) == (NARROWED, {})


@pytest.mark.parametrize(
    ("capabilities", "advice"),
    [
        pytest.param("0000000000800002", True, id="without CAP_NET_ADMIN"),
        pytest.param("0000000000801002", False, id="with it"),
    ],
)
def test_where_a_capability_is_missing_it_is_named_and_else_no_drop_in(
    host: Host, monkeypatch: pytest.MonkeyPatch, capabilities: str, *, advice: bool
) -> None:
    isolation, places = host.start()
    write = places.write_file

    def reject_steering(file: str, text: str) -> None:
        if file.endswith("xps_cpus"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        write(file, text)

    monkeypatch.setattr(places, "write_file", reject_steering)
    (host.root / "proc/self").mkdir()
    (host.root / "proc/self/status").write_text(f"Name:\tagent\nCapEff:\t{capabilities}\n")
    isolation.apply([quiet("2-3")], (), thorough=True)
    (condition,) = isolation.report.conditions.values()
    assert "Operation not permitted" in condition
    assert ("CAP_NET_ADMIN is missing; give the unit the drop-in" in condition) is advice
    assert ("drop-in" in condition) is advice


def test_a_failure_while_nothing_changed_is_over_with_the_next_pass(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation, places = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    with monkeypatch.context() as patched:
        patched.setattr(places, "online", lambda: Mask.parse("x"))
        isolation.apply([quiet("2-3")], (), thorough=False)
    assert "settings of the host stay as they are" in isolation.report.conditions["isolation"]
    isolation.apply([quiet("2-3")], (), thorough=False)
    assert isolation.report.conditions == {}


def test_an_admission_reads_and_writes_an_interrupt_once_and_a_comparison_reads_what_came_of_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation, places = host.start()
    isolation.apply([], (), thorough=True)
    read, write = places.read, places.write
    reads: Counter[str] = Counter()

    def counted(place: str) -> str:
        reads[place] += 1
        return read(place)

    monkeypatch.setattr(places, "read", counted)
    # A kernel that says yes and does nothing.
    ignored = IRQ.format(5)
    monkeypatch.setattr(places, "write", lambda place, text: place == ignored or write(place, text))
    isolation.apply([quiet("2-3")], (), thorough=False)
    assert [reads[IRQ.format(number)] for number in (5, 6, 7)] == [1, 1, 1]
    assert reads["sys/devices/virtual/workqueue/cpumask"] == 2
    isolation.apply([quiet("2-3")], (), thorough=True)
    (condition,) = isolation.report.conditions.values()
    assert condition == f"not as desired: /{ignored}: it shows 0-7 instead of 0-1,4-7"


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL], ids=["managed", "rejected"])
def test_an_admission_leaves_no_file_open_whatever_becomes_of_its_writes(
    host: Host, code: int
) -> None:
    isolation, _ = host.start()
    isolation.apply([], (), thorough=True)
    before = psutil.Process().num_fds()
    host.fault = reject(IRQ.format(5), code)
    isolation.apply([quiet("2-3")], (), thorough=False)
    assert host.shows(IRQ.format(6)) == NARROWED[IRQ.format(6)]
    host.fault = die_before(1)
    with pytest.raises(Died):
        isolation.apply([quiet("4-7")], (), thorough=False)
    assert psutil.Process().num_fds() == before


def test_an_original_that_cannot_be_restored_now_is_kept_until_it_is(host: Host) -> None:
    isolation, _ = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    host.fault = reject(IRQ.format(5), errno.ENOMEM)
    isolation.apply([], (), thorough=True)
    assert host.saved() == {IRQ.format(5): "0-7\n"}
    host.fault = lambda _: None
    isolation.apply([], (), thorough=True)
    assert host.all() == FILES


class FullDisk(OsFiles):
    def create(self, path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_nothing_is_written_whose_original_could_not_be_saved(host: Host) -> None:
    isolation, places = host.start()
    isolation._custody._file._file._files = FullDisk()
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert "No space left" in isolation.report.conditions["isolation"]
    assert (places.writes, host.all()) == ([], FILES)


def test_what_another_program_chose_meanwhile_is_what_is_given_back(host: Host) -> None:
    with_power(host)
    pods = [asking("2-3", **{INTERRUPTS: "off", POWER: "fast"})]
    isolation, _ = host.start()
    isolation.apply(pods, (), thorough=True)
    host.put(IRQ.format(5), "2-3,7\n")
    governor = f"{CPU}/cpufreq/scaling_governor"
    host.put(governor, "powersave\n")
    isolation.apply(pods, (), thorough=True)
    assert host.shows(IRQ.format(5)) == "7\n"
    assert [host.shows(name) for name in POWER_FILES] == ["n/a\n", "performance\n", "3000000\n"]
    isolation.apply([], (), thorough=True)
    assert (host.shows(IRQ.format(5)), host.shows(governor)) == ("2-3,7\n", "powersave\n")
    assert host.saved() == {}


def test_what_the_kernel_makes_of_a_text_is_not_another_programs_choice(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_power(host)
    lowest, write = f"{CPU}/cpufreq/scaling_min_freq", FaultyPlaces.write

    def rounded(places: FaultyPlaces, place: str, text: str) -> None:
        write(places, place, "2900000\n" if place == lowest and text == "3000000" else text)

    monkeypatch.setattr(FaultyPlaces, "write", rounded)
    isolation, _ = host.start()
    for _ in range(2):
        isolation.apply([powered("2", "fast")], (), thorough=True)
        (condition,) = isolation.report.conditions.values()
        assert condition.endswith("it shows 2900000 instead of 3000000")
    isolation.apply([], (), thorough=True)
    assert {name: host.shows(name) for name in POWER_FILES} == POWER_FILES


def test_an_interrupt_that_came_while_no_agent_ran_gets_the_original_default(host: Host) -> None:
    isolation, _ = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    host.put(IRQ.format(9), "0-1,4-7\n")
    host.put(IRQ.format(10), "1\n")
    isolation, _ = host.start()
    for pods in ([quiet("2-3")], []):
        isolation.apply(pods, (), thorough=True)
    assert (host.shows(IRQ.format(9)), host.shows(IRQ.format(10))) == ("0-7\n", "1\n")
    assert host.all() == FILES


def test_an_interrupt_whose_device_is_gone_is_forgotten(host: Host) -> None:
    isolation, _ = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    (host.root / IRQ.format(5)).unlink()
    isolation.apply([], (), thorough=True)
    assert host.saved() == {}


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM])
def test_an_interrupt_that_its_driver_manages_is_left_without_a_condition(
    host: Host, code: int
) -> None:
    isolation, places = host.start()
    host.fault = reject(IRQ.format(6), code)
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert isolation.report.conditions == {}
    assert IRQ.format(6) not in host.saved()
    places.writes.clear()
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert places.writes == []


def test_an_interrupt_that_is_freed_before_it_is_written_is_moved_when_it_comes_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation, _ = host.start()
    isolation.apply([], (), thorough=True)
    path, write = host.root / IRQ.format(5), os.write

    def freed(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink() != path:
            return write(fd, data)
        path.unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", freed)
        isolation.apply([quiet("2-3")], (), thorough=False)
    assert isolation.report.conditions == {}
    host.put(IRQ.format(5), FILES[IRQ.format(5)])
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert (host.all(), isolation.report.conditions) == (NARROWED, {})


def test_an_interrupt_that_is_still_delivered_there_is_a_condition_after_a_while(
    host: Host,
) -> None:
    isolation, _ = host.start()
    count = "sys/kernel/irq/5/per_cpu_count"
    host.put("proc/irq/5/effective_affinity_list", "2\n")
    host.put(count, "0,0,7,0,0,0,0,0\n")
    (host.root / "proc/irq/5/eth0-rx").mkdir()
    isolation.apply([quiet("2-3")], (), thorough=True)
    host.put(count, "0,0,8,0,0,0,0,0\n")
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert isolation.report.conditions == {}
    host.put(count, "0,0,10,0,0,0,0,0\n")
    isolation.apply([quiet("2-3")], (), thorough=True)
    condition = isolation.report.conditions["isolation interrupts"]
    assert condition == "still delivered to exclusive CPUs: 5 (eth0-rx) to 2"
    assert isolation.report.late == (LateInterrupt("5 (eth0-rx)", Mask.of(2)),)


def test_interrupts_of_a_pods_device_go_to_the_pod_if_it_asks(host: Host) -> None:
    (host.root / "sys/bus/pci/devices/0000:3b:00.0/msi_irqs/5").mkdir(parents=True)
    found = asking("2-3", **{INTERRUPTS: OWN_DEVICES})
    (container,) = found.containers
    with_device = replace(container, devices={"example.com/nic": ("0000:3b:00.0",)})
    isolation, _ = host.start()
    isolation.apply([replace(found, containers=(with_device,))], (), thorough=True)
    assert host.shows(IRQ.format(5)) == "2-3\n"
    isolation.apply([], (), thorough=True)
    assert host.all() == FILES


def test_idle_siblings_are_avoided_and_get_nothing_that_their_pod_asks_for() -> None:
    # Interrupts would wake them, and a power class may keep them from sleeping.
    found = asking("2-3", **{INTERRUPTS: OWN_DEVICES})
    (container,) = found.containers
    with_device = replace(container, devices={"example.com/nic": ("0000:3b:00.0",)})
    found = replace(found, containers=(with_device,), idle=Mask.parse("6-7"))
    config = replace(ALWAYS, power_classes={"fast": FAST}, power="fast", host_slices=True)
    asked = isolated_cpus(config, [found], Mask.parse("0-7"))
    assert set(asked.avoided.values()) == {Mask.parse("2-3,6-7")}
    assert asked.devices == {"0000:3b:00.0": Mask.parse("2-3")}
    assert set(asked.classes) == {2, 3}


def test_threads_of_the_kernel_that_can_be_moved_leave(host: Host) -> None:
    host.config = IsolationConfig(kernel_threads=True)
    for pid, flags in ((30, 0x208040), (31, 0x4208040)):
        fields = f"S 2 0 0 0 -1 {flags} {'0 ' * 12}77"
        host.put(f"proc/{pid}/stat", f"{pid} (kswapd) 0) {fields}\n")
    isolation, places = host.start()
    places.affinities |= {30: {2, 3, 4}, 31: {2}}
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert places.affinities == {30: {4}, 31: {2}}
    isolation.apply([], (), thorough=True)
    assert places.affinities == {30: {2, 3, 4}, 31: {2}}


def test_a_thread_given_back_while_a_cpu_is_offline_has_all_that_the_kernel_takes(
    host: Host,
) -> None:
    host.config = IsolationConfig(kernel_threads=True)
    host.put("proc/30/stat", f"30 (kauditd) S 2 0 0 0 -1 0 {'0 ' * 12}77\n")
    isolation, places = host.start()
    places.affinities[30] = set(range(8))
    isolation.apply([quiet("2-3")], (), thorough=True)
    host.put("sys/devices/system/cpu/online", "0-6\n")
    given: list[Mask] = []

    def move(thread: int, cpus: Mask) -> None:  # as some kernels do
        given.append(cpus)
        places.affinities[thread] = set(cpus - Mask.of(7))

    places.affinity = (places.affinities.__getitem__, move)
    isolation.apply([], (), thorough=True)
    assert (isolation.report.conditions, given) == ({}, [Mask.parse("0-7")])
    assert host.saved() == {}


def test_a_thread_that_is_saved_while_a_cpu_is_offline_gets_that_back(host: Host) -> None:
    host.put("sys/devices/system/cpu/online", "0-6\n")
    host.put("proc/30/stat", f"30 (kauditd) S 2 0 0 0 -1 0 {'0 ' * 12}77\n")
    host.put("proc/30/status", "Name:\tkauditd\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n")
    assert HostPlaces(host.root).read("tasks/30/77") == "0-7"


_FREQUENCIES: Final = f"{CPU}/cpufreq/scaling_{{}}_freq"
_PREFERENCE: Final = f"{CPU}/cpufreq/energy_performance_preference"
_GOVERNOR: Final = f"{CPU}/cpufreq/scaling_governor"
_UNCORE: Final = "sys/devices/system/cpu/intel_uncore_frequency/package_01_die_00/min_freq_khz"


@pytest.mark.parametrize(
    ("found", "asked"),
    [((800000, 2000000), (3000000, 3500000)), ((2000000, 3000000), (800000, 1500000))],
    ids=["higher", "lower"],
)
def test_frequencies_are_set_in_an_order_that_the_kernel_takes(
    host: Host, monkeypatch: pytest.MonkeyPatch, found: tuple[int, int], asked: tuple[int, int]
) -> None:
    # Documentation/admin-guide/pm/cpufreq.rst: neither limit may pass the other; intel_pstate.rst:
    # the governor performance has no other energy preference.
    files = {
        _FREQUENCIES.format("min"): f"{found[0]}\n",
        _FREQUENCIES.format("max"): f"{found[1]}\n",
        _GOVERNOR: "powersave\n",
        _PREFERENCE: "balance_power\n",
        _UNCORE: "800000\n",
    }
    host.put(f"{CPU}/topology/physical_package_id", "1\n")
    write = FaultyPlaces.write

    def as_the_kernel(places: FaultyPlaces, place: str, text: str) -> None:
        lowest = text if place.endswith("min_freq") else host.shows(_FREQUENCIES.format("min"))
        highest = text if place.endswith("max_freq") else host.shows(_FREQUENCIES.format("max"))
        if int(lowest) > int(highest):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if place == _PREFERENCE and host.shows(_GOVERNOR) == "performance\n" != f"{text.strip()}\n":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        write(places, place, text)

    monkeypatch.setattr(FaultyPlaces, "write", as_the_kernel)
    fast = PowerClass(
        governor="performance",
        energy_preference="performance",
        min_frequency=str(asked[0]),
        max_frequency=str(asked[1]),
        uncore_min_frequency="2000000",
    )
    with_power(host, fast, files)
    isolation, _ = host.start()
    isolation.apply([powered("2", "fast")], (), thorough=True)
    assert isolation.report.conditions == {}
    shown = [host.shows(name).strip() for name in files]
    assert shown == [*map(str, asked), "performance", "performance", "2000000"]
    isolation.apply([], (), thorough=True)
    assert isolation.report.conditions == {}
    assert {name: host.shows(name) for name in files} == files


def test_a_governor_that_resets_the_energy_preference_is_set_and_given_back_before_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {_GOVERNOR: "powersave\n", _PREFERENCE: "balance_power\n"}
    write = FaultyPlaces.write

    def reset(places: FaultyPlaces, place: str, text: str) -> None:
        write(places, place, text)
        if place == _GOVERNOR:
            host.put(_PREFERENCE, "default\n")

    monkeypatch.setattr(FaultyPlaces, "write", reset)
    fast = PowerClass(governor="schedutil", energy_preference="performance")
    with_power(host, fast, files)
    isolation, _ = host.start()
    isolation.apply([powered("2", "fast")], (), thorough=True)
    assert [host.shows(name) for name in files] == ["schedutil\n", "performance\n"]
    isolation.apply([], (), thorough=True)
    assert {name: host.shows(name) for name in files} == files


def test_a_setting_that_depends_on_another_is_tried_again_after_it(host: Host) -> None:
    with_power(host)
    isolation, _ = host.start()
    for pods in ([powered("2", "fast")], []):
        host.fault = reject_once(f"{CPU}/cpufreq/scaling_governor")
        isolation.apply(pods, (), thorough=False)
        assert isolation.report.conditions == {}
    assert {name: host.shows(name) for name in POWER_FILES} == POWER_FILES


@pytest.mark.parametrize(
    ("config", "found", "said"),
    [
        (IsolationConfig(), quiet("2"), "agent.isolation.interrupts is never"),
        (IsolationConfig(), asking("2", smt="idle-siblings"), "agent.isolation.smt is never"),
        (IsolationConfig(), asking("2", memory="hbm"), "agent.isolation.memory is never"),
        (IsolationConfig(), powered("2", "fast"), "agent.isolation.powerClasses has no fast"),
        (
            IsolationConfig(power_classes={"fast": FAST}, power="fast"),
            asking("2"),
            "no cpufreq driver",
        ),
    ],
)
def test_what_a_pod_asks_for_and_does_not_get_is_a_condition(
    host: Host, config: IsolationConfig, found: object, said: str
) -> None:
    host.config = config
    isolation, places = host.start()
    isolation.apply([found], (), thorough=False)  # type: ignore[list-item]  # a row
    assert any(said in each for each in isolation.report.conditions.values())
    assert places.writes == []


def test_only_pods_that_ask_have_an_item_that_is_asked_for(host: Host) -> None:
    host.config = replace(ALWAYS, interrupts=IsolationMode.ASKED)
    isolation, _ = host.start()
    isolation.apply([asking("3", "b")], (), thorough=True)
    assert host.all() == FILES
    isolation.apply([asking("3", "b"), quiet("2")], (), thorough=True)
    assert host.shows(IRQ.format(5)) == "0-1,3-7\n"


def test_originals_that_cannot_be_read_keep_the_agent_from_writing(host: Host) -> None:
    isolation, _ = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    (host.state / ORIGINALS_NAME).write_text("{")
    isolation, places = host.start()
    isolation.apply([], (), thorough=True)
    assert "nothing host-wide is written" in isolation.report.conditions["isolation"]
    assert places.writes == []


def test_what_was_before_a_reboot_is_forgotten(host: Host) -> None:
    isolation, _ = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    host.put(IRQ.format(5), "0-7\n")
    isolation, places = host.start(boot="another")
    isolation.apply([], (), thorough=True)
    assert places.writes == []
