"""Every kind of bad input."""

from __future__ import annotations

from typing import Final

from tests.fuzz.api_answers import API_ANSWERS
from tests.fuzz.bindings import BINDINGS
from tests.fuzz.buses import BUSES
from tests.fuzz.checkpoints import CHECKPOINTS
from tests.fuzz.configs import CONFIGS
from tests.fuzz.device_plugins import ALLOCATIONS, DEVICE_LISTS, REGISTRATIONS
from tests.fuzz.kubelet import STATE_FILES
from tests.fuzz.names import NAMES
from tests.fuzz.nri import NRI_FRAMES
from tests.fuzz.pods import MANIFESTS
from tests.fuzz.runtimes import RUNTIME_FILES
from tests.fuzz.sockets import MESSAGES
from tests.fuzz.texts import LISTS, QUANTITIES
from tests.fuzz.trees import TREES
from tests.fuzz.writes import WRITES

TARGETS: Final = (
    QUANTITIES,
    LISTS,
    MANIFESTS,
    CONFIGS,
    CHECKPOINTS,
    STATE_FILES,
    TREES,
    BUSES,
    RUNTIME_FILES,
    NAMES,
    MESSAGES,
    BINDINGS,
    REGISTRATIONS,
    DEVICE_LISTS,
    ALLOCATIONS,
    NRI_FRAMES,
    API_ANSWERS,
    WRITES,
)
