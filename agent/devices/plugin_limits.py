"""What device plugins get at most, of time, devices and bytes, and what is counted of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol, Self

from msgspec import Struct

from agent.managers.metrics import MetricSpec, MetricType, gauge

#: How long a resource whose plugin is gone keeps its devices (unhealthy), in seconds; the kubelet's
#: endpointStopGracePeriod.
GRACE: Final = 300.0
#: The most resources at a time, those of lost plugins included.
MOST_RESOURCES: Final = 64
#: The most devices of one resource.
MOST_DEVICES: Final = 10_000
#: The longest id of a device in bytes.
LONGEST_ID: Final = 253
#: The longest list of devices in bytes: `MOST_DEVICES` of them with long ids and a few NUMA nodes.
LONGEST_LIST: Final = 4 << 20
#: The longest answer to Allocate, GetPreferredAllocation and GetDevicePluginOptions in bytes.
LONGEST_ANSWER: Final = 1 << 20
#: The longest RegisterRequest in bytes.
LONGEST_REGISTRATION: Final = 4096
#: The NUMA nodes of one machine are fewer (CONFIG_NODES_SHIFT is 10 at most).
NUMA_NODES: Final = 1024


class Deadlines(Struct, frozen=True):
    """How long a plugin may take to answer, in seconds, by method.

    The kubelet waits 10 s for the options at registration and 30 s for PreStartContainer, and
    without end for the other two. A preference is not needed for an allocation, so its deadline is
    shorter.
    """

    options: float = 10.0
    preference: float = 5.0
    allocation: float = 10.0
    start: float = 30.0

    @classmethod
    def of_calls(cls, seconds: float) -> Self:
        """Return the deadlines that follow from `agent.devicePlugins.callTimeout`."""
        return cls(options=seconds, preference=seconds / 2, allocation=seconds)


REGISTRATIONS: Final = MetricSpec(
    "kubelet_device_plugin_registration_total",
    MetricType.COUNTER,
    "Registrations of device plugins.",
    ("resource_name",),
)
ALLOCATION_DURATION: Final = MetricSpec(
    "kubelet_device_plugin_alloc_duration_seconds",
    MetricType.HISTOGRAM,
    "Time that a device plugin took to answer Allocate, in seconds.",
    ("resource_name",),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
CALLS: Final = MetricSpec(
    "numawarden_device_plugin_calls_total",
    MetricType.COUNTER,
    "Calls of device plugins; skipped: earlier calls were not answered.",
    ("resource", "method", "result"),
)
IGNORED_PREFERENCES: Final = MetricSpec(
    "numawarden_device_plugin_ignored_preferences_total",
    MetricType.COUNTER,
    "Answers to GetPreferredAllocation that do not fit the question.",
    ("resource",),
)
#: The methods of a plugin whose calls are counted; ListAndWatch is a stream without an end.
METHODS: Final = (
    "GetDevicePluginOptions",
    "GetPreferredAllocation",
    "Allocate",
    "PreStartContainer",
)
CONNECTED: Final = gauge(
    "numawarden_device_plugin_connected",
    "1 if the device plugin of a resource is connected, else 0.",
    "resource",
)


class CallResult(StrEnum):
    """What became of a call (`numawarden_device_plugin_calls_total`)."""

    OK = "ok"
    #: The plugin answered with an error, or could not be reached.
    FAILED = "failed"
    TIMEOUT = "timeout"
    #: The answer could not be used.
    INVALID = "invalid"
    SKIPPED = "skipped"


class Measure(Protocol):
    """Counts what happened; label values are in the order of the metric's labels."""

    def add(self, metric: MetricSpec, *labels: str) -> None:
        """Increment a counter by one."""

    def observe(self, metric: MetricSpec, seconds: float, *labels: str) -> None:
        """Add an observation to a histogram."""
