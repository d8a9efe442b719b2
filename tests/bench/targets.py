"""What the agent is to achieve on an otherwise quiet machine, and whether a run did.

A verdict, not a gate: figures of a busy machine say little.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bench.measure import Figure, Rest

#: The tail of a decision may take so many times its target.
_TAIL: Final = 4
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A limit in milliseconds for the median of every figure whose name matches.

    `tail` limits the 99th percentile as well: to `tail_ms`, else to so many times `limit_ms`.
    """

    text: str
    names: str
    limit_ms: float
    tail: bool = True
    tail_ms: float = 0.0

    @property
    def longest_ms(self) -> float:
        """The limit of the 99th percentile in milliseconds."""
        return self.tail_ms or _TAIL * self.limit_ms


#: What an exclusive pod may write and ask systemd that comes or goes beside 2,500 others.
_MOST_WRITES: Final = 10
_MOST_BUS_CALLS: Final = 4
_EXCLUSIVE: Final = r"enforce/.*-exclusive-\w+(-guaranteed)?-pods"
TARGETS: Final = (
    Target("decision on 2 nodes, 128 CPUs", r"decide/2n128c/", 0.25),
    Target("decision on 8 nodes, 256 CPUs", r"decide/8n256c/(?!.*-6r$)", 0.8),
    Target("decision on 8 nodes, 6 resources", r"decide/8n256c/.*-6r$", 2),
    Target("decision on 16 nodes, 512 CPUs", r"decide/16n512c/", 5),
    Target("decision on 34 nodes", r"decide/34n/", 5),
    Target("decision on 64 nodes, 4,096 CPUs", r"decide/64n4096c/", 25),
    # Half of what kubelet v1.36.2 takes on this kind of machine, idle, by the clock and without its
    # node fit: 0.08 ms, with six resources 0.09 (processor time: 0.16 and 0.18).
    Target("rejection on 2 nodes, 128 CPUs", r"reject/2n128c/.*-2r$", 0.04),
    Target("rejection on 2 nodes, 6 resources", r"reject/2n128c/.*-6r$", 0.045),
    Target("discovery of 4,096 CPUs", r"discover/64n4096c/", 500, tail=False),
    Target("pass at rest, 500 pods of 5", r"reconcile/.*/containers2500$", 20, tail=False),
    Target("pass at rest, 2,500 pods of 5", r"reconcile/.*/containers12500$", 100, tail=False),
    Target("save of 2,500 pods", r"save/.*/pods2500$", 3, tail=False),
    Target("admitted to the end, 2,500 pods", r"admit/.*/enforced-pods2500$", 10, tail=False),
    Target("reconcile 500 containers, no write", r"reconcile/.*/containers500$", 30, tail=False),
    # With a comparison every 10 s, 0.3 % of a CPU.
    Target("comparison with isolation", r"isolate/.*-isolated-comparison$", 30, tail=False),
    Target("list of 2,500 pods over podresources", r"list/.*-first$", 50, tail=False),
    Target("list of unchanged pods", r"list/.*-unchanged$", 0.1, tail=False),
    Target("NRI Synchronize of 2,500 pods", r"nri/synchronize/", 1000, tail=False),
    Target("NRI CreateContainer, transport alone", r"nri/create$", 1, tail=False),
    Target("NRI CreateContainer, 110 pods", r"nri/create-110/.*-agent$", 5, tail_ms=50),
    # Not beside a kubelet (`-each`), where Guaranteed pods cost a write each.
    Target("exclusive change, 2,500 pods", rf"{_EXCLUSIVE}2500$", 10, tail=False),
    Target("numawarden --help", r"cli/", 120, tail=False),
)
#: How often the median of each figure whose name matches may be that of the figure in whose name
#: the one text stands in the place of the other.
_RATIOS: Final = (
    ("decision with 2,500 pods admitted", r"decide/", "pods2500", "pods10", 1.3),
    ("removal with 2,500 pods admitted", r"remove/", "pods2500", "pods10", 1.3),
    ("exclusive change beside 2,500 pods", _EXCLUSIVE, "pods2500", "pods10", 1.5),
    ("decision on devices of plugins", r"decide/", "-devices-plugins", "-devices-listed", 1.3),
    # Of a pod that has no pod-level resources.
    ("decision with the pod-level gate", r"decide/", "/gate-on", "/gate-off", 1.05),
    ("admission with isolation, 300 interrupts", r"isolate/.*-isolated$", "isolated", "without", 3),
    ("pass at rest with 5 times the pods", r"reconcile/", "containers12500", "containers2500", 5.5),
)
#: 5 MiB of it are the parts of aiohttp that no listener needs (ADR 1).
REST_MIB: Final = 55
REST_PERCENT: Final = 0.2


def verdicts(figures: Sequence[Figure], rest: Rest | None) -> Iterator[str]:
    """Yield a line for each target of which anything was measured."""
    for target in TARGETS:
        matching = [figure for figure in figures if re.match(target.names, figure.name)]
        if matching:
            yield _verdict(target, matching)
    medians = {figure.name: figure.p50_us for figure in figures}
    for text, names, of, to, most in _RATIOS:
        ratios = {
            name: medians[name] / medians[other]
            for name in medians
            if of in name and re.match(names, name) and (other := name.replace(of, to)) in medians
        }
        if ratios:
            worst = max(ratios, key=ratios.__getitem__)
            found = f"{ratios[worst]:.2f} times ({worst})"
            yield _line(text, f"<= {most} times {to.strip('-/')}", found, ratios[worst] <= most)
    for others in ("", "guaranteed-"):
        names = f"enforce/.*-exclusive-(admit|remove)-{others}pods2500$"
        changes = [figure for figure in figures if re.match(names, figure.name)]
        for text, most, counts in (
            ("its writes", _MOST_WRITES, [figure.writes or 0 for figure in changes]),
            ("its calls", _MOST_BUS_CALLS, [figure.bus_calls or 0 for figure in changes]),
        ):
            if counts:
                named = f"{text} {others}".rstrip(" -")
                yield _line(named, f"<= {most}", f"{max(counts)} at most", max(counts) <= most)
    if rest is not None:
        mib, percent = rest.resident_bytes / _MIB, rest.cpu_percent
        yield _line("memory at rest", f"<= {REST_MIB} MiB", f"{mib:.1f} MiB", mib <= REST_MIB)
        desired = f"<= {REST_PERCENT} %"
        yield _line("CPU at rest", desired, f"{percent:.2f} %", percent <= REST_PERCENT)


def _verdict(target: Target, figures: Sequence[Figure]) -> str:
    median = max(figures, key=lambda figure: figure.p50_us)
    tail = max(figures, key=lambda figure: figure.p99_us)
    met = median.p50_us <= target.limit_ms * 1000
    found = f"p50 {median.p50_us / 1000:.2f} ms ({median.name})"
    desired = f"<= {target.limit_ms:g} ms"
    if target.tail:
        met = met and tail.p99_us <= target.longest_ms * 1000
        found += f", p99 {tail.p99_us / 1000:.2f} ms ({tail.name})"
        desired += f", p99 <= {target.longest_ms:g} ms"
    return _line(target.text, desired, found, met)


def _line(text: str, desired: str, found: str, met: bool) -> str:  # noqa: FBT001
    return f"{'met   ' if met else 'MISSED'}  {text:35} {desired:30} {found}"
