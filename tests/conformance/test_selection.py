"""The recorded cases that are kept with the project, every one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.families import run_case
from tests.conformance.outcome import Verdict
from tests.conformance.select import FAMILIES, SELECTION, select
from tests.conformance.selected import selected

#: How many cases of each file are equal, and how many valid where the kubelet is known to be wrong.
KEPT: Final = {
    "take": (649, 151),
    "cpuhints": (250, 0),
    "discover": (40, 0),
    "merge": (500, 0),
    "podinfo": (213, 37),
    "options": (138, 0),
    "admit": (98, 122),
    "admit_named": (361, 339),
    "lifecycle": (19, 21),
    "checkpoint": (95, 5),
    "restore": (136, 12),
    "fresh": (1, 12),
}

#: In how many cases of each file a named rule was needed, beside the flags of the recording.
BY_RULE: Final = {
    "podinfo": {"memory of init containers": 37},
    "take": {"uneven host": 135},
    "admit": {
        "counters": 47,
        "cores of a budget": 2,
        "cores of init containers": 3,
        "fewer sockets": 2,
        "memory of shared containers": 15,
        "uneven host": 24,
    },
    "admit_named": {"counters": 101, "memory of shared containers": 8, "uneven host": 1},
    "lifecycle": {
        "counters": 6,
        "cores of a budget": 1,
        "cores of init containers": 1,
        "fewer sockets": 1,
        "memory of shared containers": 1,
        "uneven host": 7,
    },
    "fresh": {"counters": 2, "fewer sockets": 1, "uneven host": 10, "whole cores": 1},
}

#: Sequences in which the agent once decided worse than the kubelet; recorded by themselves.
RECORDED_LATER: Final = {"fresh"}


@pytest.mark.parametrize("family", KEPT)
def test_our_decisions_are_the_kubelets_or_right_instead(family: str) -> None:
    outcomes = {case["name"]: run_case(case) for case in selected(family)}
    wrong = {name: o.differences for name, o in outcomes.items() if o.verdict is Verdict.WRONG}
    assert wrong == {}
    verdicts = Counter(outcome.verdict for outcome in outcomes.values())
    assert (verdicts[Verdict.EQUAL], verdicts[Verdict.RIGHT]) == KEPT[family]
    rules = Counter(rule for outcome in outcomes.values() for rule in outcome.rules)
    assert rules == BY_RULE.get(family, {})


def test_every_file_is_run_and_none_is_large() -> None:
    files = sorted(SELECTION.iterdir())
    assert {Path(file.stem).stem for file in files} == set(KEPT) == {*FAMILIES, *RECORDED_LATER}
    assert sum(file.stat().st_size for file in files) < 700_000


class TestSelecting:
    def test_what_is_rare_is_taken_before_more_of_the_same(self) -> None:
        cases = [{"name": f"{n}", "is": "rare" if n == 7 else "common"} for n in range(9)]
        chosen = select(cases, 2, lambda case: (case["is"],))
        assert [case["name"] for case in chosen] == ["0", "7"]

    def test_short_cases_come_first_and_the_order_does_not_matter(self) -> None:
        cases = [{"name": name, "is": "x" * len(name)} for name in ("aaa", "b", "cc", "d")]
        for given in cases, cases[::-1]:
            assert [case["name"] for case in select(given, 3, lambda _: ("f",))] == ["b", "cc", "d"]

    def test_no_more_than_there_are(self) -> None:
        assert select([{"name": "a"}], 5, lambda _: ()) == [{"name": "a"}]
