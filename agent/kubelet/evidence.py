"""What says that a pod of the kubelet has ended, and when that is enough to end its allocation.

Each input of the agent is late, repeats itself or is wrong at times: a kubelet that was restarted
lists no pods for a while, a sandbox is made again, a cgroup is not there yet. So no kind of
evidence is enough at once: two of them are, or one that lasts. A pod that is over before the host
showed anything of it, as one that the kubelet rejected, has ended: no other evidence will come.
A pod that ended while the agent was away is missing from the first list, and its cgroup is gone:
that is two.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

#: How long one kind of evidence has to last alone, in seconds.
ALONE_SECONDS: Final = 30.0
#: How long a pod has to be missing from the kubelet's lists to count as deleted, in seconds.
MISSING_SECONDS: Final = 30.0


class Evidence(Struct, frozen=True):
    """Since when each kind of evidence says that a pod has ended (monotonic seconds, None: not).

    `deleted`: the kubelet reported that the pod is deleted or in a terminal phase. `missing`: the
    kubelet's lists lack it. `unlisted`: the same, confirmed by a list `MISSING_SECONDS` after the
    first, so that it has lasted. `sandbox`: the runtime removed its last sandbox. `cgroup`: its
    cgroup, which was there, is not there, or has no process while lists lack the pod.
    """

    deleted: float | None = None
    missing: float | None = None
    unlisted: float | None = None
    sandbox: float | None = None
    cgroup: float | None = None


NOTHING: Final = Evidence()


def has_ended(evidence: Evidence, now: float, *, reported: bool, with_cgroup: bool) -> bool:
    """Return whether the evidence is enough to end a pod's allocation.

    `reported`: the kubelet, connected now, has reported the pod as one that is to run; a removed
    sandbox or a cgroup that is gone can then be those of a restart. `with_cgroup`: the pod has a
    cgroup; its absence from lists can then be that of a kubelet which does not reach the API
    server.
    """
    kinds = (
        evidence.deleted is not None or evidence.missing is not None,
        evidence.sandbox is not None,
        evidence.cgroup is not None,
    )
    if sum(kinds) > 1:
        return True
    if evidence.unlisted is not None and not with_cgroup:
        return True
    alone = [evidence.deleted]
    if not reported:
        alone += [evidence.sandbox, evidence.cgroup]
    return any(since is not None and now - since >= ALONE_SECONDS for since in alone)
