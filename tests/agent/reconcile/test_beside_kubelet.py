"""Cgroups that the kubelet makes: what the agent writes into them, and what it leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import QosClass
from agent.reconcile.diff import Cause
from agent.reconcile.drivers import DirectoryCgroups, SliceCgroups
from agent.reconcile.enforcer import Enforcer
from cgroupfs.names import Driver
from sysfs.mask import Mask
from systemd.units import Property, allowed_cpus, cpu_quota, cpu_weight, memory_max
from tests.agent.reconcile.pods import (
    ONLINE,
    OTHER,
    kernel,
    layout,
    mixed,
    on_host,
    path_of,
    pod,
    release_orphaned,
    target,
)
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    import pytest

    from cgroupfs.emulated.kernel import EmulatedKernel

ALL_PODS: Final = "kubepods.slice"
BURSTABLE: Final = f"{ALL_PODS}/kubepods-burstable.slice"
SETS: Final = ("cpuset.cpus", "cpuset.mems", "cpu.max")


def beside_kubelet() -> tuple[EmulatedKernel, FakeSystemd, Enforcer]:
    """Return a host on which a kubelet has made its cgroups, and an enforcer beside it."""
    tree = kernel()
    systemd = FakeSystemd(tree)
    systemd.start_transient(ALL_PODS, [allowed_cpus(ONLINE), cpu_weight(300)])
    for name in ("burstable", "besteffort"):
        systemd.start_transient(f"kubepods-{name}.slice", [cpu_weight(17)])
    driver = SliceCgroups(tree, systemd, makes=False)
    enforcer = Enforcer(tree, layout(Driver.SYSTEMD), driver)
    assert enforcer.prepare().ok
    return tree, systemd, enforcer


def start_pod(systemd: FakeSystemd, cgroup: str, *further: Property) -> None:
    unit = cgroup.rpartition("/")[2]
    systemd.start_transient(unit, [cpu_weight(55), memory_max(1 << 30), *further])


def shown(tree: EmulatedKernel, cgroup: str, *files: str) -> list[str]:
    return [(text or "").strip() for text in tree.read_many(cgroup, files)]


def test_no_cgroup_is_made_before_the_kubelet_makes_it_and_nothing_differs() -> None:
    tree, systemd, enforcer = beside_kubelet()
    before = [*systemd.units]
    report = enforcer.enforce(target(mixed()))
    assert report.ok
    assert report.created == ()
    assert not tree.exists(path_of(mixed(), Driver.SYSTEMD))
    assert [*systemd.units] == before
    assert enforcer.plan(target(mixed()), mixed().uid).created == ()


def test_the_pool_has_lost_the_cpus_of_a_pod_before_the_kubelet_makes_its_cgroup() -> None:
    tree, systemd, enforcer = beside_kubelet()
    web = pod(on_host("web"), uid=OTHER, qos=QosClass.BURSTABLE)
    start_pod(systemd, path_of(web, Driver.SYSTEMD))
    assert enforcer.enforce(target(web)).ok
    assert enforcer.enforce_change(target(web, mixed()), mixed().uid).ok
    pool = str(ONLINE - mixed().exclusive_cpus)
    assert shown(tree, BURSTABLE, "cpuset.cpus", "cpuset.cpus.effective") == [pool, pool]


def test_a_pods_slice_gets_sets_and_no_quota_and_keeps_the_kubelets_limits() -> None:
    tree, systemd, enforcer = beside_kubelet()
    cgroup = path_of(mixed(), Driver.SYSTEMD)
    assert enforcer.enforce(target(mixed())).ok
    start_pod(systemd, cgroup, *cpu_quota(600_000, 100_000))
    assert enforcer.enforce_change(target(mixed()), mixed().uid).ok
    assert shown(tree, cgroup, *SETS) == ["2-7", "0", "max 100000"]
    assert shown(tree, cgroup, "cpu.weight", "memory.max") == ["55", str(1 << 30)]
    # The same is on record, so that a daemon-reload does not undo it.
    systemd.daemon_reload()
    systemd.start_transient("other.slice", [])
    assert shown(tree, cgroup, *SETS) == ["2-7", "0", "max 100000"]
    assert enforcer.verify(target(mixed())).ok


def test_a_quota_of_a_pod_that_another_process_writes_is_drift_and_the_kubelets_is_not() -> None:
    tree, systemd, enforcer = beside_kubelet()
    cgroup = path_of(mixed(), Driver.SYSTEMD)
    assert enforcer.enforce(target(mixed())).ok
    start_pod(systemd, cgroup, *cpu_quota(600_000, 100_000))
    made = enforcer.repair(target(mixed()))
    assert ([each.cause for each in made.found if each.file == "cpu.max"], made.drift) == (
        [Cause.KUBELET],
        (),
    )
    for exact in ("700000 100000", "693300 100000"):  # systemd rounds it up
        systemd.set_properties(cgroup.rpartition("/")[2], [*cpu_quota(700_000, 100_000)])
        tree.write(cgroup, "cpu.max", exact)
        resized = enforcer.repair(target(mixed()))
        assert ([each.cause for each in resized.found], resized.drift) == ([Cause.KUBELET], ())
    tree.write(cgroup, "cpu.max", "700000 100000")
    [drift] = enforcer.repair(target(mixed())).drift
    assert (drift.file, drift.observed, drift.cause) == ("cpu.max", "700000 100000", Cause.UNKNOWN)


def test_weights_quotas_and_limits_of_pods_without_exclusive_cpus_are_the_kubelets() -> None:
    tree, systemd, enforcer = beside_kubelet()
    web = pod(on_host("web", limit=500, request=100), uid=OTHER, limit=500, qos=QosClass.BURSTABLE)
    cgroup = path_of(web, Driver.SYSTEMD)
    start_pod(systemd, cgroup, *cpu_quota(40_000, 100_000))
    limits = (cpu_weight(4), *cpu_quota(30_000, 100_000))
    name = f"cri-containerd-{'a' * 64}.scope"
    scope = systemd.start_scope(name, cgroup.rpartition("/")[2], 7, *limits)
    assert enforcer.enforce(target(web)).ok
    assert shown(tree, cgroup, "cpu.max", "cpu.weight") == ["40000 100000", "55"]
    assert shown(tree, scope, "cpu.max", "cpu.weight") == ["30000 100000", "4"]
    assert shown(tree, BURSTABLE, "cpu.weight") == ["17"]


def test_the_set_of_the_cgroup_of_all_pods_is_left_alone() -> None:
    tree, systemd, enforcer = beside_kubelet()
    narrow = Mask.parse("1-15")
    systemd.set_properties(ALL_PODS, [allowed_cpus(narrow)])
    narrowed = enforcer.repair(target()).remaining
    assert {difference.cause for difference in narrowed} == {Cause.PARENT_TOO_NARROW}
    assert shown(tree, ALL_PODS, "cpuset.cpus", "cpu.weight") == ["1-15", "300"]


def test_a_pod_that_is_not_admitted_is_confined_to_the_pool_and_not_removed() -> None:
    tree, systemd, enforcer = beside_kubelet()
    unknown = path_of(pod(on_host("web"), uid=OTHER), Driver.SYSTEMD)
    start_pod(systemd, unknown)
    report = enforcer.enforce(target(mixed()))
    assert report.ok
    assert report.notes == ()
    assert shown(tree, unknown, "cpuset.cpus") == [str(ONLINE - mixed().exclusive_cpus)]
    assert not any(released.removed for released in release_orphaned(enforcer, target(mixed())))
    assert tree.exists(unknown)


def test_the_cgroup_of_a_pod_that_ended_is_the_kubelets_to_remove() -> None:
    tree, systemd, enforcer = beside_kubelet()
    cgroup = path_of(mixed(), Driver.SYSTEMD)
    start_pod(systemd, cgroup)
    assert enforcer.enforce(target(mixed())).ok
    assert not enforcer.releaser.pod(mixed()).removed
    assert tree.exists(cgroup)
    systemd.stop(cgroup.rpartition("/")[2])
    assert enforcer.releaser.pod(mixed()).removed
    assert enforcer.enforce_change(target()).ok


def test_a_kubelet_of_the_cgroupfs_driver_is_left_its_directories_too() -> None:
    tree = kernel()
    enforcer = Enforcer(tree, layout(), DirectoryCgroups(tree, makes=False))
    assert enforcer.prepare().ok
    assert enforcer.enforce(target(mixed())).ok
    assert tree.children("") == ()
    cgroup = path_of(mixed())
    for path in ("kubepods", cgroup):
        tree.mkdir(path)
        tree.write(path.rpartition("/")[0], "cgroup.subtree_control", "+cpu +cpuset +memory")
    tree.write(cgroup, "cpu.max", "600000 100000")
    assert enforcer.enforce(target(mixed())).ok
    assert shown(tree, cgroup, *SETS) == ["2-7", "0", "max 100000"]


def test_a_pod_whose_slice_was_confined_before_its_admission_is_not_asked_about_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, systemd, enforcer = beside_kubelet()
    cgroup = path_of(mixed(), Driver.SYSTEMD)
    start_pod(systemd, cgroup)
    assert enforcer.enforce(target()).ok
    asked, ask, unit = list[str](), systemd.unit_properties, cgroup.rpartition("/")[2]

    def noted(of: str, *names: str) -> tuple[object, ...]:
        asked.append(of)
        return ask(of, *names)

    monkeypatch.setattr(systemd, "unit_properties", noted)
    systemd.calls.clear()
    assert enforcer.enforce_change(target(mixed()), mixed().uid).ok
    assert (unit in asked, systemd.calls.count(("set", unit))) == (False, 1)
