"""Each way in which a host can be set up wrong is found, with its file and the line to change."""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.tools.doctor.checks import examine, examine_for_start
from agent.tools.doctor.facts import AskedWay, Verdict
from agent.tools.doctor.gathering import gather
from agent.versions import ReportedVersion
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.tools.doctor.facts import HostCheck

OK, WARNING, ERROR = Verdict.OK, Verdict.WARNING, Verdict.ERROR
CPU, MEMORY = "kubelet CPU manager", "kubelet memory manager"
GOLDEN: Final = sorted(Path(__file__).with_name("golden").glob("*.txt"))


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


NAMES: Final = {
    **{name: text for name, text in vars(hosts).items() if name.isupper()},
    "NRI_SOCKET": "/var/run/nri/nri.sock",
    "PODS_API": f"{hosts.KUBELET}/pods-api/pods-api.sock",
    "NRI": "[plugins.'io.containerd.nri.v1.nri']\\n",
    "STATIC": '{"policyName":"static","defaultCpuSet":"0-15"}',
}


def replace_in(host: FakeHost, what: str, text: str) -> None:
    before, _, after = text.partition(" =>")
    if what == "agent":
        host.agent = host.agent.replace(before, after.strip())
    else:
        host.write(what, host.at(what).read_text().replace(before, after.strip()))


def package(host: FakeHost, name: str, version: str) -> None:
    paragraph = f"Package: {name}\nStatus: hold ok installed\nVersion: {version}\n"
    before = host.at(hosts.DPKG).read_text() if name == "kubelet" else ""
    host.write(hosts.DPKG, f"{before}\n{paragraph}".lstrip())


def asked(host: FakeHost, _: str, text: str) -> None:
    way, problem, count = text.split("; ")
    host.asked = (*host.asked, AskedWay(way, int(count), problem))


#: The steps of `golden/`, with their first word and the rest.
STEPS: Final[Mapping[str, Callable[[FakeHost, str, str], object]]] = {
    "config": lambda host, key, value: host.add(hosts.CONFIG, f"{key} {value}\n"),
    "agent": lambda host, key, value: setattr(host, "agent", f"{host.agent}{key} {value}\n"),
    "process": lambda host, pid, command: host.process(int(pid), *command.split()),
    "package": package,
    "replace": replace_in,
    "asked": asked,
    "unasked": lambda host, _, __: setattr(host, "asked", ()),
    "add": FakeHost.add,
    "write": FakeHost.write,
    "remove": lambda host, path, _: host.remove(path),
    "socket": lambda host, path, _: host.socket(path),
    "stop": lambda host, _, __: host.stop_kubelet(),
}


def examined(folder: Path, case: str) -> Iterator[str]:
    """Yield a case with the checks that say something else than of a host that is set up well."""
    host = FakeHost(folder)
    well = host.examine()
    for verb, what, text in re.findall(r"(?m)^% (\w+) ?(\S*) ?(.*)$", case):
        yield f"% {verb} {what} {text}".rstrip()
        filled = Template(text).safe_substitute(NAMES).encode().decode("unicode_escape")
        STEPS[verb](host, Template(what).safe_substitute(NAMES), filled)
    for name, one in host.examine().items():
        if one != well.get(name):
            yield f"{one.verdict} {name}: {one.found}"
            if one.change:
                yield f"  -> {one.change}"
            # Else it cannot be acted on.
            assert one.change or one.verdict not in (WARNING, ERROR)


def test_a_host_that_is_set_up_well_has_nothing_to_change(host: FakeHost) -> None:
    checks = host.examine().values()
    assert [(one.check, one.found) for one in checks if one.verdict is not OK] == []
    assert [one.change for one in checks if one.change] == []


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_what_is_wrong_is_found_with_what_to_change(tmp_path: Path, file: Path) -> None:
    """With NUMAWARDEN_GOLDEN set the file is written anew: read what changed."""
    title, *cases = file.read_text().rstrip("\n").split("\n\n")
    found = ["\n".join(examined(tmp_path / str(n), case)) for n, case in enumerate(cases)]
    if os.environ.get("NUMAWARDEN_GOLDEN"):
        file.write_text("\n\n".join((title, *found)) + "\n")
    assert found == cases


def test_what_the_advice_says_makes_a_kubelet_that_manages_cpus_acceptable(host: FakeHost) -> None:
    host.add(hosts.CONFIG, "cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n")
    host.write(hosts.CPU_STATE, NAMES["STATIC"])
    host.write(hosts.MEMORY_STATE, NAMES["STATIC"])
    assert {host.examine()[name].verdict for name in (CPU, MEMORY)} == {ERROR}
    text = host.at(hosts.CONFIG).read_text()
    text = text.replace("cpuManagerPolicy: static", "cpuManagerPolicy: none")
    host.write(
        hosts.CONFIG, text.replace("memoryManagerPolicy: Static", "memoryManagerPolicy: None")
    )
    assert {host.examine()[name].verdict for name in (CPU, MEMORY)} == {ERROR}
    host.remove(hosts.CPU_STATE)
    host.remove(hosts.MEMORY_STATE)
    assert {host.examine()[name].verdict for name in (CPU, MEMORY)} == {OK}


def test_the_running_runtime_is_believed_before_its_package(host: FakeHost) -> None:
    config, facts = host.config(), gather(host.config(), host.root, with_runtime=True)
    assert facts.runtime is not None

    def found(reported: ReportedVersion) -> HostCheck:
        assert facts.runtime is not None
        asked = replace(facts, runtime=replace(facts.runtime, reported=reported))
        (one,) = (one for one in examine(config, asked) if one.check == "container runtime")
        return one

    running = found(ReportedVersion("containerd", "v2.1.9", "asked at /run/c.sock"))
    assert running.found.startswith(
        "now containerd v2.1.9 (asked at /run/c.sock); package containerd has 2.3.4~ds1-1, which"
    )
    assert ": it leaks the sandbox" in running.found
    silent = found(ReportedVersion(problem="/run/c.sock does not answer"))
    assert silent.verdict is OK
    assert "(package containerd; /run/c.sock does not answer)" in silent.found


def test_a_process_of_another_user_that_is_called_kubelet_changes_nothing(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.process(hosts.PID, "kubelet", "--cpu-manager-policy=static")
    owner = host.at(f"/proc/{hosts.PID}").stat().st_uid
    monkeypatch.setattr(
        "agent.tools.doctor.gathering.trusted_users", lambda: frozenset((owner + 1,))
    )
    assert host.examine()[CPU].verdict is OK
    assert "no kubelet runs" in host.examine()["kubelet directory"].found


def test_the_start_judges_managers_and_drivers_and_leaves_the_runtime_out(host: FakeHost) -> None:
    host.remove("/run/containerd/containerd.sock")
    host.remove("/var/run/nri/nri.sock")
    config = host.config()
    facts = gather(config, host.root, with_runtime=False)
    checks = {one.check: one.verdict for one in examine_for_start(config, facts)}
    assert set(checks.values()) == {OK}
    assert {CPU, MEMORY, "cgroup driver", "reserved CPUs"} <= checks.keys()
