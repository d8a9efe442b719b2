"""What device plugins get of the agent at most: time, devices, bytes; and how time passes."""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct

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
    without end for the other two, while all admissions wait. A preference is not needed for an
    allocation, so its deadline is shorter.
    """

    options: float = 10.0
    preference: float = 5.0
    allocation: float = 10.0
    start: float = 30.0

    @classmethod
    def of_calls(cls, seconds: float) -> Self:
        """Return the deadlines that follow from `agent.devicePlugins.callTimeout`."""
        return cls(options=seconds, preference=seconds / 2, allocation=seconds)
