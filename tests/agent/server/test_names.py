from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from agent.managers.decision import Reason
from agent.managers.metrics import CONTAINER_ASSIGNMENTS, MetricSpec, MetricType
from agent.managers.registry import MANAGERS
from agent.reconcile.diff import Cause
from agent.server import metrics as names

REFERENCE: Final = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
ALL: Final = names.all_of(MANAGERS)


def test_the_kubelets_histogram_has_its_buckets() -> None:
    expected = [0.05 * 2**power for power in range(15)]
    assert [*names.TOPOLOGY_ADMISSION_DURATION.buckets] == pytest.approx(expected)


def test_every_counter_exists_from_the_start_with_what_may_drift_and_be_rejected() -> None:
    counters = {*names.counters_of(MANAGERS)} - {*names.PLUGIN_COUNTERS}
    assert [metric.name for metric in counters if not list(metric.initial())] == []
    assert {cause for (cause,) in names.DRIFT_FOUND.initial()} == set(map(str, Cause))
    of_pods = {str(reason) for reason in Reason} - {Reason.INFEASIBLE, Reason.DEFERRED}
    assert {reason for (reason,) in names.REJECTIONS.initial()} >= of_pods
    assert set(CONTAINER_ASSIGNMENTS.initial()) == {
        (resource, kind)
        for resource in ("cpu", "memory")
        for kind in ("node_exclusive", "pod_exclusive", "pod_shared")
    }


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_every_metric_is_named_by_the_rules_and_stands_in_the_reference(metric: MetricSpec) -> None:
    if metric.name.startswith("numawarden_"):
        assert metric.name.endswith("_total") is (metric.type is MetricType.COUNTER)
        assert not re.search(r"_(ms|count|sum|bucket|milliseconds|kb|mb)$", metric.name)
    labels = ",".join(metric.labels)
    named = f"`{metric.name}{{{labels}}}`" if labels else f"`{metric.name}`"
    section = next(part for part in REFERENCE.split("\n## ") if named in part)
    assert section.lower().startswith(f"{metric.type}s\n")
    later = metric.later_name
    assert not later or later == f"kubelet_{metric.name}" or f"`{later}`" in REFERENCE
