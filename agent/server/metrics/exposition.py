"""All metrics in Prometheus' text format, from a separate registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from agent.managers.decision import DECISION_COUNTERS
from agent.server.metrics import gauges, names
from agent.server.metrics.counters import TOTAL, Counters, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from agent.server.metrics.gauges import GaugeInput

#: The classic text format: OpenMetrics demands `_total` of every counter, the kubelet's lack it.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics; `read` returns the input of the gauges at a scrape."""

    def __init__(self, read: Callable[[], GaugeInput]) -> None:
        self.counters = Counters()
        self.decision_duration = Histogram(names.TOPOLOGY_ADMISSION_DURATION)
        self.admission_duration = Histogram(names.ADMISSION_DURATION)
        self.reconcile_duration = Histogram(names.RECONCILE_DURATION)
        self._read = read
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_StateCollector(self))
        ProcessCollector(registry=self._registry)

    def families(self) -> Iterator[Metric]:
        """Yield every family but those of the process itself."""
        yield from self.counters.families()
        yield self.decision_duration.family()
        yield self.admission_duration.family()
        yield self.reconcile_duration.family()
        yield from gauges.families(self._read())

    def render(self) -> bytes:
        """Return all metrics in the classic text format."""
        return _with_true_names(generate_latest(self._registry))


class _StateCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


_TRUE_NAMES: Final = tuple(
    (f"# {line} {metric.name}{TOTAL} ".encode(), f"# {line} {metric.name} ".encode())
    for metric in (*DECISION_COUNTERS, *names.SERVICE_COUNTERS)
    if not metric.name.endswith(TOTAL)
    for line in ("HELP", "TYPE")
)


def _with_true_names(text: bytes) -> bytes:
    """Undo the suffix that the library writes into the comments of every counter."""
    for written, true in _TRUE_NAMES:
        text = text.replace(written, true)
    return text
