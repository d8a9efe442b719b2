from __future__ import annotations

import pytest

from agent.managers.allocation import KUBELET, ContainerAllocation, PodAllocation, Source
from agent.pods.model import ContainerKind, End, Lifetime, QosClass
from agent.server.conditions import STARTING_SECONDS, Absence, PodRecord, PodRecords
from tests.agent.reconcile.pods import unenforced

POD = PodAllocation(
    "a",
    "web",
    "shop",
    QosClass.GUARANTEED,
    "x",
    (
        ContainerAllocation("setup", ContainerKind.INIT),
        ContainerAllocation("proxy", ContainerKind.SIDECAR),
        ContainerAllocation("main", ContainerKind.APP),
    ),
)
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
    [
        PodAllocation("a", "w", "s", POD.qos, "x", POD.containers, source=Source(KUBELET, "k")),
        PodAllocation(
            "a", "w", "s", POD.qos, "x", POD.containers, lifetime=Lifetime(End.PROCESSES)
        ),
    ],
)
def test_pods_that_are_started_or_ended_by_others_miss_no_container(pod: PodAllocation) -> None:
    record = PodRecord()
    for now in (0.0, LATER, 10 * LATER):
        record.note_running(pod, (), 0, now)
        assert (record.absence, record.not_found) == ("", ())


def test_what_is_not_enforced_is_news_once_for_each_reason() -> None:
    records, admitted = PodRecords(), ("a", "b")
    assert records.note_unenforced({"a": (unenforced("offline"),)}, admitted) == {
        "a": (unenforced("offline"),)
    }
    assert records.note_unenforced({"a": (unenforced("offline"),)}, admitted) == {}
    assert records.note_unenforced({"a": (unenforced("lost"),)}, admitted) == {
        "a": (unenforced("lost"),)
    }
    assert (records.of("a").unenforced, records.unenforced) == ((unenforced("lost"),), 1)


def test_what_is_enforced_again_has_no_condition_left() -> None:
    records, admitted = PodRecords(), ("a", "b")
    records.note_unenforced(
        {"a": (unenforced("offline"),), "b": (unenforced("offline"),)}, admitted
    )
    records.note_unenforced({"b": (unenforced("offline"),)}, admitted)
    assert (records.of("a").unenforced, records.unenforced) == ((), 1)


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
