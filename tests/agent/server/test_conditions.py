"""Conditions keep the time at which they were found first."""

from __future__ import annotations

from agent.api.documents import ConditionDocument
from agent.server.conditions import ConditionTimes, ConditionType, camel_case


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


def test_two_conditions_of_one_subject_are_both_reported() -> None:
    times = ConditionTimes()
    both = (condition("Unknown", "one", "/a"), condition("Unknown", "two", "/a"))
    assert [one.message for one in times.dated(both, 1.0)] == ["one", "two"]


def test_a_reason_has_the_form_of_kubernetes() -> None:
    assert camel_case("CPU offline") == "CPUOffline"
    assert camel_case("full-pcpus-only") == "FullPcpusOnly"
    assert camel_case("reverted by systemd") == "RevertedBySystemd"
