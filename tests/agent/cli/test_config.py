from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.cli.config import check as command
from agent.cli.errors import ExitCode
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

    from tests.agent.cli.shell import Command

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


Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(run: Command, root: Path, file: Path) -> Check:
    """Return what checks the file on the host, with settings laid over it and other options."""

    def checked(*settings: str, options: tuple[object, ...] = ()) -> tuple[int, str, str]:
        laid = [part for setting in settings for part in ("--set", setting)]
        return run("config", "check", file, "--root", root, *laid, *options)

    return checked


def test_a_good_file_is_shown_with_what_follows_from_it(
    check: Check, root: Path, file: Path
) -> None:
    code, out, _ = check()
    assert code == ExitCode.OK
    assert out.splitlines() == [
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


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (
            ["agent.kubelet.enabled=true", "cgroupDriver=systemd", "agent.cdiDirectory="],
            ["  manifests         none, pods come from the kubelet\n"],
        ),
        (
            ["systemReserved.cpu=4", "podsPerCore=2", "agent.ignoredResources=[b.c/y, a.b/x]"],
            [
                "  allocatable       cpu 0\n",
                "                    pods 8\n",
                "  not looked at     a.b/x, b.c/y\n",
                "note: nothing of cpu is allocatable, reservations take all of it",
            ],
        ),
        (
            ["reservedSystemCPUs=3", "cgroupDriver=systemd"],
            ["reserved CPUs     3 (as listed)", "systemd driver"],
        ),
        (
            ["reservedMemory=[{numaNode: 0, limits: {memory: 100Mi}}]"],
            ["left on node 1    CPUs 2-3"],
        ),
        (
            ["systemReserved.memory=8Gi", "evictionHard={}"],
            ["node 1 has 4Gi of memory and 4Gi reserved: nothing of it"],
        ),
    ],
)
def test_settings_are_laid_over_the_file(
    check: Check, settings: list[str], lines: list[str]
) -> None:
    code, out, _ = check(*settings)
    assert code == ExitCode.OK
    assert [line for line in lines if line not in out] == []


def test_without_a_cpu_manager_no_cpus_are_exclusive(check: Check, file: Path) -> None:
    file.write_text("{}")
    assert "node 0    no exclusive CPUs (cpuManagerPolicy none)" in check()[1]


def test_what_pods_cannot_have_of_this_host_is_said(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch
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
    file.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: 0,4-7\n")
    code, out, _ = run("config", "check", file, f"--set=agent.cgroupMount={kernel.root}")
    assert code == ExitCode.OK
    assert out.splitlines()[1].startswith("  host              12 CPUs on 2 NUMA nodes")
    assert out.splitlines()[2] == "  withheld          CPUs 4-7 belong to the partition /ovs.slice"


def test_the_file_of_the_service_is_checked_unless_another_is_named(
    run: Command, file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("cpuManagerPolcy: static\n")
    [named] = (each for each in command.params if each.name == "file")
    assert named.default == CONFIG_FILE
    monkeypatch.setattr(named, "default", file)
    code, _, err = run("config", "check", "--root", root)
    assert code == ExitCode.BAD_INPUT
    assert f"{file}: line 1: cpuManagerPolcy: unknown key" in err


def test_the_host_is_that_of_the_file_unless_another_is_named(
    run: Command, root: Path, file: Path
) -> None:
    code, out, _ = run("config", "check", file, "--set", f"agent.sysfsRoot={root}")
    assert code == ExitCode.OK
    assert "node 1: memory 50Mi" in out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cgroupDriver=x", 'cgroupDriver: "x" is not one of systemd, cgroupfs'),
        ("systemReserved.cpu=5", "reserve 5 CPUs, this host has 4"),
    ],
)
def test_mistakes_are_reported_on_standard_error_with_their_exit_code(
    check: Check, setting: str, words: str
) -> None:
    code, out, err = check(setting)
    assert (code, out) == (ExitCode.BAD_INPUT, "")
    assert words in err
    assert "Traceback" not in err


class TestAgainstState:
    """A pod holds CPUs 1 and 3 of the four CPUs."""

    @pytest.fixture
    def state(self, tmp_path: Path) -> Path:
        directory = tmp_path / "state"
        directory.mkdir(mode=0o700)
        container = ContainerAllocation(
            "c0", ContainerKind.APP, isolation=Isolation.CONTAINER, cpus=Mask.of(1, 3)
        )
        pod = PodAllocation("u-1", "web", "shop", QosClass.GUARANTEED, "d", (container,))
        with Store(directory) as store:
            store.save(Checkpoint(ledger_with(pod)))
        return directory

    def test_what_all_would_keep_is_said_beside_a_running_agent_and_nothing_is_changed(
        self, check: Check, state: Path
    ) -> None:
        before = (state / "checkpoint.json").read_bytes()
        with Store(state):
            code, out, _ = check(options=("--state", state))
        assert (code, out.splitlines()[-4:]) == (
            ExitCode.OK,
            [
                f"{state}/checkpoint.json: 1 pods, all of them keep their allocations",
                "  valid             1 of 1 pods",
                "  exclusive CPUs    1,3",
                "  shared pool       0,2",
            ],
        )
        assert (state / "checkpoint.json").read_bytes() == before
        configured = check(f"agent.stateDirectory={state}", options=("--against-state",))
        assert configured == (code, out, "")

    def test_what_would_no_longer_be_given_is_reported_with_an_exit_code(
        self, check: Check, state: Path
    ) -> None:
        changes = ("reservedSystemCPUs=1", "topologyManagerPolicy=single-numa-node")
        code, out, _ = check(*changes, options=("--state", state))
        assert code == ExitCode.REJECTED
        assert out.splitlines()[-2:] == [
            (
                "  not valid         pod shop/web: has CPUs 1, which are now reserved "
                "(reservedSystemCPUs); reserve others, or remove the pod and admit it again"
            ),
            (
                "  not valid         pod shop/web: is spread over nodes 0-1, single-numa-node "
                "allows one (topologyManagerPolicy); remove the pod and admit it again"
            ),
        ]

    def test_no_state_holds_nothing_and_a_damaged_one_is_said_and_left_alone(
        self, check: Check, state: Path
    ) -> None:
        code, out, _ = check(options=("--state", state.parent))
        assert (code, "no state, no allocations" in out) == (ExitCode.OK, True)
        (state / "checkpoint.json").write_text("{")
        code, _, err = check(options=("--state", state))
        assert (code, "checkpoint.json" in err) == (ExitCode.BAD_INPUT, True)
        assert (state / "checkpoint.json").read_text() == "{"


def test_the_defaults_are_shown_as_a_file_that_has_them(run: Command, tmp_path: Path) -> None:
    code, shown, _ = run("config", "show", "--defaults")
    assert code == ExitCode.OK
    assert "\ncgroupDriver: cgroupfs\n" in shown
    file = tmp_path / "shown.yaml"
    file.write_text(shown)
    assert load_config_file(file) == Config()
    assert "\nmaxPods: 7\n" in run("config", "show", "--defaults", "--set", "maxPods=7")[1]


def test_a_file_is_shown_with_the_keys_that_it_leaves_out(
    run: Command, file: Path, tmp_path: Path
) -> None:
    setting = "agent.metrics.port=9"
    code, shown, _ = run("config", "show", file, "--set", setting)
    assert code == ExitCode.OK
    assert "\ncpuManagerPolicy: static\n" in shown
    assert "\nmaxPods: 110\n" in shown
    (tmp_path / "shown.yaml").write_text(shown)
    assert load_config_file(tmp_path / "shown.yaml") == load_config_file(file, [setting])
    file.write_text("maxPod: 1\n")
    code, out, err = run("config", "show", file)
    assert (code, out) == (ExitCode.BAD_INPUT, "")
    assert 'line 1: maxPod: unknown key "maxPod"; did you mean "maxPods"?' in err


def test_the_schema_is_printed_as_json(run: Command) -> None:
    schema = json.loads(run("config", "schema")[1])
    assert schema["properties"]["maxPods"]["default"] == 110


def test_cpus_beside_reserved_ones_are_noted_where_only_whole_cores_are_given(
    run: Command, tmp_path: Path, file: Path
) -> None:
    """CPUs 0 and 4 are one core, and so on."""
    root = write_tree(regular_host(packages=1, cores_per_node=4), tmp_path / "threads")
    options = 'cpuManagerPolicyOptions: {full-pcpus-only: "true"}'
    file.write_text(f"cpuManagerPolicy: static\n{options}\nreservedSystemCPUs: '0'\n")
    arguments = ["config", "check", file, "--root", root, "--set"]
    _, out, _ = run(*arguments, 'reservedSystemCPUs="0,1"')
    assert "left on node 0    CPUs 2-3,6-7 (4 of 8)" in out
    assert "note: CPUs 4-5 share cores with reserved CPUs" in out
    code, out, _ = run(*arguments, 'reservedSystemCPUs="0,1,4,5"')
    assert (code, "share cores" in out) == (ExitCode.OK, False)


def test_an_imported_configuration_passes_the_check(
    run: Command, root: Path, tmp_path: Path
) -> None:
    kubelet, target = tmp_path / "kubelet.yaml", tmp_path / "numawarden.yaml"
    kubelet.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "clusterDomain: cluster.local\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    )
    taking = ["config", "import", kubelet]
    code, out, _ = run(*taking, "--output", target)
    assert (code, out.splitlines()) == (
        ExitCode.OK,
        [
            f"{target}: 2 keys taken, 1 not",
            "not taken: clusterDomain: the agent registers no node and gives pods no network",
        ],
    )
    assert run("config", "check", target, "--root", root)[0] == ExitCode.OK
    code, _, err = run(*taking, "--output", target)
    assert (code, "exists already" in err) == (ExitCode.BAD_INPUT, True)
    assert run(*taking)[:2] == (ExitCode.OK, target.read_text())


def test_classes_of_caches_are_checked_against_the_hosts_resctrl(
    check: Check, root: Path, file: Path
) -> None:
    classes = "{isolation: {resctrl: {classes: {a: {L3: '0xf000'}, b: {}, c: {}, d: {}}}}}"
    file.write_text(CONFIG.split("agent:", maxsplit=1)[0] + f"agent: {classes}\n")
    code, out, _ = check()
    assert code == ExitCode.OK
    assert "no class has an effect: the kernel or the processor" in out
    FakeResctrl(root, set())
    code, _, err = check()
    assert code == ExitCode.BAD_INPUT
    assert "there are 4 classes, and this processor has control groups for 3" in err
    assert "agent.isolation.resctrl.classes.a.L3: cache 0: the cache has 0xfff" in err
