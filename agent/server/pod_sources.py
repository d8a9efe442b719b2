"""The sources of pods: what each of them asks for, and to which of them a pod belongs.

In go the sources that are registered at the start, and the result of each reading. Out come the
entries of all sources, the reasons why a source was not read yet, and the owner of a pod. None of
this is saved: the allocation of a pod names its source, and a source that was not read since the
start may still ask for each of its pods.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent.managers.allocation import API

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.documents.status import ManifestDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.sources.source import PodSource, SourceUnreadableError


class SourceState(Struct):
    """One registered source of pods."""

    #: How a user ends a pod of this source, in words.
    removal: str
    #: Whether it was read since the start.
    was_read: bool = False
    #: Why the last reading failed.
    unreadable: SourceUnreadableError | None = None
    #: What it asked for when it was last read, by key.
    entries: Mapping[str, ManifestDocument] = MappingProxyType({})
    #: What the source could not find out, a line each.
    conditions: tuple[str, ...] = ()


class PodSources(Struct):
    """All registered sources of pods; the API is none of them."""

    by_name: dict[str, SourceState] = field(default_factory=dict)

    def register(self, source: PodSource) -> None:
        """Add a source that was not read yet; raises `ValueError` if its name is taken."""
        if source.name in (*self.by_name, API.name):
            raise ValueError(f"there are two sources of pods called {source.name!r}")
        self.by_name[source.name] = SourceState(source.removal)

    def note_reading(
        self, name: str, entries: Mapping[str, ManifestDocument], conditions: tuple[str, ...]
    ) -> None:
        """Take over what a registered source asks for now."""
        source = self.by_name[name]
        source.was_read, source.unreadable = True, None
        source.entries, source.conditions = entries, conditions

    def note_unreadable(self, name: str, error: SourceUnreadableError) -> bool:
        """Take over why a registered source cannot be read; return whether that is news."""
        source = self.by_name[name]
        news = str(source.unreadable) != str(error)
        source.unreadable = error
        return news

    def pending(self) -> Iterator[str]:
        """Yield a line for each source that was not read yet."""
        for name, source in self.by_name.items():
            if not source.was_read:
                why = "" if source.unreadable is None else f": {source.unreadable}"
                yield f"the source {name} has not been read yet{why}"

    def entries(self) -> Iterator[ManifestDocument]:
        """Yield the entries of all sources."""
        for source in self.by_name.values():
            yield from source.entries.values()

    def owner(self, pod: PodAllocation) -> tuple[Source, str] | None:
        """Return the source that asks for an admitted pod now, and how a user ends the pod there.

        None for a pod of the API, of a source that is not registered, or without an entry there.
        """
        source = None if pod.source is None else self.by_name.get(pod.source.name)
        if pod.source is None or source is None or pod.source.key not in source.entries:
            return None
        return pod.source, source.removal

    def other_owner(self, pod: PodAllocation, asking: Source) -> tuple[Source, str] | None:
        """Return another owner of an admitted pod than `asking`, None if `asking` may have the pod.

        1. The API may ask for any pod, and does not become its owner.
        2. A source may ask for its own pods, and for those that came over the API.
        3. A source that was not read yet owns its pods; one that was read, those that it asks for.
        """
        if not asking.key or pod.source is None or pod.source.name == asking.name:
            return None
        source = self.by_name.get(pod.source.name)
        if source is not None and not source.was_read:
            return pod.source, source.removal
        return self.owner(pod)
