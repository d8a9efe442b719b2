from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.cli.config import check
from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from agent.cli.options import CONFIG_FILE
from agent.config.load import load_config_file
from agent.config.model import Config
from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.pods.model import ContainerKind, QosClass
from agent.state.checkpoint import Checkpoint
from agent.state.store import Store
from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.tree import KernelTree
from sysfs.described import regular_host, write_tree
from sysfs.host import Cpu, Host, HugePages, Node
from sysfs.mask import Mask
from tests.agent.managers.ledgers import ledger_with
from tests.fakes.resctrl import FakeResctrl

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30

CONFIG = """\
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
systemReserved: {cpu: "1"}
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
topologyManagerScope: pod
featureGates: {NodeSwap: true}
agent: {devices: {example.com/gpu: [{id: a}, {id: b, healthy: false}]}}
"""


def _cpu(number: int) -> Cpu:
    package = number // 2
    return Cpu(number, online=True, isolated=False, core=number, cluster=None, die=package * 2,
               package=package, node=package, uncore=package * 2)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    distances = {0: 10, 1: 20}, {0: 20, 1: 10}
    nodes = tuple(
        Node(i, Mask.of(2 * i, 2 * i + 1), 4 * GIB, (HugePages(2 << 20, 0),), distances[i])
        for i in range(2)
    )
    return write_tree(Host(tuple(map(_cpu, range(4))), nodes), tmp_path / "host")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_a_good_file_is_shown_with_what_follows_from_it(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["config", "check", str(file), "--root", str(root)]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: no mistakes",
        f"  host              4 CPUs on 2 NUMA nodes, 8 GiB, described in {root}",
        "  CPU manager       static, options full-pcpus-only=true",
        "  reserved CPUs     0 (derived from systemReserved and kubeReserved)",
        "  memory manager    Static",
        "  reserved memory   node 0: memory 50Mi (derived)",
        "  reserved memory   node 1: memory 50Mi (derived)",
        "  topology manager  restricted, scope pod",
        "  cgroups           cgroupfs driver below /",
        "  Kubernetes        v1.37 (the default)",
        "  enforced          cpuset, cpu, memory, hugetlb, pids",
        "  manifests         none, pods come over the socket alone",
        "  devices           example.com/gpu: 2, 1 healthy",
        "  allocatable       cpu 3",
        "                    memory 7.9 GiB",
        "                    hugepages-2Mi 0 B",
        "                    example.com/gpu 1",
        "                    pods 110",
        "  left on node 0    CPUs 1 (1 of 2), memory 3.95 GiB of 4 GiB",
        "  left on node 1    CPUs 2-3 (2 of 2), memory 3.95 GiB of 4 GiB",
        "  note: featureGates.NodeSwap changes nothing here",
    ]


def test_what_pods_cannot_have_of_this_host_is_said(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = regular_host(cores_per_node=8, threads=1)
    (file.parent / "cgroup").mkdir()
    kernel = DirectoryTree(file.parent / "cgroup", host.online, Mask.of(0))
    kernel.mkdir("ovs.slice")
    kernel.write("", "cgroup.subtree_control", "+cpuset")
    kernel.write("ovs.slice", "cpuset.cpus", "4-7")
    kernel.write("ovs.slice", "cpuset.cpus.partition", "root")
    monkeypatch.setattr("agent.cli.config.discover", lambda _, **__: host)
    opened = partial(KernelTree, require_kernel=False)
    monkeypatch.setattr("agent.cli.config.KernelTree", opened)
    mount = f"--set=agent.cgroupMount={kernel.root}"
    file.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: 0,4-7\n")
    assert run_command(["config", "check", str(file), mount]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  host              12 CPUs on 2 NUMA nodes")
    assert lines[2] == "  withheld          CPUs 4-7 belong to the partition /ovs.slice"


def test_the_file_of_the_service_is_checked_unless_another_is_named(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("cpuManagerPolcy: static\n")
    [named] = (each for each in check.params if each.name == "file")
    assert named.default == CONFIG_FILE
    monkeypatch.setattr(named, "default", file)
    assert run_command(["config", "check", "--root", str(root)]) == ExitCode.BAD_INPUT
    assert f"{file}: line 1: cpuManagerPolcy: unknown key" in capsys.readouterr().err


def test_beside_a_kubelet_the_pods_come_from_the_kubelet(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--root", str(root)]
    beside = ("agent.kubelet.enabled=true", "cgroupDriver=systemd", "agent.cdiDirectory=")
    run_command([*arguments, *(part for one in beside for part in ("--set", one))])
    assert "  manifests         none, pods come from the kubelet\n" in capsys.readouterr().out


def test_nothing_allocatable_and_what_others_provide_is_said(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--root", str(root)]
    settings = ["systemReserved.cpu=4", "podsPerCore=2", "agent.ignoredResources=[b.c/y, a.b/x]"]
    assert run_command([*arguments, *(part for one in settings for part in ("--set", one))]) == 0
    out = capsys.readouterr().out
    assert "  allocatable       cpu 0\n" in out
    assert "                    pods 8\n" in out
    assert "  not looked at     a.b/x, b.c/y\n" in out
    assert "note: nothing of cpu is allocatable, reservations take all of it" in out


def test_a_setting_is_laid_over_the_file(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--root", str(root)]
    settings = ["--set", "reservedSystemCPUs=3", "--set", "cgroupDriver=systemd"]
    assert run_command([*arguments, *settings]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "reserved CPUs     3 (as listed)" in out
    assert "systemd driver" in out


def test_the_host_is_that_of_the_file_unless_another_is_named(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--set", f"agent.sysfsRoot={root}"]
    assert run_command(arguments) == ExitCode.OK
    assert "node 1: memory 50Mi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cgroupDriver=x", 'cgroupDriver: "x" is not one of systemd, cgroupfs'),
        ("systemReserved.cpu=5", "reserve 5 CPUs, this host has 4"),
    ],
)
def test_mistakes_are_reported_on_standard_error_with_their_exit_code(
    root: Path, file: Path, setting: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--root", str(root), "--set", setting]
    assert run_command(arguments) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert not captured.out
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_a_file_that_is_not_there_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["config", "check", str(tmp_path / "none.yaml")]) == ExitCode.USAGE
    assert "does not exist" in capsys.readouterr().err


class TestAgainstState:
    """A pod holds CPUs 1 and 3 of the four CPUs."""

    @pytest.fixture
    def state(self, tmp_path: Path) -> Path:
        directory = tmp_path / "state"
        directory.mkdir(mode=0o700)
        allocation = PodAllocation(
            uid="u-1",
            name="web",
            namespace="shop",
            qos=QosClass.GUARANTEED,
            spec_digest="d",
            containers=(
                ContainerAllocation(
                    "c0", ContainerKind.APP, isolation=Isolation.CONTAINER, cpus=Mask.of(1, 3)
                ),
            ),
        )
        with Store(directory) as store:
            store.save(Checkpoint(ledger_with(allocation)))
        return directory

    def check(self, root: Path, file: Path, state: Path, *settings: str) -> int:
        laid = [part for setting in settings for part in ("--set", setting)]
        where = ["--root", str(root), "--state", str(state)]
        return run_command(["config", "check", str(file), *where, *laid])

    def test_what_all_would_keep_validly_is_said(
        self, root: Path, file: Path, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.check(root, file, state) == ExitCode.OK
        assert capsys.readouterr().out.splitlines()[-4:] == [
            f"{state}/checkpoint.json: 1 pods, all of them keep their allocations",
            "  valid             1 of 1 pods",
            "  exclusive CPUs    1,3",
            "  shared pool       0,2",
        ]

    def test_what_would_no_longer_be_given_is_reported_with_an_exit_code(
        self, root: Path, file: Path, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        changes = ("reservedSystemCPUs=1", "topologyManagerPolicy=single-numa-node")
        assert self.check(root, file, state, *changes) == ExitCode.REJECTED
        assert capsys.readouterr().out.splitlines()[-2:] == [
            (
                "  not valid         pod shop/web: has CPUs 1, which are now reserved "
                "(reservedSystemCPUs); reserve others, or remove the pod and admit it again"
            ),
            (
                "  not valid         pod shop/web: is spread over nodes 0-1, single-numa-node "
                "allows one (topologyManagerPolicy); remove the pod and admit it again"
            ),
        ]

    def test_it_changes_nothing_and_needs_no_stopped_agent(
        self, root: Path, file: Path, state: Path
    ) -> None:
        before = (state / "checkpoint.json").read_bytes()
        with Store(state):
            assert self.check(root, file, state) == ExitCode.OK
        assert (state / "checkpoint.json").read_bytes() == before

    def test_the_state_is_that_of_the_configuration_unless_another_is_named(
        self, root: Path, file: Path, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        setting = ["--set", f"agent.stateDirectory={state}", "--against-state"]
        arguments = ["config", "check", str(file), "--root", str(root)]
        assert run_command([*arguments, *setting]) == ExitCode.OK
        assert "1 of 1 pods" in capsys.readouterr().out

    def test_no_state_holds_nothing(
        self, root: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.check(root, file, tmp_path) == ExitCode.OK
        assert "no state, no allocations" in capsys.readouterr().out

    def test_a_damaged_state_is_said_and_left_alone(
        self, root: Path, file: Path, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (state / "checkpoint.json").write_text("{")
        assert self.check(root, file, state) == ExitCode.BAD_INPUT
        assert "checkpoint.json" in capsys.readouterr().err
        assert (state / "checkpoint.json").read_text() == "{"


class TestShow:
    """Every key with its value."""

    def test_the_defaults_are_shown_as_a_file_that_has_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_command(["config", "show", "--defaults"]) == ExitCode.OK
        shown = capsys.readouterr().out
        assert "\ncgroupDriver: cgroupfs\n" in shown
        file = tmp_path / "shown.yaml"
        file.write_text(shown)
        assert load_config_file(file) == Config()

    def test_a_file_is_shown_with_the_keys_that_it_leaves_out(
        self, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        setting = "agent.metrics.port=9"
        assert run_command(["config", "show", str(file), "--set", setting]) == ExitCode.OK
        shown = capsys.readouterr().out
        assert "\ncpuManagerPolicy: static\n" in shown
        assert "\nmaxPods: 110\n" in shown
        (tmp_path / "shown.yaml").write_text(shown)
        assert load_config_file(tmp_path / "shown.yaml") == load_config_file(file, [setting])

    def test_settings_are_laid_over_the_defaults(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["config", "show", "--defaults", "--set", "maxPods=7"]
        assert run_command(arguments) == ExitCode.OK
        assert "\nmaxPods: 7\n" in capsys.readouterr().out

    def test_mistakes_have_the_exit_code_of_bad_input_and_nothing_is_shown(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file.write_text("maxPod: 1\n")
        assert run_command(["config", "show", str(file)]) == ExitCode.BAD_INPUT
        captured = capsys.readouterr()
        assert not captured.out
        assert 'line 1: maxPod: unknown key "maxPod"; did you mean "maxPods"?' in captured.err

    @pytest.mark.parametrize("defaults", [True, False])
    def test_either_a_file_or_the_defaults_are_shown(
        self, file: Path, *, defaults: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        chosen = [str(file), "--defaults"] if defaults else []
        assert run_command(["config", "show", *chosen]) == ExitCode.USAGE
        assert "name a configuration file, or give --defaults" in capsys.readouterr().err


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["config", "schema"]) == ExitCode.OK
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["maxPods"]["default"] == 110


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("reservedMemory=[{numaNode: 0, limits: {memory: 100Mi}}]", "left on node 1    CPUs 2-3"),
        ("systemReserved.memory=8Gi", "node 1 has 4Gi of memory and 4Gi reserved: nothing of it"),
    ],
)
def test_what_is_left_is_shown_by_node(
    root: Path, file: Path, setting: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", setting]
    if setting.startswith("systemReserved"):
        settings += ["--set", "evictionHard={}"]
    arguments = ["config", "check", str(file), "--root", str(root)]
    assert run_command([*arguments, *settings]) == ExitCode.OK
    assert words in capsys.readouterr().out


def test_without_a_cpu_manager_no_cpus_are_exclusive(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("{}")
    assert run_command(["config", "check", str(file), "--root", str(root)]) == ExitCode.OK
    assert "node 0    no exclusive CPUs (cpuManagerPolicy none)" in capsys.readouterr().out


WHOLE_CORES = """\
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
reservedSystemCPUs: "0"
"""


def test_cpus_beside_reserved_ones_are_noted_where_only_whole_cores_are_given(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CPUs 0 and 4 are one core, and so on."""
    root = write_tree(regular_host(packages=1, cores_per_node=4), tmp_path / "threads")
    file.write_text(WHOLE_CORES)
    arguments = ["config", "check", str(file), "--root", str(root)]
    assert run_command([*arguments, "--set", 'reservedSystemCPUs="0,1"']) == ExitCode.OK
    out = capsys.readouterr().out
    assert "left on node 0    CPUs 2-3,6-7 (4 of 8)" in out
    assert "note: CPUs 4-5 share cores with reserved CPUs" in out
    assert run_command([*arguments, "--set", 'reservedSystemCPUs="0,1,4,5"']) == ExitCode.OK
    assert "share cores" not in capsys.readouterr().out


KUBELET = b"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDomain: cluster.local
cpuManagerPolicy: static
reservedSystemCPUs: "0"
"""


def test_an_imported_configuration_passes_the_check(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet, target = tmp_path / "kubelet.yaml", tmp_path / "numawarden.yaml"
    kubelet.write_bytes(KUBELET)
    command = ["config", "import", str(kubelet)]
    assert run_command([*command, "--output", str(target)]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{target}: 2 keys taken, 1 not",
        "not taken: clusterDomain: the agent registers no node and gives pods no network",
    ]
    assert run_command(["config", "check", str(target), "--root", str(root)]) == ExitCode.OK
    capsys.readouterr()
    assert run_command([*command, "--output", str(target)]) == ExitCode.BAD_INPUT
    assert "exists already" in capsys.readouterr().err
    assert run_command(command) == ExitCode.OK
    assert capsys.readouterr().out == target.read_text()


def test_classes_of_caches_are_checked_against_the_hosts_resctrl(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = "{isolation: {resctrl: {classes: {a: {L3: '0xf000'}, b: {}, c: {}, d: {}}}}}"
    file.write_text(CONFIG.split("agent:", maxsplit=1)[0] + f"agent: {classes}\n")
    assert run_command(["config", "check", str(file), "--root", str(root)]) == ExitCode.OK
    assert "no class has an effect: the kernel or the processor" in capsys.readouterr().out
    FakeResctrl(root, set())
    assert run_command(["config", "check", str(file), "--root", str(root)]) == ExitCode.BAD_INPUT
    found = capsys.readouterr().err
    assert "there are 4 classes, and this processor has control groups for 3" in found
    assert "agent.isolation.resctrl.classes.a.L3: cache 0: the cache has 0xfff" in found
