"""Manifests: what is accepted is a pod of bounded facts, and can be decided and let go again."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from agent.managers.admission import admit, remove
from agent.managers.policy import PluginDevice
from agent.pods.manifest import load_pod
from agent.pods.model import ManifestError
from cgroupfs.names import Driver, Layout, Tier
from sysfs.mask import Mask
from tests.agent.managers.hosts import CONTAINER, SMT, make_rules
from tests.conformance.invariants import broken_invariants
from tests.fuzz.damage import damaged_document, written
from tests.fuzz.target import Target, demand, plain_check
from tests.fuzz.texts import naive_json, naive_nano

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod, Resources
    from agent.pods.quantity import Quantity

_EXAMPLES: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples"
_LIMIT: Final = 1 << 20
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PATH: Final = re.compile(r"(kubepods[-.A-Za-z0-9_]*)(/[-.A-Za-z0-9_]+)*")
_MOST: Final = 2**63 - 1
_BOTH: Final = {"cpu": "2", "memory": "1Gi"}


def _more() -> dict[str, object]:
    """Return a pod with a container of every kind, devices and huge pages."""
    amounts = {**_BOTH, "example.com/gpu": "1", "hugepages-2Mi": "4Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "all", "uid": "0f-1", "annotations": {"a": "b"}},
        "spec": {
            "initContainers": [
                {"name": "once", "resources": {"requests": _BOTH, "limits": _BOTH}},
                {"name": "beside", "restartPolicy": "Always", "resources": {"limits": _BOTH}},
            ],
            "containers": [
                {"name": "app", "resources": {"requests": amounts, "limits": amounts}},
                {"name": "rest", "resources": {"requests": {"cpu": "100m"}}},
            ],
        },
        "status": {"qosClass": "Burstable"},
    }


BASES: Final = (
    *(json.dumps(yaml.safe_load(file.read_text())) for file in sorted(_EXAMPLES.glob("*.yaml"))),
    json.dumps(_more()),
)
_GPUS: Final = {"example.com/gpu": (PluginDevice("d0", Mask.of(0)), PluginDevice("d1"))}
_RULES: Final = (
    make_rules(SMT, devices=_GPUS),
    make_rules(SMT, scope=CONTAINER, devices=_GPUS, full_pcpus_only=True),
)


def make_manifest(random: Random) -> bytes:
    """Draw a damaged manifest."""
    return written(random, damaged_document(random, json.loads(random.choice(BASES))))


def check_manifest(data: bytes) -> bool:
    """Try one manifest."""
    try:
        pod = load_pod(data, "fuzz", max_bytes=_LIMIT)
    except ManifestError as error:
        demand(error.problems, "rejected without a reason")
        demand(len(str(error)) < 100 * _LIMIT, "a rejection without end")
        return False
    demand(load_pod(data, "fuzz", max_bytes=_LIMIT) == pod, "read twice, it is two pods")
    _check_facts(pod)
    _check_reading(data, pod)
    for rules in _RULES:
        check_decision(rules, pod)
    return True


def check_decision(rules: EffectivePolicy, pod: Pod) -> None:
    """Decide on a pod; an admission breaks no invariant, and a removal leaves nothing behind."""
    empty = rules.empty_ledger()
    decision = admit(rules, empty, pod)
    broken = broken_invariants(rules, decision.ledger)
    demand(not broken, f"{broken}")
    if decision.allocation is None:
        demand(decision.rejection is not None, "neither admitted nor rejected")
        demand(decision.ledger == empty, "a rejected pod left something behind")
    else:
        demand(remove(rules, decision.ledger, pod.uid) == empty, "a removal left something behind")


def _check_facts(pod: Pod) -> None:
    demand(_LABEL.fullmatch(pod.namespace), f"namespace {pod.namespace!r}")
    demand(len(pod.name) <= 253 and set(pod.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-."),
           f"name {pod.name!r}")  # fmt: skip
    names = [container.name for container in pod.all_containers()]
    demand(len(set(names)) == len(names), "two containers of one name")
    demand(all(_LABEL.fullmatch(name) for name in names), f"container names {names}")
    for layout in (Layout(Driver.CGROUPFS), Layout(Driver.SYSTEMD)):
        path = layout.pod(pod.uid, Tier.GUARANTEED)
        parts = path.split("/")
        demand(_PATH.fullmatch(path) and not {"", ".", ".."} & set(parts), f"cgroup {path!r}")
        demand(all(len(part) <= 255 for part in parts), f"cgroup {path!r} is too long")
    for resources in (*(c.resources for c in pod.all_containers()), pod.resources):
        if resources is not None:
            _check_amounts(resources)


def _check_reading(data: bytes, pod: Pod) -> None:
    """Compare with what a reader of JSON alone makes of the same text."""
    document = naive_json(data)
    if document is None:
        return
    demand(pod.name == document["metadata"]["name"], "it has another name")
    demand(pod.uid == (document["metadata"].get("uid") or pod.uid), "it has another uid")
    for key, containers in (
        ("containers", pod.containers),
        ("initContainers", pod.init_containers),
    ):
        written_ones = document["spec"].get(key) or []
        demand(len(containers) == len(written_ones), f"{len(containers)} {key}")
        for container, stated in zip(containers, written_ones, strict=True):
            demand(container.name == stated["name"], f"{container.name} is {stated['name']}")
            resources = stated.get("resources") or {}
            _check_stated(container.resources.requests, resources.get("requests") or {})
            _check_stated(container.resources.limits, resources.get("limits") or {})


def _check_stated(read: Mapping[str, Quantity], stated: Mapping[str, str | None]) -> None:
    for name, text in stated.items():
        if text is not None:
            milli = -(-naive_nano(text) // 10**6)  # amounts in resources are rounded up to these
            demand(read[name].nano == milli * 10**6, f"{name} is {read[name]}, not {text}")


def _check_amounts(resources: Resources) -> None:
    stated: list[Mapping[str, Quantity]] = [resources.requests, resources.limits]
    for amounts in stated:
        for name, amount in amounts.items():
            demand(amount.nano >= 0 and amount.value <= _MOST, f"{amount} of {name}")
    for requests, limits in combinations(stated, 2):
        for name in requests.keys() & limits.keys():
            demand(requests[name] <= limits[name], f"more {name} requested than allowed")


MANIFESTS: Final = Target("manifest", make_manifest, plain_check(check_manifest), weight=8)
