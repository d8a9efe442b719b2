from __future__ import annotations

from agent.managers.cpu.manager import cpus_of
from agent.managers.memory.manager import memory_of
from agent.managers.memory.state import memory_charge
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import draft_of, with_pod
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod


class TestDraft:
    RULES = make_rules()
    OTHER = pod(app("c1", guaranteed("cpu=3 memory=1Gi")), uid="other")

    def test_it_starts_with_what_is_free_and_is_not_reserved(self) -> None:
        ledger = with_pod(self.RULES, self.OTHER)
        draft = draft_of(self.RULES, pod(app("c1")), ledger)
        cpus = cpus_of(draft)
        assert cpus.free == Mask.parse("4-15")
        assert memory_of(draft).charge == memory_charge(ledger)
        assert (cpus.reusable, cpus.pod, cpus.containers) == (EMPTY, None, {})

    def test_counters_add_up_by_name_and_labels(self) -> None:
        draft = draft_of(self.RULES, pod(app("c1")))
        draft.count("requests")
        draft.count("requests", by=2)
        draft.count("requests", "cpu")
        assert draft.counters == {("requests", ()): 3, ("requests", ("cpu",)): 1}
