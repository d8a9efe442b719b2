from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.reconcile.desired import DesiredCgroup, Role
from agent.reconcile.diff import GONE, Cause, Difference, WriterRecords, assess, diff
from cgroupfs.apply import NEEDED, enable
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.plan import Setting
from cgroupfs.state import WriterRecord
from sysfs.mask import Mask
from tests.fakes.kernel import FaultyTree, quota, read_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cgroupfs.tree import CgroupTree

POD = "pods/a"
APP = "pods/a/app"
CPUS = Mask.parse("2-3")
NO_RECORDS: Mapping[str, WriterRecords] = MappingProxyType({})
DESIRED = (
    Setting(POD, cpus=CPUS, mems=Mask.of(1), values=quota()),
    Setting(APP, cpus=CPUS, mems=Mask.of(1), values=quota(50_000)),
)


@pytest.fixture
def kernel() -> EmulatedKernel:
    kernel = EmulatedKernel(Mask.parse("0-7"), Mask.parse("0-1"))
    for path in ("pods", POD, APP):
        kernel.mkdir(path)
    enable(kernel, APP)
    for path in (POD, APP):
        kernel.write(path, "cpuset.cpus", "2-3")
        kernel.write(path, "cpuset.mems", "1")
    kernel.write(APP, "cpu.max", "50000 100000")
    return kernel


def verify(
    tree: CgroupTree, settings: Sequence[Setting], records: Mapping[str, WriterRecords] = NO_RECORDS
) -> tuple[Difference, ...]:
    """Read the cgroups and compare them, each as if it were a pod's own."""
    states = read_states(tree, [setting.cgroup for setting in settings])
    items = [DesiredCgroup(setting, Role.POD, "") for setting in settings]
    compared = [(item, diff(item, states.get(item.setting.cgroup))) for item in items]
    differing = [(item, differences) for item, differences in compared if differences]
    return assess(tree, differing, lambda path: records.get(path, WriterRecords()), NEEDED)


def only(drifts: tuple[Difference, ...]) -> Difference:
    (drift,) = drifts
    return drift


def test_what_is_as_desired_is_not_drift_and_nothing_is_written(kernel: EmulatedKernel) -> None:
    tree = FaultyTree(kernel)
    assert verify(tree, DESIRED) == ()
    assert tree.writes == []


@pytest.mark.parametrize(
    ("file", "value", "desired"),
    [
        ("cpuset.cpus", "3", "2-3"),
        ("cpuset.mems", "0-1", "1"),
        ("cpu.max", "max 100000", "50000 100000"),
    ],
)
def test_a_changed_file_is_shown_beside_what_is_desired(
    kernel: EmulatedKernel, file: str, value: str, desired: str
) -> None:
    kernel.write(APP, file, value)
    drift = only(verify(kernel, DESIRED))
    assert (drift.cgroup, drift.file) == (APP, file)
    assert (drift.desired, drift.observed, drift.cause) == (desired, value, Cause.UNKNOWN)


def test_a_parent_that_became_too_narrow_is_named(kernel: EmulatedKernel) -> None:
    kernel.write("pods", "cpuset.cpus", "0-2")
    drifts = verify(kernel, DESIRED)
    assert {drift.cgroup for drift in drifts} == {POD, APP}
    assert {drift.cause for drift in drifts} == {Cause.PARENT_TOO_NARROW}
    assert all(drift.file == "cpuset.cpus.effective" for drift in drifts)
    # The pod between them has no more only because its parent has not.
    for drift in drifts:
        assert "/pods has only 0-2 of 2-3 (missing 3)" in drift.detail
        assert drift.detail.endswith("widen /pods first")


@pytest.mark.parametrize("own", ["\n", "0-7"])
def test_a_cgroup_that_inherits_too_much_names_the_one_above(
    kernel: EmulatedKernel, own: str
) -> None:
    kernel.write(POD, "cpuset.cpus", "2-5")
    kernel.write(APP, "cpuset.cpus", own)
    inherits = Setting(APP, cpus=CPUS, whole_cpus=Mask.parse("0-7"))
    changed, inherited = verify(kernel, (DESIRED[0], inherits))
    assert (changed.cgroup, changed.file, changed.cause) == (POD, "cpuset.cpus", Cause.UNKNOWN)
    assert (inherited.file, inherited.cause) == ("cpuset.cpus.effective", Cause.INHERITED)
    assert inherited.detail == (
        "/pods/a/app inherits 2-5 from /pods/a instead of 2-3: the cpuset.cpus of a cgroup above "
        "differs"
    )


@pytest.mark.parametrize(("online", "found"), [("0-2,4-7", "2"), ("0-1,4-7", "0-1,4-7")])
def test_an_offline_cpu_is_the_cause_also_when_none_is_left(
    kernel: EmulatedKernel, online: str, found: str
) -> None:
    kernel.set_online(Mask.parse(online))
    drifts = verify(kernel, DESIRED)
    assert {(drift.cause, drift.observed) for drift in drifts} == {(Cause.CPU_OFFLINE, found)}


@pytest.mark.parametrize("word", ["root", "isolated"])
def test_a_partition_is_neither_offline_nor_a_narrow_parent(
    kernel: EmulatedKernel, word: str
) -> None:
    kernel.mkdir("iso")
    kernel.write("iso", "cpuset.cpus", "3")
    kernel.write("iso", "cpuset.cpus.partition", word)
    drift = only(verify(kernel, (Setting("pods/a", cpus=CPUS),)))
    assert (drift.cause, drift.observed) == (Cause.CPU_WITHHELD, "2")
    named = "CPUs 3 belong to the partition /iso"
    assert drift.detail == f"{named}; end that partition or remove the pod"
    kernel.write("iso", "cpuset.cpus", "2-3")
    drift = only(verify(kernel, (Setting("pods/a", cpus=CPUS),)))
    assert "so the kernel uses the parent's 0-1,4-7; end that partition" in drift.detail
    # What is offline is said beside what is withheld.
    kernel.write("iso", "cpuset.cpus", "3")
    kernel.set_online(Mask.parse("0-1,3-7"))
    drift = only(verify(kernel, (Setting("pods/a", cpus=CPUS),)))
    assert drift.detail.startswith(f"{named} and 2 of 2-3 is offline, so the kernel uses")
    assert drift.detail.endswith("end that partition, bring the CPUs online or remove the pod")


def test_a_lost_controller_is_reported_at_the_ancestor_and_below(kernel: EmulatedKernel) -> None:
    kernel.write(POD, "cgroup.subtree_control", "-cpuset")
    drifts = verify(kernel, DESIRED)
    assert {drift.cause for drift in drifts} == {Cause.CONTROLLER_LOST}
    assert [(d.cgroup, d.file, d.observed) for d in drifts] == [
        (POD, "cgroup.subtree_control", "cpu"),
        (APP, "cpuset.cpus", None),
        (APP, "cpuset.mems", None),
    ]


def test_a_cgroup_that_is_gone_is_one_drift(kernel: EmulatedKernel) -> None:
    kernel.rmdir(APP)
    drift = only(verify(kernel, DESIRED))
    assert (drift.cgroup, drift.file, drift.observed) == (APP, GONE, None)


SYSTEMD = WriterRecord(cpus=Mask.parse("0-7"), values=quota())
SPEC = WriterRecord(values=quota(140_000))


@pytest.mark.parametrize(
    ("records", "file", "value", "cause"),
    [
        (WriterRecords(systemd=SYSTEMD), "cpuset.cpus", "0-7", Cause.REVERTED_BY_SYSTEMD),
        (WriterRecords(systemd=SYSTEMD, runtime=SPEC), "cpu.max", "max", Cause.REVERTED_BY_SYSTEMD),
        (WriterRecords(systemd=SYSTEMD, runtime=SPEC), "cpu.max", "140000", Cause.RUNTIME_UPDATE),
        (WriterRecords(systemd=SPEC, runtime=SPEC), "cpu.max", "140000", Cause.RUNTIME_UPDATE),
        (WriterRecords(systemd=SYSTEMD, runtime=SPEC), "cpu.max", "9000", Cause.UNKNOWN),
        (WriterRecords(systemd=SYSTEMD), "cpuset.mems", "0", Cause.UNKNOWN),
    ],
)
def test_the_writer_is_deduced_from_what_others_have_on_record(
    kernel: EmulatedKernel, records: WriterRecords, file: str, value: str, cause: Cause
) -> None:
    kernel.write(POD, "cpuset.cpus", "0-7")
    kernel.write(APP, file, value)
    desired = (replace(DESIRED[1]),)
    assert only(verify(kernel, desired, records={APP: records})).cause is cause
