from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import API, Source
from agent.managers.decision import Reason
from agent.sources.source import PodNames, assigned, belongs_elsewhere, owner_after
from tests.agent.managers.hosts import CONTAINER, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

FILE, MOVED = Source("manifests", "/m/a.yaml"), Source("manifests", "/m/b.yaml")
RULES = make_rules(scope=CONTAINER, memory=False)
ASKED = pod(app("a", guaranteed("cpu=2 memory=1Gi")), uid="u-1")


@pytest.mark.parametrize(
    ("owner", "asking", "after"),
    [
        (None, API, API),
        (None, FILE, FILE),
        (API, API, API),
        (API, FILE, FILE),
        (FILE, API, FILE),
        (FILE, MOVED, MOVED),
    ],
)
def test_a_pod_belongs_to_who_asked_last_except_that_the_api_takes_none_over(
    owner: Source | None, asking: Source, after: Source
) -> None:
    assert owner_after(owner, asking) == after


def test_the_source_is_in_the_ledger_and_in_the_allocation_of_the_decision() -> None:
    before = RULES.empty_ledger()
    decided = admit(RULES, before, ASKED)
    decision = assigned(decided, before, FILE)
    assert decision.allocation is decision.ledger.allocations["u-1"]
    assert decision.allocation.source == FILE
    assert decision.ledger.with_source("u-1", API) == decided.ledger.with_source("u-1", API)


def test_what_belongs_to_its_source_already_is_not_changed() -> None:
    before = RULES.empty_ledger()
    ledger = assigned(admit(RULES, before, ASKED), before, FILE).ledger
    again = admit(RULES, ledger, ASKED)
    for asking in (FILE, API):
        assert assigned(again, ledger, asking) is again
    assert again.ledger is ledger


def test_a_rejected_pod_belongs_to_no_source() -> None:
    before = RULES.empty_ledger()
    rejected = admit(RULES, before, pod(app("a", guaranteed("cpu=99 memory=1Gi"))))
    assert assigned(rejected, before, FILE) is rejected


def test_the_rejection_of_a_pod_of_another_source_names_both_ways_out() -> None:
    before = RULES.empty_ledger()
    ledger = assigned(admit(RULES, before, ASKED), before, FILE).ledger
    decision = belongs_elsewhere(ledger, ASKED, FILE, "delete that file")
    assert decision.ledger is ledger
    assert decision.rejection is not None
    assert decision.rejection.reason is Reason.CONFLICT
    assert decision.rejection.message == (
        "pod default/p (uid u-1) belongs to /m/a.yaml of the source manifests"
    )
    assert decision.rejection.remedy == (
        "delete that file to end that pod first, or give the new pod a uid of its own"
    )


NAMES = st.sampled_from(["", "web", "db"])
#: What happens to a ledger: a pod of a uid, a namespace and a name comes, or goes.
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(["shop", "lab"]), NAMES, st.booleans()),
    max_size=200,
)


@given(HAPPENINGS)
def test_who_has_a_name_is_who_a_walk_through_the_ledger_finds(
    happenings: list[tuple[str, str, str, bool]],
) -> None:
    known = PodNames()
    kept = admit(RULES, RULES.empty_ledger(), ASKED).allocation
    assert kept is not None
    ledger = RULES.empty_ledger()
    for uid, namespace, name, comes in happenings:
        if comes:
            ledger = ledger.with_allocation(replace(kept, uid=uid, namespace=namespace, name=name))
        elif uid in ledger.allocations:
            ledger = ledger.without_allocation(uid, ledger.parts)
        asked = replace(ASKED, uid="new", namespace=namespace, name=name)
        found = [
            each
            for each in ledger.allocations.values()
            if name and (each.namespace, each.name) == (namespace, name)
        ]
        assert sorted(each.uid for each in known.others(ledger, asked)) == sorted(
            each.uid for each in found
        )
        assert known.others(ledger, replace(asked, uid=uid)) == () or uid not in ledger.allocations
