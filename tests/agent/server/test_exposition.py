from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.config.agent import METRIC_NAMES
from agent.devices import plugin_calls as plugin
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
from agent.server.counters import MOST_SERIES, Counters, Histogram, UnknownCounterError
from agent.server.exposition import Metrics
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


def test_every_name_of_the_table_stands_once_in_a_text_that_a_scraper_can_read() -> None:
    text = rendered()
    lines = text.splitlines()
    for metric in names.all_of(MANAGERS):
        assert f"# TYPE {metric.name} {metric.type}" in lines
        assert any(line.startswith(f"# HELP {metric.name} ") for line in lines)
    listed = [family.name for family in text_string_to_metric_families(text)]
    assert len(set(listed)) == len(listed)
    assert "_created" not in text
    assert "process_resident_memory_bytes" in text


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
    gpu = "example.com/gpu"
    at = replace(
        reading(RULES.empty_ledger()), rules=replace(RULES, policy=fit), plugins={gpu: True}
    )
    metrics = Metrics(MANAGERS)
    metrics.counters.add(names.REJECTIONS, "OutOfhugepages-2Mi")
    lines = metrics.render(at).decode().splitlines()
    calls = "numawarden_device_plugin_calls_total"
    for line in (
        'numawarden_rejections_total{reason="OutOfhugepages-2Mi"} 1.0',
        'numawarden_rejections_total{reason="OutOfexample.org/nic"} 0.0',
        f'kubelet_device_plugin_registration_total{{resource_name="{gpu}"}} 0.0',
        f'numawarden_device_plugin_ignored_preferences_total{{resource="{gpu}"}} 0.0',
        f'kubelet_device_plugin_alloc_duration_seconds_count{{resource_name="{gpu}"}} 0.0',
        *(
            f'{calls}{{method="{method}",resource="{gpu}",result="{result}"}} 0.0'
            for method in METHODS
            for result in CallResult
        ),
    ):
        assert line in lines


def test_the_methods_that_are_known_are_those_that_are_called() -> None:
    source = Path(plugin.__file__).read_text()
    called = re.findall(r"self\._call\(\s*(\w+)", source)
    called = [getattr(plugin, name) for name in called]
    assert sorted(called) == sorted(METHODS)


def test_label_values_that_users_choose_are_bounded_and_none_of_what_they_count_is_lost() -> None:
    counters = Counters(MANAGERS)
    known = len(list(names.REJECTIONS.initial()))
    for number in (*range(MOST_SERIES + 7), 0):
        counters.add(names.REJECTIONS, f"OutOfexample.com/r{number}")
    families = {family.name: family for family in counters.families()}
    assert len(families["numawarden_rejections"].samples) == MOST_SERIES + 1
    assert counters.value(names.REJECTIONS, "OutOfexample.com/r0") == 2
    assert counters.value(names.REJECTIONS, "other") == 7 + known


def test_what_a_decision_caused_is_added_and_what_is_not_in_the_table_an_error() -> None:
    counters = Counters(MANAGERS)
    key = ("resource_manager_allocations_total", ("cpu", "pod"))
    counters.add_all({key: 2, ("kubelet_cpu_manager_pinning_requests_total", ()): 1})
    counters.add_all({key: 1})
    assert counters.value(ALLOCATIONS, "cpu", "pod") == 3
    assert counters.value(ALLOCATIONS, "cpu", "node") == 0
    assert counters.value(CPU_PINNING_REQUESTS) == 1
    for name, labels in (("no_such_counter", ()), (key[0], ("cpu",)), ("numawarden_pods", ())):
        with pytest.raises(UnknownCounterError):
            counters.add_key((name, labels), 1)
    with pytest.raises(UnknownCounterError):
        counters.expect(ALLOCATIONS, ("cpu",))
    with pytest.raises(UnknownCounterError):
        counters.value(ALLOCATIONS, "cpu")


def test_a_histogram_counts_each_combination_of_labels_in_buckets() -> None:
    metric = MetricSpec("d_seconds", MetricType.HISTOGRAM, "x.", ("resource",), buckets=(1.0, 2.0))
    histogram = Histogram(metric)
    assert not histogram.family().samples
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value, "a")
    histogram.observe(3.0, "b")
    samples = {
        (sample.name.removeprefix("d_seconds_"), *sample.labels.values()): sample.value
        for sample in histogram.family().samples
    }
    found = [samples["bucket", "a", le] for le in ("1", "2", "+Inf")]
    assert found == [2, 3, 4]
    assert (samples["count", "a"], samples["sum", "a"], samples["sum", "b"]) == (4, 12.0, 3.0)
    assert histogram.count == 5
    with pytest.raises(UnknownCounterError):
        histogram.observe(1.0)
