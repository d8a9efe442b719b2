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


#: An exclusive pod that comes or goes beside 2,500 others, of whatever kind and place.
_ADMISSION: Final = r"enforce/.*-exclusive-(admit|remove)-(?:[a-z-]+-)?pods2500$"
#: What it may write and ask systemd.
_MOST_WRITES: Final = 40
_MOST_BUS_CALLS: Final = 4
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
    Target("exclusive change, 2,500 pods", _ADMISSION, 10, tail=False),
    Target("numawarden --help", r"cli/", 120, tail=False),
)
#: An operation with 2,500 pods may take so many times that with 10, by the family's name.
_GROWTHS: Final = (
    ("decision", "decide/.*", 1.3),
    ("removal", "remove/.*", 1.3),
    ("exclusive admission", "enforce/.*-exclusive-admit-", 1.5),
    ("exclusive removal", "enforce/.*-exclusive-remove-", 1.5),
)
#: What is decided or admitted may take so many times another: on devices of plugins that on listed
#: ones, with the gate PodLevelResourceManagers that without, of a pod that has no pod-level
#: resources, with all items of isolation that with none.
_COMPARED: Final = (
    (
        "decision on devices of plugins",
        "-devices-plugins",
        "-devices-listed",
        1.3,
        "on listed ones",
    ),
    ("decision with the pod-level gate", "/gate-on", "/gate-off", 1.05, "without"),
    ("admission with isolation, 300 interrupts", "-isolated", "-without", 3, "without"),
)
#: The pass at rest grows with the pods, and no faster: from 500 to 2,500 pods of five containers.
_PASSES: Final = ("reconcile/2n128c/containers2500", "reconcile/2n128c/containers12500", 5.5)
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
    for what, family, most in _GROWTHS:
        yield from _growth(what, family, most, medians)
    for what, suffix, other, most, against in _COMPARED:
        yield from _compared(what, (suffix, other), most, against, medians)
    few, many, most = _PASSES
    if few in medians and many in medians:
        ratio = medians[many] / medians[few]
        line = f"{ratio:.2f} times"
        yield _line("pass at rest with 5 times the pods", f"<= {most} times", line, ratio <= most)
    yield from _counts([figure for figure in figures if re.match(_ADMISSION, figure.name)])
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


def _growth(what: str, family: str, most: float, medians: dict[str, float]) -> Iterator[str]:
    """Yield the line for an operation with many pods, by the host where it grows most."""
    ratios = {
        name: medians[name] / medians[few]
        for name in medians
        if re.match(rf"{family}.*pods2500", name)
        and (few := name.replace("pods2500", "pods10")) in medians
    }
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        found = f"{ratios[worst]:.2f} times ({worst})"
        desired = f"<= {most} times that with 10"
        yield _line(f"{what} with 2,500 pods admitted", desired, found, ratios[worst] <= most)


def _compared(
    what: str, suffixes: tuple[str, str], most: float, against: str, medians: dict[str, float]
) -> Iterator[str]:
    """Yield the line for decisions of one kind against those of another, by the worst case."""
    suffix, other = suffixes
    ratios = {
        name: medians[name] / medians[base]
        for name in medians
        if name.endswith(suffix) and (base := name.removesuffix(suffix) + other) in medians
    }
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        found = f"{ratios[worst]:.2f} times ({worst})"
        yield _line(what, f"<= {most} times that {against}", found, ratios[worst] <= most)


def _counts(admissions: Sequence[Figure]) -> Iterator[str]:
    """Yield the lines for what an exclusive pod writes and asks systemd, by the worst case."""
    for place in ("", "guaranteed-", "guaranteed-in-shared-"):
        here = [each for each in admissions if re.search(f"(admit|remove)-{place}pods", each.name)]
        for what, most, counts in (
            (f"its writes {place}".rstrip(" -"), _MOST_WRITES, [f.writes or 0 for f in here]),
            (f"its calls {place}".rstrip(" -"), _MOST_BUS_CALLS, [f.bus_calls or 0 for f in here]),
        ):
            if counts:
                yield _line(what, f"<= {most}", f"{max(counts)} at most", max(counts) <= most)


def _line(text: str, desired: str, found: str, met: bool) -> str:  # noqa: FBT001
    return f"{'met   ' if met else 'MISSED'}  {text:35} {desired:30} {found}"
