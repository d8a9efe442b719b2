"""The annotations that say what ends a pod, and near which nodes it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.pods.manifest import load_pod
from agent.pods.model import (
    END,
    EXCLUSIVE,
    INTERRUPTS,
    MEMORY_CLASSES,
    NEAR_NODES,
    POWER,
    ROUND_UP,
    SMT,
    UNIT,
    End,
    Lifetime,
    ManifestError,
    isolation_annotation,
    lifetime_of,
)

if TYPE_CHECKING:
    from agent.pods.model import Pod


def load(annotations: dict[str, str], containers: int = 1) -> Pod:
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", "  name: a", "  annotations:"]
    lines += [f"    {name}: '{text}'" for name, text in annotations.items()]
    lines += ["spec:", "  containers:"]
    lines += [f"  - {{name: c{number}}}" for number in range(containers)]
    return load_pod("\n".join(lines), "pod.yaml")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"example.com/other": "x"}, Lifetime()),
        ({END: "removal"}, Lifetime()),
        ({END: "processes"}, Lifetime(End.PROCESSES)),
        ({UNIT: "postgresql@15-main.service"}, Lifetime(End.UNIT, "postgresql@15-main.service")),
        ({UNIT: "run-r1.scope"}, Lifetime(End.UNIT, "run-r1.scope")),
    ],
)
def test_a_pod_lasts_as_its_annotations_say(
    annotations: dict[str, str], expected: Lifetime
) -> None:
    assert lifetime_of(load(annotations).annotations) == expected


@pytest.mark.parametrize(
    ("annotations", "containers", "message"),
    [
        ({END: "later"}, 1, "'later' is not one of removal, processes"),
        ({END: "unit"}, 1, "'unit' is not one of removal, processes"),
        ({UNIT: "user.slice"}, 1, "is not the name of a .service or .scope of systemd"),
        ({UNIT: "../x.service"}, 1, "is not the name of a .service or .scope of systemd"),
        ({UNIT: ""}, 1, "is not the name of a .service or .scope of systemd"),
        ({UNIT: "a.service", END: "processes"}, 1, "leave one of the two out"),
        ({UNIT: "a.service"}, 2, "a unit is one container, the pod has 2"),
        ({isolation_annotation(INTERRUPTS): "on"}, 1, "'on' is not one of off, own-devices"),
        ({isolation_annotation(SMT): "off"}, 1, "'off' is not one of idle-siblings"),
        ({isolation_annotation(POWER): "no class"}, 1, "'no class' is not a name"),
        ({isolation_annotation(MEMORY_CLASSES): "dram," * 300}, 1, "it has 1500 characters"),
        ({NEAR_NODES: "eth0"}, 1, "near-nodes"),
        ({NEAR_NODES: ""}, 1, "it lists no node"),
        ({ROUND_UP: "caches"}, 1, "'caches' is not one of cores"),
        ({EXCLUSIVE: " , "}, 1, "it names no container; leave it out or name some"),
        ({EXCLUSIVE: "c0,proxy"}, 1, 'the pod has no container "proxy"'),
        ({EXCLUSIVE: "c0"}, 1, "container c0: its cpu request 0 is not a positive whole number"),
    ],
)
def test_an_annotation_without_meaning_is_a_mistake_of_its_manifest(
    annotations: dict[str, str], containers: int, message: str
) -> None:
    with pytest.raises(ManifestError, match=r"metadata\.annotations") as raised:
        load(annotations, containers)
    assert message in str(raised.value)
