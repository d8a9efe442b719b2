"""What a kubelet with all its managers off asks of runtime and systemd for a pod's resources.

Shares follow the requests, quotas and memory the limits. A container without limits in a pod with
limits of its own has the pod's (KEP-2837), so that it looks like one with exclusive CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PERIOD_US: Final = 100_000
#: The kernel's least quota in microseconds.
_LEAST_QUOTA_US: Final = 1000
_LEAST_SHARES: Final = 2
_MOST_SHARES: Final = 262_144
_SUFFIXES: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 1000, "M": 10**6, "G": 10**9}
#: Scores by QoS class: Guaranteed, BestEffort; a Burstable one lies between.
_SCORES: Final = {"Guaranteed": -997, "BestEffort": 1000}
_BURSTABLE_SCORE: Final = 900


@dataclass(frozen=True, slots=True)
class Shape:
    """CPU and memory of a pod or container; None: no limit. Shares are those of cgroup v1."""

    shares: int
    quota_us: int | None
    memory: int | None

    @property
    def weight(self) -> int:
        """The shares as a weight of cgroup v2, as runc converts them."""
        return 1 + (self.shares - 2) * 9999 // 262_142


def millicores(text: object) -> int:
    written = str(text)
    return int(written[:-1]) if written.endswith("m") else round(float(written) * 1000)


def size_bytes(text: object) -> int:
    written = str(text)
    for suffix, factor in _SUFFIXES.items():
        if written.endswith(suffix):
            return int(float(written.removesuffix(suffix)) * factor)
    return int(written)


def is_sidecar(container: Mapping[str, Any]) -> bool:
    return container.get("restartPolicy") == "Always"


def limits_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    limits: Mapping[str, Any] = part.get("resources", {}).get("limits", {})
    return limits


def requests_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the requests; what has a limit alone requests as much."""
    return {**limits_of(part), **part.get("resources", {}).get("requests", {})}


def qos_class(spec: Mapping[str, Any]) -> str:
    parts = [spec] if spec.get("resources") else [*_all(spec)]
    asked = [(requests_of(part), limits_of(part)) for part in parts]
    named = [name for requests, _ in asked for name in requests if name in ("cpu", "memory")]
    if not named:
        return "BestEffort"
    full = all(
        name in limits and str(requests[name]) == str(limits[name])
        for requests, limits in asked
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if full else "Burstable"


def shape_of_pod(spec: Mapping[str, Any]) -> Shape:
    """Return what the kubelet gives a pod's cgroup."""
    requests = _summed(spec, requests_of)
    limited = {
        name
        for name in ("cpu", "memory")
        if name in limits_of(spec) or all(name in limits_of(part) for part in _all(spec))
    }
    limits = {name: value for name, value in _summed(spec, limits_of).items() if name in limited}
    return Shape(
        _shares(requests.get("cpu", 0)), _quota_us(limits.get("cpu")), limits.get("memory")
    )


def shape_of_container(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Shape:
    """Return what the kubelet asks the runtime for."""
    requests, own = container.get("resources", {}).get("requests", {}), limits_of(container)
    limits = {**limits_of(spec), **own}
    cpu = requests.get("cpu", limits.get("cpu", 0))
    quota = None if "cpu" not in limits else _quota_us(millicores(limits["cpu"]))
    memory = None if "memory" not in limits else size_bytes(limits["memory"])
    return Shape(_shares(millicores(cpu)), quota, memory)


def oom_score(spec: Mapping[str, Any]) -> int:
    """Return the score of a pod's containers; that of Burstable ones is an approximation."""
    return _SCORES.get(qos_class(spec), _BURSTABLE_SCORE)


def _all(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def _summed(spec: Mapping[str, Any], of: Any) -> dict[str, int]:  # noqa: ANN401  # of a container
    """Return CPU (thousandths) and memory (bytes) of a pod by its containers and its own."""
    totals: dict[str, int] = {}
    for name, read in (("cpu", millicores), ("memory", size_bytes)):
        running, highest = 0, 0
        for container in spec.get("initContainers", ()):
            own = read(of(container).get(name, 0))
            highest = max(highest, running + own)
            running += own if is_sidecar(container) else 0
        apps = sum(read(of(container).get(name, 0)) for container in spec["containers"])
        total = max(highest, running + apps)
        if name in of(spec):
            total = read(of(spec)[name])
        if total:
            totals[name] = total
    return totals


def _shares(milli: int) -> int:
    return min(_MOST_SHARES, max(_LEAST_SHARES, milli * 1024 // 1000))


def _quota_us(milli: int | None) -> int | None:
    if not milli:
        return None
    return max(_LEAST_QUOTA_US, milli * PERIOD_US // 1000)
