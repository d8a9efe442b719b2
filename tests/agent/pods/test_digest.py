from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from agent.pods.model import Pod, QosClass, Resources, spec_digest, spec_text
from tests.agent.pods.pods import amounts, app, guaranteed, init, pod, resources, sidecar

_BASE = pod(app("a", guaranteed("cpu=1 memory=1Gi")), init("i"), of_pod=guaranteed("cpu=2"))


def test_the_digest_is_stable_across_versions() -> None:
    # Checkpoints contain digests: with a change here, no pod of a checkpoint is recognized.
    assert spec_digest(pod(app("a"))) == (
        "e4d780c92759a0699c80a0df4d99584c27ff07209537f9b495849f50a6398933"
    )


@pytest.mark.parametrize(
    "asking",
    [
        _BASE,
        pod(app("a")),
        pod(app("a"), app("b", resources("cpu=1n memory=99E")), status_qos=QosClass.GUARANTEED),
        pod(app('a"\\\n\u00e4\u2028'), sidecar("s", guaranteed("cpu=1 example.com/x=3"))),
    ],
)
def test_what_is_digested_is_what_a_json_encoder_writes(asking: Pod) -> None:
    def amounts(of: Resources) -> list[list[tuple[str, int]]]:
        return [sorted((n, a.nano) for n, a in side.items()) for side in (of.requests, of.limits)]

    containers = [[c.name, c.kind, amounts(c.resources)] for c in asking.all_containers()]
    budget = None if asking.resources is None else amounts(asking.resources)
    expected = [1, containers, budget, asking.status_qos]
    assert spec_text(asking) == json.dumps(expected, separators=(",", ":"))


def test_neither_identity_nor_notation_nor_order_of_names_matters() -> None:
    other = pod(
        app("a", guaranteed("memory=1024Mi cpu=1000m")),
        init("i"),
        of_pod=guaranteed("cpu=2000m"),
        uid="another",
        annotations={"x": "y"},
    )
    assert spec_digest(other) == spec_digest(_BASE)


@pytest.mark.parametrize(
    "other",
    [
        replace(_BASE, resources=None),
        replace(_BASE, resources=resources()),
        replace(_BASE, status_qos=QosClass.BURSTABLE),
        replace(_BASE, init_containers=()),
        replace(_BASE, init_containers=(sidecar("i"),)),
        replace(_BASE, init_containers=(init("j"),)),
        replace(_BASE, containers=(app("a", guaranteed("cpu=1 memory=2Gi")),)),
        replace(_BASE, containers=(app("a", resources("cpu=1 memory=1Gi")),)),
        replace(_BASE, containers=(*_BASE.containers, app("b"))),
    ],
)
def test_whatever_a_decision_depends_on_changes_the_digest(other: Pod) -> None:
    assert spec_digest(other) != spec_digest(_BASE)
    assert spec_digest(pod(app("a"), app("b"))) != spec_digest(pod(app("b"), app("a")))


def test_overhead_changes_the_digest_and_none_does_not() -> None:
    assert spec_digest(replace(_BASE, overhead=amounts("cpu=1"))) != spec_digest(_BASE)
    assert json.loads(spec_text(replace(_BASE, overhead=amounts("cpu=1"))))[4:] == [
        [["cpu", 1_000_000_000]]
    ]
