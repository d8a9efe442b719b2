"""Each way in which a host can be set up wrong is found, with its file and the line to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.tools.doctor.checks import examine, examine_for_start
from agent.tools.doctor.facts import AskedWay, ReportedVersion, Verdict
from agent.tools.doctor.gathering import gather
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.tools.doctor.facts import HostCheck

OK, WARNING, ERROR, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.ERROR, Verdict.UNKNOWN


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_a_host_that_is_set_up_well_has_nothing_to_change(host: FakeHost) -> None:
    checks = host.examine().values()
    assert [(one.check, one.found) for one in checks if one.verdict is not OK] == []
    assert [one.change for one in checks if one.change] == []


@pytest.mark.parametrize(
    ("package", "right"),
    [("1.36.2-1.1", "v1.36"), ("1.37.0-1.1", ""), ("1.35.9-1.1", "v1.36"), ("1.40.1-1.1", "v1.38")],
)
def test_rules_of_another_version_than_the_kubelets_are_named(
    host: FakeHost, package: str, right: str
) -> None:
    host.add(hosts.DPKG, f"\nPackage: kubelet\nStatus: install ok installed\nVersion: {package}\n")
    host.agent += "kubernetesVersion: v1.37\n"
    check = host.examine()["kubernetesVersion"]
    assert check.found == f"v1.37, and the package kubelet says {package}"
    change = f"remove `kubernetesVersion` from the agent's configuration, or write {right}"
    assert check.change == (change if right else "")


def config(line: str) -> Callable[[FakeHost], None]:
    return lambda host: host.add(hosts.CONFIG, f"{line}\n")


def agent(line: str) -> Callable[[FakeHost], None]:
    def change(host: FakeHost) -> None:
        host.agent += f"{line}\n"

    return change


def written(path: str, text: str) -> Callable[[FakeHost], None]:
    return lambda host: host.write(path, text)


def removed(path: str) -> Callable[[FakeHost], None]:
    return lambda host: host.remove(path)


def both(*changes: Callable[[FakeHost], None]) -> Callable[[FakeHost], None]:
    def change(host: FakeHost) -> None:
        for each in changes:
            each(host)

    return change


def flags(*arguments: str) -> Callable[[FakeHost], None]:
    return lambda host: host.process(hosts.PID, "kubelet", *arguments)


def asked(*ways: AskedWay) -> Callable[[FakeHost], None]:
    return lambda host: setattr(host, "asked", ways)


def stopped(host: FakeHost) -> None:
    host.stop_kubelet()


def version(text: str, *more: Callable[[FakeHost], None]) -> Callable[[FakeHost], None]:
    paragraph = f"Package: containerd\nStatus: install ok installed\nVersion: {text}\n"
    return both(written(hosts.DPKG, paragraph), *more)


NRI = "[plugins.'io.containerd.nri.v1.nri']\n"
NRI_2 = 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n'
NRI_SOCKET = "/var/run/nri/nri.sock"
KUBELET_37 = "\nPackage: kubelet\nStatus: install ok installed\nVersion: 1.37.0-1.1\n"
STATIC = '{"policyName":"static","defaultCpuSet":"0-15"}'
CPU, MEMORY = "kubelet CPU manager", "kubelet memory manager"
TOPOLOGY = "kubelet topology manager"


@pytest.mark.parametrize(
    ("change", "check", "verdict", "found", "advice"),
    [
        # The kubelet's managers.
        (
            config("cpuManagerPolicy: static"),
            CPU,
            ERROR,
            (
                f"now none ({hosts.CPU_STATE}); from the kubelet's next start on two managers of "
                f'cpusets on one host: cpuManagerPolicy is "static" in {hosts.CONFIG}'
            ),
            f"write `cpuManagerPolicy: none` in {hosts.CONFIG}",
        ),
        (
            both(config("cpuManagerPolicy: static"), written(hosts.CPU_STATE, STATIC)),
            CPU,
            ERROR,
            f'two managers of cpusets on one host: cpuManagerPolicy is "static" in {hosts.CONFIG}',
            (
                f"write `cpuManagerPolicy: none` in {hosts.CONFIG}, stop the kubelet, remove "
                f"{hosts.CPU_STATE}, start the kubelet"
            ),
        ),
        (
            config("memoryManagerPolicy: Static"),
            MEMORY,
            ERROR,
            'memoryManagerPolicy is "Static"',
            f"write `memoryManagerPolicy: None` in {hosts.CONFIG}",
        ),
        (
            flags("--config", hosts.CONFIG, "--cpu-manager-policy=static"),
            CPU,
            ERROR,
            '"static" in the flags of the kubelet (process 815)',
            "write `--cpu-manager-policy=none` in the flags of the kubelet",
        ),
        (
            both(
                config("cpuManagerPolicy: static"),
                flags("--config", hosts.CONFIG, "--cpu-manager-policy", "none"),
            ),
            CPU,
            WARNING,
            f'which wins over {hosts.CONFIG} ("static")',
            f"write `cpuManagerPolicy: none` in {hosts.CONFIG}",
        ),
        (
            both(
                config("cpuManagerPolicy: none"),
                flags("--config", hosts.CONFIG, "--config-dir=/etc/kubelet.d"),
                written("/etc/kubelet.d/10-a.conf", "cpuManagerPolicy: none\n"),
                written("/etc/kubelet.d/20-b.conf", "cpuManagerPolicy: static\n"),
                written("/etc/kubelet.d/30-c.conf.bak", "cpuManagerPolicy: none\n"),
            ),
            CPU,
            ERROR,
            '"static" in /etc/kubelet.d/20-b.conf, which wins over /etc/kubelet.d/10-a.conf',
            "write `cpuManagerPolicy: none` in /etc/kubelet.d/20-b.conf",
        ),
        (
            written(hosts.CPU_STATE, STATIC),
            CPU,
            ERROR,
            (
                f'policyName is "static" in {hosts.CPU_STATE}, so the kubelet (process 815) was '
                "started with that policy"
            ),
            f"stop the kubelet, remove {hosts.CPU_STATE}, start the kubelet",
        ),
        (
            both(written(hosts.CPU_STATE, STATIC), stopped),
            CPU,
            ERROR,
            "with which no kubelet starts whose cpuManagerPolicy is none",
            "remove the file before the kubelet starts",
        ),
        (
            both(
                stopped,
                written(
                    f"{hosts.KUBELET}/kubeadm-flags.env",
                    'KUBELET_KUBEADM_ARGS="--v=2 --cpu-manager-policy=static"\n',
                ),
            ),
            CPU,
            ERROR,
            f'"static" in {hosts.KUBELET}/kubeadm-flags.env',
            "write `--cpu-manager-policy=none` in",
        ),
        (
            both(
                stopped,
                removed(hosts.CONFIG),
                removed(hosts.CPU_STATE),
            ),
            CPU,
            UNKNOWN,
            f"neither {hosts.CONFIG} nor {hosts.CPU_STATE} is there",
            "agent.kubelet.directory",
        ),
        (
            config("topologyManagerPolicy: single-numa-node"),
            TOPOLOGY,
            WARNING,
            'topologyManagerPolicy is "single-numa-node"',
            f"write `topologyManagerPolicy: none` in {hosts.CONFIG}",
        ),
        (config("topologyManagerPolicy: best-effort"), TOPOLOGY, OK, "best-effort", ""),
        (
            both(
                removed(hosts.CONFIG),
                flags("--config=/etc/kubelet.yaml"),
                written("/etc/kubelet.yaml", "cpuManagerPolicy: static\n"),
            ),
            CPU,
            ERROR,
            '"static" in /etc/kubelet.yaml',
            "in /etc/kubelet.yaml",
        ),
        (
            flags("--config", hosts.CONFIG, "--root-dir=/data/kubelet"),
            "kubelet directory",
            ERROR,
            "has --root-dir=/data/kubelet",
            "write `agent: {kubelet: {directory: /data/kubelet}}`",
        ),
        (
            config("cpuManagerPolicyOptions: {full-pcpus-only: 'true'}"),
            CPU,
            WARNING,
            "no kubelet starts so, for cpuManagerPolicyOptions is set",
            f"remove cpuManagerPolicyOptions from {hosts.CONFIG}",
        ),
        # What is reserved.
        (
            written(hosts.CONFIG, hosts.SETTINGS.replace("reservedSystemCPUs: '0'\n", "")),
            "reserved CPUs",
            WARNING,
            "the kubelet reserves 0 CPUs (the default), the agent 1",
            f'write `reservedSystemCPUs: "0"` in {hosts.CONFIG}',
        ),
        (
            written(hosts.CONFIG, hosts.SETTINGS.replace("'0'", "'8'")),
            "reserved CPUs",
            WARNING,
            f'reservedSystemCPUs is "8" in {hosts.CONFIG} and 0 for the agent',
            f'write `reservedSystemCPUs: "0"` in {hosts.CONFIG}',
        ),
        (
            written(hosts.CONFIG, hosts.SETTINGS.replace("'0'", "0-x")),
            "reserved CPUs",
            UNKNOWN,
            "0-x",
            "",
        ),
        (
            written(
                hosts.CONFIG,
                hosts.SETTINGS.replace("reservedSystemCPUs: '0'", "systemReserved: {cpu: 1500m}"),
            ),
            "reserved CPUs",
            OK,
            "reserves 1.5 CPUs",
            "",
        ),
        # Cgroups.
        (
            removed("/sys/fs/cgroup/cgroup.controllers"),
            "cgroup v2",
            ERROR,
            "/sys/fs/cgroup/cgroup.controllers is not there",
            "systemd.unified_cgroup_hierarchy=1",
        ),
        (
            written("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            "cgroup v2",
            ERROR,
            "does not list cpuset",
            "cgroup_disable=cpuset",
        ),
        (
            both(
                removed(f"{hosts.KUBEPODS}/cgroup.controllers"),
                written("/sys/fs/cgroup/kubepods/cgroup.controllers", "cpuset\n"),
            ),
            "cgroup driver",
            ERROR,
            (
                "now the kubelet's is cgroupfs (/sys/fs/cgroup/kubepods is there), at its next "
                f'start "systemd" ({hosts.CONFIG})'
            ),
            "write `cgroupDriver: cgroupfs` in the agent's configuration",
        ),
        (
            written(hosts.CONFIG, hosts.SETTINGS.replace("systemd", "cgroupfs")),
            "cgroup driver",
            WARNING,
            (
                "now the kubelet's is systemd (/sys/fs/cgroup/kubepods.slice is there), at its "
                f'next start "cgroupfs" ({hosts.CONFIG}) unless the runtime names another'
            ),
            f"write `cgroupDriver: systemd` in {hosts.CONFIG}",
        ),
        (
            both(
                removed(f"{hosts.KUBEPODS}/cgroup.controllers"),
                written(hosts.CONFIG, hosts.SETTINGS.replace("systemd", "cgroupfs")),
            ),
            "cgroup driver",
            WARNING,
            f'the kubelet\'s is "cgroupfs" ({hosts.CONFIG})',
            "in the agent's configuration",
        ),
        (
            written(f"{hosts.KUBEPODS}/kubepods-burstable.slice/cgroup.controllers", "cpu\n"),
            "cpuset of pods",
            WARNING,
            "kubepods-burstable.slice/cgroup.controllers does not list cpuset",
            "start the agent",
        ),
        (
            written(f"{hosts.KUBEPODS}/cgroup.controllers", "cpu\n"),
            "cpuset of pods",
            WARNING,
            "kubepods.slice/cgroup.controllers does not list cpuset",
            "restart the kubelet",
        ),
        # The runtime.
        (
            version("2.2.5-1"),
            "container runtime",
            OK,
            "containerd 2.2.5-1 (package containerd): it leaks the sandbox",
            "",
        ),
        (
            version("2.2.5-1", written("/opt/nri/plugins/10-logger", "ELF")),
            "container runtime",
            WARNING,
            "the agent rejects elsewhere, the plugins in /opt/nri/plugins may not",
            "upgrade containerd to 2.2.6",
        ),
        (version("2.2.6-1"), "container runtime", OK, "containerd 2.2.6-1", ""),
        (version("surprise"), "container runtime", UNKNOWN, '"surprise"', ""),
        (removed(hosts.DPKG), "container runtime", UNKNOWN, "no package of dpkg names", ""),
        (
            removed("/run/containerd/containerd.sock"),
            "container runtime",
            ERROR,
            "neither /run/containerd/containerd.sock nor /run/crio/crio.sock",
            "start containerd",
        ),
        (
            version("1.7.24~ds1-6", removed(NRI_SOCKET)),
            "NRI",
            ERROR,
            "/var/run/nri/nri.sock is not a socket: this version has NRI off by default",
            f"write `disable = false` in {NRI.strip()} of {hosts.CONTAINERD}",
        ),
        (
            both(removed(NRI_SOCKET), written(hosts.CONTAINERD, f"{NRI_2}disable = true\n")),
            "NRI",
            ERROR,
            f"disable is true in {hosts.CONTAINERD}",
            "write `disable = false`",
        ),
        (
            both(
                removed(NRI_SOCKET),
                written(hosts.CONTAINERD, f'imports = ["conf.d/*.toml"]\n{NRI}disable = false\n'),
                written("/etc/containerd/conf.d/nri.toml", f"{NRI}disable = true\n"),
            ),
            "NRI",
            ERROR,
            "disable is true in /etc/containerd/conf.d/nri.toml",
            "of /etc/containerd/conf.d/nri.toml",
        ),
        (
            both(
                removed(NRI_SOCKET),
                written(hosts.CONTAINERD, 'disabled_plugins = ["io.containerd.nri.v1.nri"]\n'),
            ),
            "NRI",
            ERROR,
            "disabled_plugins",
            f"from disabled_plugins in {hosts.CONTAINERD}",
        ),
        (
            both(
                removed(NRI_SOCKET),
                written(hosts.CONTAINERD, f'{NRI}socket_path = "/run/other.sock"\n'),
            ),
            "NRI",
            ERROR,
            'socket_path is "/run/other.sock"',
            "write `agent: {kubelet: {nriSocket: /run/other.sock}}`",
        ),
        (
            written(hosts.CONTAINERD, "version = 3\n"),
            "required plugin",
            WARNING,
            "the validator is off",
            "write `enable = true` in [plugins.'io.containerd.nri.v1.nri'.default_validator]",
        ),
        (
            lambda host: host.add(hosts.CONTAINERD, 'required_plugins = ["numawarden"]\n'),
            "required plugin",
            WARNING,
            "a list for all pods",
            'required-plugins.noderesource.dev: "[numawarden]"',
        ),
        (version("2.1.9"), "required plugin", OK, "has no NRI validator", ""),
        (
            written(hosts.CONTAINERD, f"{NRI}disable = true\n"),
            "NRI",
            ERROR,
            (
                f"now {NRI_SOCKET} is there; at the next start of containerd it is not: disable is "
                f"true in {hosts.CONTAINERD}"
            ),
            f"write `disable = false` in {NRI.strip()} of {hosts.CONTAINERD}",
        ),
        (
            written(hosts.CONTAINERD, f'{NRI}socket_path = "/run/other.sock"\n'),
            "NRI",
            ERROR,
            f"now {NRI_SOCKET} is there; at the next start of containerd it is not: socket_path is",
            "write `agent: {kubelet: {nriSocket: /run/other.sock}}`",
        ),
        (
            written(hosts.CONTAINERD, f'{NRI}socket_path = "/run/nri/nri.sock"\n'),
            "NRI",
            OK,
            f"{NRI_SOCKET} is there",
            "",
        ),
        (
            version("1.7.24", written(hosts.CONTAINERD, "version = 2\n")),
            "NRI",
            ERROR,
            "it is not: this version has NRI off by default",
            "write `disable = false`",
        ),
        (version("1.7.24", removed(hosts.CONTAINERD)), "NRI", OK, f"{NRI_SOCKET} is there", ""),
        (
            written(hosts.CONTAINERD, f'{NRI}plugin_request_timeout = "500ms"\n'),
            "NRI timeouts",
            WARNING,
            'plugin_request_timeout is "500ms"',
            'write `plugin_request_timeout = "2s"`',
        ),
        (
            written(hosts.CONTAINERD, f'{NRI}plugin_request_timeout = "soon"\n'),
            "NRI timeouts",
            WARNING,
            '"soon"',
            'write `plugin_request_timeout = "2s"`',
        ),
        (
            both(
                removed("/run/containerd/containerd.sock"),
                removed(NRI_SOCKET),
                lambda host: host.socket("/run/crio/crio.sock"),
                written("/etc/crio/crio.conf.d/10.conf", "[crio.nri]\nenable_nri = false\n"),
            ),
            "NRI",
            ERROR,
            "enable_nri is false in /etc/crio/crio.conf.d/10.conf",
            "write `enable_nri = true` in [crio.nri] of /etc/crio/crio.conf.d/10.conf",
        ),
        # Where pods come from.
        (
            removed(f"{hosts.KUBELET}/pods-api/pods-api.sock"),
            "pod source",
            ERROR,
            (
                f"there is no Pods API at {hosts.KUBELET}/pods-api/pods-api.sock; pods whose "
                "specification is not known run shared"
            ),
            f"write `featureGates: {{PodsAPI: true}}` in {hosts.CONFIG} and restart the kubelet",
        ),
        (
            asked(AskedWay("the Pods API", problem="UNAVAILABLE"), AskedWay("/pods", 7)),
            "pod source",
            WARNING,
            "/pods lists 7 pods; the Pods API: UNAVAILABLE",
            "see `journalctl -u kubelet`",
        ),
        (
            asked(AskedWay("the Pods API", problem="DEADLINE_EXCEEDED")),
            "pod source",
            ERROR,
            "the Pods API: DEADLINE_EXCEEDED",
            "set agent.kubelet.podsEndpoint",
        ),
        (
            both(
                removed(f"{hosts.KUBELET}/pods-api/pods-api.sock"),
                written(hosts.CONFIG, "kind: KubeletConfiguration\n"),
            ),
            "gate PodsAPI",
            WARNING,
            f"not set in {hosts.CONFIG}",
            f"write `featureGates: {{PodsAPI: true}}` in {hosts.CONFIG}",
        ),
        (
            written(hosts.CONFIG, hosts.SETTINGS.replace("PodsAPI: true", "")),
            "gate PodsAPI",
            WARNING,
            (
                f"now {hosts.KUBELET}/pods-api/pods-api.sock is served; at the kubelet's next "
                f"start it is not, for the gate is not set in {hosts.CONFIG}"
            ),
            f"write `featureGates: {{PodsAPI: true}}` in {hosts.CONFIG}",
        ),
        (
            both(
                written(hosts.CONFIG, hosts.SETTINGS.replace("PodsAPI: true", "")),
                lambda host: host.add(hosts.DPKG, KUBELET_37),
            ),
            "gate PodsAPI",
            OK,
            "is served",
            "",
        ),
        (
            both(
                written(hosts.CONFIG, hosts.SETTINGS.replace("PodsAPI: true", "PodsAPI: false")),
                lambda host: host.add(hosts.DPKG, KUBELET_37),
            ),
            "gate PodsAPI",
            WARNING,
            f"answers errors only, for the gate is off in {hosts.CONFIG}",
            f"write `featureGates: {{PodsAPI: true}}` in {hosts.CONFIG}",
        ),
        (
            both(
                removed(f"{hosts.KUBELET}/pods-api/pods-api.sock"),
                flags("--config", hosts.CONFIG, "--feature-gates=A=true,PodsAPI=false"),
            ),
            "gate PodsAPI",
            WARNING,
            "off in the flags",
            "write `--feature-gates=PodsAPI=true` in the flags",
        ),
        (
            both(
                removed(f"{hosts.KUBELET}/pods-api/pods-api.sock"),
                written(hosts.CONFIG, "kind: KubeletConfiguration\n"),
                lambda host: host.add(
                    hosts.DPKG,
                    "\nPackage: kubelet\nStatus: hold ok installed\nVersion: 1.35.2-1.1\n",
                ),
            ),
            "gate PodsAPI",
            WARNING,
            "kubelet 1.35.2-1.1 (package kubelet) has no Pods API",
            "set agent.kubelet.podsEndpoint",
        ),
        # The opt-in resource.
        (
            written(f"{hosts.KUBELET}/device-plugins/kubelet_internal_checkpoint", "{}"),
            "opt-in resource",
            WARNING,
            "numawarden.dev/exclusive is not registered",
            "start the agent",
        ),
        (
            written(hosts.UNIT, "[Unit]\nBefore=multi-user.target\n"),
            "start order",
            WARNING,
            f"{hosts.UNIT} has no Before=kubelet.service",
            "`Before=kubelet.service` in /etc/systemd/system/numawarden.service.d/kubelet.conf",
        ),
        (
            both(
                written(hosts.UNIT, "[Unit]\n"),
                written(f"{hosts.UNIT}.d/kubelet.conf", "[Unit]\nBefore = kubelet.service\n"),
            ),
            "start order",
            OK,
            f"{hosts.UNIT}.d/kubelet.conf",
            "",
        ),
        (
            both(
                written(hosts.UNIT, "[Unit]\n"),
                written(
                    "/usr/lib/systemd/system/kubelet.service", "[Unit]\nAfter=numawarden.service\n"
                ),
            ),
            "start order",
            OK,
            "After=numawarden.service in /usr/lib/systemd/system/kubelet.service",
            "",
        ),
        (
            lambda host: setattr(
                host, "agent", host.agent.replace("true}", "true, exclusiveResource: x.org/one}")
            ),
            "opt-in resource",
            WARNING,
            "x.org/one is not registered",
            "start the agent",
        ),
        (
            lambda host: setattr(
                host, "agent", host.agent.replace("true}", 'true, exclusiveResource: ""}')
            ),
            "opt-in resource",
            OK,
            "none is offered",
            "",
        ),
        # Others.
        (
            both(
                agent("staticPodPath: /etc/kubernetes/manifests"),
                lambda host: setattr(host, "agent", host.agent.replace("enabled: true", "")),
            ),
            "manifest directory",
            ERROR,
            "which removes cgroups of pods that it does not know",
            'write `staticPodPath: ""` in the agent\'s configuration',
        ),
        (
            lambda host: host.process(900, "nri-resource-policy-balloons"),
            "other managers of CPUs",
            ERROR,
            "two managers of cpusets on one host: nri-resource-policy-balloons (process 900)",
            "remove it from this node",
        ),
        (
            written("/opt/nri/plugins/10-topology-aware", "ELF"),
            "other managers of CPUs",
            ERROR,
            "/opt/nri/plugins/10-topology-aware",
            "remove it from this node",
        ),
        (written("/opt/nri/plugins/10-logger", "ELF"), "other managers of CPUs", OK, "none", ""),
        (
            written("/etc/tuned/active_profile", "cpu-partitioning\n"),
            "tuned",
            WARNING,
            '"cpu-partitioning"',
            "tuned-adm profile",
        ),
        (
            written("/sys/devices/system/cpu/isolated", "4-5\n"),
            "isolated CPUs",
            WARNING,
            "CPUs 4-5",
            "isolcpus",
        ),
        (
            both(
                written("/sys/devices/system/cpu/isolated", "0\n"),
                agent("cpuManagerPolicyOptions: {strict-cpu-reservation: 'true'}"),
            ),
            "isolated CPUs",
            OK,
            "none in the shared pool",
            "",
        ),
        (
            lambda host: setattr(host, "agent", host.agent.replace("enabled: true", "")),
            "beside the kubelet",
            ERROR,
            "agent.kubelet.enabled is false and a kubelet runs (process 815)",
            "write `agent: {kubelet: {enabled: true}}`",
        ),
    ],
)
def test_what_is_wrong_is_found_with_what_to_change(
    host: FakeHost,
    change: Callable[[FakeHost], None],
    check: str,
    verdict: Verdict,
    found: str,
    advice: str,
) -> None:
    change(host)
    one = host.examine()[check]
    assert one.verdict is verdict, one
    assert found in one.found
    assert advice in one.change
    assert bool(advice) == bool(one.change)
    assert one.change or verdict not in (WARNING, ERROR)  # else it cannot be acted on


def test_a_node_of_containerd_2_1_has_nothing_that_its_user_cannot_change(host: FakeHost) -> None:
    version("2.1.9-1")(host)
    assert {one.verdict for one in host.examine().values()} == {OK}


def test_what_the_advice_says_makes_a_kubelet_that_manages_cpus_acceptable(host: FakeHost) -> None:
    host.add(hosts.CONFIG, "cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n")
    host.write(hosts.CPU_STATE, STATIC)
    host.write(hosts.MEMORY_STATE, STATIC)
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


@pytest.mark.parametrize(
    ("program", "line"), [("k3s-server", "/usr/local/bin/k3s server\0"), ("kubelite", "")]
)
def test_of_a_kubelet_inside_another_program_no_setting_is_taken_for_known(
    host: FakeHost, program: str, line: str
) -> None:
    host.process(hosts.PID, program, "--cpu-manager-policy=static", f"--root-dir={hosts.CONFIG}")
    if line:
        host.write(f"/proc/{hosts.PID}/cmdline", line)
    host.add(hosts.CONFIG, "memoryManagerPolicy: Static\n")
    checks = host.examine()
    unknown = {one.check for one in checks.values() if one.verdict is UNKNOWN}
    assert unknown == {CPU, MEMORY, TOPOLOGY, "reserved CPUs"}
    assert {one.check for one in checks.values() if one.verdict is not OK} == unknown
    assert f"{program} has flags of its own" in checks[CPU].found
    assert "no kubelet runs" not in "".join(one.found for one in checks.values())
    host.write(hosts.CPU_STATE, '{"policyName":"static","defaultCpuSet":"","checksum":1}')
    on = host.examine()[CPU]
    assert (on.verdict, "its kubelet was started" in on.found) == (ERROR, True)
    assert f"write cpuManagerPolicy none in the configuration of {program}" in on.change


@pytest.mark.parametrize(("settings", "verdict"), [("", ERROR), ("ignored: true", WARNING)])
def test_a_kubelet_inside_another_program_is_named(
    host: FakeHost, settings: str, verdict: Verdict
) -> None:
    host.process(hosts.PID, "k3s-server")
    host.agent = f"agent: {{kubelet: {{{settings}}}}}\nreservedSystemCPUs: '0'\n"
    check = host.examine()["beside the kubelet"]
    assert check.verdict is verdict
    assert "a kubelet runs in k3s-server (process 815; none with --disable-agent)" in check.found
    host.agent += "staticPodPath: /etc/numawarden/manifests\n"
    assert host.examine()["manifest directory"].verdict is verdict


def test_the_start_judges_managers_and_drivers_and_leaves_the_runtime_out(host: FakeHost) -> None:
    host.remove("/run/containerd/containerd.sock")
    host.remove("/var/run/nri/nri.sock")
    config = host.config()
    facts = gather(config, host.root, with_runtime=False)
    checks = {one.check: one.verdict for one in examine_for_start(config, facts)}
    assert set(checks.values()) == {OK}
    assert {CPU, MEMORY, "cgroup driver", "reserved CPUs"} <= checks.keys()
