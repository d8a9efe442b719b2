"""Counters and histograms since the start, by the names of `agent.server.metrics.names`."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from agent.server.metrics import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.decision import CounterKey, MetricSpec
    from agent.managers.effective_policy import ResourceManager

TOTAL: Final = "_total"


class UnknownCounterError(LookupError):
    """A counter that the table of names does not have, or with other labels."""

    def __init__(self, name: str, labels: tuple[str, ...]) -> None:
        super().__init__(f"no counter {name} with {len(labels)} label values: {labels}")
        self.name = name
        self.labels_given = labels


class Counters:
    """Every counter of the table; those whose label values are known start at 0."""

    def __init__(self, managers: Iterable[ResourceManager]) -> None:
        self._metrics = {metric.name: metric for metric in names.counters_of(managers)}
        self._values: dict[str, dict[tuple[str, ...], int]] = {
            metric.name: dict.fromkeys(metric.initial(), 0) for metric in self._metrics.values()
        }

    def add(self, metric: MetricSpec, *labels: str, by: int = 1) -> None:
        """Increment one sample; raises `UnknownCounterError`."""
        self.add_key((metric.name, labels), by)

    def add_key(self, key: CounterKey, by: int) -> None:
        """Increment the sample of a decision's key; raises `UnknownCounterError`."""
        name, labels = key
        metric = self._metrics.get(name)
        if metric is None or len(labels) != len(metric.labels):
            raise UnknownCounterError(name, labels)
        values = self._values[name]
        values[labels] = values.get(labels, 0) + by

    def add_all(self, increments: Mapping[CounterKey, int]) -> None:
        """Increment what one decision caused."""
        for key, by in increments.items():
            self.add_key(key, by)

    def value(self, metric: MetricSpec, *labels: str) -> int:
        """Return one sample; 0 when it was never incremented."""
        return self._values[metric.name].get(labels, 0)

    def families(self) -> Iterator[Metric]:
        """Yield every counter as a metric family of the Prometheus library."""
        for name, metric in self._metrics.items():
            yield _counter_family(metric, self._values[name])


def _counter_family(metric: MetricSpec, values: Mapping[tuple[str, ...], int]) -> Metric:
    if metric.name.endswith(TOTAL):
        family: Metric = CounterMetricFamily(metric.name, metric.help)
    else:
        # The library's counters always end in _total; the kubelet has some that do not.
        family = Metric(metric.name, metric.help, "counter")
    for labels, value in values.items():
        family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


class Histogram:
    """Observations of one metric without labels, counted by its buckets."""

    def __init__(self, metric: MetricSpec) -> None:
        self._metric = metric
        self._counts = [0] * (len(metric.buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation, in the metric's unit."""
        self._counts[bisect_left(self._metric.buckets, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self._counts)

    def family(self) -> Metric:
        """Return the histogram as a metric family of the Prometheus library."""
        bounds = (*(f"{bound:g}" for bound in self._metric.buckets), "+Inf")
        cumulative = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(bounds, self._counts, strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        return HistogramMetricFamily(
            self._metric.name, self._metric.help, buckets=buckets, sum_value=self._sum
        )
