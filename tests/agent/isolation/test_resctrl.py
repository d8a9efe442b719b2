"""Classes of caches: control groups with the threads of their pods, verified and taken back."""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, ResctrlClass, ResctrlConfig
from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals
from agent.isolation.resctrl import read_resctrl
from agent.isolation.shares import CacheControl, Resctrl, beside, shares
from agent.pods.model import RESCTRL
from tests.agent.isolation.hosts import BOOT, asking, die_before
from tests.fakes.kernel import Died
from tests.fakes.resctrl import FakeResctrl, ResctrlPlaces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.managers.allocation import PodAllocation

FAST: Final = ResctrlClass(l3="50%", exclusive=True)
SLOW: Final = ResctrlClass(l3="20%", mb="25%")
ROOT: Final = "    L3:0=fff;1=fff\n    MB:0= 100;1= 100\n"


class Places(ResctrlPlaces):
    """Places that ask before each write; the machine has the threads of cgroups."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.fake, machine.root)
        self._machine = machine

    def threads_in(self, cgroup: str) -> Iterator[int]:
        return iter(sorted(self._machine.tasks[cgroup]))

    def write(self, place: str, text: str) -> None:
        self._machine.fault(place)
        self._machine.writes += 1
        try:
            super().write(place, text)
        except OSError:
            self._machine.rejected.append(place)
            raise


class Machine:
    """A host with the filesystem, and agents that come and go on it."""

    def __init__(self, directory: Path, config: ResctrlConfig) -> None:
        self.root, self.state = directory / "root", directory / "state"
        self.state.mkdir(parents=True)
        online = self.root / "sys/devices/system/cpu/online"
        online.parent.mkdir(parents=True)
        online.write_text("0-7\n")
        self.tasks: dict[str, set[int]] = defaultdict(set)
        self.fake = FakeResctrl(self.root, {1, 2, 30, 31, 32, 40})
        self.fault = die_before(10**6)
        self.writes = 0
        self.rejected: list[str] = []
        self.config = config
        self.start()

    def start(self) -> None:
        originals = Originals(self.state, BOOT)
        config = IsolationConfig(resctrl=self.config)
        self.isolation = HostIsolation(config, Places(self), originals, units=False)

    def apply(
        self, *pods: PodAllocation, started: tuple[str, ...] = (), thorough: bool = True
    ) -> None:
        self.isolation.apply(
            pods, (), thorough=thorough, started=started, cgroups_of=lambda pod: (pod.uid,)
        )

    def shows(self, name: str) -> str:
        return (self.fake.path / name).read_text()

    @property
    def conditions(self) -> dict[str, str]:
        return dict(self.isolation.report.conditions)

    def is_as_found(self) -> bool:
        groups = {path.name for path in self.fake.path.iterdir() if path.is_dir()}
        return groups == {"info", "mon_data", "mon_groups"} and self.shows("schemata") == ROOT


def in_class(name: str, uid: str = "a", cpus: str = "2-3") -> PodAllocation:
    return asking(cpus, uid, **{RESCTRL: name})


def configured(**classes: ResctrlClass) -> ResctrlConfig:
    return ResctrlConfig(classes=MappingProxyType(classes))


COUNTED: Final = replace(configured(fast=FAST, slow=SLOW), monitor_pods=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, replace(configured(fast=FAST, slow=SLOW), default_class="fast"))
    machine.tasks["aaaaaaaa"] = {30, 31}
    machine.tasks["bbbbbbbb"] = {40}
    return machine


def test_a_pod_gets_its_class_to_itself_and_with_its_end_all_is_as_it_was(machine: Machine) -> None:
    machine.apply(asking("2-3"), in_class("slow", "b", "4"))
    assert machine.conditions == {}
    fast, slow = (machine.shows(f"numawarden-{name}/schemata").split() for name in ("fast", "slow"))
    assert " ".join(fast) == "L3:0=03f;1=03f MB:0= 100;1= 100"
    assert " ".join(slow) == "L3:0=1c0;1=1c0 MB:0= 30;1= 30"
    assert machine.shows("numawarden-fast/mode") == "exclusive\n"
    assert machine.shows("numawarden-fast/tasks").split() == ["30", "31"]

    assert machine.shows("schemata").split()[0] == "L3:0=fc0;1=fc0"
    assert machine.isolation.report.changed["resctrl"] == 3
    machine.writes = 0
    machine.apply(asking("2-3"), in_class("slow", "b", "4"))
    assert machine.writes == 0
    machine.apply(in_class("slow", "b", "4"), thorough=False)
    assert machine.shows("schemata") == ROOT
    machine.apply(thorough=False)
    assert machine.is_as_found()
    assert machine.fake.group_of(30) == ("", "")
    machine.apply(asking("2-3"))
    machine.apply()
    assert machine.is_as_found()
    assert machine.rejected == []


def test_threads_follow_their_pod_in_and_out(machine: Machine) -> None:
    machine.apply(asking("2-3"))
    machine.tasks["aaaaaaaa"].add(32)
    machine.apply(asking("2-3"), thorough=False, started=("aaaaaaaa",))
    assert machine.fake.group_of(32)[0] == "numawarden-fast"
    machine.tasks["aaaaaaaa"] -= {30, 31}
    machine.apply(asking("2-3"))
    assert machine.shows("numawarden-fast/tasks").split() == ["32"]
    machine.apply(in_class("slow"))
    assert machine.fake.group_of(32)[0] == "numawarden-slow"


def test_threads_and_settings_of_other_programs_stay(machine: Machine) -> None:
    machine.fake.mkdir("theirs")
    machine.fake.write("theirs/schemata", "L3:0=f00;1=f00\n")
    machine.fake.write("theirs/tasks", "30")
    machine.apply(asking("2-3"))
    assert machine.fake.group_of(30)[0] == "theirs"
    assert "30 in theirs" in machine.conditions["isolation resctrl fast aaaaaaaa"]
    machine.fake.write("schemata", "MB:0=50\nL3:0=f00\n")
    machine.apply(asking("2-3"))
    assert machine.shows("schemata").split()[0] == "L3:0=f00;1=fc0"
    machine.fake.rmdir("theirs")
    machine.apply()
    assert machine.shows("schemata") == "    L3:0=f00;1=fc0\n    MB:0=  50;1= 100\n"


def test_a_group_of_another_program_that_goes_during_a_pass_costs_no_pod_its_class(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.fake.mkdir("theirs")
    machine.fake.write("theirs/schemata", "L3:0=f00;1=f00\n")
    look_for = Places.look_for

    def looked_for(places: Places, pattern: str) -> list[str]:
        found = look_for(places, pattern)
        if "sys/fs/resctrl/theirs/tasks" in found:
            machine.fake.rmdir("theirs")
        return list(found)

    monkeypatch.setattr(Places, "look_for", looked_for)
    machine.apply(asking("2-3"))
    assert machine.conditions == {}
    assert machine.fake.group_of(30)[0] == "numawarden-fast"


def test_a_group_of_the_name_that_the_agent_did_not_make_is_neither_used_nor_removed(
    machine: Machine,
) -> None:
    machine.fake.mkdir("numawarden-fast")
    machine.apply(asking("2-3"))
    assert "is not the agent's; remove it" in machine.conditions["isolation resctrl fast"]
    assert machine.fake.group_of(30) == ("", "")
    machine.apply()
    assert (machine.fake.path / "numawarden-fast").is_dir()


@pytest.mark.parametrize("name", ["numawarden-fast/schemata", "numawarden-fast/mode", "schemata"])
def test_what_is_written_and_not_shown_is_a_condition(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = FakeResctrl.write

    def without(fake: FakeResctrl, file: str, text: str) -> None:
        if file != name:
            write(fake, file, text)

    monkeypatch.setattr(FakeResctrl, "write", without)
    machine.apply(asking("2-3"))
    assert any(f"/{name} does not show" in each for each in machine.conditions.values())
    assert machine.fake.group_of(30) == ("", "")


def test_exclusive_classes_may_exchange_their_ways(tmp_path: Path) -> None:
    one, other = (ResctrlClass(l3=ways, exclusive=True) for ways in ("0x1f", "0x3e0"))
    machine = Machine(tmp_path, configured(a=one, b=other))
    pods = in_class("a"), in_class("b", "b", "4")
    machine.apply(*pods)
    machine.config = configured(a=other, b=one)
    machine.start()
    machine.apply(*pods)
    assert machine.conditions == {}
    ways = [machine.shows(f"numawarden-{name}/schemata").split()[0] for name in "ab"]
    assert ways == ["L3:0=3e0;1=3e0", "L3:0=01f;1=01f"]


def test_threads_that_end_or_begin_while_others_are_moved_are_no_matter(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.tasks["aaaaaaaa"].add(99)  # which has ended
    write = FakeResctrl.write

    def forking(fake: FakeResctrl, name: str, text: str) -> None:
        if (name, text) == ("numawarden-fast/tasks", "30"):
            machine.tasks["aaaaaaaa"].add(32)
        write(fake, name, text)

    monkeypatch.setattr(FakeResctrl, "write", forking)
    machine.apply(asking("2-3"))
    assert machine.conditions == {}
    assert machine.shows("numawarden-fast/tasks").split() == ["30", "31", "32"]


@pytest.mark.parametrize("completes", [True, False], ids=["completed", "undone"])
def test_after_a_death_before_any_write_the_next_start_completes_or_undoes(
    tmp_path: Path, *, completes: bool
) -> None:
    number, died = 0, True
    while died:
        number += 1
        machine = Machine(tmp_path / str(number), COUNTED)
        machine.tasks["aaaaaaaa"] = {30, 31}
        pods = (in_class("fast"), in_class("slow", "b", "4"))
        machine.fault = die_before(number)
        try:
            machine.apply(*pods)
            machine.apply()
            died = False
        except Died:
            pass
        machine.fault = die_before(10**6)
        machine.start()
        if completes:
            machine.apply(*pods)
            assert machine.shows("numawarden-fast/tasks").split() == ["30", "31"]
        assert machine.isolation.restore()[0] == {}
        assert machine.is_as_found()
    assert number > 13  # so many writes can be the last


def test_what_the_kernel_rejects_is_reported_in_its_words(machine: Machine) -> None:
    machine.fake.mkdir("theirs")
    machine.apply(asking("2-3"))
    (message,) = machine.conditions.values()
    assert "the kernel says: Schemata overlaps" in message
    assert machine.fake.group_of(30) == ("", "")


@pytest.mark.parametrize(
    ("missing", "said"),
    [("schemata", "mount -t resctrl resctrl /sys/fs/resctrl"), (".", "no resctrl (Intel RDT")],
)
def test_a_host_without_the_filesystem_is_a_condition_with_what_to_do(
    machine: Machine, missing: str, said: str
) -> None:
    path = machine.fake.path / missing
    path.rename(path.parent / "gone") if missing == "schemata" else path.resolve().rename(
        machine.root / "gone"
    )
    machine.apply(asking("2-3"))
    assert said in machine.conditions["isolation resctrl"]
    machine.apply()
    assert machine.conditions == {}


def test_counts_are_those_of_the_class_and_its_pods_and_unassigned_is_not_zero(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, COUNTED)
    machine.tasks["aaaaaaaa"] = {30}
    machine.apply(in_class("fast"))
    group = machine.fake.path / "numawarden-fast/mon_groups/numawarden-aaaaaaaa"
    assert (group / "tasks").read_text() == "30\n"
    machine.fake.info("L3_MON/mbm_assign_mode", "[mbm_event]\ndefault")
    (group / "mbm_L3_assignments").write_text("mbm_total_bytes:0=e;1=_\nmbm_local_bytes:0=e;1=e\n")
    (group / "mon_data/mon_L3_00/mbm_local_bytes").write_text("Unavailable\n")
    machine.apply(in_class("fast"))
    counts = {(each.uid, each.cache, each.event): each for each in machine.isolation.report.counts}
    assert len(counts) == 12
    assert counts["", 0, "mbm_total_bytes"].value == 4096
    # A sum of what is counted and what is not.
    assert counts["", 1, "mbm_total_bytes"].reason == "unassigned"
    assert counts["aaaaaaaa", 1, "mbm_total_bytes"].value is None
    assert counts["aaaaaaaa", 1, "mbm_total_bytes"].reason == "unassigned"
    assert counts["aaaaaaaa", 0, "mbm_local_bytes"].reason == "unavailable"
    machine.fake.info("L3_MON/mbm_assign_mode", "mbm_event\n[default]")
    machine.apply(in_class("fast"))
    assert {each.reason for each in machine.isolation.report.counts} == {"", "unavailable"}
    machine.apply(in_class("fast", "b"))
    assert not group.exists()
    machine.apply()
    assert machine.isolation.report.counts == ()


def test_classes_that_the_processor_cannot_divide_are_not_used(tmp_path: Path) -> None:
    machine = Machine(tmp_path, configured(fast=ResctrlClass(l3="0xf0f")))
    machine.apply(in_class("fast"))
    assert "no class is used" in machine.conditions["isolation resctrl"]
    assert machine.is_as_found()


def test_without_a_free_counter_a_pod_is_in_its_class_and_a_condition_says_so(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, COUNTED)
    machine.fake.rmids = 2
    machine.tasks["aaaaaaaa"] = {30}
    machine.apply(in_class("fast"))
    assert machine.fake.group_of(30) == ("numawarden-fast", "")
    assert "Out of RMIDs" in machine.conditions["isolation resctrl counts aaaaaaaa"]


@pytest.mark.parametrize(
    ("classes", "path", "said"),
    [
        ({"a": ResctrlClass(), "b": SLOW, "c": SLOW, "d": SLOW}, "", "control groups for 3"),
        ({"a": ResctrlClass(exclusive=True)}, ".a.L3", "needs a part of each cache"),
        ({"a": ResctrlClass(l3="0xf0f")}, ".a.L3", "adjacent"),
        ({"a": ResctrlClass(l3="0xf000")}, ".a.L3", "the cache has 0xfff"),
        ({"a": ResctrlClass(l3="0xe00", exclusive=True)}, ".a.L3", "devices use 0xc00"),
        ({"a": ResctrlClass(l3="2=50%")}, ".a.L3", "there is no cache 2, there are 0, 1"),
        ({"a": ResctrlClass(l3="0x3f"), "b": FAST}, ".a.L3", "exclusive class has 0x3f"),
        ({"a": ResctrlClass(l3="60%"), "b": FAST}, ".a.L3", "6 ways are left beside"),
        ({"a": ResctrlClass(l3="90%", exclusive=True)}, ".a.L3", "not free"),
        ({"a": ResctrlClass(mb="5%")}, ".a.MB", "10 to 100 percent"),
    ],
)
def test_what_the_processor_cannot_divide_is_named(
    machine: Machine, classes: dict[str, ResctrlClass], path: str, said: str
) -> None:
    found = shares(configured(**classes), read_resctrl(Places(machine)))
    assert found.mistakes[0].path == f"agent.isolation.resctrl.classes{path}"
    assert said in found.mistakes[0].message


def test_a_processor_whose_bandwidth_is_a_number_takes_numbers(machine: Machine) -> None:
    machine.fake.info("MB/delay_linear", "0")
    host = read_resctrl(Places(machine))
    (mistake,) = shares(configured(a=ResctrlClass(mb="0=50%")), host).mistakes
    assert "1/8 GB/s" in mistake.message
    found = shares(configured(a=ResctrlClass(mb="0=2048")), host)
    assert found.schemata["a"]["MB"] == {0: 2050}


_PERCENT: Final = st.integers(1, 60).map("{}%".format)
_CLASS: Final = st.builds(
    ResctrlClass,
    l3=st.one_of(st.just(""), _PERCENT, st.integers(1, 0xFFFFF).map(hex)),
    exclusive=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), _CLASS),
    st.integers(2, 20),
    st.integers(1, 3),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
)
def test_no_class_and_nothing_else_has_ways_of_an_exclusive_one(
    classes: dict[str, ResctrlClass],
    size: int,
    least: int,
    at: int,
    sparse: bool,  # noqa: FBT001
) -> None:
    whole = (1 << size) - 1
    devices = (0, 1, 1 << (size - 1))[at]
    control = CacheControl(whole, least, devices, sparse)
    host = Resctrl(16, {"L3": control}, None, {"L3": (0,)})
    config = configured(**classes)
    found = shares(config, host)
    if found.mistakes:
        return
    ways = {name: lines["L3"][0] for name, lines in found.schemata.items()}
    exclusive = [found.schemata[name] for name in classes if classes[name].exclusive]
    rest = beside({"L3": {0: whole}}, host, exclusive).get("L3", {0: whole})[0]
    for name, own in {**ways, "": rest}.items():
        assert control.fault(own) == ""
        for other, each in classes.items():
            if each.exclusive and other != name:
                assert own & ways[other] == 0
        if name and classes[name].exclusive:
            assert own & devices == 0
