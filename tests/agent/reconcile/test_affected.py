from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from agent.managers.bindings import Binding, Bindings
from agent.pods.model import QosClass
from agent.reconcile.pod_classes import NO_PODS
from agent.reconcile.scope import AffectedPods, scope_of
from tests.agent.reconcile.pods import exclusive, mixed, on_host, pod, target

if TYPE_CHECKING:
    from agent.reconcile.target import Desired
    from sysfs.mask import Mask

WEB = pod(on_host("web"), uid="web")
API = pod(on_host("api"), uid="api")
DATABASE = mixed(uid="database")
BATCH = pod(exclusive("batch", "8-9"), uid="batch")
HALF = pod(exclusive("own", "4"), on_host("rest"), uid="api")
BURSTABLE, SPLIT = (replace(each, qos=QosClass.BURSTABLE) for each in (WEB, DATABASE))
CHANGED = replace(WEB, containers=(on_host("web", limit=500),))
MOVED = replace(BATCH, containers=(exclusive("batch", "8"),))


def bound(desired: Desired, *bindings: tuple[str, str]) -> Desired:
    entries = tuple(Binding(uid, uid, cgroup) for uid, cgroup in bindings)
    return replace(desired, bindings=Bindings(entries))


def affects(*uids: str, of_class: str = "", **more: Any) -> AffectedPods:  # noqa: ANN401
    """Return these pods and, by its letters, the pods whose own cgroups are looked at."""
    return AffectedPods(frozenset(uids), boundaries=frozenset(of_class.split()), **more)


ELSEWHERE = ("web", "system.slice/x")
INSIDE = ("api", "kubepods/podapi/x")
PAIR = target(WEB, API)
#: What was desired, what is desired now, the pod that was asked for, and what is looked at.
CASES: Final[dict[str, tuple[Desired | None, Desired, str, AffectedPods | None]]] = {
    "all where nothing is known": (None, target(WEB), "web", None),
    "none without a change": (target(WEB, BATCH), target(WEB, BATCH), "", affects()),
    "a pod in the pool alone": (target(WEB, BATCH), target(WEB, BATCH, API), "api", affects("api")),
    # CPUs change hands: the own cgroups of Guaranteed pods have less.
    "those that lose CPUs": (
        target(WEB), target(WEB, BATCH), "batch", affects("batch", of_class="web", orphaned=True),
    ),
    "those of a pod that is asked for again": (
        target(WEB, BATCH), target(WEB, BATCH), "batch",
        affects("batch", of_class="web", orphaned=True),
    ),
    "no pods that inherit from their class": (
        target(BURSTABLE), target(BURSTABLE, BATCH), "batch", affects("batch", orphaned=True),
    ),
    "all where a class does not confine": (target(SPLIT), target(SPLIT, BATCH), "batch", None),
    "all after a class did not": (target(SPLIT, BATCH), target(BATCH), "", None),
    "a pod that shares beside CPUs of its own, in full": (
        target(HALF, WEB), target(HALF, WEB, BATCH), "batch",
        affects("api", "batch", of_class="web", orphaned=True),
    ),
    "a pod bound elsewhere, in full": (
        bound(PAIR, ELSEWHERE, INSIDE), bound(target(WEB, API, BATCH), ELSEWHERE, INSIDE), "batch",
        affects("batch", "web", of_class="api", orphaned=True),
    ),
    "a change that came unasked": (
        target(WEB, BATCH), target(CHANGED, BATCH, API), "api", affects("web", "api", gone=(WEB,)),
    ),
    "CPUs that changed unasked": (
        target(WEB, BATCH), target(WEB, MOVED, API), "api",
        affects("api", "batch", of_class="web", gone=(BATCH,), orphaned=True),
    ),
    "a pod that left": (target(WEB, API, BATCH), target(WEB, BATCH), "", affects(gone=(API,))),
    "those that CPUs come back to": (
        target(WEB, API, DATABASE, BATCH), target(WEB, API, DATABASE), "",
        affects(of_class="web api database", gone=(BATCH,), orphaned=True),
    ),
    "who gets a cgroup": (PAIR, bound(PAIR, ELSEWHERE), "", affects("web")),
    "who gets it and who loses it": (
        bound(PAIR, ELSEWHERE), bound(PAIR, ("api", "system.slice/x")), "", affects("web", "api"),
    ),
    "who loses it": (bound(PAIR, ELSEWHERE), PAIR, "", affects("web")),
    "who is bound around it": (
        bound(PAIR, ELSEWHERE), bound(PAIR, ELSEWHERE, ("api", "system.slice/x/y")), "",
        affects("web", "api"),
    ),
    "who was bound inside": (
        bound(PAIR, ELSEWHERE, ("api", "system.slice/x/y")), bound(PAIR, ELSEWHERE), "",
        affects("web", "api"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_change_affects(case: str) -> None:
    before, after, uid, expected = CASES[case]

    def shares(uid: str, _pool: Mask) -> bool:
        return uid in ("web", "api")

    classes = NO_PODS.of(after.ledger.allocations)
    uids = filter(None, (uid,))
    assert (
        scope_of(before, after, tuple(uids), shares, frozenset(), "kubepods", classes) == expected
    )
