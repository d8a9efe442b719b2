from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent.pods.manifest import pod_from_document
from agent.pods.model import ManifestError
from tests.conformance.outcome import Verdict
from tests.conformance.podinfo import run_case
from tests.shared import needs_shared, shared_dir

if TYPE_CHECKING:
    from collections.abc import Iterator


def _cases(family: str) -> Iterator[dict[str, Any]]:
    folder = shared_dir()
    assert folder is not None
    with gzip.open(folder / "vectors" / f"{family}.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


@pytest.mark.shared
@needs_shared("vectors/podinfo.jsonl.gz")
def test_every_recorded_pod_amounts_to_what_the_kubelet_says() -> None:
    outcomes = {case["name"]: run_case(case) for case in _cases("podinfo")}
    wrong = {name: o.differences for name, o in outcomes.items() if o.verdict is Verdict.WRONG}
    assert not wrong
    others = {rule for outcome in outcomes.values() for rule in outcome.rules}
    assert others == {"memory of init containers"}


def _has_negative_amount(pod: dict[str, Any]) -> bool:
    # The API server rejects these too; the recording has some that carry no flag.
    return '"-1"' in json.dumps(pod)


@pytest.mark.shared
@needs_shared("vectors/admit.jsonl.gz")
@pytest.mark.parametrize(
    ("family", "stride"), [("admit", 12), ("admit_named", 4), ("lifecycle", 12)]
)
def test_exactly_the_pods_that_an_api_server_rejects_are_rejected(family: str, stride: int) -> None:
    # Every pod that is to be rejected, and every so many of the others: there are 36,000.
    differences = []
    for number, case in enumerate(_cases(family)):
        flagged = set(case.get("api_invalid_pods", ()))
        for pod in (step["pod"] for step in case["steps"] if "pod" in step):
            invalid = pod["metadata"]["uid"] in flagged or _has_negative_amount(pod)
            if not invalid and number % stride:
                continue
            rejected = {_is_rejected(pod, defaults=True), _is_rejected(pod, defaults=False)}
            if rejected != {invalid}:
                differences.append((case["name"], pod["metadata"]["uid"], rejected))
    assert not differences


def _is_rejected(pod: dict[str, Any], *, defaults: bool) -> bool:
    try:
        pod_from_document(pod, "recorded", defaults=defaults)
    except ManifestError:
        return True
    return False
