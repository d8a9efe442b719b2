from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from agent.managers.decision import Reason
from agent.managers.metrics import CONTAINER_ASSIGNMENTS, MetricSpec, MetricType
from agent.managers.registry import MANAGERS
from agent.reconcile.diff import Cause
from agent.server import metrics as names

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


ALL = names.all_of(MANAGERS)


def test_the_metrics_of_kep_5526_have_its_names_and_labels() -> None:
    labels = {metric.name: metric.labels for metric in ALL}
    assert labels["resource_manager_allocations_total"] == ("resource_name", "source")
    assert labels["resource_manager_allocation_errors_total"] == ("resource_name", "source")
    assert labels["resource_manager_container_assignments"] == (
        "resource_name",
        "assignment_type",
    )
    assert set(CONTAINER_ASSIGNMENTS.initial()) == {
        (resource, kind)
        for resource in ("cpu", "memory")
        for kind in ("node_exclusive", "pod_exclusive", "pod_shared")
    }


def test_the_kubelets_histogram_has_its_buckets() -> None:
    buckets = names.TOPOLOGY_ADMISSION_DURATION.buckets
    assert len(buckets) == 15
    assert buckets[0] == 0.05
    assert buckets[-1] == pytest.approx(819.2)
    assert all(above == pytest.approx(2 * below) for below, above in pairwise(buckets))


def test_our_own_metrics_follow_the_naming_rules() -> None:
    """Base units, `_total` on every counter (promtool's linter): the kubelet's are its own."""
    ours = [metric for metric in ALL if metric.name.startswith("numawarden_")]
    for metric in ours:
        counter = metric.type is MetricType.COUNTER
        assert metric.name.endswith("_total") is counter
        assert not re.search(r"_(ms|count|sum|bucket|milliseconds|kb|mb)$", metric.name)


@pytest.mark.parametrize(
    "metric",
    [each for each in names.counters_of(MANAGERS) if each not in names.PLUGIN_COUNTERS],
    ids=lambda metric: metric.name,
)
def test_every_counter_exists_from_the_start(metric: MetricSpec) -> None:
    assert list(metric.initial())


def test_what_may_drift_and_be_rejected_starts_at_0_by_cause_and_reason() -> None:
    assert {cause for (cause,) in names.DRIFT_FOUND.initial()} == set(map(str, Cause))
    assert {reason for (reason,) in names.REJECTIONS.initial()} >= set(map(str, Reason))
    assert list(names.REMOVALS.initial()) == [()]


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_every_metric_stands_in_the_reference_with_its_labels(metric: MetricSpec) -> None:
    labels = ",".join(metric.labels)
    named = f"`{metric.name}{{{labels}}}`" if labels else f"`{metric.name}`"
    section = next(part for part in REFERENCE.read_text().split("\n## ") if named in part)
    assert section.lower().startswith(f"{metric.type}s\n")


def test_the_reference_names_the_metrics_that_change_their_names() -> None:
    changed = [(metric.name, metric.later_name) for metric in ALL if metric.later_name]
    others = [later for name, later in changed if later != f"kubelet_{name}"]
    assert len(changed) > len(others)
    assert [name for name in others if f"`{name}`" not in REFERENCE.read_text()] == []
