"""The metrics of device plugins, and how they are counted."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from agent.managers.decision import MetricSpec, MetricType, gauge

REGISTRATIONS: Final = MetricSpec(
    "kubelet_device_plugin_registration_total",
    MetricType.COUNTER,
    "Registrations of device plugins, by resource.",
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
    "Calls of device plugins, by method and result; skipped: earlier calls were not answered.",
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
