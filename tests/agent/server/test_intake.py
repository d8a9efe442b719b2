from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents import AdmissionDocument, RejectionDocument
from agent.managers.allocation import Source
from agent.managers.decision import Reason
from agent.pods.manifest import load_pod
from agent.pods.model import END, PodIdentity, spec_digest
from agent.server import intake
from agent.server.intake import PodIntake, SourceAdmissions
from agent.server.queue import QueueStopped
from agent.sources.manifests import ManifestDirectory, ManifestFormat
from agent.sources.source import (
    ADMITTED,
    CONFLICT,
    INVALID,
    EntryFailedError,
    ManifestDirectoryError,
    SourceEntry,
    SourceReading,
    SourceUnreadableError,
    printable,
)
from agent.state.checkpoint import SharedPod
from agent.yaml import MISTAKES_REPORTED
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from pathlib import Path

    from agent.api.documents import ManifestDocument
    from agent.pods.model import Pod
    from agent.sources.source import PodSource


@dataclass
class Ledger(SourceAdmissions):
    """A ledger that admits pods until it is full and never re-decides one."""

    room: int = 9
    log: list[str] = field(default_factory=list)
    pods: dict[str, str] = field(default_factory=dict)
    owners: dict[str, Source] = field(default_factory=dict)
    releases: int = 0
    #: The pods that run in the shared pool.
    sharing: dict[str, SharedPod] = field(default_factory=dict)
    #: The uids of pods at which it fails.
    failing: set[str] = field(default_factory=set)

    #: What was reported last.
    reported: dict[str, ManifestDocument] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    async def read(self, source: PodSource) -> SourceReading:
        return source.read()

    async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
        if pod.uid in self.failing:
            raise EntryFailedError(str(source), KeyError())
        self.log.append(f"admit {pod.name}")
        if self.pods.get(pod.uid, spec_digest(pod)) != spec_digest(pod):
            return self._rejected(pod, Reason.CONFLICT)
        if pod.uid not in self.pods and len(self.pods) >= self.room:
            return self._rejected(pod, Reason.TOPOLOGY_AFFINITY)
        self.pods[pod.uid] = spec_digest(pod)
        self.sharing.pop(pod.uid, None)
        self.owners[pod.uid] = source
        return AdmissionDocument(uid=pod.uid, name=pod.name, namespace=pod.namespace, admitted=True)

    @staticmethod
    def _rejected(pod: Pod, reason: Reason) -> AdmissionDocument:
        rejection = RejectionDocument(
            reason=str(reason),
            message="no",
            remedy="",
            resource=None,
            container=None,
            asked=None,
            free={},
        )
        return AdmissionDocument(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            admitted=False,
            rejection=rejection,
        )

    async def release(self, uid: str, source: Source) -> None:
        if uid in self.failing:
            raise EntryFailedError(str(source), KeyError())
        shared = self.sharing.get(uid)
        assert source == (self.owners[uid] if shared is None else shared.source)
        self.log.append(f"release {uid[:1]}")
        if self.sharing.pop(uid, None) is None:
            del self.pods[uid]
        self.owners.pop(uid, None)
        self.releases += 1

    def owner(self, uid: str) -> Source | None:
        return self.owners.get(uid)

    def owned(self, name: str) -> Mapping[str, str]:
        owners = self.owners | {uid: pod.source for uid, pod in self.sharing.items()}
        return {uid: owner.key for uid, owner in owners.items() if owner.name == name}

    def shared(self, uid: str) -> SharedPod | None:
        return self.sharing.get(uid)

    async def fits(self, pod: Pod, source: Source) -> bool:
        self.log.append(f"tried {pod.name} for {source.key}")
        return len(self.pods) < self.room

    def report(
        self, name: str, documents: Mapping[str, ManifestDocument], conditions: tuple[str, ...]
    ) -> None:
        assert {document.source for document in documents.values()} <= {name}
        self.reported, self.conditions = dict(documents), conditions

    def generation(self) -> int:
        return self.releases


@dataclass
class Here:
    directory: Path
    ledger: Ledger
    intake: PodIntake

    def sync(self) -> dict[str, str]:
        """Bring the ledger in step; return the state of each file by its name."""
        self.ledger.log.clear()
        asyncio.run(self.intake.sync())
        reported = self.ledger.reported
        return {path.rpartition("/")[2]: found.state for path, found in reported.items()}

    def restart(self, directory: Path) -> None:
        """Forget what was read, as the end of the agent does."""
        self.intake = intake_of(directory, self.ledger)

    def write(self, name: str, content: bytes) -> None:
        new = self.directory / ".new"
        new.write_bytes(content)
        new.replace(self.directory / name)


def no_changes(directory: Path) -> AsyncIterator[None]:
    raise NotImplementedError(f"nothing in {directory} is watched here")


def intake_of(directory: Path, ledger: Ledger) -> PodIntake:
    form = ManifestFormat(load_pod, 65536)
    return PodIntake(ManifestDirectory(directory, form, no_changes), ledger)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    directory = tmp_path / "manifests"
    directory.mkdir(mode=0o755)
    ledger = Ledger()
    return Here(directory, ledger, intake_of(directory, ledger))


def test_a_new_file_is_admitted_once(here: Here) -> None:
    here.write("a.yaml", manifest())
    assert here.sync() == {"a.yaml": "admitted"}
    assert here.ledger.log == ["admit web"]
    assert here.sync() == {"a.yaml": "admitted"}
    assert here.ledger.log == []


def test_a_pod_that_would_end_by_itself_is_not_admitted_for_a_file(here: Here) -> None:
    text = manifest().replace(
        b"  namespace: shop\n",
        b"  namespace: shop\n  annotations: {agent.numawarden/end: processes}\n",
    )
    here.write("a.yaml", text)
    here.sync()
    assert here.ledger.pods == {}
    (document,) = here.ledger.reported.values()
    assert document.state == INVALID
    assert "cannot end by itself" in document.message


def test_a_file_that_can_no_longer_be_read_keeps_its_pod(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    here.write("a.yaml", b"kind: [")
    assert here.sync() == {"a.yaml": "invalid"}
    assert here.ledger.log == []
    assert UID in here.ledger.pods


def test_a_directory_that_vanished_releases_nothing(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    here.directory.rename(here.directory.with_name("elsewhere"))
    with pytest.raises(ManifestDirectoryError):
        here.sync()
    assert UID in here.ledger.pods


def test_another_spec_for_the_uid_of_a_running_pod_is_a_conflict(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    before = dict(here.ledger.pods)
    here.write("a.yaml", manifest(cpu="4"))
    assert here.sync() == {"a.yaml": "conflict"}
    assert here.ledger.pods == before
    here.sync()
    assert here.ledger.log == []


def test_a_conflict_ends_when_the_file_is_deleted_and_written_again(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    here.write("a.yaml", manifest(cpu="4"))
    here.sync()
    (here.directory / "a.yaml").unlink()
    here.sync()
    here.write("a.yaml", manifest(cpu="4"))
    assert here.sync() == {"a.yaml": "admitted"}


def test_a_changed_file_without_a_uid_is_another_pod(here: Here) -> None:
    here.write("a.yaml", manifest(uid=None))
    here.sync()
    (before,) = here.ledger.pods
    here.write("a.yaml", manifest(uid=None, cpu="4"))
    assert here.sync() == {"a.yaml": "admitted"}
    (after,) = here.ledger.pods
    assert before != after
    assert [entry.split()[0] for entry in here.ledger.log] == ["release", "admit"]


def test_a_renamed_file_keeps_its_pod(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    (here.directory / "a.yaml").rename(here.directory / "b.yaml")
    assert here.sync() == {"b.yaml": "admitted"}
    assert "release 1" not in here.ledger.log
    assert here.ledger.owners[UID].key.endswith("b.yaml")


def test_a_renamed_file_with_another_spec_is_a_new_pod(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    (here.directory / "a.yaml").unlink()
    here.write("b.yaml", manifest(cpu="4"))
    assert here.sync() == {"b.yaml": "admitted"}
    assert here.ledger.log == ["admit web", "release 1", "admit web"]


def test_of_two_files_with_one_uid_the_first_keeps_it(here: Here) -> None:
    here.write("b.yaml", manifest())
    here.sync()
    here.write("a.yaml", manifest(cpu="4"))
    assert here.sync() == {"a.yaml": "conflict", "b.yaml": "admitted"}
    (here.directory / "b.yaml").unlink()
    assert here.sync() == {"a.yaml": "admitted"}


# Shows in differences.md: retry
def test_a_rejected_pod_is_tried_again_only_when_something_was_freed(here: Here) -> None:
    here.ledger.room = 1
    here.write("a.yaml", manifest())
    here.write("b.yaml", manifest("db", OTHER_UID))
    assert here.sync() == {"a.yaml": "admitted", "b.yaml": "rejected"}
    here.sync()
    assert here.ledger.log == []
    (here.directory / "a.yaml").unlink()
    assert here.sync() == {"b.yaml": "admitted"}


def test_a_pod_that_was_removed_otherwise_is_admitted_again(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    asyncio.run(here.ledger.release(UID, here.ledger.owners[UID]))
    assert here.sync() == {"a.yaml": "admitted"}
    assert here.ledger.log == ["admit web"]


def test_pods_of_a_directory_that_was_configured_before_are_kept(
    here: Here, tmp_path: Path
) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    here.restart(other)
    assert here.sync() == {}
    assert UID in here.ledger.pods


def test_after_a_restart_a_file_still_owns_its_pod(here: Here) -> None:
    here.write("a.yaml", manifest())
    here.sync()
    here.restart(here.directory)
    assert here.sync() == {"a.yaml": "admitted"}
    assert UID in here.ledger.pods


def test_mistakes_are_reported_with_their_paths(here: Here) -> None:
    here.write("a.yaml", manifest().replace(b"name: c0", b"name: C_0"))
    here.sync()
    (document,) = here.ledger.reported.values()
    assert (document.uid, document.name, document.namespace) == (UID, "web", "shop")
    assert document.message.startswith("line 9: spec.containers[0].name: ")
    assert [(each.path, each.line) for each in document.details] == [("spec.containers[0].name", 9)]


def test_of_many_mistakes_some_are_reported(here: Here) -> None:
    mistaken = manifest(containers=MISTAKES_REPORTED + 1).replace(b"name: c", b"name: C_")
    here.write("a.yaml", mistaken)
    here.sync()
    (document,) = here.ledger.reported.values()
    assert len(document.details) == MISTAKES_REPORTED


def test_a_pod_that_fails_to_be_admitted_costs_no_other_and_is_tried_again(here: Here) -> None:
    for name in ("a", "b", "c"):
        here.write(name, manifest(uid=f"{name}-uid"))
    here.ledger.failing = {"b-uid"}
    assert here.sync() == {"a": ADMITTED, "b": INVALID, "c": ADMITTED}
    here.ledger.failing = set()
    assert here.sync() == {"a": ADMITTED, "b": ADMITTED, "c": ADMITTED}


def test_a_pod_that_fails_to_be_released_costs_no_other_and_is_tried_again(here: Here) -> None:
    for name in ("a", "b"):
        here.write(name, manifest(uid=f"{name}-uid"))
    here.sync()
    for name in ("a", "b"):
        (here.directory / name).unlink()
    here.ledger.failing = {"a-uid"}
    assert here.sync() == {"a": INVALID}
    assert list(here.ledger.pods) == ["a-uid"]
    here.ledger.failing = set()
    assert here.sync() == {}
    assert not here.ledger.pods


@dataclass
class Events:
    """A source that says what was added and what was removed, and never lists everything."""

    name: str = "events"
    removal: str = "stop its sandbox"
    news: list[SourceReading] = field(default_factory=list)
    #: The keys it was to resume, at each call.
    resumed: list[list[str]] = field(default_factory=list)

    def resume(self, keys: Collection[str]) -> None:
        self.resumed.append(sorted(keys))

    def covers(self, key: str) -> bool:
        return bool(key)

    def read(self) -> SourceReading:
        return self.news.pop(0) if self.news else SourceReading(complete=False)

    def changes(self) -> AsyncIterator[None]:
        raise NotImplementedError("nothing changes by itself here")


@dataclass
class Incremental:
    """A ledger beside a source that says what was added and removed."""

    ledger: Ledger = field(default_factory=Ledger)
    source: Events = field(default_factory=Events)
    intake: PodIntake = field(init=False)

    def __post_init__(self) -> None:
        self.intake = PodIntake(self.source, self.ledger)

    def sync(
        self,
        *added: SourceEntry,
        removed: tuple[str, ...] = (),
        conditions: tuple[str, ...] = (),
    ) -> dict[str, str]:
        """Pass on additions and removals; return the state of each entry."""
        self.ledger.log.clear()
        self.say(*added, removed=removed, conditions=conditions)
        asyncio.run(self.intake.sync())
        return self.states

    def say(
        self,
        *added: SourceEntry,
        removed: tuple[str, ...] = (),
        conditions: tuple[str, ...] = (),
    ) -> None:
        """Have the source say something at its next reading."""
        reading = SourceReading(added, False, frozenset(removed), conditions)  # noqa: FBT003
        self.source.news.append(reading)

    @property
    def states(self) -> dict[str, str]:
        """The state of each entry as it was reported last."""
        return {key: document.state for key, document in self.ledger.reported.items()}


def added(key: str, uid: str = UID, name: str = "web") -> SourceEntry:
    return SourceEntry(key, load_pod(manifest(name, uid), key))


def test_of_a_list_that_is_not_complete_only_what_is_named_as_removed_is_removed() -> None:
    feed = Incremental()
    assert feed.sync(added("a"), added("b", OTHER_UID)) == {"a": ADMITTED, "b": ADMITTED}
    assert feed.sync() == {"a": ADMITTED, "b": ADMITTED}
    assert feed.sync(removed=("a",)) == {"b": ADMITTED}
    assert list(feed.ledger.pods) == [OTHER_UID]


def test_after_a_restart_a_list_that_is_not_complete_keeps_what_it_does_not_name_yet() -> None:
    feed = Incremental()
    feed.sync(added("a"), added("b", OTHER_UID))
    again = Incremental(feed.ledger)
    assert again.sync(removed=("b",)) == {}
    assert list(feed.ledger.pods) == [UID]
    assert again.sync(added("a")) == {"a": ADMITTED}


def test_a_removal_that_fails_is_tried_again_although_it_is_not_named_again() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    feed.ledger.failing = {UID}
    assert feed.sync(removed=("a",)) == {"a": INVALID}
    feed.ledger.failing = set()
    assert feed.sync() == {}
    assert not feed.ledger.pods


def test_a_removal_that_failed_is_not_tried_again_once_the_pod_is_asked_for_again() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    feed.ledger.failing = {UID}
    feed.sync(removed=("a",))
    feed.ledger.failing = set()
    assert feed.sync(added("a")) == {"a": ADMITTED}
    assert feed.sync() == {"a": ADMITTED}
    assert list(feed.ledger.pods) == [UID]


def test_an_entry_that_is_removed_and_added_in_one_reading_is_asked_for() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    assert feed.sync(added("a"), removed=("a",)) == {"a": ADMITTED}
    assert list(feed.ledger.pods) == [UID]
    assert feed.sync(added("a", OTHER_UID), removed=("a",)) == {"a": ADMITTED}
    assert list(feed.ledger.pods) == [OTHER_UID]


def test_pods_of_another_source_are_never_released() -> None:
    feed = Incremental()
    feed.ledger.owners[UID], feed.ledger.pods[UID] = Source("manifests", "a"), "digest"
    feed.sync(removed=("a",))
    assert list(feed.ledger.pods) == [UID]


def test_what_a_source_could_not_read_is_reported_until_the_next_reading() -> None:
    feed = Incremental()
    feed.sync(conditions=("the socket is closed",))
    assert list(feed.ledger.conditions) == ["the socket is closed"]
    feed.sync()
    assert not feed.ledger.conditions


def test_an_entry_with_an_error_of_another_kind_is_invalid_and_says_its_first_line() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    assert feed.sync(SourceEntry("a", error=ValueError("one\ntwo"))) == {"a": INVALID}
    (document,) = feed.ledger.reported.values()
    assert (document.uid, document.message) == (None, "one")
    assert list(feed.ledger.pods) == [UID]


def test_a_source_is_handed_once_which_of_its_keys_have_pods_before_it_is_read() -> None:
    feed = Incremental()
    feed.sync(added("a"), added("b", OTHER_UID))
    assert feed.source.resumed == [[]]
    feed.source.resumed.clear()
    feed.intake = PodIntake(feed.source, feed.ledger)
    feed.sync()
    feed.sync()
    assert feed.source.resumed == [["a", "b"]]


def test_a_source_that_cannot_be_read_at_first_resumes_once() -> None:
    source, ledger = Listed(), Ledger()
    source.broken = True
    pods = PodIntake(source, ledger)
    with pytest.raises(SourceUnreadableError):
        asyncio.run(pods.sync())
    source.broken = False
    asyncio.run(pods.sync())
    assert source.resumed == [[]]


def sharing(feed: Incremental, key: str = "a") -> None:
    """Have a pod run shared, as a run of the agent before may have left it."""
    why, source = "no node has 2 CPUs", Source(feed.source.name, key)
    feed.ledger.sharing[UID] = SharedPod(UID, "web", "default", source, why)


def test_a_pod_that_runs_shared_is_admitted_only_where_it_is_asked_for_and_there_is_room() -> None:
    feed = Incremental()
    sharing(feed)
    feed.ledger.room = 0
    logs = [(feed.sync(added("a")), [*feed.ledger.log]) for _ in range(2)]
    assert logs == [({"a": "shared"}, ["tried web for a"]), ({"a": "shared"}, [])]
    feed.intake.try_again("a")
    assert feed.sync() == {"a": "shared"}
    assert feed.ledger.log == ["tried web for a"]
    feed.ledger.room = 1
    feed.ledger.releases += 1
    assert feed.sync() == {"a": "shared"}
    assert "there is room now" in feed.ledger.reported["a"].message
    feed.intake.try_again("a")
    assert feed.sync() == {"a": "admitted"}
    assert feed.ledger.log == ["tried web for a", "admit web"]
    assert feed.sync() == {"a": "admitted"}
    assert feed.ledger.log == []


def test_a_pod_that_runs_shared_is_reported_before_its_source_has_read_it() -> None:
    feed = Incremental()
    sharing(feed)
    assert feed.sync() == {"a": "shared"}
    assert feed.source.resumed == [["a"]]
    document = feed.ledger.reported["a"]
    assert (document.message, document.uid, document.name) == ("no node has 2 CPUs", UID, "web")


def test_a_pod_that_ran_shared_is_forgotten_once_its_source_says_that_it_ended() -> None:
    feed = Incremental()
    sharing(feed)
    feed.sync(added("a"))
    assert feed.sync(removed=("a",)) == {}
    assert feed.ledger.log == ["release 1"]
    assert feed.sync(added("a")) == {"a": "admitted"}


def test_an_unreadable_entry_has_the_identity_that_its_source_knows_otherwise() -> None:
    feed = Incremental()
    identity = PodIdentity(UID, "web", "shop")
    feed.sync(SourceEntry("a", error=ValueError("unknown"), identity=identity))
    document = feed.ledger.reported["a"]
    assert (document.state, document.uid, document.name) == (INVALID, UID, "web")


@dataclass
class Slow(Ledger):
    """A ledger that reads a source only when a test lets it."""

    free: asyncio.Event = field(default_factory=asyncio.Event)
    reads: int = 0
    together: int = 0
    most_together: int = 0

    async def read(self, source: PodSource) -> SourceReading:
        self.reads += 1
        self.together += 1
        self.most_together = max(self.together, self.most_together)
        try:
            await self.free.wait()
        finally:
            self.together -= 1
        return source.read()


def test_calls_that_come_while_a_source_is_read_share_one_later_reading() -> None:
    async def scenario() -> None:
        ledger = Slow()
        intake = PodIntake(Events(), ledger)
        calls = [asyncio.create_task(intake.sync()) for _ in range(20)]
        await asyncio.sleep(0)
        ledger.free.set()
        await asyncio.gather(*calls)
        assert (ledger.reads, ledger.most_together) == (2, 1)
        await intake.sync()
        assert ledger.reads == 3

    asyncio.run(scenario())


def test_a_call_that_waits_reads_itself_if_the_one_before_it_failed_or_was_cancelled() -> None:
    async def scenario() -> None:
        ledger, source = Slow(), Failing()
        intake = PodIntake(source, ledger)
        first, second, third, fourth = (asyncio.create_task(intake.sync()) for _ in range(4))
        await asyncio.sleep(0)
        second.cancel()
        ledger.free.set()
        results = await asyncio.gather(first, second, third, fourth, return_exceptions=True)
        assert [type(result) for result in results] == [
            SourceUnreadableError,
            asyncio.CancelledError,
            SourceUnreadableError,
            SourceUnreadableError,
        ]
        assert ledger.reads == 3

    asyncio.run(scenario())


class Failing(Events):
    """A source that cannot be read."""

    def read(self) -> SourceReading:
        raise SourceUnreadableError("it is broken", "mend it", "Broken")


@dataclass
class Stepwise(Ledger):
    """A ledger that admits a pod only when a test lets it; `asked` has the names in their order."""

    asked: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
        self.asked.put_nowait(pod.name)
        await self.free.acquire()
        return await super().admit(pod, source)


class Listed(Events):
    """A source with three pods, which can be broken."""

    broken = False

    def read(self) -> SourceReading:
        if self.broken:
            raise SourceUnreadableError("it is broken", "mend it", "Broken")
        uids = (f"{number}{UID[1:]}" for number in range(3))
        pods = ((f"pod{number}", uid) for number, uid in enumerate(uids))
        return SourceReading(
            tuple(SourceEntry(key, load_pod(manifest(key, uid), key)) for key, uid in pods)
        )


def test_entries_are_settled_together_unless_they_state_the_same_uid() -> None:
    class Repeating(Listed):
        """A source that states the pod of its first entry again under another name."""

        def read(self) -> SourceReading:
            entries = super().read().entries
            return SourceReading((*entries, replace(entries[0], key="again")))

    async def scenario() -> None:
        ledger = Stepwise()
        intake = PodIntake(Repeating(), ledger)
        syncing = asyncio.create_task(intake.sync())
        assert [await ledger.asked.get() for _ in range(3)] == ["pod0", "pod1", "pod2"]
        for _ in range(3):
            ledger.free.release()
        await syncing
        states = {key: document.state for key, document in ledger.reported.items()}
        assert states == dict.fromkeys(("pod0", "pod1", "pod2"), ADMITTED) | {"again": CONFLICT}

    asyncio.run(scenario())


def test_an_entry_that_is_waited_for_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)

    async def scenario() -> None:
        ledger = Stepwise()
        pods = PodIntake(Listed(), ledger)
        syncing = asyncio.create_task(pods.sync())
        assert await ledger.asked.get() == "pod0"
        waiting = asyncio.create_task(pods.settle("pod2"))
        assert await ledger.asked.get() == "pod2"
        for _ in range(3):
            ledger.free.release()
        await asyncio.gather(syncing, waiting)
        assert ledger.asked.get_nowait() == "pod1"

    asyncio.run(scenario())


def test_a_pod_whose_admission_takes_long_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 2)

    async def scenario() -> None:
        gate = asyncio.Event()
        ledger = Gated(gates={"pod0": gate})
        syncing = asyncio.create_task(PodIntake(Listed(), ledger).sync())
        await turns()
        assert ledger.log == ["admit pod1", "admit pod2"]
        gate.set()
        await syncing
        assert [*ledger.reported] == ["pod0", "pod1", "pod2"]

    asyncio.run(scenario())


def test_an_entry_that_is_settled_is_answered_while_the_sync_goes_on() -> None:
    async def scenario() -> None:
        ledger = Stepwise()
        pods = PodIntake(Listed(), ledger)
        syncing = asyncio.create_task(pods.sync())
        for name in ("pod0", "pod1", "pod2"):
            assert await ledger.asked.get() == name
        ledger.free.release()
        first, again = await pods.settle("pod0"), await pods.settle("pod0")
        assert first is not None
        assert first.state == ADMITTED
        assert again is first
        assert not syncing.done()
        for _ in range(2):
            ledger.free.release()
        await syncing

    asyncio.run(scenario())


def test_an_error_of_one_entry_is_raised_while_others_that_were_begun_are_settled() -> None:
    class Stopping(Ledger):
        async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
            if pod.name == "pod0":
                raise QueueStopped
            return await super().admit(pod, source)

    ledger = Stopping()
    with pytest.raises(QueueStopped):
        asyncio.run(PodIntake(Listed(), ledger).sync())
    assert len(ledger.pods) == 2
    assert ledger.reported == {}


def test_an_entry_that_is_waited_for_comes_next_and_its_caller_goes_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)

    async def scenario() -> None:
        ledger = Stepwise()
        pods = PodIntake(Listed(), ledger)
        syncing = asyncio.create_task(pods.sync())
        assert await ledger.asked.get() == "pod0"
        waiting = asyncio.create_task(pods.settle("pod2"))
        await asyncio.sleep(0)
        ledger.free.release()
        assert await ledger.asked.get() == "pod2"
        ledger.free.release()
        document = await waiting
        assert document is not None
        assert document.state == ADMITTED
        assert not syncing.done()
        assert await ledger.asked.get() == "pod1"
        for _ in range(10):
            ledger.free.release()
        await syncing
        assert [*ledger.reported] == ["pod0", "pod1", "pod2"]
        assert await pods.settle("unknown") is None

    asyncio.run(scenario())


def test_a_caller_gets_its_answer_although_the_sync_of_another_failed() -> None:
    async def scenario() -> None:
        ledger, source = Stepwise(), Listed()
        intake = PodIntake(source, ledger)
        for _ in range(20):
            ledger.free.release()
        source.broken = True
        first = asyncio.create_task(intake.settle("pod1"))
        second = asyncio.create_task(intake.settle("pod1"))
        results = await asyncio.gather(first, return_exceptions=True)
        assert isinstance(results[0], SourceUnreadableError)
        source.broken = False
        document = await intake.settle("pod1")
        assert document is not None
        assert document.state == ADMITTED
        await asyncio.gather(second, return_exceptions=True)

    asyncio.run(scenario())


@dataclass
class Gated(Ledger):
    """A ledger that admits pods of some names only once a test opens their gates."""

    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    #: What it raises once the gate is open.
    error: Exception | None = None

    async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
        if (gate := self.gates.get(pod.name)) is not None:
            await gate.wait()
        if self.error is not None:
            raise self.error
        return await super().admit(pod, source)


async def turns() -> None:
    """Let all others go on until they wait for a gate."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_pod_that_is_waited_for_is_read_and_admitted_while_a_sync_goes_on() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        feed = Incremental(Gated(gates={"web": gate}))
        feed.say(added("a"))
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        feed.say(added("b", OTHER_UID, "db"), conditions=("the socket is closed",))
        document = await feed.intake.settle("b")
        assert document is not None
        assert document.state == ADMITTED
        assert feed.ledger.reported == {"b": document}
        assert feed.ledger.conditions == ("the socket is closed",)
        assert not syncing.done()
        gate.set()
        await syncing
        assert feed.states == {"a": ADMITTED, "b": ADMITTED}
        assert feed.ledger.log == ["admit db", "admit web"]

    asyncio.run(scenario())


def test_a_pod_that_is_waited_for_has_the_room_of_those_removed_and_comes_alone() -> None:
    feed = Incremental()
    feed.ledger.room = 1
    feed.sync(added("a"))
    feed.say(added("c", UID[::-1], "late"), added("b", OTHER_UID, "db"), removed=("a",))
    document = asyncio.run(feed.intake.settle("b"))
    assert document is not None
    assert document.state == ADMITTED
    assert feed.ledger.log == ["admit web", "release 1", "admit db"]
    assert feed.sync() == {"c": "rejected", "b": ADMITTED}


def test_all_that_wait_for_a_pod_share_its_admission_which_no_cancellation_ends() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        feed = Incremental(Gated(gates={"web": gate}))
        feed.say(added("a"))
        callers = [asyncio.create_task(feed.intake.settle("a")) for _ in range(3)]
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        callers.pop().cancel()
        syncing.cancel()
        await turns()
        gate.set()
        first, second = await asyncio.gather(*callers)
        assert first is second
        assert feed.states == {"a": ADMITTED}
        assert feed.ledger.log == ["admit web"]

    asyncio.run(scenario())


def test_an_error_that_no_caller_waits_for_is_that_of_the_next_sync_alone() -> None:
    async def scenario() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        gate = asyncio.Event()
        ledger = Gated(gates={"web": gate}, error=QueueStopped())
        feed = Incremental(ledger)
        feed.say(added("a"))
        caller = asyncio.create_task(feed.intake.settle("a"))
        await turns()
        caller.cancel()
        gate.set()
        await turns()
        del caller  # it has the admission still
        gc.collect()
        assert faults == []
        with pytest.raises(QueueStopped):
            await feed.intake.sync()
        with pytest.raises(QueueStopped):
            await feed.intake.settle("a")
        ledger.error = None
        await feed.intake.sync()
        assert feed.states == {"a": ADMITTED}

    asyncio.run(scenario())


def test_an_entry_that_is_removed_while_its_pod_is_admitted_is_released_afterwards() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        feed = Incremental(Gated(gates={"web": gate}))
        feed.say(added("a"), added("b", OTHER_UID, "db"))
        waiting = asyncio.create_task(feed.intake.settle("a"))
        await turns()
        feed.say(removed=("a",))
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        gate.set()
        await asyncio.gather(waiting, syncing)
        assert feed.ledger.log == ["admit web", "release 1", "admit db"]
        assert feed.states == {"b": ADMITTED}

    asyncio.run(scenario())


def test_a_pod_that_appears_while_a_reading_waits_is_left_to_the_next() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        feed = Incremental(Gated(gates={"web": gate}))
        feed.say(added("a"))
        waiting = asyncio.create_task(feed.intake.settle("a"))
        await turns()
        feed.say(removed=("a",))
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        feed.ledger.owners[OTHER_UID] = Source(feed.source.name, "b")
        gate.set()
        await asyncio.gather(waiting, syncing)
        assert [*feed.ledger.owners] == [OTHER_UID]

    asyncio.run(scenario())


def test_an_entry_that_changes_while_its_pod_is_admitted_has_its_new_pod_admitted() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        feed = Incremental(Gated(gates={"web": gate}))
        feed.say(added("a"))
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        feed.say(added("a", OTHER_UID, "db"))
        waiting = asyncio.create_task(feed.intake.settle("a"))
        await turns()
        gate.set()
        document, _ = await asyncio.gather(waiting, syncing)
        assert document is not None
        assert (document.state, document.uid) == (ADMITTED, OTHER_UID)
        assert feed.ledger.log == ["admit web", "release 1", "admit db"]

    asyncio.run(scenario())


def test_a_sync_goes_on_with_what_the_source_says_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)

    async def scenario() -> None:
        gate = asyncio.Event()
        feed = Incremental(Gated(gates={"web": gate}))
        feed.say(added("a"), added("b", OTHER_UID, "db"))
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        feed.intake.try_again("c")
        feed.say(removed=("b",))
        assert await feed.intake.settle("b") is None
        gate.set()
        await syncing
        assert feed.ledger.log == ["admit web"]
        assert feed.states == {"a": ADMITTED}

    asyncio.run(scenario())


def test_an_entry_that_cannot_be_read_or_was_not_read_yet_keeps_its_pod_from_others() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    again = Incremental(feed.ledger)
    assert again.sync(added("b")) == {"b": CONFLICT}
    assert again.ledger.reported["b"].message == "states the same uid as a, which came first"
    assert again.sync(SourceEntry("a", error=ValueError("?"))) == {"a": INVALID, "b": CONFLICT}
    assert again.ledger.owners[UID].key == "a"
    assert again.sync(removed=("a",)) == {"b": ADMITTED}
    assert again.ledger.log == ["admit web"]
    assert again.ledger.owners[UID].key == "b"


def test_of_entries_whose_pod_has_no_room_only_the_first_with_a_uid_is_tried() -> None:
    feed = Incremental()
    feed.ledger.room = 0
    assert feed.sync(added("a"), added("b", name="db")) == {"a": "rejected", "b": CONFLICT}
    assert feed.ledger.log == ["admit web"]
    assert feed.sync(removed=("a",)) == {"b": "rejected"}
    assert feed.ledger.log == ["admit db"]


def test_a_uid_that_an_entry_gives_up_is_that_of_another_entry_at_once() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    assert feed.sync(added("b"), added("a", OTHER_UID, "db")) == {"b": ADMITTED, "a": ADMITTED}
    assert feed.ledger.log == ["release 1", "admit web", "admit db"]


def test_a_pod_moves_from_an_entry_that_gave_it_up_and_could_not_release_it() -> None:
    class Stuck(Ledger):
        async def release(self, uid: str, source: Source) -> None:
            raise EntryFailedError(str(source), KeyError(uid))

    feed = Incremental(Stuck())
    feed.sync(added("a"))
    assert feed.sync(added("a", OTHER_UID, "db")) == {"a": ADMITTED}
    assert feed.sync(added("b")) == {"b": ADMITTED, "a": ADMITTED}
    assert feed.ledger.log == ["admit web", "admit db"]


def test_a_pod_stays_whose_uid_an_entry_has_that_may_not_be_admitted() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    pod = replace(load_pod(manifest("job"), "b"), annotations={END: "processes"})
    assert feed.sync(SourceEntry("b", pod), removed=("a",)) == {"b": INVALID}
    assert feed.ledger.log == []
    assert feed.sync(removed=("b",)) == {}
    assert feed.ledger.log == ["release 1"]


def test_a_pod_of_another_source_with_another_specification_is_a_conflict_and_stays() -> None:
    feed = Incremental()
    feed.ledger.owners[UID], feed.ledger.pods[UID] = Source("manifests", "a"), "digest"
    assert feed.sync(added("b")) == {"b": CONFLICT}
    assert feed.sync(removed=("b",)) == {}
    assert feed.ledger.pods == {UID: "digest"}


def test_entries_are_reported_in_the_order_of_their_source(here: Here) -> None:
    here.write("b.yaml", manifest())
    here.sync()
    here.write("a.yaml", manifest("db", OTHER_UID))
    assert [*here.sync()] == ["a.yaml", "b.yaml"]


def test_a_start_of_a_pod_that_runs_shared_counts_although_its_source_was_not_read() -> None:
    feed = Incremental()
    sharing(feed)
    feed.intake.try_again("a")
    assert feed.sync(added("a")) == {"a": ADMITTED}


def test_a_start_is_forgotten_with_its_pod_and_when_its_entry_is_removed() -> None:
    feed = Incremental()
    feed.intake.try_again("a")
    feed.sync()
    sharing(feed)
    assert feed.sync(added("a")) == {"a": "shared"}
    feed.intake.try_again("a")
    feed.ledger.failing = {UID}
    assert feed.sync(removed=("a",)) == {"a": INVALID}
    feed.ledger.failing = set()
    assert feed.sync(added("a")) == {"a": "shared"}


def test_a_pod_that_runs_shared_still_is_when_its_room_was_taken_meanwhile() -> None:
    class Optimist(Ledger):
        async def fits(self, pod: Pod, source: Source) -> bool:
            return await super().fits(pod, source) or True

    feed = Incremental(Optimist(room=0))
    sharing(feed)
    feed.intake.try_again("a")
    assert feed.sync(added("a")) == {"a": "shared"}
    assert feed.ledger.reported["a"].message == "no node has 2 CPUs"
    assert feed.ledger.log == ["tried web for a", "admit web"]


def test_a_pod_that_runs_shared_and_is_in_conflict_is_reported_so() -> None:
    feed = Incremental()
    sharing(feed)
    feed.ledger.pods[UID] = "digest"
    feed.intake.try_again("a")
    assert feed.sync(added("a")) == {"a": CONFLICT}


def test_a_pod_that_runs_shared_and_cannot_be_tried_is_tried_again() -> None:
    class Broken(Ledger):
        broken = True

        async def fits(self, pod: Pod, source: Source) -> bool:
            if self.broken:
                raise EntryFailedError(str(source), KeyError())
            return await super().fits(pod, source)

    ledger = Broken(room=0)
    feed = Incremental(ledger)
    sharing(feed)
    assert feed.sync(added("a")) == {"a": INVALID}
    ledger.broken = False
    assert feed.sync() == {"a": "shared"}


def test_a_pod_that_ran_shared_is_no_longer_reported_once_it_ended_before_it_was_read() -> None:
    feed = Incremental()
    sharing(feed)
    assert feed.sync() == {"a": "shared"}
    document = asyncio.run(feed.intake.settle("a"))
    assert document == feed.ledger.reported["a"]
    feed.ledger.sharing.clear()
    assert feed.sync() == {}


def test_a_pod_that_was_admitted_before_is_reported_once_its_source_was_read() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    again = Incremental(feed.ledger)
    assert again.sync() == {}
    assert asyncio.run(again.intake.settle("a")) is None


def test_what_waits_for_an_entry_that_cannot_be_read_learns_so() -> None:
    feed = Incremental()
    feed.say(SourceEntry("a", error=ValueError("unknown")))
    document = asyncio.run(feed.intake.settle("a"))
    assert document is not None
    assert (document.state, document.message) == (INVALID, "unknown")


def test_a_rejected_pod_that_runs_shared_since_is_reported_so() -> None:
    feed = Incremental()
    feed.ledger.room = 0
    assert feed.sync(added("a")) == {"a": "rejected"}
    document = feed.ledger.reported["a"]
    assert document.message == f"{Reason.TOPOLOGY_AFFINITY}: no"
    assert (document.uid, document.name, document.namespace) == (UID, "web", "shop")
    sharing(feed)
    assert feed.sync() == {"a": "shared"}


def test_an_admitted_pod_is_not_tried_again_when_something_was_freed() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    feed.ledger.releases += 1
    assert feed.sync() == {"a": ADMITTED}
    assert feed.ledger.log == []


def test_a_pod_that_another_source_took_over_is_asked_for_again_whatever_its_key_there() -> None:
    feed = Incremental()
    feed.sync(added("a"))
    feed.ledger.owners[UID] = Source("manifests", "a")
    assert feed.sync() == {"a": ADMITTED}
    assert feed.ledger.log == ["admit web"]


def test_a_pod_is_tried_again_if_something_was_freed_while_it_was_rejected() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        ledger = Gated(room=0, gates={"web": gate})
        feed = Incremental(ledger)
        feed.say(added("a"))
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        ledger.releases += 1
        gate.set()
        await syncing
        await feed.intake.sync()
        await feed.intake.sync()
        assert ledger.log == ["admit web", "admit web"]

    asyncio.run(scenario())


def test_an_entry_that_is_tried_again_is_reported_as_before_meanwhile() -> None:
    async def scenario() -> None:
        ledger = Gated(room=0)
        feed = Incremental(ledger)
        feed.say(added("a"))
        await feed.intake.sync()
        ledger.gates["web"] = gate = asyncio.Event()
        ledger.releases += 1
        syncing = asyncio.create_task(feed.intake.sync())
        await turns()
        feed.say(added("b", OTHER_UID, "db"))
        await feed.intake.settle("b")
        assert feed.states == {"a": "rejected", "b": "rejected"}
        gate.set()
        await syncing

    asyncio.run(scenario())


def test_a_key_is_reported_as_a_text_that_can_be_shown() -> None:
    feed = Incremental()
    feed.sync(added("a\udce9\n"))
    (document,) = feed.ledger.reported.values()
    assert document.file == printable("a\udce9\n") != "a\udce9\n"


@pytest.mark.parametrize("shown", [str, printable])
def test_a_message_does_not_repeat_the_key(shown: Callable[[str], str]) -> None:
    feed, key = Incremental(), "a\udce9"
    feed.sync(SourceEntry(key, error=ValueError(f"{shown(key)}: torn")))
    assert feed.ledger.reported[key].message == "torn"


def test_a_sync_begins_no_more_admissions_at_once_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 2)
    going, most = set[str](), list[int]()

    class Counting(Ledger):
        async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
            going.add(pod.uid)
            most.append(len(going))
            for _ in range(int(pod.name[1:])):
                await asyncio.sleep(0)
            going.remove(pod.uid)
            return await super().admit(pod, source)

    feed = Incremental(Counting())
    feed.sync(*(added(name, f"{name}-uid", name) for name in ("p50", "p1", "p2", "p3", "p4")))
    assert max(most) == 2
