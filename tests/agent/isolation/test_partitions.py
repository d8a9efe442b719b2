"""Pods as partitions of the kernel: made, reported when invalid, moved, ended and given back."""

from __future__ import annotations

import errno
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PartitionMode
from agent.isolation.originals import Originals
from agent.managers.bindings import Binding, Bindings
from agent.pods.model import PARTITION, QosClass
from agent.reconcile.desired import DesiredCgroup, Role, with_partitions
from agent.reconcile.diff import Cause
from agent.reconcile.exclusivity import intrusions
from cgroupfs.emulated.kernel import FILES
from cgroupfs.emulated.rules import LINUX_7_0
from cgroupfs.names import Driver
from cgroupfs.plan import Setting
from sysfs.mask import EMPTY, Mask
from tests.agent.isolation.hosts import BOOT
from tests.agent.isolation.test_slices import OWN, Machine
from tests.agent.reconcile.pods import OTHER, exclusive, on_host, path_of, pod, pod_shared, target

if TYPE_CHECKING:
    from pathlib import Path

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.target import Desired

ROOT: Final = IsolationConfig(partitions=PartitionMode.ROOT)
ASKED: Final = IsolationConfig(partitions=PartitionMode.ASKED)
BESIDE: Final = pod(exclusive("main", "8-15"), uid=OTHER)


@pytest.fixture
def plain(tmp_path: Path) -> Machine:
    """Return a machine of the cgroupfs driver."""
    return Machine(tmp_path, Driver.CGROUPFS, ROOT)


@pytest.fixture(params=list(Driver))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param, ROOT)


def asking(word: str, of: PodAllocation = OWN) -> PodAllocation:
    return replace(of, isolation=MappingProxyType({PARTITION: word}))


def partition(machine: Machine, of: PodAllocation = OWN) -> tuple[str, str]:
    path = path_of(of, machine.driver)
    files = ("cpuset.cpus.partition", "cpuset.cpus.exclusive.effective")
    return tuple(machine.kernel.read(path, file).strip() for file in files)  # type: ignore[return-value]


def all_pods(machine: Machine) -> str:
    return path_of(OWN, machine.driver).split("/")[0]


def conditions(machine: Machine) -> str:
    return " ".join(machine.isolation.report.conditions.values())


def test_the_kernel_takes_a_pods_cpus_from_all_others_and_gives_them_back(machine: Machine) -> None:
    assert machine.repair(target(OWN))
    assert partition(machine) == ("root", "2-3")
    # Nothing was asked of these: the kernel alone took the CPUs.
    assert [machine.uses(each) for each in ("", "system.slice", "init.scope")] == ["0-1,4-15"] * 3
    assert machine.repair(target(OWN, BESIDE))
    assert (partition(machine), partition(machine, BESIDE)) == (("root", "2-3"), ("root", "8-15"))
    assert machine.uses("") == "0-1,4-7"
    machine.enforcer.releaser.pod(BESIDE)
    assert machine.repair(target(OWN))
    assert machine.kernel.read(all_pods(machine), "cpuset.cpus.exclusive").strip() == "2-3"
    machine.kernel.spawn(path_of(OWN, machine.driver), 77)  # so that the cgroup stays
    assert machine.repair(target())
    assert (partition(machine), machine.uses("")) == (("member", ""), "0-15")
    assert Originals(machine.state, BOOT).load() == {}


@pytest.mark.parametrize("cpus", ["2-5", "3", "4-5"])
def test_a_pod_that_gets_other_cpus_stays_a_partition(machine: Machine, cpus: str) -> None:
    assert machine.repair(target(OWN))
    assert machine.repair(target(pod(exclusive("main", cpus))))
    assert partition(machine) == ("root", cpus)
    assert machine.uses("") == str(Mask.parse("0-15") - Mask.parse(cpus))


def test_two_pods_that_exchange_their_cpus_stay_partitions(machine: Machine) -> None:
    assert machine.repair(target(OWN, pod(exclusive("main", "8-9"), uid=OTHER)))
    swapped = pod(exclusive("main", "8-9")), pod(exclusive("main", "2-3"), uid=OTHER)
    machine.repair(target(*swapped))
    assert machine.repair(target(*swapped))
    assert [partition(machine, each) for each in swapped] == [("root", "8-9"), ("root", "2-3")]


@pytest.mark.parametrize("word", ["root", "isolated"])
def test_a_cpu_that_goes_offline_and_comes_back_leaves_the_partition_valid(
    machine: Machine, word: str
) -> None:
    desired = target(asking(word))
    machine.repair(desired)
    machine.kernel.set_online(Mask.parse("0-2,4-15"))
    report = machine.enforcer.repair(desired)
    assert [each.cause for each in report.remaining] == [Cause.CPU_OFFLINE]
    assert report.remaining[0].detail.startswith("3 of 2-3 is offline")
    machine.kernel.set_online(Mask.parse("0-15"))
    assert machine.repair(desired)
    assert partition(machine) == (word, "2-3")


@pytest.mark.parametrize(
    ("config", "word", "shown"),
    [
        (ROOT, "isolated", "isolated"),
        (ROOT, "off", "member"),
        (ASKED, "root", "root"),
        (ASKED, None, "member"),
        (IsolationConfig(), "root", "member"),
    ],
)
def test_a_pod_has_what_it_asks_for_as_far_as_the_configuration_lets_it(
    tmp_path: Path, config: IsolationConfig, word: str | None, shown: str
) -> None:
    machine = Machine(tmp_path, Driver.CGROUPFS, config)
    own = OWN if word is None else asking(word)
    assert machine.repair(target(own))
    assert partition(machine)[0] == shown
    assert ("partitions is never" in conditions(machine)) == (config == IsolationConfig())
    assert machine.enforcer.verify(target(own)).unpartitioned == ()


def bound_elsewhere() -> Desired:
    bindings = Bindings((Binding(OWN.uid, "main", "system.slice/web.service"),))
    return replace(target(OWN), bindings=bindings)


@pytest.mark.parametrize(
    ("desired", "why"),
    [
        (bound_elsewhere(), "is bound to a cgroup elsewhere"),
        (
            target(pod(exclusive("main", "2-3"), qos=QosClass.BURSTABLE)),
            "its cgroup is among those of the class Burstable",
        ),
        (
            target(replace(pod(exclusive("main", "2"), on_host("log")), idle=Mask.parse("3"))),
            "without the idle siblings",
        ),
    ],
)
def test_a_pod_that_is_more_than_its_own_cpus_is_none_and_that_is_a_condition(
    plain: Machine, desired: Desired, why: str
) -> None:
    plain.repair(desired)
    (of,) = desired.ledger.allocations.values()
    assert partition(plain, of)[0] == "member"
    assert why in conditions(plain)


def test_a_kernel_without_remote_partitions_is_a_condition_and_the_sets_are_written(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FILES, "cpuset.cpus.exclusive")
    assert plain.repair(target(OWN))
    assert plain.set(path_of(OWN)) == "2-3"
    assert "the kernel has no remote partitions" in conditions(plain)
    assert "partitions" not in plain.isolation.report.changed


def test_what_cannot_be_a_partition_is_a_condition_only_of_pods_that_ask(plain: Machine) -> None:
    shares = pod(exclusive("main", "2-3"), on_host("log"))
    assert plain.repair(target(shares, pod(on_host("web"), uid=OTHER, qos=QosClass.BURSTABLE)))
    assert conditions(plain) == ""
    plain.isolation.partitions.note_invalid(None, {(OTHER, "a"): "first", (OWN.uid, "b"): "second"})
    plain.isolation.partitions.note_invalid({OTHER}, {})
    plain.isolation.apply((), (), thorough=True)
    assert conditions(plain) == "second"


def test_below_another_cgroup_root_no_pod_is_a_partition(plain: Machine) -> None:
    assert plain.isolation.partitions.desired({OWN.uid: OWN}, (), "box/kubepods") is None
    plain.isolation.apply((), (), thorough=True)
    assert "cgroupRoot is /box, which is not the agent's" in conditions(plain)


def invalid(machine: Machine, *others: PodAllocation) -> str:
    """Make the partition of `OWN` invalid, beside other pods; return its cgroup."""
    assert machine.repair(target(OWN, *others))
    beside = f"{all_pods(machine)}/other"
    machine.kernel.mkdir(beside)
    machine.kernel.write(beside, "cpuset.cpus", "3-4")
    assert partition(machine)[0] == "root invalid"
    return path_of(OWN, machine.driver)


def test_an_invalid_partition_is_reported_in_the_kernels_words_until_it_is_repaired(
    machine: Machine,
) -> None:
    beside, own = f"{all_pods(machine)}/other", invalid(machine)
    report = machine.enforcer.repair(target(OWN))
    assert report.ok
    assert [each.cause for each in report.unpartitioned] == [Cause.INVALID_PARTITION]
    assert "root invalid (Cpu list in cpuset.cpus not exclusive)" in report.notes[0]
    assert machine.set(own) == "2-3"
    machine.kernel.write(beside, "cpuset.cpus", "4")
    assert machine.repair(target(OWN))
    assert partition(machine) == ("root", "2-3")
    machine.kernel.write(beside, "cpuset.cpus", "3-4")
    machine.enforcer.releaser.pod(OWN)  # the partition ends before its cgroup is removed
    assert not machine.kernel.exists(own)
    assert machine.uses("") == "0-15"  # Linux 6.12 would not give them back afterwards


def test_a_partition_of_cpus_that_the_command_line_isolates_is_told_what_makes_it_valid(
    plain: Machine,
) -> None:
    plain.kernel.rules, plain.kernel.root.isolcpus = LINUX_7_0, Mask.parse("2")
    report = plain.enforcer.repair(target(OWN))
    (left,) = report.unpartitioned
    assert left.detail == (
        f"/{path_of(OWN, plain.driver)} is not a partition: the kernel shows 'root invalid "
        "(partition config conflicts with housekeeping setup)'; isolcpus= of the kernel's command "
        "line has one of its CPUs: remove that, or from Linux 7.0 on make it an isolated partition"
    )
    plain.config = IsolationConfig(partitions=PartitionMode.ISOLATED)
    plain.start()
    assert plain.repair(target(OWN))
    assert partition(plain) == ("isolated", "2-3")


def test_an_invalid_partition_is_not_exclusive_as_far_as_others_have_its_cpus(
    machine: Machine,
) -> None:
    """A cgroup that lists CPUs of a partition ends it; the kernel says what of them it then has."""
    desired = target(OWN, BESIDE)
    machine.repair(desired)
    beside = path_of(BESIDE, machine.driver)
    for written in ("3,8-15", "8-15"):
        machine.kernel.write(beside, "cpuset.cpus", written)
        machine.kernel.write(beside, "cpuset.cpus.partition", "member")
        report = machine.enforcer.verify(desired)
        used = Mask.parse(machine.uses(beside)) & OWN.exclusive_cpus
        found = intrusions(desired.ledger.allocations, report.remaining).get(OWN.uid, ())
        assert [(each.cgroup, each.cpus) for each in found] == ([(beside, used)] if used else [])
        assert partition(machine)[0] == "root invalid"
    assert machine.repair(desired)
    assert partition(machine) == ("root", "2-3")


def test_an_invalid_partition_of_others_over_all_pods_is_named_until_it_is_ended(
    plain: Machine,
) -> None:
    assert plain.repair(target(OWN))
    plain.kernel.write(all_pods(plain), "cpuset.cpus.partition", "root")
    assert plain.repair(target(OWN))
    assert conditions(plain) == (
        "another program's partition /kubepods is 'root invalid (Have remote partition "
        "underneath)'; should the kernel make it valid later, pods have only its CPUs: write "
        "member into cpuset.cpus.partition of /kubepods"
    )
    plain.kernel.write(all_pods(plain), "cpuset.cpus.partition", "member")
    assert plain.repair(target(OWN))
    assert (conditions(plain), partition(plain)) == ("", ("root", "2-3"))


def test_the_cpus_of_a_partition_that_others_removed_while_invalid_are_a_condition(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux 6.12 then has freed memory in its list of partitions."""
    plain.kernel.rmdir(invalid(plain, BESIDE))
    for _ in range(2):
        assert plain.repair(target(BESIDE))
        assert "CPUs 2-3 are in no cpuset" in conditions(plain)
        assert "reboot the host" in conditions(plain)
        plain.start()
    # What is shown once is not: another program may make or end a partition.
    read_many, texts = plain.kernel.read_many, iter(["0-1,4-5\n"])

    def once(path: str, files: tuple[str, ...]) -> tuple[str | None, ...]:
        shown = read_many(path, files)
        if path == "" and files[-1] == "cpuset.cpus.effective":
            return (*shown[:-1], next(texts, shown[-1]))
        return shown

    monkeypatch.setattr(plain.kernel, "read_many", once)
    assert str(plain.places.lost()) == "2-3"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_cgroup_may_end_while_partitions_are_looked_for(
    plain: Machine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plain.repair(target(OWN))
    children, read_many = plain.kernel.children, plain.kernel.read_many

    def reading(path: str, files: tuple[str, ...]) -> tuple[str | None, ...]:
        if path == "gone":
            raise OSError(number, "it has ended", path)
        return read_many(path, files)

    monkeypatch.setattr(plain.kernel, "read_many", reading)
    monkeypatch.setattr(plain.kernel, "children", lambda path: (*children(path), "gone"))
    assert plain.repair(target(OWN))
    assert conditions(plain) == ""


def test_cpus_of_other_partitions_are_not_lost(plain: Machine) -> None:
    plain.repair(target(OWN))
    plain.kernel.mkdir("plain.slice")
    plain.kernel.write("plain.slice", "cpuset.cpus", "6-7")
    plain.kernel.write("plain.slice", "cpuset.cpus.partition", "isolated")
    for _ in range(3):
        assert plain.repair(target(OWN))
    assert plain.uses("") == "0-1,4-5,8-15"
    assert partition(plain) == ("root", "2-3")
    assert plain.kernel.read("plain.slice", "cpuset.cpus.partition") == "isolated\n"


def test_a_smaller_partition_than_asked_is_reported_with_what_the_kernel_gave(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.repair(target(OWN))
    read_many = plain.kernel.read_many

    def smaller(path: str, files: tuple[str, ...]) -> tuple[str | None, ...]:
        # As Linux 7.0 has it where a cgroup beside the pod's lists CPU 3.
        texts = zip(files, read_many(path, files), strict=True)
        less = {path_of(OWN): "2\n", "": "0-1,3-15\n"}.get(path)
        return tuple(
            less if less and "cpus" in file and file.endswith("effective") else text
            for file, text in texts
        )

    monkeypatch.setattr(plain.kernel, "read_many", smaller)
    (left,) = plain.enforcer.verify(target(OWN)).remaining
    assert left.cause is Cause.INVALID_PARTITION
    assert "gave the partition only 2 of 2-3" in left.detail


MIXED: Final = pod(
    exclusive("main", "2-3"), exclusive("side", "4"), pod_shared("log", "5-6"), cpus="2-6"
)


def starts(machine: Machine, of: PodAllocation, *names: str) -> list[str]:
    """Start containers of a pod, each with a process."""
    inside = [f"{path_of(of, machine.driver)}/c{place}" for place, _ in enumerate(names)]
    for place, path in enumerate(inside):
        machine.kernel.mkdir(path)
        machine.kernel.spawn(path, 100 + place)
    return inside


def bound(of: PodAllocation, machine: Machine, *names: str) -> Desired:
    """Return that a pod is desired whose containers are the cgroups of `starts`."""
    inside = (f"{path_of(of, machine.driver)}/c{place}" for place, _ in enumerate(names))
    entries = (Binding(of.uid, *each) for each in zip(names, inside, strict=True))
    return replace(target(of), bindings=Bindings(tuple(entries)))


@pytest.mark.parametrize(
    ("of", "names", "apart", "left"),
    [
        # The pod is a partition, with both containers inside it.
        (MIXED, ("main", "side", "log"), ["2-3", "4", ""], "5-6"),
        # Of a pod in which nothing else is left the last container has none.
        (pod(exclusive("main", "2-3"), exclusive("side", "4")), ("main", "side"), ["2-3", ""], "4"),
        # The pod has CPUs of others, too: the container is a partition alone.
        (pod(exclusive("main", "2-3"), on_host("log")), ("main", "log"), ["2-3", ""], "0-1,4-15"),
        # What starts runs on the idle siblings first.
        (replace(OWN, idle=Mask.parse("10-11")), ("main",), ["2-3"], "10-11"),
    ],
)
def test_what_starts_in_a_pod_keeps_off_the_cpus_of_its_other_containers(
    machine: Machine, of: PodAllocation, names: tuple[str, ...], apart: list[str], left: str
) -> None:
    assert machine.repair(target(of))
    inside = starts(machine, of, *names)
    assert machine.repair(bound(of, machine, *names))
    shown = [machine.kernel.read(each, "cpuset.cpus.partition").strip() for each in inside]
    assert shown == ["root" if cpus else "member" for cpus in apart]
    for path, cpus in zip(inside, apart, strict=True):
        assert machine.kernel.read(path, "cpuset.cpus.exclusive").strip() == cpus
        assert not cpus or machine.uses(path) == cpus
    assert machine.enforcer.verify(bound(of, machine, *names)).ok
    new = f"{path_of(of, machine.driver)}/new"
    machine.kernel.mkdir(new)
    assert machine.uses(new) == left
    # As long as nothing says which container that is.
    before = partition(machine, of)
    assert machine.repair(bound(of, machine, *names))
    assert partition(machine, of) == before
    if len(names) > 1:
        assert machine.uses(new) in left
    else:  # it is the same container again: neither of both loses its CPUs to the other
        assert [machine.uses(each) for each in (new, *inside)] == ["2-3", "2-3"]


def test_an_invalid_partition_in_a_pod_ends_before_its_cgroup_is_removed(machine: Machine) -> None:
    of = pod(exclusive("main", "2-3"), on_host("log"))
    assert machine.repair(target(of))
    inside = starts(machine, of, "main", "log")
    assert machine.repair(bound(of, machine, "main", "log"))
    beside = f"{path_of(of, machine.driver)}/beside"
    machine.kernel.mkdir(beside)
    machine.kernel.write(beside, "cpuset.cpus", "3")
    assert machine.kernel.read(inside[0], "cpuset.cpus.partition").startswith("root invalid")
    for process in (100, 101):
        machine.kernel.exit(process)
    assert machine.enforcer.releaser.pod(of).removed
    assert machine.uses("") == "0-15"


OWN_ROOT: Final = path_of(MIXED)
NEVER_ONE: Final = (None, None)


def item(
    role: Role, name: str = "", cpus: str = "", *, own: bool = False, whole: bool = False
) -> DesiredCgroup:
    """Return a cgroup inside that of `MIXED`; `own`: its CPUs are its own; `whole`: it inherits."""
    path = name if "/" in name else f"{OWN_ROOT}/{name}".rstrip("/")
    everything = Mask.parse("0-15") if whole else EMPTY
    setting = Setting(path, Mask.parse(cpus) or None, exclusive=own, whole_cpus=everything)
    return DesiredCgroup(setting, role, "" if role is Role.ORPHANED else MIXED.uid)


POD: Final = item(Role.POD, cpus="2-6")
MAIN: Final = item(Role.CONTAINER, "main", "2-3", own=True)


@pytest.mark.parametrize(
    ("items", "word", "cpus", "partition"),
    [
        # (what is there, what the pod is to be; what the last of them has, and is)
        ([POD], "isolated", "2-6", ("2-6", "isolated")),
        ([MAIN, POD], "root", "2-6", ("2-6", "root")),
        ([POD, MAIN], "root", "2-3", ("2-3", "root")),
        # A pod of which nothing is asked has no exclusive CPUs, nor have its containers.
        ([POD, MAIN], None, "2-3", ("", "member")),
        ([POD], None, "2-6", ("", "member")),
        # An ephemeral container, or no set of its own: the pod is none.
        ([item(Role.EPHEMERAL, "debug"), POD], "root", "2-6", ("2-6", "member")),
        ([item(Role.EPHEMERAL, "debug"), POD, MAIN], "root", "2-3", ("2-3", "root")),
        ([item(Role.POD, whole=True)], "root", "", ("2-6", "member")),
        # What belongs to no container of its own keeps off what these have.
        ([POD, item(Role.SANDBOX, "pause", "0-15", whole=True)], "root", "2-6", ("", "member")),
        ([POD, MAIN, item(Role.SANDBOX, "pause", whole=True)], "root", "5-6", ("", "member")),
        ([POD, MAIN, item(Role.UNIDENTIFIED, "new", "0-15")], "root", "5-6", ("", "member")),
        ([POD, MAIN, item(Role.UNIDENTIFIED, "new", "2-3")], "root", "2-3", ("", "member")),
        (
            [POD, MAIN, item(Role.SUBGROUP, f"{OWN_ROOT}/main/init", "2-3")],
            "root",
            "2-3",
            NEVER_ONE,
        ),
        # A container whose CPUs are not its own, or with others that have them: none of all three.
        (
            [item(Role.POD, whole=True), item(Role.CONTAINER, "log", "0-1")],
            *("root", "0-1", ("", "member")),
        ),
        ([POD, MAIN, item(Role.CONTAINER, "old", "2-3", own=True)], "root", "2-3", ("", "member")),
        (
            [POD, MAIN, *[item(Role.CONTAINER, each, "2-3", own=True) for each in ("old", "new")]],
            *("root", "2-3", ("", "member")),
        ),
        # Below the cgroup of all pods nothing else is a partition; elsewhere the agent makes none.
        ([POD, item(Role.ORPHANED, "kubepods/podgone", "2-3")], "root", "2-3", ("", "member")),
        ([POD, item(Role.ORPHANED, "other/podgone", "2-3")], "root", "2-3", NEVER_ONE),
        ([POD, item(Role.CONTAINER, "other/web", "4", own=True)], "root", "4", NEVER_ONE),
        ([item(Role.POD, "kubepods/burstable/podx", "2-6")], "root", "2-6", NEVER_ONE),
    ],
)
def test_what_a_cgroup_is_decides_whether_it_is_a_partition(
    items: list[DesiredCgroup], word: str | None, cpus: str, partition: tuple[str | None, ...]
) -> None:
    words = {} if word is None else {MIXED.uid: word, BESIDE.uid: word}
    known = {MIXED.uid: MIXED, BESIDE.uid: BESIDE}
    above, *found = with_partitions(items, words, "kubepods", known)
    setting = found[-1].setting
    assert str(setting.cpus or "") == cpus
    # All CPUs of the host in a file beside a container's would make that invalid.
    assert not (setting.whole_cpus and MAIN in items)
    shown = [setting.values.get(f"cpuset.cpus.{file}") for file in ("exclusive", "partition")]
    assert tuple(shown) == partition
    # Of pods that are not observed, too.
    exclusive_to_all = "" if word is None else "2-6,8-15"
    assert above.setting.values == {"cpuset.cpus.exclusive": exclusive_to_all}


def test_a_partition_that_lost_its_cpus_to_the_pods_is_made_again(plain: Machine) -> None:
    plain.repair(target(MIXED))
    (main,) = starts(plain, MIXED, "main")
    assert plain.repair(bound(MIXED, plain, "main"))
    for word in ("member", "root"):
        plain.kernel.write(path_of(MIXED), "cpuset.cpus.partition", word)
    assert plain.kernel.read(main, "cpuset.cpus.partition") == "root\n"
    assert plain.uses(main) != "2-3"  # as Linux 6.12 has it
    assert plain.repair(bound(MIXED, plain, "main"))
    assert plain.uses(main) == "2-3"


@pytest.mark.parametrize("by", ["restore", "restore of what others took", "disabling"])
def test_partitions_end_by_command_and_when_they_are_switched_off(
    machine: Machine, by: str
) -> None:
    machine.repair(target(OWN, BESIDE))
    machine.config = IsolationConfig() if by == "disabling" else ROOT
    if by == "restore of what others took":
        machine.kernel.write(all_pods(machine), "cpuset.cpus.exclusive", "\n")
    machine.start()
    if by == "disabling":
        machine.repair(target(OWN, BESIDE))
    else:
        assert machine.isolation.restore() == ({}, 1)
    assert machine.uses("") == "0-15"
    assert [partition(machine, each)[0] for each in (OWN, BESIDE)] == ["member"] * 2
    for path in (all_pods(machine), path_of(OWN, machine.driver)):
        assert machine.kernel.read(path, "cpuset.cpus.exclusive") == "\n"
    assert Originals(machine.state, BOOT).load() == {}


def test_systemd_has_partitions_on_record_where_it_has_the_property(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Driver.SYSTEMD, ROOT)
    machine.systemd.partitions = True
    assert machine.repair(target(MIXED))
    own = path_of(MIXED, machine.driver).rpartition("/")[2]
    main = machine.systemd.start_scope("main.scope", own, 77)
    desired = replace(target(MIXED), bindings=Bindings((Binding(MIXED.uid, "main", main),)))

    def recorded() -> list[object]:
        return [
            machine.systemd.units[each].properties["CPUSetPartition"]
            for each in (own, "main.scope")
        ]

    assert machine.repair(desired)
    assert recorded() == ["root", "root"]
    machine.systemd.daemon_reload()
    machine.systemd.start_service("new.service", 12)
    assert machine.enforcer.verify(desired).ok
    # After the command no unit is made a partition again by a reload.
    machine.start()
    assert machine.isolation.restore() == ({}, 1)
    assert recorded() == ["member", "member"]
    assert partition(machine, MIXED)[0] == "member"


def test_threads_that_reclaim_a_nodes_memory_are_back_on_its_cpus_after_each_change(
    plain: Machine,
) -> None:
    for pid, name in ((2, "kthreadd"), (40, "kswapd0"), (41, "kauditd")):
        directory = plain.root / f"proc/{pid}"
        directory.mkdir(parents=True)
        rest = " ".join(["S", "2", *["0"] * 17, "7", *["0"] * 20])
        (directory / "stat").write_text(f"{pid} ({name}) {rest}\n")
    node = plain.root / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-7\n")
    before = {40: set(range(8)), 41: set(range(16))}
    plain.places.affinities.update(before)
    outside = set(range(16)) - {2, 3}

    def changed(desired: Desired) -> None:
        plain.enforcer.repair(desired)
        # What the kernel does, up to Linux 6.19.
        plain.places.affinities.update({40: set(outside), 41: set(outside)})
        plain.isolation.apply(desired.ledger.allocations.values(), (), thorough=True)

    changed(target(OWN))
    assert plain.places.affinities == {40: {0, 1, 4, 5, 6, 7}, 41: outside}
    plain.places.writes.clear()
    plain.isolation.restore()
    assert plain.places.writes == ["cgroup/kubepods/cpuset.cpus.exclusive", "tasks/40/7"]
    changed(target(OWN))
    outside = set(range(16))
    changed(target())
    assert plain.places.affinities[40] == before[40]
