"""`numawarden attach` and `detach` against a real agent and a systemd with a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.config.model import CgroupDriver
from sysfs.mask import Mask

if TYPE_CHECKING:
    from tests.agent.cli.workloads.hosts import CommandHost

ASKED = ("--cpus", "2", "--memory", "1Gi")


def cpus_of(host: CommandHost, cgroup: str) -> Mask:
    (pid,) = host.world.kernel.procs(cgroup)
    return host.world.kernel.allowed(pid)[0]


def test_a_unit_gets_cpus_and_keeps_its_own_limits(units_host: CommandHost) -> None:
    cgroup = units_host.systemd.start_service("db.service", 100)
    code, out, err = units_host.run("attach", "--unit", "db", *ASKED)
    assert (code, out) == (ExitCode.OK, "")
    assert "main  CPUs 1,9 (its own), 1Gi of memory on node 0" in err
    assert cpus_of(units_host, cgroup) == Mask.of(1, 9)
    assert units_host.world.kernel.read(cgroup, "memory.max").strip() == "max"
    assert units_host.systemd.unit_properties("db.service", "AllowedCPUs")[0] == b"\x02\x02"
    (pod,) = units_host.pods
    assert "\n  ends      with db.service\n" in units_host.run("show", "db.service")[1]
    assert (pod.name, pod.end, pod.unit) == ("db.service", "unit", "db.service")


def test_a_unit_is_attached_once(units_host: CommandHost) -> None:
    units_host.systemd.start_service("db.service", 100)
    units_host.run("attach", "--unit", "db", *ASKED)
    code, _, err = units_host.run("attach", "--unit", "db.service", *ASKED)
    assert code == ExitCode.REJECTED
    assert "db.service is attached already, as pod db.service; detach it first" in err
    assert len(units_host.pods) == 1


def test_an_instance_of_a_template_gets_a_name_that_a_pod_may_have(
    units_host: CommandHost,
) -> None:
    units_host.systemd.start_service("postgresql@15-main.service", 100)
    assert units_host.run("attach", "--unit", "postgresql@15-main", *ASKED)[0] == ExitCode.OK
    assert [pod.name for pod in units_host.pods] == ["postgresql-15-main.service"]


def test_detach_frees_the_cpus_and_confines_the_unit_to_the_shared_pool(
    units_host: CommandHost,
) -> None:
    cgroup = units_host.systemd.start_service("db.service", 100)
    units_host.run("attach", "--unit", "db", *ASKED)
    code, out, _ = units_host.run("detach", "db")
    assert code == ExitCode.OK
    assert out.startswith("detached db.service\n  note: ")
    assert units_host.pods == ()
    assert cpus_of(units_host, cgroup) == Mask.parse("0-15")


def test_a_unit_that_does_not_run_is_not_attached(units_host: CommandHost) -> None:
    code, _, err = units_host.run("attach", "--unit", "db", *ASKED)
    assert (code, units_host.pods) == (ExitCode.NOT_FOUND, ())
    assert "db.service does not run; start it first (systemctl start db.service)" in err


def test_a_unit_that_cannot_be_bound_gets_nothing(units_host: CommandHost) -> None:
    cgroup = units_host.systemd.start_service("db.service", 100)
    units_host.world.kernel.mkdir(f"{cgroup}/worker")
    code, _, err = units_host.run("attach", "--unit", "db", *ASKED)
    assert (code, units_host.pods) == (ExitCode.BAD_INPUT, ())
    assert "it has cgroups in it (worker)" in err


def test_a_rejected_unit_is_left_alone(units_host: CommandHost) -> None:
    cgroup = units_host.systemd.start_service("db.service", 100)
    code, _, err = units_host.run("attach", "--unit", "db", "--cpus", "99")
    assert (code, units_host.pods) == (ExitCode.REJECTED, ())
    assert "OutOfcpu" in err
    assert cpus_of(units_host, cgroup) == Mask.parse("0-15")


def test_what_is_not_attached_cannot_be_detached(units_host: CommandHost) -> None:
    code, _, err = units_host.run("detach", "db")
    assert code == ExitCode.NOT_FOUND
    assert "db.service is not attached" in err


@pytest.mark.parametrize("host", [CgroupDriver.CGROUPFS], indirect=True)
def test_units_need_the_systemd_driver(host: CommandHost, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        @staticmethod
        def active_state(_: str) -> object:
            from systemd.bus import ActiveState  # noqa: PLC0415

            return ActiveState.ACTIVE

        @staticmethod
        def control_group(_: str) -> str:
            return "session"

    monkeypatch.setattr("agent.cli.workloads.connect", Elsewhere)
    code, _, err = host.run("attach", "--unit", "db", *ASKED)
    assert (code, host.pods) == (ExitCode.ENVIRONMENT, ())
    assert "cgroupDriver: systemd" in err
