"""Which keys a configuration has."""

from __future__ import annotations

from typing import Final, TypeAlias

#: The keys of a section and the keys within each; no keys where names are free or it is a value.
Keys: TypeAlias = "dict[str, Keys]"

_AGENT: Final[Keys] = {
    "stateDirectory": {},
    "socketPath": {},
    "socketGroup": {},
    "sysfsRoot": {},
    "cgroupMount": {},
    "enforce": {},
    "metrics": {"address": {}, "port": {}, "tlsCertificate": {}, "tlsKey": {}},
    "logging": {"format": {}, "level": {}},
    "limits": {"manifestBytes": {}, "messageBytes": {}},
    "devices": {},
    "ignoredResources": {},
}

KEYS: Final[Keys] = {
    "apiVersion": {},
    "kind": {},
    "cpuManagerPolicy": {},
    "cpuManagerPolicyOptions": {},
    "cpuManagerReconcilePeriod": {},
    "memoryManagerPolicy": {},
    "reservedMemory": {},
    "topologyManagerPolicy": {},
    "topologyManagerScope": {},
    "topologyManagerPolicyOptions": {},
    "reservedSystemCPUs": {},
    "systemReserved": {},
    "kubeReserved": {},
    "evictionHard": {},
    "maxPods": {},
    "podsPerCore": {},
    "featureGates": {},
    "cgroupDriver": {},
    "cgroupRoot": {},
    "staticPodPath": {},
    "agent": _AGENT,
}

DEVICE_KEYS: Final = ("id", "numaNodes", "healthy")
RESERVED_MEMORY_KEYS: Final = ("numaNode", "limits")
