"""What the agent observed since its start, and its parts that have state of their own.

In go the results of comparisons, readings and saves; conditions, status and metrics are made of
what is kept here. None of it is saved, and all of it is changed on the event loop: by actions in
the line, and by the loops of `agent.server.lifecycle` and of companions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from agent.clock import SystemClock
from agent.devices.cdi_files import CdiFiles
from agent.devices.providers import Providers
from agent.progress import Progress
from agent.server.pod_records import PodRecords
from agent.server.pod_sources import PodSources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.api.documents.status import RuntimeDocument
    from agent.api.documents.verification import DriftDocument, ReconcileDocument
    from agent.isolation.host import HostIsolation
    from agent.managers.available import Lack
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.recovery import Displaced
    from agent.pods.model import GivenDevices, Pod
    from agent.reconcile.assigned import AssignedFiles
    from agent.reconcile.diff import Difference
    from agent.reconcile.tasks import Intruders
    from agent.server.history_recorder import HistoryRecorder


#: Subject of the first comparison in `Observations.pending`.
COMPARISON: Final = "comparison"


class Observations(Struct):
    """What the agent observed since its start."""

    #: Whether changes are accepted.
    ready: bool = False
    #: The steps of the start that are not done yet, by subject, but for the reading of sources.
    pending: dict[str, str] = field(default_factory=dict)
    #: What was observed of each pod, and the latest rejections.
    records: PodRecords = field(default_factory=PodRecords)
    #: The sources of pods, and what they ask for.
    sources: PodSources = field(default_factory=PodSources)
    #: The latest comparison with the kernel.
    last_reconcile: ReconcileDocument | None = None
    #: The Unix time of the latest comparison after which nothing differed.
    last_agreement: float | None = None
    #: The Unix time at which the topology was last published to a cluster.
    last_publication: float | None = None
    #: How many changes there were that may have made room for a rejected pod.
    releases: int = 0
    #: Why the checkpoint could not be saved, or may not be durable.
    unsaved: str | None = None
    #: The free bytes of the checkpoint's file system when they were last read, None before.
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
    #: By uid the huge pages that pods had yet to take, and that were not there at the latest
    #: comparison.
    lacking: Mapping[str, tuple[Lack, ...]] = field(default_factory=dict)
    #: The messages of all other conditions, by subject.
    conditions: dict[str, str] = field(default_factory=dict)


class DevicesGiven(Protocol):
    """A plug: the devices that another manager of devices on this host gave to containers."""

    #: What the kubelet listed last.
    listed: KubeletListing

    @property
    def conditions(self) -> tuple[str, ...]:
        """What keeps the agent from knowing these devices."""

    async def of(self, pod: Pod) -> GivenDevices:
        """Return the devices of a pod; asks the kubelet."""


class Parts(Struct):
    """The parts of the agent that have state and conditions of their own."""

    #: The providers of devices; what they offer adds to the configuration.
    providers: Providers = field(default_factory=Providers)
    #: The devices that a kubelet beside the agent gave to containers, None without one.
    kubelet_devices: DevicesGiven | None = None
    #: Describes the session with the container runtime, None without one.
    runtime: Callable[[], RuntimeDocument] | None = None
    #: The files by which runtimes find what providers deliver.
    cdi_files: CdiFiles = field(default_factory=lambda: CdiFiles(None))
    #: The files in which containers find what they have, None where that is not configured.
    assigned_files: AssignedFiles | None = None
    #: The recorder of events, None where no history is kept.
    history: HistoryRecorder | None = None
    #: The host-wide settings.
    isolation: HostIsolation | None = None
    #: Which parts of the agent are stuck.
    progress: Progress = field(default_factory=lambda: Progress(SystemClock()))
