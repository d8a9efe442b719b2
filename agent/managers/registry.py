"""Which resource managers there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.managers.cpu.manager import CpuManager
from agent.managers.device.manager import DeviceManager
from agent.managers.memory.manager import MemoryManager

if TYPE_CHECKING:
    from agent.managers.resource_manager import ResourceManager

#: All resource managers, in the kubelet's order of hint providers.
MANAGERS: Final[tuple[ResourceManager, ...]] = (DeviceManager(), CpuManager(), MemoryManager())
