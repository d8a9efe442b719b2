"""The agent's own settings, which a kubelet has no key for: the section `agent`."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.config.amounts import byte_size
from agent.config.cluster import BesideKubeletConfig, KubernetesConfig
from agent.config.devices import DEVICE_INVENTORY, HOST_DEVICES, HostDeviceClass
from agent.config.durations import period
from agent.config.isolation import IsolationConfig
from agent.config.keys import Section, key, section, switch
from agent.config.kinds import one_of, some_of, whole_number
from agent.config.pools import POOLS, PoolConfig
from agent.config.text_kinds import (
    IGNORED_RESOURCES,
    IP_ADDRESS,
    OPTIONAL_PATH,
    OPTIONAL_SOCKET,
    PATH,
    SOCKET,
    SOCKET_DIRECTORY,
    USER_GROUP,
    version_of,
)
from agent.managers.policy import IsolcpusUse
from agent.managers.versions import OLDEST, KubernetesVersion, steps
from agent.pods.model import Placement
from agent.values import KeyChoice
from cgroupfs.settings import KernelController

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import PluginDevice

_MIB: Final = 1 << 20
#: For each name that metrics of KEP-5526 have had, the first version with the name.
METRIC_NAMES: Final = steps(lambda rules: rules.manager_metrics_name_kubelet)
#: For each way in which podresources list a pod's budget, the first version with it.
POD_RESOURCES: Final = steps(lambda rules: rules.budgets_are_listed_at_pods)


class LogFormat(KeyChoice):
    """`agent.logging.format`."""

    JSON = "json", "an object for each line"
    CONSOLE = "console", "text for a person"


class LogLevel(KeyChoice):
    """`agent.logging.level`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class MetricsConfig(Section, frozen=True):
    """Where /metrics, /healthz and /readyz are served."""

    address: str = key(
        "127.0.0.1",
        IP_ADDRESS,
        "An IP address of this host; 0.0.0.0 or :: for all of them. numawarden.service lets this "
        "host in, and the hosts that IPAddressAllow= of the unit names.",
    )
    port: int = key(9464, whole_number(0, 65535), "The TCP port of the metrics listener.")
    tls_certificate: Path | None = key(
        None, OPTIONAL_PATH, "A file in PEM form. With this and tlsKey the listener speaks TLS."
    )
    tls_key: Path | None = key(
        None,
        OPTIONAL_PATH,
        "An unencrypted PEM file of root or the agent's user, not readable by all users.",
    )
    containers: int = key(
        0,
        whole_number(0, 10_000),
        "The most containers with metrics of their own, two series or more each, by pods' names.",
    )
    names: frozenset[KubernetesVersion] = key(
        frozenset(METRIC_NAMES),
        some_of(
            {
                version: f"{'kubelet_' if version.rules.manager_metrics_name_kubelet else ''}"
                "resource_manager_allocations_total and the like"
                for version in METRIC_NAMES
            }
        ),
        "The versions of Kubernetes by whose names the metrics of KEP-5526 are exported.",
    )


class LoggingConfig(Section, frozen=True):
    """How the log is written."""

    format: LogFormat = key(LogFormat.JSON, one_of(LogFormat), "How a line of the log is written.")
    level: LogLevel = key(
        LogLevel.INFO, one_of(LogLevel), "Events below this level are not logged."
    )


class PodResourcesConfig(Section, frozen=True):
    """The kubelet's podresources API; off without a socket."""

    socket: Path | None = key(
        None,
        OPTIONAL_SOCKET,
        "A path such as /run/numawarden/pod-resources/kubelet.sock. It needs the extra grpc. See "
        "docs/devices.md.",
    )
    version: KubernetesVersion = key(
        OLDEST,
        version_of(
            {
                version: "the pod lists the budget, the container only what is its own"
                if version.rules.budgets_are_listed_at_pods
                else "each container lists what it shares of its pod's budget"
                for version in POD_RESOURCES
            }
        ),
        "The kubelet whose answers are given.",
    )


class HistoryConfig(Section, frozen=True):
    """What 'numawarden history' shows. See docs/history.md."""

    max_bytes: int = key(
        16 * _MIB,
        byte_size(0, 1 << 30),
        "The largest size of the history in stateDirectory; 0 keeps none.",
    )
    max_age: float = key(
        720 * 3600.0, period(60.0, 10 * 365 * 86400.0), "Entries that are older are not shown."
    )


class LimitsConfig(Section, frozen=True):
    """What is rejected for its size in bytes."""

    manifest_bytes: int = key(_MIB, byte_size(1024, 1 << 30), "The largest manifest.")
    message_bytes: int = key(
        4 * _MIB, byte_size(1024, 1 << 30), "The largest message on the socket."
    )


#: Seconds, below the minute that all deliveries to one pod may take together.
_LONGEST_CALL: Final = 30.0


class DevicePluginsConfig(Section, frozen=True):
    """Devices that other programs offer, as to a kubelet."""

    enabled: bool = switch(
        "Whether device plugins can register here. It needs the extra grpc. See docs/devices.md."
    )
    directory: Path = key(
        Path("/var/lib/kubelet/device-plugins"),
        SOCKET_DIRECTORY,
        "The directory of plugins' sockets, fixed in most plugins. A kubelet that serves it goes "
        "first.",
    )
    registry_directory: Path | None = key(
        None,
        OPTIONAL_PATH,
        'The directory of the kubelet\'s plugin watcher (pluginregistration/v1); "" is '
        "plugins_registry beside the directory above. It need not exist.",
    )
    call_timeout: float = key(
        10.0, period(0.1, _LONGEST_CALL), "How long a plugin may take to answer: docs/devices.md."
    )


class AgentConfig(Section, frozen=True):
    """What a kubelet has no key for."""

    state_directory: Path = key(Path("/var/lib/numawarden"), PATH, "Where the checkpoint is kept.")
    socket_path: Path = key(
        Path("/run/numawarden/agent.sock"), SOCKET, "The socket of the admission API."
    )
    socket_group: str | None = key(
        None, USER_GROUP, 'The group whose members may use the socket, too; "" is root alone.'
    )
    sysfs_root: Path = key(
        Path("/"), PATH, "The directory with the host's sys and proc, for an agent in a container."
    )
    cgroup_mount: Path = key(
        Path("/sys/fs/cgroup"), PATH, "Where the cgroup v2 file system is mounted."
    )
    enforce: frozenset[KernelController] = key(
        frozenset(KernelController),
        some_of({controller: controller.sets for controller in KernelController}),
        "What the agent sets in the cgroups of pods, by the kernel's controllers. All else is "
        "neither written nor compared.",
    )
    shared_cgroup: bool = switch(
        "Whether Guaranteed pods without CPUs of their own stand in kubepods/shared, which has the "
        "shared pool for all of them; never beside a kubelet. See docs/containers.md.",
        default=True,
    )
    placement: Placement = key(
        Placement.PACKED,
        one_of(Placement),
        "Which of the sets of NUMA nodes that the policy holds equal a pod gets that does not say "
        "so itself (annotation agent.numawarden/placement).",
    )
    prefer_one_node: bool = switch(
        "Under best-effort: where the node of a pod's devices has too few CPUs or too little "
        "memory, give it all of these on another node, rather than a part of them on each. The "
        "kubelet divides them.",
    )
    isolated_cpus: IsolcpusUse = key(
        IsolcpusUse.IGNORED,
        one_of(IsolcpusUse),
        "What the CPUs of isolcpus are for. The kernel spreads no threads over them: programs have "
        "to pin theirs.",
        name="isolatedCPUs",
    )
    pools: tuple[PoolConfig, ...] = key(
        (),
        POOLS,
        "Pools of shared CPUs, each a part of the node's shared pool in which some pods run. A pod "
        "is in the pool that its annotation cpu.numawarden.dev/pool names, else in that of its "
        "namespace, else in that of its QoS class. See docs/containers.md.",
        example="- name: batch\n  cpus: 8-15\n  qosClasses: [BestEffort]\n"
        "- name: near\n  nodes: 0\n  memory: bound\n",
    )
    isolation: IsolationConfig = section(IsolationConfig())
    metrics: MetricsConfig = section(MetricsConfig())
    pod_resources: PodResourcesConfig = section(PodResourcesConfig())
    logging: LoggingConfig = section(LoggingConfig())
    history: HistoryConfig = section(HistoryConfig())
    limits: LimitsConfig = section(LimitsConfig())
    devices: Mapping[str, tuple[PluginDevice, ...]] = key(
        MappingProxyType({}),
        DEVICE_INVENTORY,
        "The devices that pods can ask for, by resource.",
        example="example.com/gpu:\n  - id: gpu-0\n    numaNodes: [0]\n    healthy: true\n",
    )
    host_devices: tuple[HostDeviceClass, ...] = key(
        (),
        HOST_DEVICES,
        "Classes of the host's own devices, by the resource of pods. See docs/devices.md.",
        example="example.com/vf:\n"
        "  - virtualFunctionsOf: ens1f0\n    driver: vfio-pci\n"
        'example.com/nvme:\n  - pciClass: "0108"\n',
    )
    device_plugins: DevicePluginsConfig = section(DevicePluginsConfig())
    kubelet: BesideKubeletConfig = section(BesideKubeletConfig())
    kubernetes: KubernetesConfig = section(KubernetesConfig())
    ignored_resources: tuple[str, ...] = key(
        (),
        IGNORED_RESOURCES,
        "The extended resources that something else provides: how much of them pods request is "
        "not checked. Beside a kubelet these are all that the agent does not have. memory may be "
        "listed where the host does not show how much it has (docs/discovery.md).",
        example="- example.com/licence\n",
    )
    cdi_directory: Path | None = key(
        Path("/var/run/cdi"),
        OPTIONAL_PATH,
        'Where runtimes look for files of the Container Device Interface; "" writes none.',
    )
    assigned_files: Path | None = key(
        None,
        OPTIONAL_PATH,
        "The directory of the files in which containers find their own CPUs and memory nodes, "
        'such as /run/numawarden-pods; "" writes none. See docs/assigned.md.',
    )

    @property
    def own_sockets(self) -> frozenset[Path]:
        """The sockets that the agent serves itself as a kubelet would."""
        plugins = self.device_plugins
        of_plugins = {plugins.directory / "kubelet.sock"} if plugins.enabled else set()
        return frozenset(filter(None, (*of_plugins, self.pod_resources.socket)))
