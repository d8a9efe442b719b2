"""The configuration as a value, with the kubelet's fields and defaults, and its errors."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.config.features import gates_of
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.pods.quantity import Quantity
from agent.yaml import DocumentError
from cgroupfs.settings import KernelController

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import FeatureGates, PluginDevice
    from sysfs.mask import Mask


MEMORY_AVAILABLE: Final = "memory.available"
DEFAULT_MAX_PODS: Final = 110
_MIB: Final = 1 << 20


class CgroupDriver(StrEnum):
    """`cgroupDriver`: who makes the cgroups of pods."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class LogFormat(StrEnum):
    """`agent.logging.format`."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """`agent.logging.level`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Threshold(Struct, frozen=True):
    """An eviction threshold: an amount, or a share of the capacity in percent.

    `percent` is kept as text because the kubelet computes it in single precision.
    """

    amount: Quantity | None = None
    percent: str | None = None

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent is not None else str(self.amount)


class MemoryReservation(Struct, frozen=True):
    """One entry of `reservedMemory`: amounts by memory type on one NUMA node."""

    numa_node: int
    limits: Mapping[str, Quantity]


class MetricsConfig(Struct, frozen=True):
    """Where `/metrics`, `/healthz` and `/readyz` are served; with both files set, over TLS.

    `containers` is how many containers are exported one by one at most; 0: none.
    """

    address: str = "127.0.0.1"
    port: int = 9464
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    containers: int = 0


class LoggingConfig(Struct, frozen=True):
    """How the log is written."""

    format: LogFormat = LogFormat.JSON
    level: LogLevel = LogLevel.INFO


class PodResourcesVersion(StrEnum):
    """The kubelet whose answers those of podresources are."""

    #: Each container that shares its pod's budget lists what it shares.
    V1_36 = "v1.36"
    #: A pod lists its budget, a container only what is its own (KEP-5526).
    V1_37 = "v1.37"


class PodResourcesConfig(Struct, frozen=True):
    """Where the podresources API is served (None: it is not), and whose answers it has."""

    socket: Path | None = None
    version: PodResourcesVersion = PodResourcesVersion.V1_36


class HistoryConfig(Struct, frozen=True):
    """How much of the history is kept: bytes on disk (0: none is kept), and seconds."""

    max_bytes: int = 16 * _MIB
    max_age: float = 720 * 3600.0


class LimitsConfig(Struct, frozen=True):
    """What is rejected for its size: bytes of a manifest file and of one message."""

    manifest_bytes: int = _MIB
    message_bytes: int = 4 * _MIB


class HostDeviceClass(Struct, frozen=True):
    """Devices of the host that pods can ask for as `resource`: those that meet all criteria.

    A criterion that is "" is not asked for; at least one is. `pci_class`, `vendor` and `device` are
    hexadecimal digits without `0x`: a class has 2, 4 or 6 of them and takes all classes that begin
    so. `address`, `interface` and `virtual_functions_of` are patterns with the wildcards of
    `fnmatch`; the last is of an interface of the physical function.
    """

    resource: str
    pci_class: str = ""
    vendor: str = ""
    device: str = ""
    driver: str = ""
    address: str = ""
    interface: str = ""
    virtual_functions_of: str = ""


class DevicePluginsConfig(Struct, frozen=True):
    """Whether device plugins are served, in which directories, and how long they may take.

    `registry_directory` None: `plugins_registry` beside `directory`, as the kubelet has them.
    `call_timeout` is seconds.
    """

    enabled: bool = False
    directory: Path = Path("/var/lib/kubelet/device-plugins")
    registry_directory: Path | None = None
    call_timeout: float = 10.0


class OnReject(StrEnum):
    """What becomes of a pod that the kubelet admitted and the agent rejects."""

    FAIL = "fail"
    SHARE = "share"


class BesideKubeletConfig(Struct, frozen=True):
    """Whether the agent works beside a kubelet, where that kubelet keeps its files, and how.

    `ignored`: it starts although a kubelet runs whose pods it does not admit.
    `config_file` None: the file that the running kubelet's flags name, else `config.yaml` in
    `directory`. `nri_socket` None: containers get their settings only after they have started.
    `pods_endpoint` "": the kubelet's endpoint `/pods` is not used. `token_file` None: no token is
    sent there, `ca_file` None: its certificate is checked with the authorities of the system.
    `exclusive_resource` "": the agent is not a device plugin of the kubelet.
    """

    enabled: bool = False
    ignored: bool = False
    directory: Path = Path("/var/lib/kubelet")
    config_file: Path | None = None
    nri_socket: Path | None = Path("/var/run/nri/nri.sock")
    on_reject: OnReject = OnReject.FAIL
    pods_endpoint: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    verify_certificate: bool = True
    exclusive_resource: str = "numawarden.dev/exclusive"

    @property
    def plugin_directory(self) -> Path:
        """The directory in which the kubelet and its device plugins have their sockets."""
        return self.directory / "device-plugins"


class KubernetesConfig(Struct, frozen=True):
    """What the agent writes to the API server of the cluster, and how it reaches that server.

    `node_name` "": that of `agent.kubernetes.access.node_name`. `server` "": that of the pod that
    the agent runs in. `token_file` and `ca_file` None: those of the unit's credentials, or of the
    pod (`agent.kubernetes.access`).
    """

    publish_topology: bool = False
    events: bool = False
    node_name: str = ""
    server: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None

    @property
    def enabled(self) -> bool:
        """Whether anything is written to the API server."""
        return self.publish_topology or self.events


class AgentConfig(Struct, frozen=True):
    """The agent's own settings (`agent:`), beside those it shares with the kubelet.

    `socket_group` None: only root may use the socket. `sysfs_root` is the directory below which
    `sys` and `proc` of the host stand. `enforce` are the controllers whose files are set, the
    others are left to other programs. `devices` is the inventory by resource name, `host_devices`
    are classes of devices that are found on the host, in the order in which they are asked,
    `shared_cgroup` is `cgroupfs.names.Layout.shares`, `ignored_resources` are extended resources
    that others provide. `cdi_directory` None: no CDI files are written.
    """

    state_directory: Path = Path("/var/lib/numawarden")
    socket_path: Path = Path("/run/numawarden/agent.sock")
    socket_group: str | None = None
    sysfs_root: Path = Path("/")
    cgroup_mount: Path = Path("/sys/fs/cgroup")
    enforce: frozenset[KernelController] = frozenset(KernelController)
    shared_cgroup: bool = False
    metrics: MetricsConfig = MetricsConfig()
    pod_resources: PodResourcesConfig = PodResourcesConfig()
    logging: LoggingConfig = LoggingConfig()
    history: HistoryConfig = HistoryConfig()
    limits: LimitsConfig = LimitsConfig()
    devices: Mapping[str, tuple[PluginDevice, ...]] = MappingProxyType({})
    host_devices: tuple[HostDeviceClass, ...] = ()
    device_plugins: DevicePluginsConfig = DevicePluginsConfig()
    kubelet: BesideKubeletConfig = BesideKubeletConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    ignored_resources: tuple[str, ...] = ()
    cdi_directory: Path | None = Path("/var/run/cdi")


_NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_AMOUNTS: Final[Mapping[str, Quantity]] = MappingProxyType({})
_NO_GATES: Final[Mapping[str, bool]] = MappingProxyType({})
_KUBELET_EVICTION: Final[Mapping[str, Threshold]] = MappingProxyType(
    {
        MEMORY_AVAILABLE: Threshold(Quantity.parse("100Mi")),
        "nodefs.available": Threshold(percent="10"),
        "nodefs.inodesFree": Threshold(percent="5"),
        "imagefs.available": Threshold(percent="15"),
        "imagefs.inodesFree": Threshold(percent="5"),
    }
)


class Config(Struct, frozen=True):
    """Everything that can be configured, complete and consistent in itself.

    What depends on the host is decided by `agent.config.resolve.resolve`. Periods are seconds.
    `reserved_system_cpus` None: the list is not given. `static_pod_path` None: no manifests are
    read. `pods_per_core` 0 sets no limit. `feature_gates` are the gates that were set; `gates` is
    what follows from them.
    """

    cpu_manager_policy: CpuManagerPolicy = CpuManagerPolicy.NONE
    cpu_manager_policy_options: Mapping[str, str] = _NO_TEXTS
    cpu_manager_reconcile_period: float = 10.0
    memory_manager_policy: MemoryManagerPolicy = MemoryManagerPolicy.NONE
    reserved_memory: tuple[MemoryReservation, ...] = ()
    topology_manager_policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    topology_manager_scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    topology_manager_policy_options: Mapping[str, str] = _NO_TEXTS
    reserved_system_cpus: Mask | None = None
    system_reserved: Mapping[str, Quantity] = _NO_AMOUNTS
    kube_reserved: Mapping[str, Quantity] = _NO_AMOUNTS
    eviction_hard: Mapping[str, Threshold] = _KUBELET_EVICTION
    max_pods: int = DEFAULT_MAX_PODS
    pods_per_core: int = 0
    feature_gates: Mapping[str, bool] = _NO_GATES
    cgroup_driver: CgroupDriver = CgroupDriver.CGROUPFS
    cgroup_root: str = "/"
    static_pod_path: Path | None = None
    agent: AgentConfig = AgentConfig()

    @property
    def gates(self) -> FeatureGates:
        """The feature gates that change a decision."""
        return gates_of(self.feature_gates)


class ConfigError(DocumentError):
    """A configuration was rejected; `problems` holds every mistake in it with path and line."""

    what = "configuration"
