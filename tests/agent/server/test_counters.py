from __future__ import annotations

import pytest

from agent.managers.metrics import ALLOCATIONS, CPU_PINNING_REQUESTS, MetricSpec, MetricType
from agent.managers.registry import MANAGERS
from agent.server import metrics as names
from agent.server.metrics import MOST_SERIES, Counters, Histogram, UnknownCounterError


def test_known_label_values_are_there_from_the_start() -> None:
    counters = Counters(MANAGERS)
    families = {family.name: family for family in counters.families()}
    samples = families["resource_manager_container_assignments"].samples
    assert len(samples) == 6
    assert {sample.value for sample in samples} == {0}


def test_what_a_decision_caused_is_added() -> None:
    counters = Counters(MANAGERS)
    key = ("resource_manager_allocations_total", ("cpu", "pod"))
    counters.add_all({key: 2, ("kubelet_cpu_manager_pinning_requests_total", ()): 1})
    counters.add_all({key: 1})
    assert counters.value(ALLOCATIONS, "cpu", "pod") == 3
    assert counters.value(ALLOCATIONS, "cpu", "node") == 0
    assert counters.value(CPU_PINNING_REQUESTS) == 1


def test_label_values_that_were_not_known_appear_when_they_happen() -> None:
    counters = Counters(MANAGERS)
    counters.add(names.REJECTIONS, "TopologyAffinityError")
    assert counters.value(names.REJECTIONS, "TopologyAffinityError") == 1


def test_label_values_that_users_choose_are_bounded_and_none_of_what_they_count_is_lost() -> None:
    counters = Counters(MANAGERS)
    known = len(list(names.REJECTIONS.initial()))
    for number in range(MOST_SERIES + 7):
        counters.add(names.REJECTIONS, f"OutOfexample.com/r{number}")
    counters.add(names.REJECTIONS, "OutOfexample.com/r0")
    families = {family.name: family for family in counters.families()}
    samples = families["numawarden_rejections"].samples
    assert len(samples) == MOST_SERIES + 1
    assert counters.value(names.REJECTIONS, "OutOfexample.com/r0") == 2
    assert counters.value(names.REJECTIONS, "other") == 7 + known


@pytest.mark.parametrize(
    "key",
    [
        ("no_such_counter", ()),
        ("resource_manager_allocations_total", ("cpu",)),
        ("numawarden_pods", ()),
    ],
)
def test_a_counter_that_is_not_in_the_table_is_an_error(key: tuple[str, tuple[str, ...]]) -> None:
    with pytest.raises(UnknownCounterError):
        Counters(MANAGERS).add_key(key, 1)


def test_observations_are_counted_in_the_first_bucket_that_holds_them() -> None:
    metric = MetricSpec("d_seconds", MetricType.HISTOGRAM, "x.", buckets=(1.0, 2.0))
    histogram = Histogram(metric)
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in histogram.family().samples
    }
    assert samples["d_seconds_bucket", "1"] == 2
    assert samples["d_seconds_bucket", "2"] == 3
    assert samples["d_seconds_bucket", "+Inf"] == 4
    assert samples["d_seconds_count", None] == 4
    assert samples["d_seconds_sum", None] == 12.0


def test_a_histogram_with_labels_counts_each_combination_for_itself() -> None:
    metric = MetricSpec("d_seconds", MetricType.HISTOGRAM, "x.", ("resource",), buckets=(1.0,))
    histogram = Histogram(metric)
    assert not histogram.family().samples
    for value, resource in ((0.5, "a"), (2.0, "a"), (3.0, "b")):
        histogram.observe(value, resource)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for sample in histogram.family().samples
    }
    assert samples["d_seconds_bucket", "a", "1"] == 1
    assert samples["d_seconds_bucket", "a", "+Inf"] == 2
    assert samples["d_seconds_sum", "b"] == 3.0
    assert histogram.count == 3
    with pytest.raises(UnknownCounterError):
        histogram.observe(1.0)
