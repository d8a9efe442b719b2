from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.devices import plugins as plugin
from agent.devices.plugin_limits import ALLOCATION_DURATION, CALLS, METHODS, CallResult
from agent.managers.metrics import CONTAINER_ASSIGNMENTS
from agent.managers.policy import NodeFit
from agent.managers.registry import MANAGERS
from agent.server import metrics as names
from agent.server.gauges import CONTENT_TYPE, Metrics
from agent.server.metrics import UnknownCounterError
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
    assert not any(f"{name}_total" in line for line in lines)


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
