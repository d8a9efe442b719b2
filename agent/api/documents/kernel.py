"""What the kernel shows of a cgroup, what an admission would write there, and whether all holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.api.documents.document import Document
from cgroupfs.settings import PARTITIONS, VALUES


class KernelDocument(Document, frozen=True):
    """The files of one cgroup; a field is null where the file does not exist.

    Fields that are not named here have the text of the file of that name. `hugetlb` has texts by
    file (`hugetlb.2MB.max`). Files of `memory.min`, `memory.low`, `memory.high` and `pids.max` are
    shown where the agent sets them, those of a partition where partitions are configured.
    """

    cgroup: str
    cpus: str | None = None
    cpus_effective: str | None = None
    mems: str | None = None
    mems_effective: str | None = None
    #: The text of the file: `max 100000`.
    cpu_max: str | None = None


if not TYPE_CHECKING:
    # A field for each file of one value: what the agent writes, it shows.
    KernelDocument = msgspec.defstruct(
        "KernelDocument",
        [
            *((row.field, str | None, None) for row in (*VALUES, *PARTITIONS)),
            ("hugetlb", dict[str, str], {}),
        ],
        bases=(KernelDocument,),
        namespace={"__doc__": KernelDocument.__doc__},
        module=__name__,
        frozen=True,
    )


class EnforcementDocument(Document, frozen=True):
    """Whether the kernel enforces an allocation."""

    enforced: bool
    #: What is missing, one line each.
    differences: tuple[str, ...] = ()
    #: Facts that are no failure: processes that still run, for example.
    notes: tuple[str, ...] = ()


class PlanDocument(Document, frozen=True):
    """What an admission would do in cgroups."""

    #: The cgroups that the admission creates.
    created: tuple[str, ...]
    #: In the order of writing.
    writes: tuple[WriteDocument, ...]


class WriteDocument(Document, frozen=True):
    """One write to a file of a cgroup."""

    cgroup: str
    file: str
    value: str
