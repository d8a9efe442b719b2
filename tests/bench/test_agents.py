"""The figures of a whole agent are of pods that were admitted and of containers that run."""

from __future__ import annotations

import asyncio

from tests.bench import agents


def test_a_pass_is_measured_with_every_container_of_several_pods() -> None:
    figure = asyncio.run(agents.reconciled(2, passes=3))

    assert figure.name == "reconcile/2n128c/containers10"
    assert figure.n == 3


def test_admissions_are_measured_beside_the_pods_of_a_checkpoint() -> None:
    _, admitted = asyncio.run(agents.started(3, admissions=2))

    assert len(admitted) == 2
