"""A stock kubelet's pods, run by containerd, with the agent beside: what they ask for they get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.inside import containerd
from tests.guest.inside.kubelet import Kubelet, amounts, container

if TYPE_CHECKING:
    from typing import Any

    from tests.guest.inside.guest import Guest


def pod(name: str, number: int, **spec: object) -> dict[str, Any]:
    """Return a manifest."""
    uid = f"5526cafe-0000-4000-8000-{number:012x}"
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def run(guest: Guest) -> None:
    """Run pods of every shape."""
    checks = guest.checks
    containerd.start(guest, "systemd", nri=True)
    kubelet = Kubelet(guest)
    kubelet.start("--retry=2", "--linger=2")
    init = container("init", command=["/bin/true"])
    side = container("side", restartPolicy="Always")
    apps = [container("app", amounts(2)), container("aux")]
    uid = kubelet.put(
        pod(
            "mixed",
            1,
            initContainers=[init, side],
            containers=apps,
            resources={"limits": amounts(4, 512)},
        )
    )
    checks.eventually("runs", lambda: kubelet.phase(uid), "Running")
    print(kubelet.pod_cgroup(uid), kubelet.cgroup(uid, "app").cpus)
    for number in range(6):
        kubelet.put(pod(f"many-{number}", 100 + number, containers=[container("app")]))
    checks.eventually(
        "six run",
        lambda: sum(each["phase"] == "Running" for each in kubelet.state().values()),
        21,
    )
    kubelet.remove("mixed")
    checks.eventually("gone", lambda: kubelet.phase(uid), "")
    kubelet.restart("--blind=5")
    checks.eventually(
        "back", lambda: sum(each["phase"] == "Running" for each in kubelet.state().values()), 20
    )
