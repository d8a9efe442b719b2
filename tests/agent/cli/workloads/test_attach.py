"""`numawarden attach` and `detach` against a real agent and a systemd with a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.config.model import CgroupDriver
from sysfs.mask import Mask
from systemd.units import mask_bytes

if TYPE_CHECKING:
    from tests.agent.cli.workloads.hosts import CommandHost

#: The agent of systemd, without which there are no units.
units = pytest.mark.parametrize("host", [CgroupDriver.SYSTEMD], indirect=True)
ASKED = ("--cpus", "2", "--memory", "1Gi")


def cpus_of(host: CommandHost, cgroup: str) -> Mask:
    (pid,) = host.world.kernel.procs(cgroup)
    return host.world.kernel.allowed(pid)[0]


@units
def test_a_unit_gets_cpus_and_keeps_its_own_limits(host: CommandHost) -> None:
    cgroup = host.systemd.start_service("db.service", 100)
    code, out, err = host.run("attach", "--unit", "db", *ASKED)
    assert (code, out) == (ExitCode.OK, "")
    assert "main  CPUs 1,9 (its own), 1Gi of memory on node 0" in err
    assert cpus_of(host, cgroup) == Mask.of(1, 9)
    assert host.world.kernel.read(cgroup, "memory.max").strip() == "max"
    assert host.systemd.unit_properties("db.service", "AllowedCPUs")[0] == b"\x02\x02"
    (pod,) = host.pods
    assert "\n  ends      with db.service\n" in host.run("show", "db.service")[1]
    assert (pod.name, pod.end, pod.unit) == ("db.service", "unit", "db.service")


@units
def test_an_instance_of_a_template_gets_a_name_that_a_pod_may_have(
    host: CommandHost,
) -> None:
    host.systemd.start_service("postgresql@15-main.service", 100)
    assert host.run("attach", "--unit", "postgresql@15-main", *ASKED)[0] == ExitCode.OK
    assert [pod.name for pod in host.pods] == ["postgresql-15-main.service"]


@units
def test_a_unit_is_attached_once_and_detached_to_the_shared_pool(host: CommandHost) -> None:
    cgroup = host.systemd.start_service("db.service", 100)
    host.run("attach", "--unit", "db", *ASKED)
    code, _, err = host.run("attach", "--unit", "db.service", *ASKED)
    assert (code, len(host.pods)) == (ExitCode.REJECTED, 1)
    assert "db.service is attached already, as pod db.service; detach it first" in err
    code, out, _ = host.run("detach", "db")
    assert (code, host.pods) == (ExitCode.OK, ())
    assert out.startswith("detached db.service\n  note: ")
    assert cpus_of(host, cgroup) == Mask.parse("0-15")
    code, _, err = host.run("detach", "db")
    assert (code, "db.service is not attached" in err) == (ExitCode.NOT_FOUND, True)


@units
def test_a_unit_that_gets_nothing_is_left_alone(host: CommandHost) -> None:
    code, _, err = host.run("attach", "--unit", "db", *ASKED)
    assert (code, host.pods) == (ExitCode.NOT_FOUND, ())
    assert "db.service does not run; start it first (systemctl start db.service)" in err
    cgroup = host.systemd.start_service("db.service", 100)
    code, _, err = host.run("attach", "--unit", "db", "--cpus", "99")
    assert (code, host.pods, "OutOfcpu" in err) == (ExitCode.REJECTED, (), True)
    assert cpus_of(host, cgroup) == Mask.parse("0-15")
    host.world.kernel.mkdir(f"{cgroup}/worker")
    code, _, err = host.run("attach", "--unit", "db", *ASKED)
    assert (code, host.pods) == (ExitCode.BAD_INPUT, ())
    assert "it has cgroups in it (worker)" in err


BIND = 2


@units
@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        (
            {"CPUAffinity": mask_bytes(Mask.parse("4-7"))},
            ExitCode.NOT_ENFORCED,
            "(215/CPUAFFINITY)",
        ),
        (
            {"CPUAffinity": mask_bytes(Mask.parse("0-7"))},
            ExitCode.OK,
            "warning: db.service has CPUAffinity= with CPUs 0-7: of 1,9 it uses 1 alone",
        ),
        (
            {"NUMAPolicy": BIND, "NUMAMask": mask_bytes(Mask.of(1))},
            ExitCode.NOT_ENFORCED,
            "has NUMAPolicy= with memory nodes 1, and would get 0",
        ),
        (
            {"NUMAPolicy": BIND, "NUMAMask": mask_bytes(Mask.of(0, 1))},
            ExitCode.OK,
            "main  CPUs 1,9",
        ),
        ({"NUMAMask": mask_bytes(Mask.of(1))}, ExitCode.OK, "main  CPUs 1,9"),
    ],
)
def test_a_unit_is_not_attached_where_its_own_settings_leave_it_nothing(
    host: CommandHost, settings: dict[str, object], code: ExitCode, text: str
) -> None:
    host.systemd.start_service("db.service", 100)
    host.systemd.units["db.service"].properties.update(settings)
    answer, _, err = host.run("attach", "--unit", "db", *ASKED)
    assert (answer, len(host.pods)) == (code, int(code == ExitCode.OK))
    assert text in err
    assert ("warning" in err) == ("warning" in text)


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
