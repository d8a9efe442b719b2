from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.config.model import METRIC_NAMES
from agent.devices import plugins as plugin
from agent.devices.plugin_limits import ALLOCATION_DURATION, CALLS, METHODS, CallResult
from agent.managers.metrics import (
    ALLOCATIONS,
    CONTAINER_ASSIGNMENTS,
    CPU_PINNING_REQUESTS,
    MetricSpec,
    MetricType,
)
from agent.managers.policy import NodeFit
from agent.managers.registry import MANAGERS
from agent.managers.versions import KubernetesVersion
from agent.server import metrics as names
from agent.server.gauges import CONTENT_TYPE, Metrics
from agent.server.metrics import MOST_SERIES, Counters, Histogram, UnknownCounterError
from tests.agent.server.test_gauges import RULES, reading


def rendered() -> str:
    metrics = Metrics(MANAGERS)
    metrics.counters.add(CONTAINER_ASSIGNMENTS, "cpu", "pod_shared")
    metrics.admission_duration.observe(0.02)
    return metrics.render(reading(RULES.empty_ledger())).decode()


def test_a_counter_without_total_keeps_its_name_and_type() -> None:
    lines = rendered().splitlines()
    name = "resource_manager_container_assignments"
    assert f"# TYPE {name} counter" in lines
    assert f'{name}{{assignment_type="pod_shared",resource_name="cpu"}} 1.0' in lines
    assert not any(line.startswith(f"{name}_total") for line in lines)


@pytest.mark.parametrize(
    ("versions", "exported"),
    [
        ((KubernetesVersion.V1_36,), {CONTAINER_ASSIGNMENTS.name}),
        ((KubernetesVersion.V1_37,), {"kubelet_resource_manager_container_assignments_total"}),
        (METRIC_NAMES, set(CONTAINER_ASSIGNMENTS.names)),
    ],
)
def test_a_metric_that_v1_37_renamed_has_the_names_that_are_configured(
    versions: tuple[KubernetesVersion, ...], exported: set[str]
) -> None:
    metrics = Metrics(MANAGERS, versions)
    metrics.counters.add(CONTAINER_ASSIGNMENTS, "cpu", "pod_shared")
    lines = metrics.render(reading(RULES.empty_ledger())).decode().splitlines()
    found = {line.partition("{")[0] for line in lines if 'cpu"} 1.0' in line}
    assert found == exported
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} >= exported
    assert "kubelet_cpu_manager_pinning_requests_total 0.0" in lines


def test_every_name_of_the_table_stands_in_the_text_with_its_type() -> None:
    lines = rendered().splitlines()
    for metric in names.all_of(MANAGERS):
        assert f"# TYPE {metric.name} {metric.type}" in lines
        assert any(line.startswith(f"# HELP {metric.name} ") for line in lines)


def test_the_text_is_what_a_scraper_can_read_and_names_nothing_twice() -> None:
    families = list(text_string_to_metric_families(rendered()))
    listed = [family.name for family in families]
    assert len(set(listed)) == len(listed)
    assert "_created" not in rendered()


def test_the_process_itself_is_measured() -> None:
    assert "process_resident_memory_bytes" in rendered()


def test_the_format_is_the_one_that_allows_such_counters() -> None:
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_what_device_plugins_measure_stands_in_the_text_by_resource() -> None:
    connected = {"example.com/gpu": True, "example.com/nic": False}
    metrics = Metrics(MANAGERS)
    metrics.add(CALLS, "example.com/gpu", "Allocate", "timeout")
    metrics.observe(ALLOCATION_DURATION, 0.2, "example.com/gpu")
    now = replace(reading(RULES.empty_ledger()), plugins=connected)
    lines = metrics.render(now).decode().splitlines()
    calls = 'method="Allocate",resource="example.com/gpu",result="timeout"'
    assert f"numawarden_device_plugin_calls_total{{{calls}}} 1.0" in lines
    duration = "kubelet_device_plugin_alloc_duration_seconds_count"
    assert f'{duration}{{resource_name="example.com/gpu"}} 1.0' in lines
    assert 'numawarden_device_plugin_connected{resource="example.com/gpu"} 1.0' in lines
    assert 'numawarden_device_plugin_connected{resource="example.com/nic"} 0.0' in lines
    with pytest.raises(UnknownCounterError):
        metrics.observe(names.ADMISSION_DURATION, 0.2)


def test_what_is_counted_by_resource_starts_at_0_once_the_resource_is_known() -> None:
    """A counter that is born with its first increment has no increase that a rule could see."""
    fit = replace(RULES.policy, fit=NodeFit())
    known = replace(
        reading(RULES.empty_ledger()),
        rules=replace(RULES, policy=fit),
        plugins={"example.com/gpu": True},
    )
    metrics = Metrics(MANAGERS)
    metrics.counters.add(names.REJECTIONS, "OutOfhugepages-2Mi")
    lines = metrics.render(known).decode().splitlines()
    assert 'numawarden_rejections_total{reason="OutOfhugepages-2Mi"} 1.0' in lines
    assert 'numawarden_rejections_total{reason="OutOfexample.org/nic"} 0.0' in lines
    registered = 'kubelet_device_plugin_registration_total{resource_name="example.com/gpu"} 0.0'
    assert registered in lines
    ignored = "numawarden_device_plugin_ignored_preferences_total"
    assert f'{ignored}{{resource="example.com/gpu"}} 0.0' in lines
    duration = "kubelet_device_plugin_alloc_duration_seconds_count"
    assert f'{duration}{{resource_name="example.com/gpu"}} 0.0' in lines
    for method in METHODS:
        for result in CallResult:
            labels = f'method="{method}",resource="example.com/gpu",result="{result}"'
            assert f"numawarden_device_plugin_calls_total{{{labels}}} 0.0" in lines


def test_the_methods_that_are_known_are_those_that_are_called() -> None:
    source = Path(plugin.__file__).read_text()
    called = re.findall(r"self\._answer\(\s*(\w+)", source)
    called = [getattr(plugin, name) for name in called]
    assert sorted(called) == sorted(METHODS)


def test_what_a_decision_caused_is_added() -> None:
    counters = Counters(MANAGERS)
    key = ("resource_manager_allocations_total", ("cpu", "pod"))
    counters.add_all({key: 2, ("kubelet_cpu_manager_pinning_requests_total", ()): 1})
    counters.add_all({key: 1})
    assert counters.value(ALLOCATIONS, "cpu", "pod") == 3
    assert counters.value(ALLOCATIONS, "cpu", "node") == 0
    assert counters.value(CPU_PINNING_REQUESTS) == 1


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
