"""All metrics in Prometheus' text format.

In go increments and observations, and at a scrape a reading of the state; out comes the text. What
is counted lives here, in `Metrics`; gauges are made of the reading (`agent.server.gauges`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from agent.config.agent import METRIC_NAMES
from agent.devices.plugin_limits import ALLOCATION_DURATION
from agent.server import metrics as names
from agent.server.allocation_samples import AllocationSamples
from agent.server.counters import TOTAL, Counters, Histogram, UnknownCounterError
from agent.server.gauges import families

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from agent.managers.metrics import MetricSpec
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.versions import KubernetesVersion
    from agent.server.gauges import GaugeInput

#: The classic text format: OpenMetrics demands `_total` of every counter, the kubelet's lack it.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters and histograms of the agent, and all metrics as text."""

    def __init__(
        self,
        managers: Sequence[ResourceManager],
        versions: Collection[KubernetesVersion] = METRIC_NAMES,
    ) -> None:
        self.counters = Counters(managers, versions)
        self.decision_duration = Histogram(names.TOPOLOGY_ADMISSION_DURATION)
        self.admission_duration = Histogram(names.ADMISSION_DURATION)
        self.reconcile_duration = Histogram(names.RECONCILE_DURATION)
        self.plugin_allocation_duration = Histogram(ALLOCATION_DURATION)
        self.runtime_request_duration = Histogram(names.RUNTIME_REQUEST_DURATION)
        self._allocations = AllocationSamples()
        self._process = ProcessCollector(registry=None)
        #: What the library writes into the text, and what replaces it.
        self._corrections = tuple(_corrections(names.counters_of(managers)))

    def add(self, metric: MetricSpec, *labels: str) -> None:
        """Increment a counter, for device plugins; raises `UnknownCounterError`."""
        self.counters.add(metric, *labels)

    def observe(self, metric: MetricSpec, seconds: float, *labels: str) -> None:
        """Add an observation of device plugins to their histogram; raises `UnknownCounterError`."""
        if metric is not ALLOCATION_DURATION:
            raise UnknownCounterError(metric.name, labels)
        self.plugin_allocation_duration.observe(seconds, *labels)

    def render(self, reading: GaugeInput) -> bytes:
        """Return all metrics in the classic text format."""
        text = generate_latest(_Collected(self._families(reading)))
        for written, correct in self._corrections:
            text = text.replace(written, correct)
        return text

    def _families(self, reading: GaugeInput) -> Iterator[Metric]:
        self._expect(reading)
        yield from self.counters.families()
        yield self.decision_duration.family()
        yield self.admission_duration.family()
        yield self.reconcile_duration.family()
        yield self.plugin_allocation_duration.family()
        yield self.runtime_request_duration.family()
        more = self._allocations.samples(
            reading.rules, reading.ledger, reading.containers, reading.intrusions, reading.late
        )
        yield from families(reading, more)
        yield from self._process.collect()

    def _expect(self, reading: GaugeInput) -> None:
        """Export what is counted by resource from 0: a rate then shows the first increment."""
        for metric, labels in names.expected(reading.offered, reading.plugins):
            self.counters.expect(metric, labels)
        for resource in reading.plugins:
            self.plugin_allocation_duration.expect(resource)


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _corrections(counters: Iterable[MetricSpec]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each comment as the library writes it, `_total` after the name, and as it should be."""
    for metric in counters:
        if not metric.name.endswith(TOTAL):
            for line in ("HELP", "TYPE"):
                name = f"# {line} {metric.name}"
                yield f"{name}{TOTAL} ".encode(), f"{name} ".encode()
