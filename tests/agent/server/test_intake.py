from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import AdmissionDocument
from agent.api.views import rejection_document
from agent.managers.allocation import Source
from agent.managers.decision import Reason, Rejection
from agent.pods.manifest import load_pod
from agent.pods.model import END, UNIT, ManifestError, PodIdentity, spec_digest
from agent.server import intake
from agent.server.intake import PodIntake
from agent.server.queue import QueueStopped
from agent.server.source_admissions import SourceAdmissions
from agent.sources.source import (
    ADMITTED,
    INVALID,
    SHARED,
    EntryFailedError,
    SourceEntry,
    SourceReading,
    SourceUnreadableError,
)
from agent.state.checkpoint import SharedPod
from agent.text import printable
from agent.yaml import MISTAKES_REPORTED
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from agent.api.documents.status import ManifestDocument
    from agent.pods.model import Pod
    from agent.sources.source import PodSource

WHY = "no node has 2 CPUs"


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
    #: The uids of pods at which it fails, and of those that it cannot release.
    failing: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    #: Whether it finds room that is taken by the time it admits.
    hopeful: bool = False
    #: What an admission waits for, by the name of its pod, and what it raises then.
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    #: The names of pods that are being admitted, and the most at a time.
    going: list[str] = field(default_factory=list)
    most: int = 0

    #: What was reported last.
    reported: dict[str, ManifestDocument] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    async def read(self, source: PodSource) -> SourceReading:
        return source.read()

    async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
        self._fail(pod.uid, source)
        self.going.append(pod.name)
        self.most = max(self.most, len(self.going))
        await asyncio.sleep(0)
        if pod.name in self.gates:
            await self.gates[pod.name].wait()
        self.going.remove(pod.name)
        if pod.name in self.errors:
            raise self.errors[pod.name]
        self.log.append(f"admit {pod.name}")
        rejection = None
        if self.pods.get(pod.uid, spec_digest(pod)) != spec_digest(pod):
            rejection = Rejection(Reason.CONFLICT, "no")
        elif pod.uid not in self.pods and len(self.pods) >= self.room:
            rejection = Rejection(Reason.TOPOLOGY_AFFINITY, "no")
        else:
            self.pods[pod.uid] = spec_digest(pod)
            self.sharing.pop(pod.uid, None)
            self.owners[pod.uid] = source
        return AdmissionDocument(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            admitted=rejection is None,
            rejection=None if rejection is None else rejection_document(rejection),
        )

    def _fail(self, uid: str, source: Source) -> None:
        if uid in self.failing:
            raise EntryFailedError(str(source), KeyError())

    async def release(self, uid: str, source: Source) -> None:
        self._fail(uid, source)
        if uid in self.stuck:
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
        self._fail(pod.uid, source)
        self.log.append(f"tried {pod.name} for {source.key}")
        return len(self.pods) < self.room or self.hopeful

    def report(
        self, name: str, documents: Mapping[str, ManifestDocument], conditions: tuple[str, ...]
    ) -> None:
        assert {document.source for document in documents.values()} <= {name}
        self.reported, self.conditions = dict(documents), conditions

    def generation(self) -> int:
        return self.releases


@dataclass
class Events:
    """A source that says what it is told to say, and nothing more if nothing."""

    name: str = "events"
    removal: str = "stop its sandbox"
    news: list[SourceReading] = field(default_factory=list)
    broken: bool = False
    #: What its keys begin with, and those it was to resume, at each call.
    prefix: str = ""
    resumed: list[list[str]] = field(default_factory=list)

    def resume(self, keys: Collection[str]) -> None:
        self.resumed.append(sorted(keys))

    def covers(self, key: str) -> bool:
        return key.startswith(self.prefix)

    def read(self) -> SourceReading:
        if self.broken:
            raise SourceUnreadableError("it is broken", "mend it", "Broken")
        return self.news.pop(0) if self.news else SourceReading(complete=False)

    def changes(self) -> AsyncIterator[None]:
        raise NotImplementedError("nothing changes by itself here")


@dataclass
class Feed:
    """A ledger beside a source."""

    ledger: Ledger = field(default_factory=Ledger)
    source: Events = field(default_factory=Events)
    intake: PodIntake = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was read, as the end of the agent does."""
        self.intake = PodIntake(self.source, self.ledger)

    def say(
        self,
        *added: SourceEntry,
        removed: tuple[str, ...] = (),
        complete: bool = False,
        conditions: tuple[str, ...] = (),
    ) -> None:
        """Have the source say something at its next reading."""
        reading = SourceReading(added, complete, frozenset(removed), conditions)
        self.source.news.append(reading)

    def sync(self) -> str:
        """Return the state of each entry and what the ledger did."""
        self.ledger.log.clear()
        asyncio.run(self.intake.sync())
        return self.outcome

    @property
    def outcome(self) -> str:
        states = (f"{key} {found.state}" for key, found in self.ledger.reported.items())
        return f"{', '.join(states)}: {', '.join(self.ledger.log)}".strip()

    async def settled(self, key: str) -> ManifestDocument:
        """Return what became of an entry that is waited for."""
        document = await self.intake.settle(key)
        assert document is not None
        assert document == self.ledger.reported[key]
        return document


def entry(key: str, uid: str = UID, name: str = "web", cpu: str = "2") -> SourceEntry:
    return SourceEntry(key, load_pod(manifest(name, uid, cpu=cpu), key))


A, A_MORE, A_DB = entry("a"), entry("a", cpu="4"), entry("a", OTHER_UID, "db")
A_TORN = SourceEntry("a", error=ValueError("torn"))
B, B_WEB, B_MORE = entry("b", OTHER_UID, "db"), entry("b"), entry("b", cpu="4")
B_ENDS = SourceEntry("b", replace(load_pod(manifest("job"), "b"), annotations={END: "processes"}))
C, D = entry("c", UID[::-1], "late"), entry("d", OTHER_UID[::-1], "last")
#: What happens before a sync.
Act: TypeAlias = "Callable[[Feed], object]"


def says(*entries: SourceEntry, removed: str = "") -> Act:
    return lambda feed: feed.say(*entries, removed=tuple(removed))


def lists(*entries: SourceEntry) -> Act:
    return lambda feed: feed.say(*entries, complete=True)


def nothing(_: Feed) -> None:
    """Let the source say nothing."""


def freed(feed: Feed) -> None:
    feed.ledger.releases += 1


def having(**changes: object) -> Act:
    """Have the ledger be another one: its fields by name."""
    return lambda feed: vars(feed.ledger).update(changes)


def starts(feed: Feed) -> None:
    """Have a container of the pod of `a` start."""
    feed.intake.try_again("a")


def shares(feed: Feed) -> None:
    """Have a pod run shared, as a run of the agent before may have left it."""
    source = Source(feed.source.name, "a")
    feed.ledger.sharing[UID] = SharedPod(UID, "web", "default", source, WHY)


def ended(feed: Feed) -> None:
    feed.ledger.sharing.clear()


def changed(feed: Feed) -> None:
    feed.ledger.pods[UID] = "digest"


def removed(feed: Feed) -> None:
    del feed.ledger.pods[UID], feed.ledger.owners[UID]


def taken(feed: Feed) -> None:
    """Have another source own the pod, under the same key."""
    feed.ledger.owners[UID] = Source("manifests", "a")


def elsewhere(feed: Feed) -> None:
    """Have the source configured for other keys, as another directory is."""
    feed.source.prefix = "other/"


Story: TypeAlias = "list[tuple[tuple[Act, ...], str]]"
#: What happens, one sync after the other, and what comes of each.
STORIES: dict[str, Story] = {
    "of entries without room only the first with a uid is tried": [
        ((having(room=0), says(A, entry("b", name="db"))), "a rejected, b conflict: admit web"),
        ((says(removed="a"),), "b rejected: admit db"),
    ],
    "a pod that ends by itself is not admitted": [((lists(B_ENDS),), "b invalid:")],
    "a pod that fails to be admitted costs no other and is tried again": [
        ((having(failing={UID}), lists(A, B)), "a invalid, b admitted: admit db"),
        ((having(failing=set()), lists(A, B)), "a admitted, b admitted: admit web"),
    ],
    "a pod that fails to be released costs no other and is tried again": [
        ((lists(A, B),), "a admitted, b admitted: admit web, admit db"),
        ((having(failing={UID}), lists()), "a invalid: release 9"),
        ((having(failing=set()), nothing), ": release 1"),
    ],
    "of a list that is not complete only what is named as removed is": [
        ((says(A, B),), "a admitted, b admitted: admit web, admit db"),
        ((nothing,), "a admitted, b admitted:"),
        ((says(removed="a"),), "b admitted: release 1"),
    ],
    "after a restart a list that is not complete keeps what it does not name": [
        ((says(A, B),), "a admitted, b admitted: admit web, admit db"),
        ((Feed.restart, says(removed="b")), ": release 9"),
        ((says(A),), "a admitted: admit web"),
    ],
    "pods of another source are never released": [
        ((taken, changed, says(removed="a")), ":"),
        ((says(B_WEB),), "b conflict: admit web"),
        ((says(removed="b"),), ":"),
    ],
    "entries are reported in the order of their source": [
        ((lists(B),), "b admitted: admit db"),
        ((lists(A, B),), "a admitted, b admitted: admit web"),
    ],
    "a pod that runs shared is admitted where it is asked for and there is room": [
        ((shares, having(room=0), says(A)), "a shared: tried web for a"),
        ((nothing,), "a shared:"),
        ((starts,), "a shared: tried web for a"),
        ((having(room=1), freed), "a shared: tried web for a"),
        ((starts,), "a admitted: tried web for a, admit web"),
        ((nothing,), "a admitted:"),
    ],
    "a pod that runs shared is that of one of the entries that state its uid": [
        ((shares, having(room=0), says(A, B_WEB)), "a shared, b conflict: tried web for a")
    ],
    "a pod that runs shared is reported before it is read and forgotten once it ended": [
        ((shares,), "a shared:"),
        ((ended,), ":"),
    ],
    "a pod that runs shared is forgotten once its source says that it ended": [
        ((shares, having(room=0), says(A)), "a shared: tried web for a"),
        ((says(removed="a"),), ": release 1"),
        ((having(room=1), says(A)), "a admitted: admit web"),
    ],
    "a start of a pod that runs shared counts although it was not read": [
        ((shares, starts, says(A)), "a admitted: tried web for a, admit web")
    ],
    "a start is forgotten with its pod and when its entry is removed": [
        ((starts,), ":"),
        ((shares, says(A)), "a shared: tried web for a"),
        ((starts, having(failing={UID}), says(removed="a")), "a invalid:"),
        ((having(failing=set()), says(A)), "a shared: tried web for a"),
    ],
    "a pod that runs shared still does when its room was taken meanwhile": [
        (
            (shares, having(room=0), having(hopeful=True), starts, says(A)),
            "a shared: tried web for a, admit web",
        )
    ],
    "a pod that runs shared and is in conflict is reported so": [
        ((shares, changed, starts, says(A)), "a conflict: tried web for a, admit web")
    ],
    "a pod that runs shared and cannot be tried is tried again": [
        ((shares, having(room=0), having(failing={UID}), says(A)), "a invalid:"),
        ((having(failing=set()), nothing), "a shared: tried web for a"),
    ],
    "a rejected pod that runs shared since is reported so": [
        ((having(room=0), says(A)), "a rejected: admit web"),
        ((shares,), "a shared: tried web for a"),
    ],
}
#: The same once the pod of `a` was admitted.
AFTERWARDS: dict[str, Story] = {
    "a pod is admitted once": [((lists(A),), "a admitted:")],
    "an entry that can no longer be read keeps its pod": [((lists(A_TORN),), "a invalid:")],
    "another spec for a running pod is a conflict until the entry is written anew": [
        ((lists(A_MORE),), "a conflict: admit web"),
        ((lists(A_MORE),), "a conflict:"),
        ((lists(),), ": release 1"),
        ((lists(A_MORE),), "a admitted: admit web"),
    ],
    "an entry that states another uid is another pod": [
        ((lists(A_DB),), "a admitted: release 1, admit db")
    ],
    "a renamed entry keeps its pod": [
        ((lists(B_WEB),), "b admitted: admit web"),
        ((lists(B_WEB),), "b admitted:"),
    ],
    "a renamed entry with another spec is a new pod": [
        ((lists(B_MORE),), "b admitted: admit web, release 1, admit web")
    ],
    "of two entries with one uid the first keeps it": [
        ((lists(B_MORE, A),), "b conflict, a admitted:"),
        ((lists(B_MORE),), "b admitted: admit web, release 1, admit web"),
    ],
    "an entry that was not read yet, or cannot be, keeps its pod from others": [
        ((Feed.restart, says(B_WEB)), "b conflict:"),
        ((says(A_TORN),), "a invalid, b conflict:"),
        ((says(removed="a"),), "b admitted: admit web"),
        ((says(B_WEB),), "b admitted:"),
    ],
    "a uid that an entry gives up is that of another entry at once": [
        ((says(B_WEB, A_DB),), "b admitted, a admitted: release 1, admit web, admit db")
    ],
    "a pod moves from an entry that gave it up and could not release it": [
        ((having(stuck={UID}), says(A_DB)), "a admitted: admit db"),
        ((says(B_WEB),), "b admitted, a admitted: admit web, admit db"),
    ],
    "a pod stays whose uid an entry has that may not be admitted": [
        ((says(B_ENDS, removed="a"),), "b invalid:"),
        ((says(removed="b"),), ": release 1"),
    ],
    "a pod that was removed otherwise is admitted again": [
        ((removed, lists(A)), "a admitted: admit web")
    ],
    "a pod that another source took over is asked for again": [((taken,), "a admitted: admit web")],
    "an admitted pod is not tried again when something was freed": [((freed,), "a admitted:")],
    "pods of a directory that was configured before are kept": [
        ((Feed.restart, elsewhere, lists()), ":")
    ],
    "after a restart an entry still owns its pod": [
        ((Feed.restart, lists(A)), "a admitted: admit web"),
        ((Feed.restart, lists()), ": release 1"),
    ],
    "a removal that failed is not tried again once the pod is asked for": [
        ((having(failing={UID}), says(removed="a")), "a invalid:"),
        ((having(failing=set()), says(A)), "a admitted: admit web"),
        ((nothing,), "a admitted:"),
    ],
    "an entry that is removed and added in one reading is asked for": [
        ((says(A, removed="a"),), "a admitted:"),
        ((says(A_DB, removed="a"),), "a admitted: release 1, admit db"),
    ],
}


ADMITTED_ONCE: Story = [((says(A),), "a admitted: admit web")]


@pytest.mark.parametrize(
    "syncs",
    [*STORIES.values(), *(ADMITTED_ONCE + story for story in AFTERWARDS.values())],
    ids=[*STORIES, *AFTERWARDS],
)
def test_what_comes_of_what_happens(syncs: Story) -> None:
    feed = Feed()
    outcomes = []
    for acts, _ in syncs:
        for act in acts:
            act(feed)
        outcomes.append(feed.sync())
    assert outcomes == [outcome for _, outcome in syncs]


# Shows in differences.md: retry
def test_a_rejected_pod_is_tried_again_only_when_something_was_freed() -> None:
    feed = Feed(Ledger(room=1))
    feed.say(A, B)
    assert feed.sync() == "a admitted, b rejected: admit web, admit db"
    assert feed.sync() == "a admitted, b rejected:"
    feed.say(removed=("a",))
    assert feed.sync() == "b admitted: release 1, admit db"


def _mistaken(text: bytes) -> SourceEntry:
    with pytest.raises(ManifestError) as raised:
        load_pod(text, "a")
    return SourceEntry("a", error=raised.value)


IDENTITY = PodIdentity(UID, "web", "shop")
MISTAKEN = _mistaken(manifest().replace(b"name: c0", b"name: C_0"))
UNPRINTABLE = "a\udce9\n"


ENDS = f"its pod cannot end by itself: leave {END} and {UNIT} out, or admit it over the API"


@pytest.mark.parametrize(
    ("acts", "name", "message"),
    [
        ((says(SourceEntry("a", error=ValueError("one\ntwo"))),), "", "one"),
        ((says(SourceEntry("a", error=ValueError("?"), identity=IDENTITY)),), "web", "?"),
        ((says(SourceEntry("a\udce9", error=ValueError("a\udce9: torn"))),), "", "torn"),
        ((says(SourceEntry("a\udce9", error=ValueError("a\\xe9: torn"))),), "", "torn"),
        ((having(room=0), says(A)), "web", f"{Reason.TOPOLOGY_AFFINITY}: no"),
        ((says(B_ENDS),), "job", ENDS),
        (
            (says(A), Feed.sync, Feed.restart, says(B_WEB)),
            "web",
            "states the same uid as a, which came first",
        ),
        ((shares,), "web", WHY),
        ((shares, having(room=0), having(hopeful=True), starts, says(A)), "web", WHY),
        ((shares, says(A)), "web", f"{WHY}; {intake.ROOM_NOW}"),
    ],
)
def test_a_document_says_why_and_whose_it_is(
    acts: tuple[Act, ...], name: str, message: str
) -> None:
    feed = Feed()
    for act in acts:
        act(feed)
    feed.sync()
    (document,) = feed.ledger.reported.values()
    assert (document.name, document.message) == (name, message)
    assert document.uid == (UID if name else None)


def test_mistakes_are_reported_with_their_paths_and_of_many_some() -> None:
    feed = Feed()
    feed.say(MISTAKEN)
    feed.sync()
    document = feed.ledger.reported["a"]
    assert (document.uid, document.name, document.namespace) == (UID, "web", "shop")
    assert document.message.startswith("line 9: spec.containers[0].name: ")
    details = document.details
    assert [(each.path, each.line) for each in details] == [("spec.containers[0].name", 9)]
    many = manifest(containers=MISTAKES_REPORTED + 1).replace(b"name: c", b"name: C_")
    feed.say(_mistaken(many))
    feed.sync()
    assert len(feed.ledger.reported["a"].details) == MISTAKES_REPORTED


def test_a_key_is_reported_as_a_text_that_can_be_shown() -> None:
    feed = Feed()
    feed.say(entry(UNPRINTABLE))
    feed.sync()
    assert feed.ledger.reported[UNPRINTABLE].file == printable(UNPRINTABLE) != UNPRINTABLE


def test_what_a_source_could_not_read_is_reported_until_the_next_reading() -> None:
    feed = Feed()
    feed.say(conditions=("the socket is closed",))
    feed.sync()
    assert feed.ledger.conditions == ("the socket is closed",)
    feed.sync()
    assert not feed.ledger.conditions


def test_a_source_resumes_its_keys_once_and_releases_nothing_while_it_cannot_be_read() -> None:
    feed = Feed()
    feed.say(A, B)
    feed.sync()
    feed.restart()
    feed.source.broken = True
    with pytest.raises(SourceUnreadableError):
        feed.sync()
    assert {*feed.ledger.pods} == {UID, OTHER_UID}
    feed.source.broken = False
    feed.sync()
    assert feed.source.resumed == [[], ["a", "b"]]


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


@in_loop
async def test_calls_that_come_while_a_source_is_read_share_one_later_reading() -> None:
    ledger = Slow()
    pods = PodIntake(Events(), ledger)
    calls = [asyncio.create_task(pods.sync()) for _ in range(20)]
    await asyncio.sleep(0)
    ledger.free.set()
    await asyncio.gather(*calls)
    assert (ledger.reads, ledger.most_together) == (2, 1)
    await pods.sync()
    assert ledger.reads == 3


@in_loop
async def test_a_call_reads_itself_if_the_one_before_it_failed_or_was_cancelled() -> None:
    ledger = Slow()
    pods = PodIntake(Events(broken=True), ledger)
    calls = [asyncio.create_task(pods.sync()) for _ in range(4)]
    await asyncio.sleep(0)
    calls[1].cancel()
    ledger.free.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [
        SourceUnreadableError,
        asyncio.CancelledError,
        SourceUnreadableError,
        SourceUnreadableError,
    ]
    assert ledger.reads == 3


async def turns() -> None:
    """Let others go on until they wait for a gate."""
    for _ in range(50):
        await asyncio.sleep(0)


@dataclass
class Gated(Feed):
    """A feed whose ledger admits the pod web once `gate` is set; a sync waits for that."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def syncing(self, *entries: SourceEntry) -> asyncio.Task[None]:
        self.ledger.gates["web"] = self.gate
        self.say(*entries)
        task = asyncio.create_task(self.intake.sync())
        await turns()
        return task


@in_loop
async def test_a_sync_begins_so_many_admissions_of_which_none_keeps_another_waiting() -> None:
    feed = Gated()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(intake, "MOST_AT_ONCE", 2)
        syncing = await feed.syncing(A, B, C, D)
        assert feed.ledger.log == ["admit db", "admit late", "admit last"]
        feed.gate.set()
        await syncing
    assert feed.ledger.most == 2
    assert [*feed.ledger.reported] == ["a", "b", "c", "d"]


@in_loop
async def test_an_entry_that_is_waited_for_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)
    feed = Gated()
    syncing = await feed.syncing(A, B)
    feed.say(C, conditions=("the socket is closed",))
    late = await feed.settled("c")
    assert late.state == ADMITTED
    assert feed.ledger.reported == {"c": late}
    assert feed.ledger.conditions == ("the socket is closed",)
    assert await feed.settled("c") is late
    assert await feed.intake.settle("unknown") is None
    assert not syncing.done()
    feed.gate.set()
    await syncing
    assert feed.ledger.log == ["admit late", "admit web", "admit db"]
    assert [*feed.ledger.reported] == ["c", "a", "b"]


def test_a_pod_that_is_waited_for_has_the_room_of_those_removed_and_comes_alone() -> None:
    feed = Feed(Ledger(room=1))
    feed.say(A)
    feed.sync()
    feed.say(C, B, removed=("a",))
    assert asyncio.run(feed.settled("b")).state == ADMITTED
    assert feed.ledger.log == ["admit web", "release 1", "admit db"]
    assert feed.sync() == "c rejected, b admitted: admit late"


def test_what_waits_for_an_entry_learns_what_is_known_of_it() -> None:
    feed = Feed()
    feed.say(A_TORN)
    assert asyncio.run(feed.settled("a")).state == INVALID
    feed.say(A)
    feed.sync()
    feed.restart()
    assert asyncio.run(feed.intake.settle("a")) is None, "its source was not read"
    shares(feed)
    assert asyncio.run(feed.settled("a")).state == SHARED


@in_loop
async def test_all_that_wait_for_a_pod_share_its_admission_which_no_cancellation_ends() -> None:
    feed = Gated()
    syncing = await feed.syncing(A)
    callers = [asyncio.create_task(feed.intake.settle("a")) for _ in range(3)]
    await turns()
    callers.pop().cancel()
    syncing.cancel()
    await turns()
    feed.gate.set()
    first, second = await asyncio.gather(*callers)
    assert first is second
    assert feed.outcome == "a admitted: admit web"


@in_loop
async def test_an_error_that_no_caller_waits_for_is_that_of_the_next_sync_alone() -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    feed = Gated(Ledger(errors={"web": QueueStopped()}))
    caller = await feed.syncing(A)
    caller.cancel()
    feed.gate.set()
    await turns()
    del caller  # it has the admission still
    gc.collect()
    assert faults == []
    with pytest.raises(QueueStopped):
        await feed.intake.sync()
    with pytest.raises(QueueStopped):
        await feed.intake.settle("a")
    feed.ledger.errors.clear()
    await feed.intake.sync()
    assert feed.outcome == "a admitted: admit web"


def test_an_error_of_one_entry_is_raised_while_others_that_were_begun_are_settled() -> None:
    feed = Feed(Ledger(errors={"web": QueueStopped()}))
    feed.say(A, B, C)
    with pytest.raises(QueueStopped):
        feed.sync()
    assert feed.ledger.log == ["admit db", "admit late"]
    assert feed.ledger.reported == {}


@pytest.mark.parametrize(
    ("change", "key", "outcome"),
    [
        (says(removed="a"), None, "c admitted: admit web, release 1, admit late"),
        (says(A_DB), "a", "a admitted, c admitted: admit web, release 1, admit late, admit db"),
    ],
)
@in_loop
async def test_an_entry_that_changes_while_its_pod_is_admitted_is_settled_anew(
    change: Act, key: str | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)
    feed = Gated()
    syncing = await feed.syncing(A, C)
    change(feed)
    waiting = asyncio.create_task(feed.intake.sync() if key is None else feed.intake.settle(key))
    await turns()
    feed.gate.set()
    await asyncio.gather(syncing, waiting)
    assert feed.outcome == outcome


@in_loop
async def test_a_pod_that_appears_while_a_reading_waits_is_left_to_the_next() -> None:
    feed = Gated()
    first = await feed.syncing(A)
    second = await feed.syncing()
    feed.say(removed=("a",))
    third = asyncio.create_task(feed.intake.sync())
    await turns()
    feed.ledger.owners[OTHER_UID] = Source(feed.source.name, "b")
    feed.gate.set()
    await asyncio.gather(first, second, third)
    assert [*feed.ledger.owners] == [OTHER_UID]


@in_loop
async def test_a_sync_goes_on_with_what_the_source_says_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)
    feed = Gated()
    syncing = await feed.syncing(A, B)
    feed.intake.try_again("c")
    feed.say(removed=("b",))
    assert await feed.intake.settle("b") is None
    feed.gate.set()
    await syncing
    assert feed.outcome == "a admitted: admit web"


@in_loop
async def test_a_pod_is_tried_again_if_something_was_freed_while_it_was_rejected() -> None:
    feed = Gated(Ledger(room=0))
    syncing = await feed.syncing(A)
    freed(feed)
    feed.gate.set()
    await syncing
    await feed.intake.sync()
    await feed.intake.sync()
    assert feed.outcome == "a rejected: admit web, admit web"


@in_loop
async def test_an_entry_that_is_tried_again_is_reported_as_before_meanwhile() -> None:
    feed = Gated(Ledger(room=0))
    feed.say(A)
    await feed.intake.sync()
    freed(feed)
    syncing = await feed.syncing(B)
    assert feed.outcome == "a rejected: admit web, admit db"
    await feed.settled("b")
    assert feed.outcome == "b rejected, a rejected: admit web, admit db"
    feed.gate.set()
    await syncing
