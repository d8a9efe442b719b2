from __future__ import annotations

from agent.managers.cpu.parts import cpus_of
from agent.managers.memory.parts import memory_of
from agent.managers.topology.hints import NO_AFFINITY, Hint
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import draft_of, with_pod
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod

RULES = make_rules()
OTHER = pod(app("c1", guaranteed("cpu=3 memory=1Gi")), uid="other")


def test_it_starts_with_what_is_free_and_is_not_reserved() -> None:
    ledger = with_pod(RULES, OTHER)
    draft = draft_of(RULES, pod(app("c1")), ledger)
    cpus = cpus_of(draft)
    assert cpus.free == Mask.parse("4-15")
    assert memory_of(draft).charge == ledger.memory
    assert (cpus.reusable, cpus.pod, cpus.containers) == (EMPTY, None, {})


def test_a_container_without_an_alignment_has_none() -> None:
    draft = draft_of(RULES, pod(app("c1")))
    draft.hints["c1"] = Hint(2, preferred=True)
    assert draft.hint("c1") == Hint(2, preferred=True)
    assert draft.hint("c2") == NO_AFFINITY


def test_counters_add_up_by_name_and_labels() -> None:
    draft = draft_of(RULES, pod(app("c1")))
    draft.count("requests")
    draft.count("requests", by=2)
    draft.count("requests", "cpu")
    assert draft.counters == {("requests", ()): 3, ("requests", ("cpu",)): 1}
