"""What the agent saw since its start, and the parts of it that know more.

None of this is saved. It is changed on the event loop: by actions of the queue, and by the loops
that watch sources and parts.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from agent.clock import SystemClock
from agent.devices.cdi import CdiFiles
from agent.devices.providers import Providers
from agent.progress import Progress
from agent.server.pod_records import PodRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.api.documents import (
        DriftDocument,
        ManifestDocument,
        ReconcileDocument,
        RuntimeDocument,
    )
    from agent.isolation.host import HostIsolation
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.recovery import Displaced
    from agent.pods.model import GivenDevices, Pod
    from agent.reconcile.assigned import AssignedFiles
    from agent.reconcile.diff import Difference
    from agent.reconcile.tasks import Intruders
    from agent.server.events import HistoryRecorder
    from agent.sources.source import SourceUnreadableError


#: Subject of the first comparison in `Observations.pending`.
COMPARISON: Final = "comparison"


class SourceState(Struct):
    """One registered source of pods."""

    #: How a pod of it is ended, in words.
    removal: str
    #: Why it cannot be read now.
    unreadable: SourceUnreadableError | None = None
    #: What it asked for when it was last read, by key.
    entries: Mapping[str, ManifestDocument] = MappingProxyType({})
    #: What it could not find out.
    conditions: tuple[str, ...] = ()


class Observations(Struct):
    """What the agent saw since its start; none of it is saved."""

    #: Whether changes are accepted.
    ready: bool = False
    #: The steps of the start that are not done yet, by subject.
    pending: dict[str, str] = field(default_factory=dict)
    #: What was seen of each pod.
    records: PodRecords = field(default_factory=PodRecords)
    #: The registered sources of pods by name.
    sources: dict[str, SourceState] = field(default_factory=dict)
    #: The latest comparison with the kernel.
    last_reconcile: ReconcileDocument | None = None
    #: The Unix time of the latest comparison that found no difference.
    last_agreement: float | None = None
    #: The Unix time at which the topology was last published to a cluster.
    last_publication: float | None = None
    #: How many changes there were that may have made room for a rejected pod.
    releases: int = 0
    #: Why the checkpoint could not be saved, or may not be durable.
    unsaved: str | None = None
    #: The room that was last found for the checkpoint, None before it was looked for.
    free_bytes: int | None = None
    #: What the kernel or systemd does not enforce outside of single pods.
    unenforced: tuple[Difference, ...] = ()
    #: What another process writes again after each repair.
    contested: tuple[Difference, ...] = ()
    #: The latest settings that another process changed.
    drift: tuple[DriftDocument, ...] = ()
    #: Allocations of the checkpoint whose CPUs another running pod uses, by uid, until their pods
    #: are admitted or removed.
    displaced: dict[str, Displaced] = field(default_factory=dict)
    #: The tasks that may run on exclusive CPUs of pods they do not belong to, None before they were
    #: looked for.
    intruding: Intruders | None = None
    #: All other conditions by subject, beside the parts of `progress` that stand still.
    conditions: dict[str, str] = field(default_factory=dict)


class DevicesGiven(Protocol):
    """The devices that a kubelet beside the agent gave to containers, a plug of the agent."""

    #: What the kubelet listed last.
    listed: KubeletListing

    @property
    def conditions(self) -> tuple[str, ...]:
        """What keeps the agent from knowing these devices."""

    async def of(self, pod: Pod) -> GivenDevices:
        """Return the devices of a pod; asks the kubelet."""


class Parts(Struct):
    """The parts of the agent that have state and conditions of their own."""

    #: Offer devices beside the configuration.
    providers: Providers = field(default_factory=Providers)
    #: Devices of the plugins of a kubelet beside the agent, None without one.
    kubelet_devices: DevicesGiven | None = None
    #: Describes the session with the container runtime, None without one.
    runtime: Callable[[], RuntimeDocument] | None = None
    #: Hand over what providers deliver.
    cdi_files: CdiFiles = field(default_factory=lambda: CdiFiles(None))
    #: Say to containers what they have, None where that is not configured.
    assigned_files: AssignedFiles | None = None
    #: None where no history is kept.
    history: HistoryRecorder | None = None
    #: The host-wide settings.
    isolation: HostIsolation | None = None
    #: Which parts stand still.
    progress: Progress = field(default_factory=lambda: Progress(SystemClock()))
