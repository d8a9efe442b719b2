"""What `numawarden interference` saw on exclusive CPUs besides the tasks of their owners."""

from __future__ import annotations

from agent.api.documents.document import Document


class InterferenceDocument(Document, frozen=True):
    """What `numawarden interference` saw on exclusive CPUs."""

    #: How long the CPUs were watched.
    seconds: float
    #: Every switch was recorded; otherwise tasks were sampled.
    exact: bool
    #: How many switches were dropped.
    lost: int
    cpus: tuple[DisturbedCpuDocument, ...]
    notes: tuple[str, ...]
    #: What spun on the CPUs; "" without a probe.
    probe: str = ""


class DisturbedCpuDocument(Document, frozen=True):
    """What happened on one exclusive CPU besides the tasks of its owners."""

    cpu: int
    #: `namespace/pod/container`, or `namespace/pod` for CPUs that the containers of a pod share.
    owners: tuple[str, ...]
    online: bool
    tasks: tuple[InterferingTaskDocument, ...]
    #: How long the owners' tasks ran.
    own_seconds: float
    #: The number of interrupts by source, without those of the timer.
    interrupts: dict[str, int]
    #: Interrupts of the timer.
    ticks: int
    #: The number of softirqs by kind.
    softirqs: dict[str, int]
    steal_seconds: float
    #: How often any task began to run; null where the kernel does not count it.
    switches: int | None
    #: How often a task began to run that was on another of the CPUs before.
    migrations: int
    #: The longest interruption that a probe saw; null without a probe.
    longest_seconds: float | None = None
    #: How many interruptions of more than 10 us the probe saw; null without a probe.
    interruptions: int | None = None


class InterferingTaskDocument(Document, frozen=True):
    """A thread that ran on an exclusive CPU and does not belong there."""

    name: str
    thread: int
    #: Null for a thread of the kernel, and for one that ended before it was examined.
    cgroup: str | None
    kernel: bool
    #: How often it began to run there.
    times: int
    #: How long it ran there.
    seconds: float
