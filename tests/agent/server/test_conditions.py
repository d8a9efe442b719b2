"""Conditions keep the time at which they were found first."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.api.documents.status import ConditionDocument
from agent.managers.allocation import KUBELET, ContainerAllocation, PodAllocation, Source
from agent.pods.model import ContainerKind, End, Lifetime, QosClass
from agent.reconcile.diff import Cause, Difference
from agent.server.conditions import (
    ConditionTimes,
    ConditionType,
    camel_case,
    without_consequences,
)
from agent.server.pod_records import STARTING_SECONDS, Absence, PodRecord, PodRecords
from tests.agent.reconcile.pods import unenforced


def condition(reason: str, message: str, cgroup: str = "") -> ConditionDocument:
    return ConditionDocument(ConditionType.ENFORCED, reason, message, cgroup=cgroup)


def since(times: ConditionTimes, now: float, *present: ConditionDocument) -> list[float]:
    return [one.since for one in times.dated(present, now)]


def test_a_condition_keeps_its_time_while_it_is_there_and_gets_a_new_one_when_it_returns() -> None:
    times, offline = ConditionTimes(), condition("CPUOffline", "2 is offline")
    lost = condition("ControllerLost", "cpu is lost")
    assert since(times, 10.0, offline) == [10.0]
    assert since(times, 20.0, offline, lost) == [10.0, 20.0]
    assert since(times, 30.0, lost) == [20.0]
    assert since(times, 40.0, offline, lost) == [40.0, 20.0]


def test_a_message_that_changes_is_the_same_condition_where_a_cgroup_is_named() -> None:
    times = ConditionTimes()
    assert since(times, 10.0, condition("Unknown", "shows 5", "/a")) == [10.0]
    assert since(times, 20.0, condition("Unknown", "shows 6", "/a")) == [10.0]
    assert since(times, 30.0, condition("Unknown", "shows 6")) == [30.0]
    assert since(times, 40.0, condition("Unknown", "shows 7")) == [40.0]
    both = (condition("Unknown", "one", "/a"), condition("Unknown", "two", "/a"))
    assert [one.message for one in times.dated(both, 1.0)] == ["one", "two"]


def test_a_reason_has_the_form_of_kubernetes() -> None:
    assert camel_case("CPU offline") == "CPUOffline"
    assert camel_case("full-pcpus-only") == "FullPcpusOnly"
    assert camel_case("reverted by systemd") == "RevertedBySystemd"


def test_effective_sets_inside_a_wrong_set_of_the_same_kind_are_no_condition_of_their_own() -> None:
    wrong = Difference("a", "", Cause.UNKNOWN, file="cpuset.cpus")
    follows = Difference("a/b", "", Cause.UNKNOWN, file="cpuset.cpus.effective")
    other = replace(follows, file="cpuset.mems.effective")
    assert [*without_consequences([follows, other, wrong])] == [other, wrong]
    assert [*without_consequences([follows, other], above=[wrong])] == [other]


KINDS = {"setup": ContainerKind.INIT, "proxy": ContainerKind.SIDECAR, "main": ContainerKind.APP}
CONTAINERS = tuple(ContainerAllocation(name, kind) for name, kind in KINDS.items())
POD = PodAllocation("a", "web", "shop", QosClass.GUARANTEED, "x", CONTAINERS)
LATER = STARTING_SECONDS


def noted(record: PodRecord, now: float, *running: str, alike: int = 0) -> tuple[str, ...]:
    record.note_running(POD, running, alike, now)
    return (record.absence, *record.not_found)


def test_containers_that_were_never_started_count_once_their_grace_is_over() -> None:
    record = PodRecord()
    assert noted(record, 0) == (Absence.STARTING,)
    assert noted(record, LATER - 1) == (Absence.STARTING,)
    assert noted(record, LATER) == (Absence.NOT_STARTED, "proxy", "main")
    assert noted(record, LATER + 1, "proxy", "main") == ("",)


def test_a_container_that_ended_is_given_time_to_be_started_again_and_counts_then() -> None:
    record = PodRecord()
    noted(record, 0, "proxy", "main")
    assert noted(record, 100, "proxy") == (Absence.STARTING,)
    assert noted(record, 100 + LATER, "proxy") == (Absence.NOT_FOUND, "main")
    assert noted(record, 101 + LATER, "proxy", "main") == ("",)
    assert noted(record, 300, "proxy") == (Absence.STARTING,)


def test_an_ended_or_a_further_container_of_a_pod_that_ran_as_a_whole_is_missed() -> None:
    record = PodRecord()
    for now in (0, 10):
        assert noted(record, now, "proxy", "main") == ("",)
    assert noted(record, 20, "main") == (Absence.STARTING,)
    assert noted(record, 30, "proxy", "main") == ("",)
    more = replace(POD, containers=(*POD.containers, replace(POD.containers[-1], name="late")))
    record.note_running(more, ("proxy", "main"), 0, 40)
    assert record.absence == Absence.STARTING


def test_no_container_is_missed_while_an_init_container_runs() -> None:
    record = PodRecord()
    for now in range(0, 600, 50):
        assert noted(record, now, "setup") == (Absence.STARTING,)
    assert noted(record, 600) == (Absence.STARTING,)
    assert noted(record, 600 + LATER) == (Absence.NOT_FOUND, "proxy", "main")


def test_cgroups_of_containers_that_are_all_alike_stand_for_any_of_them() -> None:
    record = PodRecord()
    assert noted(record, 0, alike=1) == (Absence.STARTING,)
    assert noted(record, LATER, alike=1) == (Absence.NOT_FOUND, "main")
    assert noted(record, LATER, alike=2) == ("",)
    assert record.running == {"proxy", "main"}


@pytest.mark.parametrize(
    "pod",
    [replace(POD, source=Source(KUBELET, "k")), replace(POD, lifetime=Lifetime(End.PROCESSES))],
    ids=["kubelet", "processes"],
)
def test_pods_that_are_started_or_ended_by_others_miss_no_container(pod: PodAllocation) -> None:
    record = PodRecord()
    for now in (0.0, LATER, 10 * LATER):
        record.note_running(pod, (), 0, now)
        assert (record.absence, record.not_found) == ("", ())


def test_what_pods_lack_that_were_not_compared_stays() -> None:
    records, admitted = PodRecords(), ("a", "b", "c")
    records.note_unenforced({uid: (unenforced("offline"),) for uid in admitted}, admitted)
    lost = {"b": (unenforced("lost"),)}
    assert records.note_unenforced(lost, admitted, {"a", "b"}) == lost
    conditions = [records.of(uid).unenforced_lines for uid in admitted]
    assert (conditions, records.unenforced) == ([(), ("lost",), ("offline",)], 2)


def test_a_pod_that_is_gone_is_neither_counted_nor_remembered() -> None:
    records = PodRecords()
    records.note_unenforced({"a": (unenforced("offline"),)}, ("a",))
    records.forget("a")
    assert records.unenforced == 0
    assert records.note_unenforced({"a": (unenforced("offline"),)}, ()) == {}
    assert records.pods == {}
