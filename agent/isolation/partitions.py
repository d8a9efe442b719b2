"""Which pods are partitions of the kernel, and what keeps others from being one.

In go the configuration, the pods and what the kernel shows; out come the words that the enforcer
writes into `cpuset.cpus.partition` with the cgroups of the pods, and conditions. What the cgroup of
all pods has (`cpuset.cpus.exclusive`) is saved before the first partition; with that forgotten all
partitions below it end.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from agent.config.isolation import IsolationConfig, PartitionMode
from agent.isolation.places import PLACE_ERRORS, exclusive_of, why_not
from agent.isolation.report import MOST_NAMED
from agent.isolation.rows import partition_words
from agent.state.checkpoint import CheckpointIOError
from agent.text import some_of
from cgroupfs.settings import PARTITION, partition_fault
from cgroupfs.tree import is_within, parent
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.isolation.originals import Custody
    from agent.isolation.places import HostPlaces
    from agent.managers.allocation import PodAllocation
    from agent.managers.bindings import Binding

log = structlog.get_logger(__name__)


class PodPartitions:
    """The partitions of pods; `pods` is the cgroup of all pods."""

    def __init__(
        self, config: IsolationConfig, places: HostPlaces, custody: Custody, pods: str
    ) -> None:
        self._config = config
        self._places = places
        self._custody = custody
        self._pods = pods
        #: The kind of partition by pod (uid).
        self.words: Mapping[str, str] = MappingProxyType({})
        #: The place where the exclusive CPUs of all pods are, "" without a partition.
        self.place = ""
        #: Why a pod that asks for a partition is none, by subject.
        self._unmet: Mapping[str, str] = MappingProxyType({})
        #: What the kernel shows instead of a valid partition, by pod (uid) and cgroup.
        self._invalid: Mapping[tuple[str, str], str] = MappingProxyType({})

    @property
    def used(self) -> bool:
        """Whether pods may be partitions."""
        return self._config.partitions is not PartitionMode.NEVER

    def desired(
        self, allocations: Mapping[str, PodAllocation], bindings: Iterable[Binding], all_pods: str
    ) -> Mapping[str, str] | None:
        """Return the pods (uids) that are to be partitions, each with its kind.

        None: there are none, and never were. `all_pods` is the cgroup of all pods.
        """
        originals, place = self._custody.originals, exclusive_of(all_pods)
        if not self.used:
            return {} if place in originals else None
        elsewhere = {one.pod_uid for one in bindings if not is_within(one.cgroup, (all_pods,))}
        self.words, self._unmet = partition_words(self._config, allocations.values(), elsewhere)
        if self.words and place not in originals and (why := self._save(all_pods, place)):
            self.words = {}
            self._unmet = {**self._unmet, "isolation partitions": f"no pod is a partition: {why}"}
        self.place = place if self.words else ""
        return self.words if place in self._custody.originals else None

    def _save(self, all_pods: str, place: str) -> str:
        """Save what the cgroup of all pods has; return why that is not possible, "" if it is."""
        if self._custody.unusable:
            return self._custody.unusable
        if above := parent(all_pods):
            return f"cgroupRoot is /{above}, which is not the agent's"
        try:
            shown = self._places.read(place)
        except FileNotFoundError:
            return "the kernel has no remote partitions (Linux 6.7 and later have)"
        except PLACE_ERRORS as error:
            return why_not(error)
        try:
            # The kernel overwrites these when a partition changes (up to Linux 6.19).
            threads = {name: self._places.read(name) for name in self._places.node_threads()}
            self._custody.take({place: shown, **threads, **self._custody.originals})
        except (CheckpointIOError, *PLACE_ERRORS) as error:
            return why_not(error)
        return ""

    def note_invalid(
        self, pods: Collection[str] | None, invalid: Mapping[tuple[str, str], str]
    ) -> None:
        """Note the cgroups of these pods (uids; None: all) that are no valid partitions.

        `invalid` has, by pod and cgroup, what the kernel shows.
        """
        others = {} if pods is None else self._invalid
        kept = {key: text for key, text in others.items() if key[0] not in (pods or ())}
        self._invalid = {**kept, **invalid}

    def unmet(self, allocations: Iterable[PodAllocation]) -> Mapping[str, str]:
        """Return why pods that ask for a partition have none, and which are invalid, by subject."""
        if not self.used:
            self._unmet = partition_words(self._config, allocations, ())[1]
        invalid = {f"partition /{cgroup}": text for (_, cgroup), text in self._invalid.items()}
        return {**self._unmet, **invalid}

    def invalid_of_others(self) -> Iterator[tuple[str, str]]:
        """Yield invalid partitions that other programs asked for, as conditions by subject.

        Looked at are the cgroup of all pods, and beside host slices those at the top: of two that
        list a CPU neither is a partition (up to Linux 6.19).
        """
        at_top = self._places.at_top() if self._config.host_slices else frozenset[str]()
        shown = self._places.partitions(at_top | {self._pods})
        for cgroup, (word, cpus) in sorted(shown.items()):
            if partition_fault(word) is None:
                continue
            if cgroup == self._pods:
                advice = (
                    "should the kernel make it valid later, pods have only its CPUs: write member "
                    f"into {PARTITION} of /{cgroup}"
                )
            else:
                listing = sorted(
                    f"/{other}"
                    for other, (_, listed) in shown.items()
                    if other != cgroup and cpus & listed
                )
                if not listing:
                    continue
                advice = (
                    f"CPUs {cpus} are also listed by {some_of(listing, MOST_NAMED)}: set "
                    "agent.isolation.hostCPUs without them, then write the partition again"
                )
            message = f"another program's partition /{cgroup} is {word!r}; {advice}"
            yield f"partition /{cgroup}", message

    def lost(self) -> Mapping[str, str]:
        """Return, as a condition by subject, which CPUs are in no cpuset."""
        lost = self._places.lost() if self.used else EMPTY
        if not lost:
            return {}
        return {
            "isolation lost CPUs": (
                f"CPUs {lost} are in no cpuset, most likely because a partition was removed while "
                "it was invalid: the kernel may crash when another one is created or ends; reboot "
                "the host"
            )
        }
