"""The keys of a whole configuration: what the document is, the kubelet's keys, the agent's own."""

from __future__ import annotations

from typing import Final

from agent.config.keys.amounts import ByteSize
from agent.config.keys.beside_kubelet import BESIDE_KUBELET
from agent.config.keys.device_plugins import DEVICE_PLUGINS
from agent.config.keys.host_devices import HostDeviceClasses
from agent.config.keys.key import Key, KeyGroup, Section
from agent.config.keys.kubelet import KUBELET_GROUPS
from agent.config.keys.kubernetes import KUBERNETES
from agent.config.keys.names import ControllerSet, DeviceInventory, ProvidedResources
from agent.config.keys.scalars import (
    DocumentMarker,
    IpAddress,
    OneOf,
    OptionalPath,
    OptionalSocketPath,
    Period,
    RequiredPath,
    SocketPath,
    Switch,
    UserGroup,
    WholeNumber,
)
from agent.config.model import (
    AgentConfig,
    Config,
    HistoryConfig,
    LimitsConfig,
    LogFormat,
    LoggingConfig,
    LogLevel,
    MetricsConfig,
    PodResourcesConfig,
    PodResourcesVersion,
)
from cgroupfs.settings import KernelController

_MAX_PORT: Final = 65535
_MOST_CONTAINERS: Final = 10_000
_SIZE: Final = ByteSize(1024, 1 << 30)

_METRICS: Final = Section(
    MetricsConfig(),
    (
        KeyGroup(
            "Metrics",
            (
                Key(
                    "address",
                    IpAddress(),
                    since="0.1.0",
                    help="An IP address of this host; 0.0.0.0 or :: for all of them.",
                ),
                Key(
                    "port",
                    WholeNumber(0, _MAX_PORT),
                    since="0.1.0",
                    help="The TCP port of the metrics listener.",
                ),
                Key(
                    "tlsCertificate",
                    OptionalPath(),
                    since="0.1.0",
                    help="A file in PEM form. With this and tlsKey the listener speaks TLS.",
                ),
                Key(
                    "tlsKey",
                    OptionalPath(),
                    since="0.1.0",
                    help="A file in PEM form. The key is not encrypted, belongs to root (or the "
                    "agent's user), and is not readable by all users.",
                ),
                Key(
                    "containers",
                    WholeNumber(0, _MOST_CONTAINERS),
                    since="0.1.0",
                    help="How many containers have metrics of their own at most, in the order of "
                    "admission: numawarden_container_info and "
                    "numawarden_container_exclusive_cpus, with the names of pods. 0 exports none; "
                    "each costs Prometheus two series or more.",
                ),
            ),
        ),
    ),
)

_LOGGING: Final = Section(
    LoggingConfig(),
    (
        KeyGroup(
            "Logging",
            (
                Key(
                    "format",
                    OneOf(LogFormat),
                    since="0.1.0",
                    help="How a line of the log is written.",
                    values={
                        LogFormat.JSON: "an object for each line",
                        LogFormat.CONSOLE: "text for a person",
                    },
                ),
                Key(
                    "level",
                    OneOf(LogLevel),
                    since="0.1.0",
                    help="What is less important than this is not logged.",
                ),
            ),
        ),
    ),
)

_POD_RESOURCES: Final = Section(
    PodResourcesConfig(),
    (
        KeyGroup(
            "The podresources API",
            (
                Key(
                    "socket",
                    OptionalSocketPath(),
                    since="0.1.0",
                    help="The socket of the kubelet's podresources API (gRPC, v1), for monitoring: "
                    "/run/numawarden/pod-resources/kubelet.sock, or the kubelet's own "
                    "/var/lib/kubelet/pod-resources/kubelet.sock on a host without a kubelet. It "
                    "needs the extra grpc. See docs/devices.md.",
                ),
                Key(
                    "version",
                    OneOf(PodResourcesVersion),
                    since="0.1.0",
                    help="The kubelet as whose the answers are. Today's clients read containers "
                    "only.",
                    values={
                        "v1.36": "each container lists what it shares of its pod's budget",
                        "v1.37": "the pod lists the budget, the container only what is its own",
                    },
                ),
            ),
        ),
    ),
)

_HISTORY: Final = Section(
    HistoryConfig(),
    (
        KeyGroup(
            "The history",
            (
                Key(
                    "maxBytes",
                    ByteSize(0, 1 << 30),
                    since="0.1.0",
                    help="The most bytes of the history in stateDirectory; the oldest entries go "
                    "first. 0 keeps no history.",
                ),
                Key(
                    "maxAge",
                    Period(60.0, 10 * 365 * 86400.0),
                    since="0.1.0",
                    help="How old an entry may be. Older ones are not shown, and their file is "
                    "removed when something else happens.",
                ),
            ),
        ),
    ),
)

_LIMITS: Final = Section(
    LimitsConfig(),
    (
        KeyGroup(
            "Limits",
            (
                Key("manifestBytes", _SIZE, since="0.1.0", help="The largest manifest."),
                Key(
                    "messageBytes", _SIZE, since="0.1.0", help="The largest message on the socket."
                ),
            ),
        ),
    ),
)

_AGENT: Final = Section(
    AgentConfig(),
    (
        KeyGroup(
            "The agent's own",
            (
                Key(
                    "stateDirectory",
                    RequiredPath(),
                    since="0.1.0",
                    help="Where the checkpoint is kept.",
                ),
                Key(
                    "socketPath",
                    SocketPath(),
                    since="0.1.0",
                    help="The socket of the admission API.",
                ),
                Key(
                    "socketGroup",
                    UserGroup(),
                    since="0.1.0",
                    help='The group whose members may use the socket, too; "" is root alone.',
                ),
                Key(
                    "sysfsRoot",
                    RequiredPath(),
                    since="0.1.0",
                    help="The directory below which the host's sys and proc stand, for an agent in "
                    "a container.",
                ),
                Key(
                    "cgroupMount",
                    RequiredPath(),
                    since="0.1.0",
                    help="Where the cgroup v2 file system is mounted.",
                ),
                Key(
                    "enforce",
                    ControllerSet(),
                    since="0.1.0",
                    help="What the agent sets in the cgroups of pods, by the kernel's controllers. "
                    "What is left out belongs to other programs and is neither written nor "
                    "compared. A limit below what is in use is never written.",
                    values={each: each.sets for each in KernelController},
                ),
                Key(
                    "sharedCgroup",
                    Switch(),
                    since="0.1.0",
                    help="Whether Guaranteed pods without CPUs of their own stand in "
                    "kubepods/shared (kubepods-shared.slice), where a kubelet would put them into "
                    "kubepods itself. That cgroup carries the shared pool for all of them, so that "
                    "an exclusive pod comes and goes in as few writes beside thousands of them as "
                    "beside ten. A pod's cgroup that exists stays where it is. See "
                    "docs/containers.md.",
                ),
                Key(
                    "metrics",
                    _METRICS,
                    since="0.1.0",
                    help="Where /metrics, /healthz and /readyz are served.",
                ),
                Key(
                    "podResources",
                    _POD_RESOURCES,
                    since="0.1.0",
                    help="The kubelet's podresources API; off without a socket.",
                ),
                Key("logging", _LOGGING, since="0.1.0", help="How the log is written."),
                Key(
                    "history",
                    _HISTORY,
                    since="0.1.0",
                    help="What 'numawarden history' shows. See docs/history.md.",
                ),
                Key(
                    "limits",
                    _LIMITS,
                    since="0.1.0",
                    help="What is rejected for its size in bytes.",
                ),
                Key(
                    "devices",
                    DeviceInventory(),
                    since="0.1.0",
                    help="The devices that pods can ask for, by resource name. Without numaNodes "
                    "no NUMA node of the device is known; healthy is true where it is left out. "
                    "A pod that asks for a resource that is neither listed here nor in "
                    "hostDevices is rejected, but see ignoredResources.",
                    example="example.com/gpu:\n"
                    "  - id: gpu-0\n    numaNodes: [0]\n    healthy: true\n",
                ),
                Key(
                    "hostDevices",
                    HostDeviceClasses(),
                    since="0.1.0",
                    help="Classes of the host's own devices that pods can ask for, by resource "
                    "name; the agent finds the devices, their NUMA nodes and whether they are "
                    "healthy. A device is of a class if it meets all criteria that the class has: "
                    "pciClass (2, 4 or 6 digits), vendor and device (4 digits each) in "
                    "hexadecimal, driver, and, with the wildcards *, ? and [], address (PCI "
                    "address), interface (network interface) and virtualFunctionsOf (interface "
                    "of the physical function). A device of several classes counts for the "
                    "first. Nothing is left out because the host itself uses it.",
                    example="example.com/vf:\n"
                    "  - virtualFunctionsOf: ens1f0\n    driver: vfio-pci\n"
                    'example.com/nvme:\n  - pciClass: "0108"\n',
                ),
                Key(
                    "devicePlugins",
                    DEVICE_PLUGINS,
                    since="0.1.0",
                    help="Devices that other programs offer, as to a kubelet.",
                ),
                Key(
                    "kubelet",
                    BESIDE_KUBELET,
                    since="0.1.0",
                    help="The pods of a cluster, beside this host's kubelet.",
                ),
                Key(
                    "kubernetes",
                    KUBERNETES,
                    since="0.1.0",
                    help="What the agent writes to the API server of a cluster; off without "
                    "publishTopology and events. See docs/node-topology.md.",
                ),
                Key(
                    "ignoredResources",
                    ProvidedResources(),
                    since="0.1.0",
                    help="The extended resources that something else provides, such as "
                    "example.com/licence: how much of them pods request is not looked at, and "
                    "nothing of them is given. Beside a kubelet (agent.kubelet) all that the agent "
                    "does not have are so, listed or not. memory may be listed, too, where the "
                    "host does not show how much memory a node has: then pods are admitted "
                    "whatever they request.",
                    example="- example.com/licence\n",
                ),
                Key(
                    "cdiDirectory",
                    OptionalPath(),
                    since="0.1.0",
                    help="Where container runtimes look for files of the Container Device "
                    "Interface. The file of a pod has what its containers get with their devices: "
                    "environment, mounts and device nodes; it is written if there is any of "
                    'it, and removed with the pod. "" writes none.',
                ),
            ),
        ),
    ),
)

_DOCUMENT: Final = KeyGroup(
    "The document",
    (
        Key(
            "apiVersion",
            DocumentMarker(("kubelet.config.k8s.io/v1beta1", "numawarden/v1"), "numawarden/v1"),
            since="0.1.0",
            help="May be left out. A kubelet's own is accepted too.",
            stored=False,
        ),
        Key(
            "kind",
            DocumentMarker(
                ("KubeletConfiguration", "NumawardenConfiguration"), "NumawardenConfiguration"
            ),
            since="0.1.0",
            help="May be left out. A kubelet's own is accepted too.",
            stored=False,
        ),
    ),
)

#: Every key of a configuration; `defaults` are those of the whole.
CONFIGURATION: Final = Section(
    Config(),
    (
        _DOCUMENT,
        *KUBELET_GROUPS,
        KeyGroup(
            "The agent's own",
            (
                Key(
                    "agent",
                    _AGENT,
                    since="0.1.0",
                    help="What a kubelet has no key for.",
                ),
            ),
        ),
    ),
)
