"""A verdict names the worst figure of each target and says plainly whether it is met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.measure import Figure, Rest
from tests.bench.targets import verdicts

pytestmark = pytest.mark.nightly


def figure(name: str, p50_ms: float, p99_ms: float) -> Figure:
    return Figure(name, 100, p50_ms * 1000, p99_ms * 1000, p99_ms * 1000)


def test_the_worst_median_and_the_worst_tail_are_named() -> None:
    figures = [figure("decide/2n128c/a", 0.2, 0.3), figure("decide/2n128c/b", 0.1, 0.9)]
    (line,) = verdicts(figures, None)
    assert line.startswith("met ")
    assert "p50 0.20 ms (decide/2n128c/a), p99 0.90 ms (decide/2n128c/b)" in line


def test_a_median_or_a_tail_above_its_limit_is_a_miss() -> None:
    (median,) = verdicts([figure("decide/34n/a", 5.1, 6)], None)
    (tail,) = verdicts([figure("decide/34n/a", 1, 20.1)], None)
    assert median.startswith("MISSED")
    assert tail.startswith("MISSED")


def test_six_resources_on_eight_nodes_have_a_limit_of_their_own() -> None:
    figures = [figure("decide/8n256c/half-6r", 1.9, 2), figure("decide/8n256c/half-5r", 0.7, 1)]
    assert [line[:6] for line in verdicts(figures, None)] == ["met   ", "met   "]
    (alone,) = verdicts([figure("decide/8n256c/half-5r", 1.9, 2)], None)
    assert alone.startswith("MISSED")


@pytest.mark.parametrize(
    ("what", "family", "variant"),
    [("decision", "decide", ""), ("removal", "remove", ""), ("removal", "remove", "-6r")],
)
def test_more_pods_may_not_make_an_operation_dearer(what: str, family: str, variant: str) -> None:
    few, many = (f"{family}/2n128c/pods{number}{variant}" for number in (10, 2500))
    *_, line = verdicts([figure(few, 0.1, 0.1), figure(many, 0.14, 0.14)], None)
    assert line.startswith(f"MISSED  {what} with 2,500 pods admitted")
    assert f"1.40 times ({many})" in line


def test_a_rejection_is_measured_without_the_words() -> None:
    said = figure("reject/2n128c/restricted-large-6r-said", 0.2, 0.2)
    (line,) = verdicts([figure("reject/2n128c/restricted-large-6r", 0.04, 0.1), said], None)
    assert line.startswith("met ")


def test_no_neighbours_are_left_out_of_what_an_exclusive_pod_may_cost() -> None:
    name = "enforce/2n128c/systemd-exclusive-admit-guaranteed-pods2500"
    dear = replace(figure(name, 12, 12), writes=2505, bus_calls=2503)
    few = figure(name.replace("pods2500", "pods10"), 1, 1)
    cheap = replace(figure(name.replace("-pods", "-in-shared-pods"), 1, 1), writes=6, bus_calls=4)
    missed = [line for line in verdicts([dear, few, cheap], None) if line.startswith("MISSED")]
    expected = (
        "exclusive change, 2,500 pods ",
        "exclusive admission with 2,500 pods admitted ",
        "its writes guaranteed ",
        "its calls guaranteed ",
    )
    assert len(missed) == len(expected)
    assert all(m.startswith(f"MISSED  {what}") for m, what in zip(missed, expected, strict=True))


def test_the_pass_at_rest_may_grow_as_the_pods_do() -> None:
    few, many = (
        figure(f"reconcile/2n128c/containers{n}", ms, ms) for n, ms in ((2500, 18), (12500, 220))
    )
    *_, growth = verdicts([few, many], None)
    assert growth.startswith("MISSED  pass at rest with 5 times the pods")
    assert "12.22 times" in growth


def test_a_gate_that_a_pod_does_not_use_may_not_cost_it_anything() -> None:
    on, off = figure("decide/34n/gate-on", 0.2, 0.2), figure("decide/34n/gate-off", 0.1, 0.1)
    *_, line = verdicts([on, off], None)
    assert line.startswith("MISSED  decision with the pod-level gate")


def test_a_process_at_rest_has_limits_of_memory_and_time() -> None:
    memory, cpu = verdicts([], Rest(61 << 20, 0.1))
    assert memory.startswith("MISSED")
    assert cpu.startswith("met ")


def test_asking_device_plugins_may_not_make_a_decision_dearer() -> None:
    listed, plugins = (f"decide/34n/empty-devices-{kind}" for kind in ("listed", "plugins"))
    *_, missed = verdicts([figure(listed, 0.1, 0.1), figure(plugins, 0.14, 0.14)], None)
    assert missed.startswith("MISSED  decision on devices of plugins")
    assert f"1.40 times ({plugins})" in missed
    *_, met = verdicts([figure(listed, 0.1, 0.1), figure(plugins, 0.12, 0.12)], None)
    assert met.startswith("met ")
