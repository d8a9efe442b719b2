"""Choose the recorded cases that are kept with the project.

`python -m tests.conformance.select VECTORS` rewrites every file in `tests/conformance/selection`.
Each case has features: what is asked, on which sort of host, what came of it. The next case taken
is always one whose features were rarest among those taken so far, until the family has its number;
so a family's selection holds all that it has, and rare things in several cases. The same vectors
give the same files.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.conformance.outcome import Case

Features: TypeAlias = "tuple[str, ...]"

SELECTION: Final = Path(__file__).parent / "selection"
#: What a case says of the kubelet's answer: it is wrong, or rests on averages.
_FLAGS: Final = (
    "api_invalid_pods",
    "apply_defaults",
    "doc_deviation",
    "expected_noalias",
    "invariant_violations",
    "irregular",
    "outside_available",
)


def select(
    cases: Iterable[Case], number: int, features_of: Callable[[Case], Features]
) -> list[Case]:
    """Return up to `number` cases that show as many features as they can, by name.

    Among cases of the same features short ones come first.
    """
    kinds: defaultdict[Features, list[Case]] = defaultdict(list)
    long_first = sorted(cases, key=lambda case: (len(json.dumps(case)), case["name"]), reverse=True)
    for case in long_first:
        features = features_of(case)
        kinds[*features, " and ".join(features)].append(case)
    seen: Counter[str] = Counter()
    taken: list[Case] = []
    while kinds and len(taken) < number:
        kind = max(kinds, key=lambda kind: sum(1 / (1 + seen[feature]) for feature in kind))
        seen.update(kind)
        taken.append(kinds[kind].pop())
        if not kinds[kind]:
            del kinds[kind]
    return sorted(taken, key=lambda case: str(case["name"]))


def _named(**features: object) -> Features:
    return tuple(f"{name}={value}" for name, value in features.items())


def _flags(case: Case) -> Features:
    return tuple(flag for flag in _FLAGS if case.get(flag))


def _take(case: Case) -> Features:
    topology = case["topology"]
    outcome = next(iter(case["expected"]))
    return _flags(case) + _named(
        op=(case["op"], case["strategy"], case.get("group_size")),
        uncore=case.get("uncore"),
        shape=(topology["num_sockets"], topology["num_numa"]),
        outcome=(case["op"], outcome),
    )


def _cpuhints(case: Case) -> Features:
    hints = case["expected"].get("hints")
    return _flags(case) + _named(
        options=sorted(case["options"]),
        nodes=case["topology"]["num_numa"],
        reusable=bool(case["reusable"]),
        hints=None if hints is None else bool(hints),
    )


def _discover(case: Case) -> Features:
    expected = case["expected"]
    return _named(
        layout=case["name"].rpartition("-")[2],
        threads=expected.get("cpus_per_core"),
        rejected="error" in expected,
    )


def _merge(case: Case) -> Features:
    expected = case["expected"]
    hints = [hints for provider in case["providers"] for hints in (provider or {}).values()]
    return _named(
        named=case["name"] if "/named/" in case["name"] else "",
        policy=case["policy"],
        closest=case["options"].get("prefer-closest-numa-nodes"),
        nodes=len(case["numa"]),
        resources=len(hints),
        no_opinion=None in hints,
        impossible=[] in hints,
        rejected="error" in expected,
        outcome=(case["policy"], expected.get("admit"), expected.get("preferred")),
        width=len(expected.get("mask") or ()),
    )


def _podinfo(case: Case) -> Features:
    spec, expected = case["pod"]["spec"], case["expected"]
    return _named(
        gates=sorted(case["gates"].items()),
        defaults=case["apply_defaults"],
        qos=expected["qos"],
        budget=sorted(spec.get("resources") or ()),
        inits=[one.get("restartPolicy") for one in spec.get("initContainers") or ()],
        apps=len(spec["containers"]),
        cpus=(expected["qos"], bool(expected["pod_cpus"]), bool(expected["pod_level_set"])),
        memory=sorted(expected["pod_memory"]),
        cpu_pool=expected.get("cpu_pod_scope_error") is not None,
        memory_pool=expected.get("memory_pod_scope_error") is not None,
    )


def _checkpoint(case: Case) -> Features:
    return _named(
        name=case["name"] if "/base/" in case["name"] else "",
        version=(case["kind"], case.get("version"), sorted((case.get("gates") or {}).items())),
        entries=len(case.get("entries") or case.get("mem_entries") or ()),
        budgets=len(case.get("pod_entries") or case.get("mem_pod_entries") or ()),
        nodes=len(case.get("machine_state") or ()),
    )


def _restore(case: Case) -> Features:
    return _named(name=case["name"])


def _options(case: Case) -> Features:
    return _named(name=case["name"])


def _sequence(case: Case) -> Features:
    config, expected = case["config"], case["expected"]
    cpu, memory, topology = config["cpu"], config["memory"], config["topology"]
    policies = (cpu["policy"], memory["policy"], topology["policy"], topology["scope"])
    return (
        *_flags(case),
        *_named(
            policies=policies,
            gates=sorted((case.get("gates") or {}).items()),
            nodes=len(case["topology"]["numa"]),
            quantity=cpu.get("quantity") is not None,
            devices=len(config.get("devices") or ()),
            kind=case["name"].split("/")[1] if case["name"].startswith("named/") else "",
            not_started=expected.get("start_error", {}).get("message", "")[:40],
        ),
        *sorted(
            {f"option {name}" for part in (cpu, topology) for name in part.get("options") or ()}
        ),
        *sorted({f"op {step['op']}" for step in case["steps"]}),
        *sorted(set(_answers(expected.get("steps", ())))),
    )


def _answers(steps: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for step in steps:
        for kind in ("panic", "start_error", "state_before_gc"):
            if kind in step:
                yield f"answer {kind}"
        if "admitted" in step:
            yield f"answer {step.get('reason') or 'admitted'}"
        for container in ((step.get("pod") or {}).get("containers") or {}).values():
            yield f"isolation {container['isolation']}"


#: The number of cases to keep of each file, and what is to be found in them.
FAMILIES: Final[dict[str, tuple[int, Callable[[Case], Features]]]] = {
    "take": (800, _take),
    "cpuhints": (250, _cpuhints),
    "discover": (40, _discover),
    "merge": (500, _merge),
    "podinfo": (250, _podinfo),
    "options": (138, _options),
    "admit": (220, _sequence),
    "admit_named": (700, _sequence),
    "lifecycle": (40, _sequence),
    "checkpoint": (100, _checkpoint),
    "restore": (148, _restore),
}


def main() -> None:
    """Rewrite the selection from the folder of recorded cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vectors", type=Path)
    folder = parser.parse_args().vectors
    SELECTION.mkdir(exist_ok=True)
    for family, (number, features_of) in FAMILIES.items():
        chosen = select(_read(folder / f"{family}.jsonl.gz"), number, features_of)
        _write(SELECTION / f"{family}.jsonl.gz", chosen)
        print(f"{family}: {len(chosen)} cases")


def _read(file: Path) -> Iterator[Case]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _write(file: Path, cases: list[Case]) -> None:
    """Write without a time stamp, so that the same cases are the same bytes."""
    lines = "".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases)
    file.write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()
