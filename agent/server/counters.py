"""What is counted since the start: counters and histograms.

In go increments and observations, by the metrics of `agent.server.metrics`; out come the families
of the Prometheus library. A metric that the table does not have, and a wrong number of labels, is
an error: nothing is counted that the reference does not describe. Once a counter has `MOST_SERIES`
samples, an increment adds none but that of `OTHER`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from agent.config.agent import METRIC_NAMES
from agent.server.metrics import counters_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.metrics import CounterKey, MetricSpec
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.versions import KubernetesVersion

TOTAL: Final = "_total"
#: The most samples of one counter, beside that of `OTHER`. A pod can ask for a resource of any
#: name, and the reason of its rejection names it: without a limit, every new name would be a series
#: for ever.
MOST_SERIES: Final = 1000
#: The label value of all samples beyond the limit.
OTHER: Final = "other"


class UnknownCounterError(LookupError):
    """A counter that the table does not have, or a wrong number of label values."""

    def __init__(self, name: str, labels: tuple[str, ...]) -> None:
        super().__init__(f"no counter {name} with {len(labels)} label values: {labels}")


class Counters:
    """All counters; a sample whose label values are known beforehand starts at 0."""

    def __init__(
        self,
        managers: Iterable[ResourceManager],
        versions: Collection[KubernetesVersion] = METRIC_NAMES,
    ) -> None:
        self._versions = versions
        self._metrics = {metric.name: metric for metric in counters_of(managers)}
        self._values: dict[str, dict[tuple[str, ...], int]] = {
            metric.name: dict.fromkeys(metric.initial(), 0) for metric in self._metrics.values()
        }

    def add(self, metric: MetricSpec, *labels: str, by: int = 1) -> None:
        """Increment a sample; raises `UnknownCounterError`."""
        self.add_key((metric.name, labels), by)

    def expect(self, metric: MetricSpec, labels: tuple[str, ...]) -> None:
        """Export a sample from now on, as 0 unless it was incremented already.

        Raises `UnknownCounterError`.
        """
        self.add_key((metric.name, labels), 0)

    def add_key(self, key: CounterKey, by: int) -> None:
        """Increment a sample by its key; raises `UnknownCounterError`."""
        name, labels = key
        values = self._samples(name, labels)
        if labels not in values and len(values) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        values[labels] = values.get(labels, 0) + by

    def add_all(self, increments: Mapping[CounterKey, int]) -> None:
        """Increment the samples of a decision; raises `UnknownCounterError`."""
        for key, by in increments.items():
            self.add_key(key, by)

    def value(self, metric: MetricSpec, *labels: str) -> int:
        """Return a sample, 0 if it was never incremented; raises `UnknownCounterError`."""
        return self._samples(metric.name, labels).get(labels, 0)

    def _samples(self, name: str, labels: tuple[str, ...]) -> dict[tuple[str, ...], int]:
        metric = self._metrics.get(name)
        if metric is None or len(labels) != len(metric.labels):
            raise UnknownCounterError(name, labels)
        return self._values[name]

    def families(self) -> Iterator[Metric]:
        """Yield every counter as a metric family of the Prometheus library."""
        for metric in self._metrics.values():
            for name in _exported(metric, self._versions):
                yield _counter_family(metric, name, self._values[metric.name])


def _exported(metric: MetricSpec, versions: Collection[KubernetesVersion]) -> Iterator[str]:
    """Yield the names under which a metric is exported."""
    has_later_name = {version.rules.manager_metrics_name_kubelet for version in versions}
    if False in has_later_name or not metric.later_name:
        yield metric.name
    if True in has_later_name and metric.later_name:
        yield metric.later_name


def _counter_family(metric: MetricSpec, name: str, values: Mapping[tuple[str, ...], int]) -> Metric:
    if name.endswith(TOTAL):
        family: Metric = CounterMetricFamily(name, metric.help)
    else:
        # The library's counters always end in _total; the kubelet has some that do not.
        family = Metric(name, metric.help, "counter")
    for labels, value in values.items():
        family.add_sample(name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


class Histogram:
    """The observations of one metric: how many fell into each bucket, for each label values."""

    def __init__(self, metric: MetricSpec) -> None:
        self._metric = metric
        self._observed: dict[tuple[str, ...], _Observations] = {}
        if not metric.labels:
            self._observed[()] = _Observations(metric.buckets)

    def observe(self, value: float, *labels: str) -> None:
        """Count one observation, in the metric's unit; raises `UnknownCounterError`."""
        if len(labels) != len(self._metric.labels):
            raise UnknownCounterError(self._metric.name, labels)
        observations = self._observed.get(labels)
        if observations is None:
            observations = self._observed[labels] = _Observations(self._metric.buckets)
        observations.add(value)

    def expect(self, *labels: str) -> None:
        """Export these labels from now on, without an observation unless there was one already."""
        self._observed.setdefault(labels, _Observations(self._metric.buckets))

    @property
    def count(self) -> int:
        """How many observations there were, with any labels."""
        return sum(sum(observations.counts) for observations in self._observed.values())

    def family(self) -> Metric:
        """Return the histogram as a metric family of the Prometheus library."""
        family = HistogramMetricFamily(
            self._metric.name, self._metric.help, labels=self._metric.labels
        )
        for labels, observations in self._observed.items():
            family.add_metric(labels, observations.cumulative(), observations.sum)
        return family


class _Observations:
    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0
        self._buckets = buckets

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each upper bound with the number of observations up to it."""
        bounds = (*(f"{bound:g}" for bound in self._buckets), "+Inf")
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
