"""All metrics in Prometheus' text format, from a separate registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from agent.devices.plugins.metrics import ALLOCATION_DURATION
from agent.server.metrics import gauges, names
from agent.server.metrics.allocations import AllocationSamples
from agent.server.metrics.counters import TOTAL, Counters, Histogram, UnknownCounterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from agent.managers.decision import MetricSpec
    from agent.managers.resource_manager import ResourceManager
    from agent.server.metrics.gauges import GaugeInput

#: The classic text format: OpenMetrics demands `_total` of every counter, the kubelet's lack it.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics; what is counted is counted here, gauges are made of a reading of the state."""

    def __init__(self, managers: Sequence[ResourceManager]) -> None:
        self._allocations = AllocationSamples()
        self.counters = Counters(managers)
        self._true_names = tuple(_true_names(names.counters_of(managers)))
        self.decision_duration = Histogram(names.TOPOLOGY_ADMISSION_DURATION)
        self.admission_duration = Histogram(names.ADMISSION_DURATION)
        self.reconcile_duration = Histogram(names.RECONCILE_DURATION)
        self.plugin_allocation_duration = Histogram(ALLOCATION_DURATION)
        self.runtime_request_duration = Histogram(names.RUNTIME_REQUEST_DURATION)
        self._process = ProcessCollector(registry=None)

    def add(self, metric: MetricSpec, *labels: str) -> None:
        """Increment a counter, for device plugins; raises `UnknownCounterError`."""
        self.counters.add(metric, *labels)

    def observe(self, metric: MetricSpec, seconds: float, *labels: str) -> None:
        """Add an observation of device plugins to their histogram; raises `UnknownCounterError`."""
        if metric is not ALLOCATION_DURATION:
            raise UnknownCounterError(metric.name, labels)
        self.plugin_allocation_duration.observe(seconds, *labels)

    def _families(self, reading: GaugeInput) -> Iterator[Metric]:
        self._expect(reading)
        yield from self.counters.families()
        yield self.decision_duration.family()
        yield self.admission_duration.family()
        yield self.reconcile_duration.family()
        yield self.plugin_allocation_duration.family()
        yield self.runtime_request_duration.family()
        more = self._allocations.samples(reading.rules, reading.ledger, reading.containers)
        yield from gauges.families(reading, more)
        yield from self._process.collect()

    def _expect(self, reading: GaugeInput) -> None:
        """Start what is counted by resource at 0, so that a rate shows the first increment."""
        for metric, labels in names.expected(reading.offered, reading.plugins):
            self.counters.expect(metric, labels)
        for resource in reading.plugins:
            self.plugin_allocation_duration.expect(resource)

    def render(self, reading: GaugeInput) -> bytes:
        """Return all metrics in the classic text format."""
        text = generate_latest(_Collected(self._families(reading)))
        for written, true in self._true_names:
            text = text.replace(written, true)
        return text


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _true_names(counters: Iterable[MetricSpec]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the suffix that the library writes into the comments of every counter, and without."""
    for metric in counters:
        if not metric.name.endswith(TOTAL):
            for line in ("HELP", "TYPE"):
                name = f"# {line} {metric.name}"
                yield f"{name}{TOTAL} ".encode(), f"{name} ".encode()
