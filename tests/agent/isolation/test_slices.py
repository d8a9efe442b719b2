"""The slices of the host's services: off exclusive CPUs, recorded with systemd, given back."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PartitionMode
from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals
from agent.reconcile.drivers import DirectoryCgroups, SliceCgroups
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.exclusivity import intrusions
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Driver
from sysfs.mask import Mask
from systemd.units import allowed_cpus, bytes_mask
from tests.agent.isolation.hosts import BOOT, FaultyPlaces
from tests.agent.managers.ledgers import ledger_with
from tests.agent.reconcile.pods import OTHER, exclusive, layout, path_of, pod, target
from tests.fakes.kernel import Died, FaultyTree, die_at
from tests.fakes.silence import HangingSystemd
from tests.fakes.systemd import FakeSystemd, Unit

if TYPE_CHECKING:
    from pathlib import Path

    from agent.reconcile.target import Desired

ON: Final = IsolationConfig(host_slices=True)
OWN: Final = pod(exclusive("main", "2-3"))
SLICES: Final = ("system.slice", "user.slice", "init.scope")


class Machine:
    """A host of sixteen CPUs with services, a session and PID 1, and agents that come and go."""

    def __init__(self, directory: Path, driver: Driver, config: IsolationConfig = ON) -> None:
        self.kernel = EmulatedKernel(Mask.parse("0-15"), Mask.parse("0-1"))
        self.driver, self.config = driver, config
        self.state, self.root = directory / "state", directory / "root"
        (self.root / "sys/devices/system/cpu").mkdir(parents=True)
        for state in ("online", "possible"):
            (self.root / f"sys/devices/system/cpu/{state}").write_text("0-15\n")
        (self.root / "proc").mkdir()
        self.state.mkdir()
        self.systemd = FakeSystemd(self.kernel)
        self.bus = HangingSystemd(self.systemd, lambda _: None)
        self.systemd.start_service("web.service", 10)
        self.systemd.start_scope("session-1.scope", "user.slice", 11)
        self.systemd._start("init.scope", "init.scope", ())
        self.kernel.spawn("init.scope", 1)
        self.start()

    def start(self, tree: FaultyTree | None = None) -> None:
        by_systemd = self.driver is Driver.SYSTEMD
        seen = tree or self.kernel
        places = FaultyPlaces(self.root, tree=seen, systemd=self.bus if by_systemd else None)
        originals = Originals(self.state, BOOT)
        of = layout(self.driver)
        self.isolation = HostIsolation(
            self.config, places, originals, units=by_systemd, pods=of.pods()
        )
        pods = SliceCgroups(seen, self.bus) if by_systemd else DirectoryCgroups(seen)
        self.places = places
        self.enforcer = Enforcer(
            seen,
            of,
            pods,
            beside=self.isolation.slices,
            partitions=lambda target, above: self.isolation.partitions.desired(
                target.ledger.allocations, target.bindings, above
            ),
        )
        self.enforcer.prepare()

    def repair(self, desired: Desired) -> bool:
        self.isolation.try_again()
        report = self.enforcer.repair(desired)
        self.isolation.apply(desired.ledger.allocations.values(), (), thorough=True)
        return report.ok

    def uses(self, cgroup: str) -> str:
        return self.kernel.read(cgroup, "cpuset.cpus.effective").strip()

    def set(self, cgroup: str) -> str:
        return self.kernel.read(cgroup, "cpuset.cpus").strip()


@pytest.fixture(params=list(Driver))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


# Shows in differences.md: isolation
def test_the_hosts_slices_use_what_is_not_exclusive_and_all_again_afterwards(
    machine: Machine,
) -> None:
    assert machine.repair(target())
    assert [machine.set(each) for each in SLICES] == ["", "", ""]
    machine.systemd.start_scope("vm-1.scope", "machine.slice", 13)
    assert machine.repair(target(OWN))
    assert machine.kernel.allowed(13)[0] == Mask.parse("0-1,4-15")
    assert [machine.uses(each) for each in SLICES] == ["0-1,4-15"] * 3
    assert machine.kernel.allowed(10)[0] == Mask.parse("0-1,4-15")
    assert machine.repair(target(OWN, pod(exclusive("main", "8-15"), uid=OTHER)))
    assert machine.uses("system.slice") == "0-1,4-7"
    assert machine.repair(target())
    assert [machine.uses(each) for each in SLICES] == ["0-15"] * 3


def test_a_pod_gets_its_cpus_after_the_slices_have_lost_them(machine: Machine) -> None:
    machine.repair(target())
    watched = FaultyTree(machine.kernel)
    machine.start(watched)
    machine.repair(target(OWN))
    own = path_of(OWN, machine.driver)
    order = [path for path, file, _ in watched.writes if file == "cpuset.cpus"]
    assert max(map(order.index, SLICES)) < order.index(own)


def test_systemd_has_the_slices_on_record_and_keeps_them_after_a_reload(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Driver.SYSTEMD)
    machine.repair(target(OWN))
    before = dict(machine.systemd.units["system.slice"].properties)
    assert set(before) == {"AllowedCPUs"}
    machine.systemd.daemon_reload()
    machine.systemd.start_service("new.service", 12)
    assert machine.kernel.allowed(12)[0] == Mask.parse("0-1,4-15")
    assert machine.repair(target(OWN))
    machine.systemd.calls.clear()
    assert machine.repair(target(OWN))
    assert machine.systemd.calls == []


def test_a_slice_that_systemd_says_nothing_of_stays_as_it_is_until_it_does(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Driver.SYSTEMD)
    machine.repair(target())
    machine.bus.silent = True
    machine.repair(target(OWN))
    assert machine.uses("system.slice") == "0-15"
    conditions = machine.isolation.report.conditions
    assert "system.slice uses exclusive CPUs" in conditions["isolation system.slice"]
    # One of the pods' cgroups, one of the slices, however many there are and are asked for again.
    assert machine.bus.deadlines == 2
    machine.enforcer.enforce_change(target(OWN), OWN.uid)
    assert machine.bus.deadlines == 2
    machine.bus.silent = False
    machine.repair(target(OWN))
    assert machine.uses("system.slice") == "0-1,4-15"
    assert machine.isolation.report.conditions == {}


def test_a_slice_that_ended_is_forgotten(machine: Machine) -> None:
    machine.kernel.mkdir("machine.slice")
    machine.systemd.units["machine.slice"] = Unit("machine.slice", "machine.slice")
    machine.repair(target(OWN))
    machine.kernel.rmdir("machine.slice")
    del machine.systemd.units["machine.slice"]
    machine.start()
    assert machine.isolation.restore()[0] == {}


def test_a_slice_that_another_process_widened_is_drift_and_narrowed_again(machine: Machine) -> None:
    machine.repair(target(OWN))
    machine.kernel.write("system.slice", "cpuset.cpus", "0-15")
    report = machine.enforcer.repair(target(OWN))
    assert [each.cgroup for each in report.drift] == ["system.slice"]
    assert machine.uses("system.slice") == "0-1,4-15"


def recorded(machine: Machine) -> str:
    """Return the CPUs of services that systemd has on record, whether its bus answers or not."""
    (value,) = machine.systemd.unit_properties("system.slice", "AllowedCPUs")
    assert isinstance(value, bytes)
    return str(bytes_mask(value))


def administrator_sets(machine: Machine, cpus: str) -> None:
    """Set the CPUs of services, as `systemctl set-property` does where there is systemd."""
    if machine.driver is Driver.SYSTEMD:
        machine.systemd.set_properties("system.slice", (allowed_cpus(Mask.parse(cpus)),))
    else:
        machine.kernel.write("system.slice", "cpuset.cpus", cpus)


FOREIGN: Final = ("docker", "lxc.payload.web", "foo.slice", "machine.slice", "ovs.slice")


@pytest.mark.parametrize(
    ("excepted", "left"),
    [
        pytest.param((), (), id="none"),
        pytest.param(("ovs.slice",), ("ovs.slice",), id="one by its name"),
        pytest.param(("lxc.*", "foo"), ("lxc.payload.web",), id="some by how they begin"),
    ],
)
def test_every_cgroup_at_the_top_follows_but_the_pods_and_what_is_excepted(
    machine: Machine, excepted: tuple[str, ...], left: tuple[str, ...]
) -> None:
    machine.config = replace(ON, host_except=excepted)
    machine.start()
    for name in FOREIGN:
        machine.kernel.mkdir(name)
    machine.kernel.write("foo.slice", "cpuset.cpus", "3-5")
    assert machine.repair(target(OWN))
    found = {name: machine.uses(name) for name in FOREIGN}
    narrowed = dict.fromkeys(FOREIGN, "0-1,4-15") | {"foo.slice": "4-5"}
    assert found == narrowed | dict.fromkeys(left, "0-15")
    assert machine.uses(path_of(OWN, machine.driver)) == "2-3"
    assert machine.repair(target())
    assert {machine.uses(name) for name in FOREIGN} == {"0-15", "3-5"}
    assert Originals(machine.state, BOOT).load() == {}


def test_a_cgroup_at_the_top_that_ends_is_forgotten_and_a_partition_is_left_alone(
    machine: Machine,
) -> None:
    machine.kernel.mkdir("lxc.payload.web")
    machine.kernel.mkdir("ovs")
    machine.kernel.write("ovs", "cpuset.cpus", "12-13")
    machine.kernel.write("ovs", "cpuset.cpus.partition", "root")
    taken = Mask.parse("12-13")
    desired = replace(target(OWN), shared_pool=target(OWN).shared_pool - taken)
    assert machine.repair(desired)
    assert machine.kernel.read("ovs", "cpuset.cpus.partition") == "root\n"
    assert (machine.set("ovs"), machine.uses("lxc.payload.web")) == ("12-13", "0-1,4-11,14-15")
    machine.kernel.rmdir("lxc.payload.web")
    for _ in range(2):
        assert machine.repair(desired)
    assert not [each for each in Originals(machine.state, BOOT).load() if "lxc" in each]
    assert machine.isolation.report.conditions == {}


def test_a_later_partition_of_cpus_that_slices_list_is_named_with_what_makes_it_valid(
    machine: Machine,
) -> None:
    taken, word = Mask.parse("12-13"), "cpuset.cpus.partition"
    assert machine.repair(target(OWN))
    machine.kernel.mkdir("ovs.slice")
    machine.kernel.write("ovs.slice", "cpuset.cpus", str(taken))
    machine.kernel.write("ovs.slice", word, "root")
    assert machine.repair(target(OWN))
    assert machine.isolation.report.conditions == {
        "partition /ovs.slice": "another program's partition /ovs.slice is 'root invalid (Cpu list "
        "in cpuset.cpus not exclusive)'; CPUs 12-13 are also listed by /init.scope, /system.slice, "
        "/user.slice: set agent.isolation.hostCPUs without them, then write the partition again"
    }
    assert machine.repair(target())  # the slices list all CPUs then
    machine.config = replace(ON, host_cpus=Mask.parse("0-11"))
    machine.start()
    assert machine.repair(target(OWN))
    machine.kernel.write("ovs.slice", word, "root")
    assert machine.kernel.read("ovs.slice", word) == "root\n"
    assert machine.repair(replace(target(OWN), shared_pool=target(OWN).shared_pool - taken))
    assert machine.isolation.report.conditions == {}


def test_a_cgroup_that_cannot_be_narrowed_is_named_and_holds_up_no_pod(machine: Machine) -> None:
    class Stubborn(FaultyTree):
        def write(self, path: str, file: str, value: str) -> None:
            if path == "docker":
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            super().write(path, file, value)

    machine.kernel.mkdir("docker")
    machine.start(Stubborn(machine.kernel))
    report = machine.enforcer.repair(target(OWN))
    assert machine.uses(path_of(OWN, machine.driver)) == "2-3"
    assert machine.uses("system.slice") == "0-1,4-15"
    ((intrusion,),) = intrusions(target(OWN).ledger.allocations, report.remaining).values()
    assert (intrusion.cgroup, str(intrusion.cpus)) == ("docker", "2-3")


def test_a_slice_that_cannot_be_read_once_stays_narrowed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.repair(target(OWN))
    read = machine.places.read

    def fail(name: str) -> str:
        if name == "cgroup/system.slice/cpuset.cpus":
            raise OSError(errno.EIO, "Input/output error")
        return read(name)

    monkeypatch.setattr(machine.places, "read", fail)
    machine.isolation.slices(Mask.parse("2-3"), Mask.parse("0-15"))
    monkeypatch.setattr(machine.places, "read", read)
    machine.isolation.apply(target(OWN).ledger.allocations.values(), (), thorough=True)
    assert machine.uses("system.slice") == "0-1,4-15"
    assert "Input/output error" in machine.isolation.report.conditions["isolation system.slice"]


def test_where_the_tree_cannot_be_listed_what_is_narrowed_stays_so(machine: Machine) -> None:
    class Unlisted(FaultyTree):
        def children(self, path: str) -> tuple[str, ...]:
            if not path:
                raise OSError(errno.EIO, "Input/output error")
            return super().children(path)

    machine.repair(target(OWN))
    machine.places._tree = Unlisted(machine.kernel)
    machine.isolation.slices(Mask.parse("2-3"), Mask.parse("0-15"))
    machine.isolation.apply(target(OWN).ledger.allocations.values(), (), thorough=True)
    assert machine.uses("system.slice") == "0-1,4-15"
    assert "Input/output error" in str(machine.isolation.report.conditions)


def test_cgroups_that_a_user_nests_a_thousand_deep_hinder_nothing(machine: Machine) -> None:
    path = "user.slice"
    machine.kernel.write(path, "cgroup.subtree_control", "+cpuset")
    for _ in range(1000):
        path += "/d"
        machine.kernel.mkdir(path)
        machine.kernel.write(path, "cgroup.subtree_control", "+cpuset")
    machine.kernel.write(path, "cpuset.cpus", "3")
    assert machine.repair(target(OWN))
    (condition,) = machine.isolation.report.conditions.values()
    assert "has CPUs of its own, 3, of which 3 are exclusive" in condition


def test_with_nothing_exclusive_no_set_of_any_slice_is_the_agents(machine: Machine) -> None:
    machine.repair(target(OWN))
    machine.repair(target())
    assert Originals(machine.state, BOOT).load() == {}
    administrator_sets(machine, "0-3")
    machine.systemd.calls.clear()
    for _ in range(2):
        machine.repair(target())
        assert machine.set("system.slice") == "0-3"
        machine.start()
    assert ("set", "system.slice") not in machine.systemd.calls


def test_what_systemd_had_on_record_of_the_agents_is_not_taken_for_an_administrators(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, Driver.SYSTEMD)
    beside = pod(exclusive("main", "8-15"), uid=OTHER)
    assert machine.repair(target(OWN, beside))
    machine.bus.silent = True
    for _ in range(2):
        machine.repair(target(OWN))
    assert (machine.set("system.slice"), recorded(machine)) == ("0-1,4-15", "0-1,4-7")
    machine.bus.silent = False
    machine.systemd.daemon_reload()
    machine.systemd.start_service("new.service", 12)
    assert machine.set("system.slice") == "0-1,4-7"
    assert machine.repair(target(OWN))
    assert machine.set("system.slice") == "0-1,4-15"
    assert machine.repair(target())
    assert (machine.uses("system.slice"), recorded(machine)) == ("0-15", "")


def test_an_administrator_may_set_what_the_agent_had_set_before(machine: Machine) -> None:
    machine.repair(target(OWN, pod(exclusive("main", "8-15"), uid=OTHER)))
    for _ in range(2):
        machine.repair(target(OWN))
    administrator_sets(machine, "0-1,4-7")
    machine.repair(target(OWN))
    assert machine.set("system.slice") == "0-1,4-7"
    machine.repair(target())
    assert machine.set("system.slice") == "0-1,4-7"


def test_after_a_start_what_could_not_be_written_is_not_taken_for_an_administrators(
    machine: Machine,
) -> None:
    machine.repair(target(OWN))
    more = target(OWN, pod(exclusive("main", "8-15"), uid=OTHER))
    machine.start()
    machine.enforcer.verify(more)  # announces what is not written
    machine.repair(more)
    machine.repair(target())
    assert [machine.uses(each) for each in SLICES] == ["0-15"] * 3


def test_a_slice_of_which_systemd_alone_has_the_agents_set_gets_back_what_the_unit_had(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, Driver.SYSTEMD)
    machine.repair(target(OWN))
    machine.isolation._custody.forget({"cgroup/system.slice/cpuset.cpus"})
    assert machine.repair(target(OWN))
    assert machine.set("system.slice") == "0-1,4-15"
    machine.repair(target())
    assert machine.uses("system.slice") == "0-15"


def test_what_systemd_has_on_record_stays_saved_where_systemd_is_not_asked(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Driver.SYSTEMD)
    machine.repair(target(OWN))
    machine.driver = Driver.CGROUPFS
    machine.start()
    machine.repair(target())
    (condition,) = machine.isolation.report.conditions.values()
    assert "systemd is not asked (cgroupDriver)" in condition
    machine.driver = Driver.SYSTEMD
    machine.start()
    assert machine.isolation.restore() == ({}, len(SLICES))
    assert recorded(machine) == ""


def test_with_all_cpus_exclusive_the_slices_stay_as_they_are(machine: Machine) -> None:
    machine.repair(target(OWN))
    machine.repair(target(pod(exclusive("main", "0-15"))))
    assert machine.set("system.slice") == "0-1,4-15"
    machine.repair(target())
    assert machine.uses("system.slice") == "0-15"


def test_a_pod_after_another_finds_the_slices_recorded_and_no_drift(machine: Machine) -> None:
    machine.repair(target(OWN))
    for desired in (target(), target(OWN)):
        report = machine.enforcer.enforce_change(desired, *desired.ledger.allocations)
        machine.isolation.apply(desired.ledger.allocations.values(), (), thorough=False)
        assert report.drift == ()
    assert machine.uses("system.slice") == "0-1,4-15"
    if machine.driver is Driver.SYSTEMD:
        assert recorded(machine) == "0-1,4-15"


def online(machine: Machine, cpus: str) -> None:
    machine.kernel.set_online(Mask.parse(cpus))
    (machine.root / "sys/devices/system/cpu/online").write_text(f"{cpus}\n")


@pytest.mark.parametrize("by", ["restore", "disabling", "removal"])
def test_a_slice_given_back_while_a_cpu_is_offline_has_that_when_it_is_online_again(
    machine: Machine, by: str
) -> None:
    machine.repair(target(OWN))
    online(machine, "0-8,10-15")
    if by == "restore":
        machine.start()
        assert machine.isolation.restore()[0] == {}
    elif by == "disabling":
        machine.config = IsolationConfig()
        machine.start()
        machine.repair(target(OWN))
    else:
        machine.repair(target())
    assert Originals(machine.state, BOOT).load() == {}
    online(machine, "0-15")
    machine.repair(target())
    assert [machine.uses(each) for each in SLICES] == ["0-15"] * 3


def test_a_slice_given_back_beside_a_partition_has_its_cpus_when_that_ends(
    machine: Machine,
) -> None:
    machine.repair(target(OWN))
    machine.kernel.mkdir("other")
    for file, text in (("", "12-13"), (".exclusive", "12-13"), (".partition", "isolated")):
        machine.kernel.write("other", f"cpuset.cpus{file}", text)
    machine.start()
    machine.isolation.restore()
    machine.kernel.write("other", "cpuset.cpus.partition", "member")
    machine.kernel.rmdir("other")
    assert [machine.uses(each) for each in SLICES] == ["0-15"] * 3


def test_the_slices_stay_on_the_cpus_that_are_configured(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Driver.CGROUPFS, replace(ON, host_cpus=Mask.parse("0-3")))
    machine.repair(target())
    assert machine.uses("system.slice") == "0-3"
    machine.repair(target(OWN))
    assert machine.uses("system.slice") == "0-1"


@pytest.mark.parametrize("by", ["restore", "disabling"])
def test_a_slice_is_restored_by_command_and_when_the_item_is_switched_off(
    machine: Machine, by: str
) -> None:
    machine.kernel.write("user.slice", "cpuset.cpus", "1-2")
    machine.repair(target(OWN))
    machine.config = ON if by == "restore" else IsolationConfig()
    machine.start()
    if by == "restore":
        failed, restored = machine.isolation.restore()
        assert (failed, restored > 0) == ({}, True)
    else:
        machine.repair(target(OWN))
    assert [machine.uses(each) for each in SLICES] == ["0-15", "1-2", "0-15"]
    assert Originals(machine.state, BOOT).load() == {}
    if machine.driver is Driver.SYSTEMD:
        # Its own set was in the file alone: systemd had none.
        assert machine.systemd.unit_properties("user.slice", "AllowedCPUs") == (b"",)


@pytest.mark.parametrize("partitions", [PartitionMode.NEVER, PartitionMode.ROOT])
def test_after_a_death_at_any_operation_the_next_start_gives_all_back(
    machine: Machine, partitions: PartitionMode
) -> None:
    machine.config = replace(ON, partitions=partitions)
    for number in range(1, 400):
        try:
            machine.start(FaultyTree(machine.kernel, die_at(number)))
            machine.repair(target(OWN))
        except Died:
            machine.start()
            machine.repair(target(OWN))
            assert machine.uses("system.slice") == "0-1,4-15"
            machine.repair(target())
            assert [machine.uses(each) for each in SLICES] == ["0-15"] * 3
            assert machine.uses("") == "0-15"
        else:
            assert number > 20
            return


def test_a_unit_whose_own_set_has_exclusive_cpus_is_a_condition_that_names_it(
    machine: Machine,
) -> None:
    machine.kernel.write("system.slice", "cgroup.subtree_control", "+cpuset")
    machine.kernel.write("system.slice/web.service", "cpuset.cpus", "3-5")
    machine.repair(target(OWN))
    assert machine.uses("system.slice/web.service") == "4-5"
    (condition,) = machine.isolation.report.conditions.values()
    assert condition == (
        "/system.slice/web.service has CPUs of its own, 3-5, of which 3 are exclusive to a pod: it "
        "does without them"
    )


def test_a_unit_inside_that_has_exclusive_cpus_keeps_them_and_that_is_noted(tmp_path: Path) -> None:
    from agent.managers.bindings import Binding, Bindings  # noqa: PLC0415

    machine = Machine(tmp_path, Driver.CGROUPFS)
    machine.kernel.write("system.slice", "cgroup.subtree_control", "+cpuset +cpu")
    bound = Bindings((Binding(OWN.uid, "main", "system.slice/web.service"),))
    desired = replace(target(OWN), ledger=ledger_with(OWN), bindings=bound)
    report = machine.enforcer.enforce(desired)
    assert machine.uses("system.slice/web.service") == "2-3"
    assert any("inside of /system.slice" in note for note in report.notes)
    assert machine.uses("user.slice") == "0-1,4-15"
