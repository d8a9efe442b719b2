from __future__ import annotations

import json
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from agent.config import checks
from agent.config.agent import (
    AgentConfig,
    LimitsConfig,
    LogFormat,
    LoggingConfig,
    LogLevel,
    MetricsConfig,
)
from agent.config.amounts import MemoryReservation, Threshold
from agent.config.checks import find_problems
from agent.config.devices import HostDeviceClass
from agent.config.document import config_schema, config_yaml, yaml_text
from agent.config.keys import paths
from agent.config.load import load_config, load_config_file, override
from agent.config.model import CgroupDriver, Config, ConfigError
from agent.config.notes import notes_on
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    PluginDevice,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.pods.quantity import Quantity
from agent.yaml import MappingNode, Number, ScalarNode, SequenceNode, Unclear, read_document
from sysfs.mask import Mask
from tests.agent.pods.pods import amounts
from tests.fuzz.configs import BASES, make_config

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from random import Random


EVERYTHING = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", strict-cpu-reservation: true}
cpuManagerReconcilePeriod: 1m30s
reservedSystemCPUs: 0-1,8
memoryManagerPolicy: sTaTiC
reservedMemory:
- {numaNode: 0, limits: {memory: 1Gi}}
- {numaNode: 0, limits: {hugepages-2Mi: 4Mi}}
- {numaNode: 1, limits: {memory: "512Mi"}}
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: 16}
systemReserved: {cpu: 2500m, memory: 1Gi, pid: "100", ephemeral-storage: 1Gi}
kubeReserved: {memory: 512Mi, hugepages-2Mi: 4Mi}
evictionHard: {memory.available: 5%, nodefs.available: 10%}
featureGates: {PodLevelResourceManagers: true, MemoryQoS: true}
maxPods: 250
podsPerCore: 10
cgroupDriver: systemd
cgroupRoot: /agents
staticPodPath: /etc/pods
agent:
  stateDirectory: /state
  socketPath: /run/x.sock
  socketGroup: wheel
  sysfsRoot: /host
  cgroupMount: /host/cgroup
  metrics: {address: "::1", port: 1, tlsCertificate: /c.pem, tlsKey: /k.pem}
  logging: {format: console, level: debug}
  limits: {manifestBytes: 2Mi, messageBytes: 8Mi}
  devices:
    example.com/gpu: [{id: a, numaNodes: [0, 1], healthy: false}, {id: b}]
  hostDevices:
    example.com/vf: [{virtualFunctionsOf: ens1f0, driver: vfio-pci}]
  ignoredResources: [example.com/licence]
"""


def _problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(text, "x.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_mapping_is_the_kubelets_defaults() -> None:
    config = load_config("{}", "x")
    assert config == Config()
    assert config.cpu_manager_policy is CpuManagerPolicy.NONE
    assert config.memory_manager_policy is MemoryManagerPolicy.NONE
    assert config.topology_manager_policy is TopologyManagerPolicy.NONE
    assert config.topology_manager_scope is TopologyManagerScope.CONTAINER
    assert config.cpu_manager_reconcile_period == 10
    assert config.cgroup_driver is CgroupDriver.CGROUPFS
    assert config.eviction_hard["memory.available"] == Threshold(Quantity.parse("100Mi"))
    assert config.gates.pod_level_resources
    assert not config.gates.pod_level_resource_managers
    assert load_config("maxPods: 0", "x").max_pods == config.max_pods == 110


def test_every_key_is_read() -> None:
    config = load_config(EVERYTHING, "x")
    shown = {
        "memory.available": Threshold(percent="5"),
        "nodefs.available": Threshold(percent="10"),
    }
    assert replace(config, agent=AgentConfig()) == Config(
        cpu_manager_policy=CpuManagerPolicy.STATIC,
        cpu_manager_policy_options={"full-pcpus-only": "true", "strict-cpu-reservation": "true"},
        cpu_manager_reconcile_period=90,
        reserved_system_cpus=Mask.of(0, 1, 8),
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        reserved_memory=(
            MemoryReservation(0, amounts("memory=1Gi")),
            MemoryReservation(0, amounts("hugepages-2Mi=4Mi")),
            MemoryReservation(1, amounts("memory=512Mi")),
        ),
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=TopologyManagerScope.POD,
        topology_manager_policy_options={
            "prefer-closest-numa-nodes": "true",
            "max-allowable-numa-nodes": "16",
        },
        system_reserved=amounts("cpu=2500m memory=1Gi pid=100 ephemeral-storage=1Gi"),
        kube_reserved=amounts("memory=512Mi hugepages-2Mi=4Mi"),
        eviction_hard=shown,
        feature_gates={"PodLevelResourceManagers": True, "MemoryQoS": True},
        max_pods=250,
        pods_per_core=10,
        cgroup_driver=CgroupDriver.SYSTEMD,
        cgroup_root="/agents",
        static_pod_path=Path("/etc/pods"),
    )
    assert config.agent == AgentConfig(
        state_directory=Path("/state"),
        socket_path=Path("/run/x.sock"),
        socket_group="wheel",
        sysfs_root=Path("/host"),
        cgroup_mount=Path("/host/cgroup"),
        metrics=MetricsConfig("::1", 1, Path("/c.pem"), Path("/k.pem")),
        logging=LoggingConfig(LogFormat.CONSOLE, LogLevel.DEBUG),
        limits=LimitsConfig(2 << 20, 8 << 20),
        devices={
            "example.com/gpu": (PluginDevice("a", Mask.of(0, 1), healthy=False), PluginDevice("b"))
        },
        host_devices=(
            HostDeviceClass("example.com/vf", driver="vfio-pci", virtual_functions_of="ens1f0"),
        ),
        ignored_resources=("example.com/licence",),
    )


def test_an_empty_text_is_unset_as_in_the_kubelets_file_but_where_there_has_to_be_a_path() -> None:
    text = 'staticPodPath: ""\ncgroupRoot: ""\nreservedSystemCPUs: ""\nagent: {socketGroup: ""}\n'
    assert load_config(text, "x") == Config()
    config = load_config("agent: {stateDirectory: /a, socketPath: /b}", "x")
    assert override(config, ["agent.stateDirectory=", "agent.socketPath="]) == config
    assert override(load_config(EVERYTHING, "x"), ["staticPodPath="]).static_pod_path is None


#: Documents with one mistake, and what is said of it.
MISTAKES: Final = (
    ("cpuManagerPolcy: static", 'cpuManagerPolcy: unknown key "cpuManagerPolcy"; did you mean'),
    ("agent: {metric: {}}", 'agent.metric: unknown key "metric"; did you mean "metrics"?'),
    ("agent: {metrics: {Port: 1}}", 'did you mean "port"?'),
    ("cpuManagerPolicy: Static", '"Static" is not one of none, static; did you mean "static"?'),
    ("memoryManagerPolicy: BestEffort", "BestEffort is for Windows"),
    ("topologyManagerScope: node", '"node" is not one of container, pod'),
    ("cgroupDriver: cgroup", 'did you mean "cgroupfs"?'),
    ("cpuManagerReconcilePeriod: 10", "found the number 10"),
    ("cpuManagerReconcilePeriod: 10 s", "is not a duration"),
    ("systemReserved: {cpus: 1}", 'did you mean "cpu"?'),
    ("systemReserved: {cpu: 1x}", '"1x" is not a quantity'),
    ("systemReserved: [cpu]", "expected a mapping, found a list"),
    ("evictionHard: {memory.avail: 1Gi}", 'did you mean "memory.available"?'),
    ("evictionHard: {memory.available: x%}", "is not a share"),
    ("reservedMemory: [{numaNode: 0}]", "reservedMemory[0]: limits is missing"),
    ("reservedMemory: [{limits: {memory: 1}}]", "reservedMemory[0]: numaNode is missing"),
    ("reservedMemory: [{numaNode: -1, limits: {}}]", "from 0 to 65535"),
    ("reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", "is not a memory type"),
    ("featureGates: {PodLevelResources: 1}", "expected true or false, found the number 1"),
    ("cgroupRoot: a/b", "is not an absolute path"),
    ("agent: {metrics: {port: 65536}}", "from 0 to 65535"),
    ("agent: {metrics: {address: localhost}}", "is not an IP address"),
    ("agent: {socketGroup: a b}", "is not the name of a group"),
    ("agent: {limits: {manifestBytes: 1}}", "is not a number of bytes from 1Ki to 1Gi"),
    ("agent: {devices: {gpu: []}}", "is not a resource of devices"),
    ("agent: {devices: {a.b/c: [{}]}}", "id is missing"),
    ('agent: {devices: {a.b/c: [{id: ""}]}}', '"" is not the name of a device'),
    ("agent: {devices: {a.b/c: [{id: x, numaNodes: [-1]}]}}", "from 0 to 65535"),
    ("agent: {ignoredResources: [cpu]}", '"cpu" cannot be ignored: it is the node\'s own'),
    ("agent: {ignoredResources: [hugepages-2Mi]}", "cannot be ignored: it is the node's own"),
    ("agent: {ignoredResources: [gpu]}", '"gpu" cannot be ignored: a container can have cpu'),
    ("agent: {ignoredResources: [a.b/c, a.b/c]}", '"a.b/c" is listed twice'),
    ("agent: {isolation: {hostExcept: [a, a]}}", '"a" is listed twice'),
    ("agent: {isolation: {hostExcept: [a/b]}}", '"a/b" is neither the name of a cgroup nor'),
    ("agent: {isolation: {hostExcept: ['*']}}", '"*" is neither the name of a cgroup nor'),
    ("agent: {ignoredResources: a.b/c}", "expected a list"),
    ("agent: {ignoredResource: []}", 'did you mean "ignoredResources"?'),
    ("maxPods: -1", "from 0 to 2147483647"),
    ("podsPerCore: many", "from 0 to 2147483647"),
    ("kind: Pod", '"Pod" is not one of KubeletConfiguration'),
    ("- a", "expected a mapping, found a list"),
    ("cpuManagerPolicyOptions: {full-pcpu-only: 'true'}", 'did you mean "full-pcpus-only"'),
    ("agent: {enforce: [io]}", '"io" is not one of'),
    ("agent: {hostDevices: {a.b/c: [{interfaces: x}]}}", 'did you mean "interface"'),
    ("agent: {hostDevices: {a.b/c: []}}", "has no class"),
)
#: Those that the schema does not see: they need YAML, arithmetic or more than one value.
BEYOND_THE_SCHEMA: Final = (
    ("cpuManagerPolicy: on", "YAML 1.1 reads it as a boolean"),
    ("cpuManagerReconcilePeriod: 0s", "is not between 100ms and 24h"),
    ("reservedSystemCPUs: 3-1", "runs backwards"),
    ("reservedSystemCPUs: a", "is not a list of CPUs"),
    ("reservedSystemCPUs: 010", "leading zero"),
    ("systemReserved: {cpu: -1}", "negative"),
    ("systemReserved: {hugepages-x: 1}", "is not a resource"),
    ("evictionHard: {memory.available: 101%}", "is not a share"),
    ("reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "is not a positive whole"),
    (
        "reservedMemory:" + 2 * "\n- {numaNode: 1, limits: {memory: 1}}",
        "reservedMemory[1].limits.memory: memory of node 1 is reserved twice",
    ),
    ("featureGates: {MemoryManager: false}", "cannot be switched off"),
    ("cgroupRoot: /a/../b", "is not an absolute path"),
    ("agent: {metrics: {tlsKey: /k}}", "agent.metrics: tlsCertificate is missing"),
    ("agent: {metrics: {names: []}}", "agent.metrics.names: the list is empty"),
    ("agent: {devices: {a.b/c: [{id: x}, {id: x}]}}", 'device "x" is listed twice'),
    ("agent: {ignoredResources: [a.b/c], devices: {a.b/c: []}}", "remove it from one of"),
    ("a: [", "not YAML"),
)


@pytest.mark.parametrize(("text", "line"), [*MISTAKES, *BEYOND_THE_SCHEMA])
def test_a_mistake_is_reported_with_its_place(text: str, line: str) -> None:
    assert any(line in problem for problem in _problems(text)), _problems(text)


SCHEMA: Final = Draft202012Validator(json.loads(config_schema()))


@pytest.mark.parametrize("text", [text for text, _ in MISTAKES])
def test_the_schema_rejects_what_the_agent_rejects(text: str) -> None:
    assert not SCHEMA.is_valid(_values(read_document(text)))


@pytest.mark.parametrize("key", ["socketPath: {}", "podResources: {{socket: {}}}"])
def test_a_socket_path_has_to_fit_its_address(key: str) -> None:
    too_long, fitting = (f"agent: {{{key.format('/' + 'x' * size)}}}" for size in (107, 106))
    assert "at most 107 bytes" in _problems(too_long)[0]
    load_config(fitting, "x")


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = """\
cpuManagerPolcy: static
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: maybe}
cgroupDriver: sysd
featureGates:
  PodLevelResources: false
  PodLevelResourceManagers: true
"""
    places = [problem.partition(": ")[0] for problem in _problems(text)]
    assert places == ["line 1", "line 2", "line 3", "line 6"]


def test_what_could_not_be_read_is_not_judged_as_well() -> None:
    # A static policy would be missing here only because its name was not understood.
    (problem,) = _problems(
        "cpuManagerPolicy: statc\ncpuManagerPolicyOptions: {full-pcpus-only: 1}\n"
    )
    assert "is not one of" in problem


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("x: 1\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: line 1: x: unknown key"):
        load_config_file(file)


def test_of_a_kubelets_configuration_the_error_names_the_command_that_takes_it() -> None:
    text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: a\n"
    with pytest.raises(ConfigError, match="'numawarden config import FILE' makes") as raised:
        load_config(text, "config.yaml")
    assert len(raised.value.problems) == 1


def test_a_list_of_cpus_is_a_text() -> None:
    found = "expected one text: list of CPUs such as 0-1,8, found a list"
    with pytest.raises(ConfigError, match=found):
        load_config("reservedSystemCPUs: [0, 16]", "config.yaml")


def test_settings_change_single_values() -> None:
    settings = [
        *("cpuManagerPolicy=static", "systemReserved.cpu=500m", "agent.metrics.port=9"),
        *("agent.logging.level=debug", "agent.logging.format=console", "agent.metrics.port=10"),
        *("evictionHard.memory.available=5%", "featureGates.PodLevelResourceManagers=true"),
        "agent.devices.example.com/gpu=[{id: a}]",
    ]
    config = override(load_config("systemReserved: {memory: 1Gi}\n", "x"), settings)
    assert config.cpu_manager_policy is CpuManagerPolicy.STATIC
    assert config.system_reserved == amounts("cpu=500m memory=1Gi")
    assert config.agent.metrics.port == 10
    assert config.agent.logging == LoggingConfig(LogFormat.CONSOLE, LogLevel.DEBUG)
    assert config.eviction_hard["memory.available"] == Threshold(percent="5")
    assert config.eviction_hard["nodefs.available"] == Threshold(percent="10")
    assert config.gates.pod_level_resource_managers
    assert config.agent.devices == {"example.com/gpu": (PluginDevice("a"),)}


def test_settings_can_complete_what_a_file_leaves_open() -> None:
    text = "cpuManagerPolicy: static\n"
    assert "needs CPUs for the system" in _problems(text)[0]
    config = load_config(text, "x", ["reservedSystemCPUs=0"])
    assert config.reserved_system_cpus == Mask.of(0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cgroupDriver", '"cgroupDriver" is not a setting'),
        ("=x", "is not a setting"),
        ("cgroupDrivr=x", 'did you mean "cgroupDriver"?'),
        ("agent.metrics.prt=1", 'agent.metrics.prt: unknown key "prt"'),
        ("cgroupDriver=[", "cgroupDriver: this is not YAML"),
        ("cgroupDriver=x", '"x" is not one of systemd, cgroupfs'),
        ("agent=5", "agent: expected a mapping"),
    ],
)
def test_a_wrong_setting_is_rejected(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Config(), [setting])
    assert message in str(caught.value)
    assert "line" not in str(caught.value)


@given(st.data())
def test_a_damaged_file_is_a_sound_config_or_a_config_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(EVERYTHING)))
    end = data.draw(st.integers(start, min(start + 20, len(EVERYTHING))))
    inserted = data.draw(st.text(":{}[]-&*'\"\n \t#0123abcMi%", max_size=6))
    with suppress(ConfigError):
        config = load_config(EVERYTHING[:start] + inserted + EVERYTHING[end:], "x")
        assert not find_problems(config)


def _values(node: object) -> object:
    """Return a document as JSON has it, its numbers as numbers."""
    if isinstance(node, MappingNode):
        return {key: _values(value) for key, value in node.entries.items()}
    if isinstance(node, SequenceNode):
        return [_values(item) for item in node.items]
    assert isinstance(node, ScalarNode)
    value = node.value
    assert not isinstance(value, Unclear)
    return json.loads(value.text) if isinstance(value, Number) else value


@pytest.mark.parametrize("text", ["{}", "null", EVERYTHING, *BASES, config_yaml(Config())])
def test_what_is_accepted_is_shown_as_the_same_and_meets_the_schema(text: str) -> None:
    SCHEMA.validate(_values(read_document(text)))
    config = load_config(text, "x")
    assert load_config(config_yaml(config), "shown") == config


@given(st.randoms(use_true_random=False))
def test_whatever_is_accepted_is_shown_in_full_and_meets_the_schema(random: Random) -> None:
    text = make_config(random)
    try:
        config = load_config(text, "x")
    except ConfigError:
        return
    assert load_config(config_yaml(config), "shown") == config
    SCHEMA.validate(_values(read_document(text)))
    SCHEMA.validate(_values(read_document(config_yaml(config))))


@given(st.text() | st.text("0123456789._:-+exnayoNul~=#", max_size=8))
@example("\x85")  # line breaks of YAML 1.1, of which a reader makes spaces
@example("a\u2028b")
def test_a_text_is_quoted_where_a_reader_could_take_it_for_anything_else(text: str) -> None:
    with suppress(UnicodeEncodeError):
        text.encode()
        for shown in (yaml_text({"a": text}), yaml_text({"a": text}, one_line=True)):
            if not shown.startswith("{"):
                assert _values(read_document(shown)) == {"a": text}


@pytest.mark.parametrize("path", [path for path, _ in paths(Config)])
def test_the_schema_accepts_a_key_without_a_value_as_the_agent_does(path: str) -> None:
    value: object = None
    for name in reversed(path.split(".")):
        value = {name: value}
    SCHEMA.validate(value)
    assert load_config(json.dumps(value), "x") == Config()


_CLOSEST = "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}"
_NINE = """
topologyManagerPolicyOptions: {max-allowable-numa-nodes: 9}
topologyManagerPolicy: restricted
"""
_ALIGNED = """
cpuManagerPolicy: static
cpuManagerPolicyOptions: {align-by-socket: true}
featureGates: {CPUManagerPolicyAlphaOptions: true}
reservedSystemCPUs: "0"
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("featureGates: {NodeSwap: true}", "featureGates.NodeSwap changes nothing"),
        (_NINE, "max-allowable-numa-nodes is not needed"),
        (_CLOSEST, "topologyManagerPolicyOptions change nothing"),
        ("reservedMemory: [{numaNode: 0, limits: {memory: 1}}]", "reservedMemory changes nothing"),
        ("topologyManagerScope: pod", "topologyManagerScope pod changes nothing"),
        (_ALIGNED, "align-by-socket with topologyManagerPolicy none chooses CPUs of one socket"),
        ("evictionHard: {nodefs.available: 5%}", "only memory.available counts"),
        ("featureGates: {PodLevelResourceManagers: true}", "no budget is divided"),
    ],
)
def test_what_changes_nothing_is_noted(text: str, words: str) -> None:
    (note,) = notes_on(load_config(text, "x"))
    assert words in note
    used = f"{_ALIGNED}\ntopologyManagerPolicy: restricted\ntopologyManagerScope: pod"
    assert not list(notes_on(load_config(used, "x")))


@pytest.mark.parametrize(
    ("address", "more", "said"),
    [
        ("0.0.0.0", "", ["IPAddressAllow=", "in plain HTTP"]),  # noqa: S104
        ("::", "", ["IPAddressAllow=", "in plain HTTP"]),
        ("192.0.2.7", "", ["IPAddressAllow=", "in plain HTTP"]),
        *((address, "", []) for address in ("127.0.0.1", "::1", "127.1.2.3")),
        ("192.0.2.7", ", tlsCertificate: /a, tlsKey: /b", ["IPAddressAllow="]),
    ],
)
def test_who_reaches_an_open_listener_is_noted(address: str, more: str, said: list[str]) -> None:
    notes = list(notes_on(load_config(f'agent: {{metrics: {{address: "{address}"{more}}}}}', "x")))
    for note, words in zip(notes, said, strict=True):
        assert note.startswith(f"agent.metrics.address {address} is ")
        assert words in note


def test_what_is_in_effect_is_shown_and_nothing_is_noted_of_the_defaults() -> None:
    Draft202012Validator.check_schema(json.loads(config_schema()))
    assert not list(notes_on(Config()))
    shown = config_yaml(override(Config(), ["agent.metrics.port=9"]))
    values = _values(read_document(shown))
    for path, key in paths(Config):
        value = values
        for name in path.split("."):
            assert isinstance(value, dict)
            value = value[name]
        assert key.inner is not None or value == (
            9 if path == "agent.metrics.port" else key.written_default
        )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("podResources: {socket: /run/a.sock}", "agent.podResources.socket"),
        ("devicePlugins: {enabled: true}", "agent.devicePlugins.enabled"),
        ("kubelet: {enabled: true}", "agent.kubelet.enabled"),
    ],
)
@pytest.mark.parametrize(
    ("missing", "package"), [("grpc", "grpcio"), ("google.protobuf", "protobuf")]
)
def test_what_needs_the_extra_says_how_to_get_it(
    text: str, key: str, missing: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(module: str) -> ModuleSpec | None:
        if module == missing and "." in module:
            raise ModuleNotFoundError  # as where the package above is missing
        return None if module == missing else find_spec(module)

    assert load_config(f"agent: {{{text}}}", "x") != Config()
    monkeypatch.setattr(checks, "find_spec", found)
    assert load_config("{}", "x") == Config()
    with pytest.raises(ConfigError) as caught:
        load_config(f"agent: {{{text}}}", "x")
    (problem,) = caught.value.problems
    assert problem.path == key
    assert f" {package}, not installed here" in problem.message
    assert "pip install 'numawarden[grpc]'" in problem.message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("staticPodPath: /etc/pods\nagent: {kubelet: {enabled: true}}", "staticPodPath"),
        (
            "agent: {kubelet: {enabled: true}, devicePlugins: {enabled: true}}",
            "agent.devicePlugins.enabled",
        ),
    ],
)
def test_what_the_kubelet_does_is_not_done_beside_one(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match="beside a kubelet") as caught:
        load_config(text, "x")
    assert [problem.path for problem in caught.value.problems] == [key]
    load_config(text.replace("kubelet: {enabled: true}", "kubelet: {enabled: false}"), "x")


@pytest.mark.parametrize(
    ("directory", "socket", "rejected"),
    [
        ("/var/lib/kubelet", "/var/lib/kubelet/pod-resources/kubelet.sock", True),
        ("/srv/kubelet", "/srv/kubelet/pod-resources/kubelet.sock", True),
        ("/srv/kubelet", "/var/lib/kubelet/pod-resources/kubelet.sock", False),
        ("/var/lib/kubelet", "/run/numawarden/pod-resources/kubelet.sock", False),
    ],
)
def test_podresources_are_not_served_in_the_place_of_the_kubelet_beside_the_agent(
    directory: str, socket: str, *, rejected: bool
) -> None:
    kubelet = f"{{enabled: true, directory: {directory}}}"
    text = f"agent: {{kubelet: {kubelet}, podResources: {{socket: {socket}}}}}"
    alone = load_config(text.replace("true", "false"), "x").agent
    assert alone.pod_resources.socket == Path(socket)
    if rejected:
        with pytest.raises(ConfigError, match="socket of the kubelet beside") as caught:
            load_config(text, "x")
        assert [each.path for each in caught.value.problems] == ["agent.podResources.socket"]
    else:
        load_config(text, "x")
