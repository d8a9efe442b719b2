from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.kubelet import tracked as tracked_pods
from agent.cluster.kubelet.pods import ReportedPod, ReportedPods, UnreadablePodError
from agent.cluster.kubelet.tracked import ALONE_SECONDS, MISSING_SECONDS, TrackedPods

if TYPE_CHECKING:
    from collections.abc import Callable

UID = "11111111-2222-3333-4444-555555555555"
POD = ReportedPod(
    UID,
    "web",
    "shop",
    {"metadata": {"name": "web", "uid": UID}, "spec": {"containers": [{"name": "main"}]}},
    running=True,
)
FAILED = ReportedPod(UID, "web", "shop", POD.specification, terminal=True)
DYING = ReportedPod(UID, "web", "shop", POD.specification, deleting=True)


class Story:
    """One pod that runs, and what is reported of it; times are seconds since the first report."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pods = TrackedPods(pod_level=True)
        self.do("reported", "sandbox started", "cgroup made")

    def do(self, *happened: str) -> Story:
        for each in happened:
            self._do(each)
        return self

    def wait(self, seconds: float) -> Story:
        self.now += seconds
        return self

    def over(self) -> bool:
        return UID in self.pods.end(self.now)

    def _do(self, happened: str) -> None:
        pods, now = self.pods, self.now
        acts: dict[str, Callable[[], None]] = {
            "reported": lambda: pods.report(POD, now),
            "failed": lambda: pods.report(FAILED, now),
            "deleted": lambda: pods.deleted(UID, now),
            "dying": lambda: pods.report(DYING, now),
            "listed": lambda: pods.listed(ReportedPods((POD,)), now),
            "missing": lambda: pods.listed(ReportedPods(), now),
            "disconnected": pods.disconnected,
            "sandbox started": lambda: pods.sandbox_started(UID, "s", ""),
            "sandbox removed": lambda: pods.sandbox_removed(UID, "s", now),
            "sandbox recorded": lambda: pods.synchronized({UID: {"s": ""}}, now),
            "sandbox not recorded": lambda: pods.synchronized({}, now),
            "cgroup made": lambda: pods.cgroups({UID}, now),
            "cgroup gone": lambda: pods.cgroups((), now),
        }
        acts[happened]()


KINDS = ("deleted", "failed", "missing", "sandbox removed", "cgroup gone")


@pytest.mark.parametrize(
    "kinds",
    [
        pair
        for two in combinations(KINDS, 2)
        if not set(two) <= {"deleted", "failed", "missing"}
        for pair in permutations(two)
    ],
)
def test_two_kinds_of_evidence_end_a_pod_at_once_in_any_order(kinds: tuple[str, str]) -> None:
    assert Story().do(*kinds).over()


@pytest.mark.parametrize("lists", [2, 5])
def test_a_pod_that_is_missing_from_lists_stays_as_long_as_it_has_a_cgroup(lists: int) -> None:
    """A kubelet that does not reach the API server lists static pods alone, for hours."""
    story = Story()
    for _ in range(lists):
        story.do("missing").wait(10 * MISSING_SECONDS)
    assert not story.over()
    assert story.do("cgroup gone").over()


def test_a_pod_that_never_had_a_cgroup_ends_when_lists_lack_it_for_long_enough() -> None:
    pods = TrackedPods(pod_level=True)
    pods.report(POD, 0.0)
    pods.listed(ReportedPods(), 10.0)
    pods.listed(ReportedPods(), 10.0 + MISSING_SECONDS - 1)
    assert UID not in pods.end(10.0 + 10 * ALONE_SECONDS)
    confirmed = 11.0 + MISSING_SECONDS
    pods.listed(ReportedPods(), confirmed)
    assert UID in pods.end(confirmed)


@pytest.mark.parametrize("how", ["deleted", "failed"])
@pytest.mark.parametrize("shown", ["", "sandbox", "cgroup", "unread"])
def test_a_pod_that_is_over_before_the_host_showed_it_ends_at_once(how: str, shown: str) -> None:
    pods = TrackedPods(pod_level=True)
    pods.report(POD, 0.0)
    if shown == "sandbox":
        pods.sandbox_started(UID, "s", "")
    pods.cgroups({UID} if shown == "cgroup" else (), 1.0)
    if how == "deleted":
        pods.deleted(UID, 2.0)
    else:
        pods.report(FAILED, 2.0)
    assert (UID in pods.end(2.0, cgroups_read=shown != "unread")) is not bool(shown)


@pytest.mark.parametrize(
    ("evidence", "back"),
    [
        ("deleted", "reported"),
        ("failed", "sandbox started"),
        ("missing", "reported"),
        ("missing", "dying"),
        ("missing", "disconnected"),
        ("sandbox removed", "sandbox started"),
        ("cgroup gone", "cgroup made"),
        ("cgroup gone", "sandbox started"),
    ],
)
def test_evidence_is_taken_back(evidence: str, back: str) -> None:
    other = "cgroup gone" if evidence != "cgroup gone" else "deleted"
    assert Story().do(evidence, other).over()
    assert not Story().do(evidence, back, other).over()


def test_a_sandbox_that_replaced_another_keeps_its_pod_when_the_other_is_removed() -> None:
    story = Story()
    story.pods.sandbox_started(UID, "second", "")
    story.do("sandbox removed", "disconnected").wait(10 * ALONE_SECONDS)
    assert not story.over()


@pytest.mark.parametrize("late", ["failed", "dying"])
def test_a_pod_that_ended_is_not_new_when_it_is_reported_again_as_dying(late: str) -> None:
    story = Story().do("deleted", "sandbox removed")
    assert story.over()
    story.do(late)
    assert story.pods.facts() == ()
    assert story.over()


def test_a_static_pod_that_comes_back_with_its_uid_is_new() -> None:
    story = Story().do("deleted", "sandbox removed")
    assert story.over()
    story.do("reported")
    assert not story.over()
    assert [each.identity.uid for each in story.pods.facts()] == [UID]


@pytest.mark.parametrize("late", ["list", "report"])
def test_an_answer_from_before_the_end_of_a_pod_does_not_bring_it_back(late: str) -> None:
    story = Story().wait(2).do("deleted", "sandbox removed")
    assert story.over()
    if late == "list":
        story.pods.listed(ReportedPods((POD,)), 1.0)
    else:
        story.pods.report(POD, 1.0)
    assert story.pods.facts() == ()
    assert story.over()


def test_a_list_from_before_the_deletion_of_a_pod_does_not_take_the_deletion_back() -> None:
    story = Story().wait(2).do("deleted")
    story.pods.listed(ReportedPods((POD,)), 1.0)
    assert story.wait(ALONE_SECONDS).over()


@pytest.mark.parametrize("order", list(permutations(range(1, 4))))
@pytest.mark.parametrize("without", [{1}, {2}, {3}, {1, 2}, {2, 3}])
def test_of_lists_the_last_that_was_asked_for_counts_in_whichever_order_they_are_answered(
    order: tuple[int, ...], without: set[int]
) -> None:
    pods = Story().pods
    for asked in order:
        pods.listed(ReportedPods(() if asked in without else (POD,)), float(asked))
    assert bool(pods.missing) is (3 in without)


@pytest.mark.parametrize("order", list(permutations(("cgroups", "list", "sandboxes"))))
@pytest.mark.parametrize("same_boot", [True, False])
def test_a_pod_that_ended_while_the_agent_was_away_ends_with_the_first_list(
    order: tuple[str, ...],
    same_boot: bool,  # noqa: FBT001  # a column of the table
) -> None:
    """The runtime has records of stopped sandboxes for minutes.

    After a boot no pod has a cgroup yet, and the first list of a kubelet may be empty.
    """
    pods = TrackedPods(pod_level=True)
    pods.resume([UID], same_boot=same_boot)
    acts: dict[str, Callable[[], None]] = {
        "cgroups": lambda: pods.cgroups((), 1.0),
        "list": lambda: pods.listed(ReportedPods(), 1.0),
        "sandboxes": lambda: pods.synchronized({UID: {"s": "shop/web"}}, 1.0),
    }
    for each in order:
        acts[each]()
    assert (UID in pods.end(1.0)) is same_boot
    acts["sandboxes"]()
    assert not pods.facts()
    pods.cgroups((), 1.0 + MISSING_SECONDS)
    pods.listed(ReportedPods(), 1.0 + MISSING_SECONDS)
    assert UID in pods.end(1.0 + MISSING_SECONDS)


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_pod_from_before_the_start_ends_without_a_cgroup_unless_the_host_was_booted(
    same_boot: bool,  # noqa: FBT001  # a column of the table
) -> None:
    pods = TrackedPods(pod_level=True)
    pods.resume([UID], same_boot=same_boot)
    pods.cgroups((), 0.0)
    assert UID not in pods.end(ALONE_SECONDS - 1)
    assert (UID in pods.end(ALONE_SECONDS)) is same_boot


def test_a_pod_that_nothing_but_its_sandbox_shows_goes_with_the_next_synchronization() -> None:
    pods = TrackedPods(pod_level=True)
    pods.report(POD, 0.0)
    others = {f"p{number}": {"s": ""} for number in range(10)}
    pods.synchronized({UID: {"s": ""}} | others, 0.0)
    for uid in others:
        pods.sandbox_started(uid, "s", "")
    assert len(pods.facts()) == 11
    pods.synchronized({UID: {"s": ""}, "p1": {"t": ""}}, 0.0)
    assert [each.identity.uid for each in pods.facts()] == [UID, "p1"]
    assert pods.end(0.0) == others.keys() - {"p1"}


def test_a_pod_that_the_kubelet_reports_may_not_have_ended_whatever_the_host_shows() -> None:
    story = Story().do("sandbox removed")
    assert not story.pods.ending
    assert story.do("disconnected").pods.ending == {UID}
    assert Story().do("missing").pods.ending == {UID}


@pytest.mark.parametrize("uid", ["", "other", UID])
def test_an_unreadable_pod_of_a_list_hides_only_itself_where_its_uid_is_known(uid: str) -> None:
    story = Story()
    unreadable = UnreadablePodError("it is too large", uid)
    story.pods.listed(ReportedPods((), (unreadable,)), 0.0)
    assert bool(story.pods.missing) is (uid == "other")


def test_pods_beyond_the_limit_are_reported_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_pods, "MOST_TRACKED", 2)
    pods = TrackedPods(pod_level=True)
    for uid in ("a", "b"):
        pods.sandbox_started(uid, "s", "")
    within = pods.overflow
    pods.report(POD, 0.0)
    assert (within, pods.overflow) == (False, True)
    assert [each.identity.uid for each in pods.facts()] == ["a", "b"]


STEPS = (
    *KINDS,
    "reported",
    "dying",
    "listed",
    "disconnected",
    "sandbox started",
    "sandbox recorded",
    "sandbox not recorded",
    "cgroup made",
)


class History:
    """The whole history of one pod, from which everything is found again at each question."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []

    def over(self, now: float) -> bool:
        deleted = self._since({"deleted", "failed"}, {"reported", "listed", "sandbox started"})
        sandbox = self._without_sandbox()
        cgroup = self._without_cgroup()
        missing, unlisted = self._lists()
        first = deleted if deleted is not None else missing
        if sum(each is not None for each in (first, sandbox, cgroup)) > 1:
            return True
        gone = self._last({"cgroup made", "cgroup gone"}) == "cgroup gone"
        if unlisted is not None and gone:
            return True
        lasting = [deleted]
        ends = {"deleted", "failed", "missing", "disconnected"}
        if self._last({"reported", "listed", "dying"} | ends) in ends:
            lasting += [sandbox, cgroup]
        return any(each is not None and now >= each + ALONE_SECONDS for each in lasting)

    def _last(self, names: set[str]) -> str:
        return next(name for _, name in reversed(self.events) if name in names)

    def _since(self, begins: set[str], ends: set[str]) -> float | None:
        found: float | None = None
        for when, name in self.events:
            if name in ends:
                found = None
            elif name in begins and found is None:
                found = when
        return found

    def _without_sandbox(self) -> float | None:
        """Since when the pod has no sandbox; a synchronization may show that it has one."""
        there, found = False, None
        for when, name in self.events:
            if name in {"sandbox started", "sandbox recorded"}:
                there, found = True, None
            elif name == "sandbox removed" or (name == "sandbox not recorded" and there):
                there, found = False, when if found is None else found
        return found

    def _without_cgroup(self) -> float | None:
        """Since when a cgroup is gone that was there when the last sandbox started, or since."""
        there, found = False, None
        for when, name in self.events:
            if name == "cgroup made":
                there, found = True, None
            elif name == "sandbox started":
                found = None
            elif name == "cgroup gone":
                found = when if there else found
                there = False
        return found

    def _lists(self) -> tuple[float | None, float | None]:
        missing: float | None = None
        unlisted: float | None = None
        for when, name in self.events:
            if name in {"reported", "listed", "dying", "sandbox started"}:
                missing = unlisted = None
            elif name == "disconnected" and unlisted is None:
                missing = None
            elif name == "missing" and missing is None:
                missing = when
            elif name == "missing" and unlisted is None and when - missing >= MISSING_SECONDS:  # type: ignore[operator]
                unlisted = when
        return missing, unlisted


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from((0, 1, 15, 30, 31))), max_size=9))
def test_a_pod_ends_exactly_when_the_reference_says_so(steps: list[tuple[str, int]]) -> None:
    story, history = Story(), History()
    history.events = [(0.0, each) for each in ("reported", "sandbox started", "cgroup made")]
    for happened, seconds in steps:
        story.do(happened)
        history.events.append((story.now, happened))
        assert story.over() == history.over(story.now)
        if story.over():
            return
        story.wait(seconds)
        assert story.over() == history.over(story.now)
        if story.over():
            return
