"""Read the sections of a configuration document over a base configuration."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from agent.config.amounts import AmountReader, seconds_of
from agent.config.config import (
    DEFAULT_MAX_PODS,
    AgentConfig,
    CgroupDriver,
    Config,
    EnforcedController,
    LimitsConfig,
    LogFormat,
    LoggingConfig,
    LogLevel,
    MetricsConfig,
)
from agent.config.settings import DEVICE_KEYS, KEYS
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    PluginDevice,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.parsing.nodes import shown
from agent.pods.model import MEMORY
from agent.pods.names import extended_resource_fault, prefixed_resource_fault
from agent.pods.validation import resource_name_fault
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.parsing.fields import Field

Choice = TypeVar("Choice", bound=StrEnum)

_KINDS: Final = ("KubeletConfiguration", "NumawardenConfiguration")
_API_VERSIONS: Final = ("kubelet.config.k8s.io/v1beta1", "numawarden/v1")
_GROUP: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}\$?", re.ASCII)
_SHORTEST_PERIOD: Final = 0.1
_LONGEST_PERIOD: Final = 86400.0
_MAX_PORT: Final = 65535
_MAX_INT32: Final = (1 << 31) - 1
_MIN_LIMIT: Final = 1024
_MAX_LIMIT: Final = 1 << 30
#: sun_path of a Unix socket address holds 108 bytes, the closing zero included.
_MAX_SOCKET_PATH: Final = 107


class ConfigReader(AmountReader):
    """Reads a configuration; with `merge`, mappings are added to those of the base."""

    def config(self, root: Field, base: Config) -> Config:
        """Return the base with what the document says laid over it."""
        self.entries(root)
        self.reject_unknown(root, KEYS)
        self._stated(root, "apiVersion", _API_VERSIONS)
        self._stated(root, "kind", _KINDS)
        return replace(self._managers(self._reservations(root, base), root), agent=self._agent(
            root.child("agent"), base.agent
        ))  # fmt: skip

    def _managers(self, base: Config, root: Field) -> Config:
        policy, topology = base.cpu_manager_policy, base.topology_manager_policy
        return replace(
            base,
            cpu_manager_policy=self._enum(root, "cpuManagerPolicy", policy, CpuManagerPolicy),
            cpu_manager_policy_options=self._options(
                root, "cpuManagerPolicyOptions", base.cpu_manager_policy_options
            ),
            cpu_manager_reconcile_period=self._period(root, base.cpu_manager_reconcile_period),
            memory_manager_policy=self._memory_policy(root, base.memory_manager_policy),
            topology_manager_policy=self._enum(
                root, "topologyManagerPolicy", topology, TopologyManagerPolicy
            ),
            topology_manager_scope=self._enum(
                root, "topologyManagerScope", base.topology_manager_scope, TopologyManagerScope
            ),
            topology_manager_policy_options=self._options(
                root, "topologyManagerPolicyOptions", base.topology_manager_policy_options
            ),
            feature_gates=self._gates(root, base.feature_gates),
            cgroup_driver=self._enum(root, "cgroupDriver", base.cgroup_driver, CgroupDriver),
            cgroup_root=str(self._path(root, "cgroupRoot", Path(base.cgroup_root)) or "/"),
            static_pod_path=self._path(root, "staticPodPath", base.static_pod_path),
        )

    def _reservations(self, root: Field, base: Config) -> Config:
        return replace(
            base,
            reserved_system_cpus=self._cpus(root, base.reserved_system_cpus),
            system_reserved=self.reserved(root, "systemReserved", base.system_reserved),
            kube_reserved=self.reserved(root, "kubeReserved", base.kube_reserved),
            eviction_hard=self.thresholds(root, "evictionHard", base.eviction_hard),
            reserved_memory=self.reserved_memory(root, base.reserved_memory),
            # As for the kubelet, 0 is the default.
            max_pods=self._integer(root, "maxPods", base.max_pods, 0, _MAX_INT32)
            or DEFAULT_MAX_PODS,
            pods_per_core=self._integer(root, "podsPerCore", base.pods_per_core, 0, _MAX_INT32),
        )

    def _agent(self, section: Field | None, base: AgentConfig) -> AgentConfig:
        if section is None:
            return base
        self._section(section, "agent")
        return AgentConfig(
            state_directory=self._directory(section, "stateDirectory", base.state_directory),
            socket_path=self._socket(section, base.socket_path),
            socket_group=self._group(section, base.socket_group),
            sysfs_root=self._directory(section, "sysfsRoot", base.sysfs_root),
            cgroup_mount=self._directory(section, "cgroupMount", base.cgroup_mount),
            enforce=self._enforce(section, base.enforce),
            metrics=self._metrics(section.child("metrics"), base.metrics),
            logging=self._logging(section.child("logging"), base.logging),
            limits=self._limits(section.child("limits"), base.limits),
            devices=self._devices(section, base.devices),
            ignored_resources=self._ignored(section, base.ignored_resources),
        )

    def _enforce(
        self, section: Field, base: frozenset[EnforcedController]
    ) -> frozenset[EnforcedController]:
        field = section.child("enforce")
        if field is None:
            return base
        names = (self.choice(item, EnforcedController) for item in self.items(field))
        return frozenset(EnforcedController(name) for name in names if name is not None)

    def _metrics(self, section: Field | None, base: MetricsConfig) -> MetricsConfig:
        if section is None:
            return base
        self._section(section, "agent", "metrics")
        return MetricsConfig(
            address=self._address(section, base.address),
            port=self._integer(section, "port", base.port, 0, _MAX_PORT),
            tls_certificate=self._path(section, "tlsCertificate", base.tls_certificate),
            tls_key=self._path(section, "tlsKey", base.tls_key),
        )

    def _logging(self, section: Field | None, base: LoggingConfig) -> LoggingConfig:
        if section is None:
            return base
        self._section(section, "agent", "logging")
        return LoggingConfig(
            format=self._enum(section, "format", base.format, LogFormat),
            level=self._enum(section, "level", base.level, LogLevel),
        )

    def _limits(self, section: Field | None, base: LimitsConfig) -> LimitsConfig:
        if section is None:
            return base
        self._section(section, "agent", "limits")
        return LimitsConfig(
            manifest_bytes=self.size(
                section, "manifestBytes", base.manifest_bytes, _MIN_LIMIT, _MAX_LIMIT
            ),
            message_bytes=self.size(
                section, "messageBytes", base.message_bytes, _MIN_LIMIT, _MAX_LIMIT
            ),
        )

    def _devices(
        self, section: Field, base: Mapping[str, tuple[PluginDevice, ...]]
    ) -> Mapping[str, tuple[PluginDevice, ...]]:
        field = section.child("devices")
        if field is None:
            return base
        found = dict(base) if self.merge else {}
        for resource, entry in self.entries(field).items():
            fault = extended_resource_fault(resource)
            if fault is not None:
                self.reject(entry, f"{shown(resource)} is not a resource of devices: {fault}")
            found[resource] = self._inventory(entry)
        return MappingProxyType(found)

    def _ignored(self, section: Field, base: tuple[str, ...]) -> tuple[str, ...]:
        field = section.child("ignoredResources")
        if field is None:
            return base
        found: list[str] = []
        for item in self.items(field):
            name = self.text(item)
            fault = None if name is None else _fault_of_ignored(name)
            if name is not None and fault is not None:
                self.reject(item, f"{shown(name)} cannot be ignored: {fault}")
            elif name in found:
                self.reject(item, f"{shown(name)} is listed twice")
            elif name is not None:
                found.append(name)
        return tuple(found)

    def _inventory(self, field: Field) -> tuple[PluginDevice, ...]:
        devices: dict[str, PluginDevice] = {}
        for item in self.items(field):
            self.entries(item)
            self.reject_unknown(item, DEVICE_KEYS)
            identity = self._device_id(item)
            if identity in devices:
                self.reject(item, f"device {shown(identity)} is listed twice")
            devices[identity] = PluginDevice(
                identity, self._device_nodes(item), healthy=self._flag(item, "healthy")
            )
        return tuple(devices.values())

    def _device_id(self, item: Field) -> str:
        field = item.child("id")
        if field is None:
            self.reject(item, "id is missing; give the device a name")
            return item.path
        return self.text(field) or item.path

    def _device_nodes(self, item: Field) -> Mask:
        field = item.child("numaNodes")
        if field is None:
            return EMPTY
        nodes = (self.integer(node, 0, MAX_ID) for node in self.items(field))
        return Mask.from_ids(node for node in nodes if node is not None)

    def _flag(self, item: Field, key: str) -> bool:
        field = item.child(key)
        return True if field is None else self.boolean(field) is not False

    def _section(self, section: Field, *names: str) -> None:
        keys = KEYS
        for name in names:
            keys = keys[name]
        self.entries(section)
        self.reject_unknown(section, keys)

    def _stated(self, root: Field, key: str, allowed: tuple[str, ...]) -> None:
        field = root.child(key)
        if field is not None:
            self.choice(field, allowed)

    def _enum(self, parent: Field, key: str, base: Choice, kind: type[Choice]) -> Choice:
        field = parent.child(key)
        name = self.choice(field, kind) if field is not None else None
        return base if name is None else kind(name)

    def _memory_policy(self, root: Field, base: MemoryManagerPolicy) -> MemoryManagerPolicy:
        field = root.child("memoryManagerPolicy")
        text = self.text(field) if field is not None else None
        if field is None or text is None:
            return base
        by_folded = {policy.lower(): policy for policy in MemoryManagerPolicy}
        policy = by_folded.get(text.lower())
        if policy is None:
            windows = " (BestEffort is for Windows)" if text.lower() == "besteffort" else ""
            self.reject(field, f"{shown(text)} is not one of None, Static{windows}")
        return policy or base

    def _options(self, root: Field, key: str, base: Mapping[str, str]) -> Mapping[str, str]:
        field = root.child(key)
        if field is None:
            return base
        options = dict(base) if self.merge else {}
        for name, entry in self.entries(field).items():
            options[name] = self.scalar_text(entry) or ""
        return MappingProxyType(options)

    def _gates(self, root: Field, base: Mapping[str, bool]) -> Mapping[str, bool]:
        field = root.child("featureGates")
        if field is None:
            return base
        gates = dict(base) if self.merge else {}
        for name, entry in self.entries(field).items():
            gates[name] = self.boolean(entry) is True
        return MappingProxyType(gates)

    def _cpus(self, root: Field, base: Mask | None) -> Mask | None:
        field = root.child("reservedSystemCPUs")
        text = self.amount(field) if field is not None else None
        if field is None or text is None:
            return base
        try:
            return Mask.parse(text) or None
        except ValueError as error:
            self.reject(field, f"{shown(text)} is not a list of CPUs such as 0-1,8: {error}")
            return base

    def _period(self, root: Field, base: float) -> float:
        field = root.child("cpuManagerReconcilePeriod")
        text = self.text(field) if field is not None else None
        if field is None or text is None:
            return base
        seconds = seconds_of(text)
        if seconds is None:
            self.reject(field, f"{shown(text)} is not a duration; write one such as 10s or 1m30s")
        elif not _SHORTEST_PERIOD <= seconds <= _LONGEST_PERIOD:
            self.reject(field, f"{shown(text)} is not between 100ms and 24h")
        return base if seconds is None else seconds

    def _integer(self, parent: Field, key: str, base: int, lowest: int, highest: int) -> int:
        field = parent.child(key)
        number = self.integer(field, lowest, highest) if field is not None else None
        return base if number is None else number

    def _directory(self, parent: Field, key: str, base: Path) -> Path:
        return self._path(parent, key, base) or base

    def _path(self, parent: Field, key: str, base: Path | None) -> Path | None:
        """Return an absolute path; None where the text is empty, as the kubelet writes "unset"."""
        field = parent.child(key)
        text = self.text(field) if field is not None else None
        if field is None or text is None:
            return base
        if not text:
            return None
        path = Path(text)
        if not path.is_absolute() or ".." in path.parts or not text.isprintable():
            self.reject(field, f"{shown(text)} is not an absolute path without '..'")
        return path

    def _socket(self, section: Field, base: Path) -> Path:
        path = self._directory(section, "socketPath", base)
        field = section.child("socketPath")
        if field is not None and len(str(path).encode()) > _MAX_SOCKET_PATH:
            self.reject(field, f"the path of a socket has at most {_MAX_SOCKET_PATH} bytes")
        return path

    def _group(self, section: Field, base: str | None) -> str | None:
        field = section.child("socketGroup")
        text = self.text(field) if field is not None else None
        if field is None or text is None:
            return base
        if text and not _GROUP.fullmatch(text):
            self.reject(field, f"{shown(text)} is not the name of a group")
        return text or None

    def _address(self, section: Field, base: str) -> str:
        field = section.child("address")
        text = self.text(field) if field is not None else None
        if field is None or text is None:
            return base
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            self.reject(field, f"{shown(text)} is not an IP address such as 127.0.0.1 or ::1")
            return base


def _fault_of_ignored(name: str) -> str | None:
    """Say why the agent cannot leave a resource to others; None when it can."""
    # A host may not tell how much memory a node has; then nobody can say what fits.
    if name == MEMORY:
        return None
    fault = prefixed_resource_fault(name)
    if fault is not None and resource_name_fault(name) is None:
        return "it is the node's own; others provide extended resources such as example.com/gpu"
    return fault
