from __future__ import annotations

from agent.server.reporting.records import PodRecords
from tests.agent.reconcile.pods import unenforced


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


def test_a_pod_that_is_gone_is_neither_counted_nor_remembered() -> None:
    records = PodRecords()
    records.note_unenforced({"a": (unenforced("offline"),)}, ("a",))
    records.forget("a")
    assert records.unenforced == 0
    assert records.note_unenforced({"a": (unenforced("offline"),)}, ()) == {}
    assert records.pods == {}
