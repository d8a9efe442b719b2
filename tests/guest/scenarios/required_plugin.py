"""Pods with the annotation that has them wait for the agent, while it is away.

containerd 2.2 and later have the validator, which deploy/kubernetes/node/containerd-2.toml turns
on. An older one ignores the annotation: containers start unadjusted, and are repaired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside import containerd
from tests.guest.inside.beside import Node, own, pod
from tests.guest.inside.commands import run as command
from tests.guest.inside.kubelet import container
from tests.guest.inside.real_kubelet import PROGRAMS

if TYPE_CHECKING:
    from typing import Any

    from tests.guest.inside.guest import Guest

ANNOTATION: Final = {"required-plugins.noderesource.dev": "[numawarden]"}
SAYS: Final = 'required plugin "numawarden" not present'


def run(guest: Guest) -> None:
    """Start pods with and without the annotation while the agent is away."""
    node = Node.started(guest)
    checks, kubelet = node.checks, node.kubelet
    own_runtime = containerd.DROP_IN.exists()
    program = PROGRAMS / "containerd" if own_runtime else "containerd"
    guest.log("containerd-version.txt", command(program, "--version"))
    node.agent.stop()
    plain = kubelet.put(pod("plain", 1, container("app")))
    must = kubelet.put(_annotated(pod("must", 2, own("app", 2))))
    checks.eventually("a pod without it runs", lambda: kubelet.phase(plain), "Running")
    if own_runtime:
        checks.eventually(
            "one with it waits, and says for what",
            lambda: SAYS in kubelet.waits_for(must, "app"),
            expected=True,
        )
        node.agent.start()
        checks.eventually("it starts by itself", lambda: kubelet.phase(must), "Running")
        checks.equal("with its CPUs", len(node.cpus(must, "app")), 2)
    else:
        checks.eventually("one with it runs, too", lambda: kubelet.phase(must), "Running")
        found = node.cpus(must, "app")
        checks.check("without CPUs of its own", len(found) > 2, found)
        node.agent.start()
        checks.eventually("it is repaired", lambda: len(node.cpus(must, "app")), 2)
    given = node.cpus(must, "app")
    checks.eventually("no other has them", lambda: node.cpus(plain, "app") & given, frozenset())


def _annotated(manifest: dict[str, Any]) -> dict[str, Any]:
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": ANNOTATION}}
