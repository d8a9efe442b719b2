"""What hangs on the plugs of the agent where there is a kubelet, or a cluster.

What is not configured is not imported; gRPC is imported only with a kubelet. A kubelet on this host
that the configuration does not name keeps the agent from starting: the two would give the same CPUs
to different pods, and the kubelet removes cgroups of pods that it does not know.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.config.resolve import managers_beside_kubelet
from agent.files import trusted_users
from agent.runtimes import KUBELETS, running_kubelet, served_by_kubelet
from agent.server.errors import StartError, missing_extra
from agent.server.lifecycle import Companion
from agent.server.plugs import Neighbour, Plugs, manifest_directory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from agent.cluster.kubelet.devices import KubeletDevices
    from agent.cluster.kubelet.source import KubeletPods
    from agent.config.model import Config
    from agent.server.controller import Controller
    from agent.server.plugs import CompanionInputs, SourceInputs
    from agent.server.queue import Worker
    from agent.versions import ReportedVersion

ROOT: Final = Path("/")
#: How often a kubelet is looked for that was started after the agent, in seconds.
PERIOD_SECONDS: Final = 60.0
_SUBJECT: Final = "kubelet"
_REMEDY: Final = (
    "stop it, or write `agent: {kubelet: {enabled: true}}` for an agent that manages its pods (see "
    "'numawarden doctor'); `agent: {kubelet: {ignored: true}}` says that both are meant to run, "
    "or that k3s-server has none"
)
_NO_REQUESTS: Final = (
    "the pods of this host are its kubelet's (agent.kubelet.enabled), which would not know this "
    "one; create it in the cluster: kubectl apply"
)


def check_undeclared(config: Config, root: Path = ROOT) -> None:
    """Raise `StartError` if a kubelet runs that the configuration neither enables nor ignores.

    Processes are those below `root`/proc; a kubelet in a program that is not known has sockets.
    """
    kubelet = config.agent.kubelet
    if kubelet.enabled or kubelet.ignored:
        return
    for process in (root / "proc").glob("[0-9]*"):
        name = _kubelet_in(process)
        if name:
            raise _undeclared(running_kubelet(name, int(process.name)))
    socket = served_by_kubelet(root, kubelet.directory, config.agent.own_sockets)
    if socket:
        raise _undeclared(f"a kubelet listens on {socket}")


def _undeclared(runs: str) -> StartError:
    found = f"{runs} and agent.kubelet.enabled is false: two would give the same CPUs to "
    return StartError("agent.kubelet", f"{found}different pods", _REMEDY)


def _kubelet_in(process: Path) -> str:
    """Return the name of root's process with a kubelet: other users call programs as they like."""
    try:
        name = (process / "comm").read_text(errors="replace").strip()
        return name if name in KUBELETS and process.stat().st_uid in trusted_users() else ""
    except OSError:  # it has ended
        return ""


async def watch_undeclared(controller: Controller, config: Config, root: Path) -> None:
    """Keep a condition while a kubelet runs that was started after the agent, until cancelled."""
    conditions = controller.state.observed.conditions
    while True:
        await controller.clock.sleep(PERIOD_SECONDS)
        try:
            await controller.worker.run(check_undeclared, config, root)
        except StartError as error:
            conditions[_SUBJECT] = str(error)
        else:
            conditions.pop(_SUBJECT, None)


def check(config: Config, root: Path | None) -> Neighbour:
    """Return what works beside the agent: the kubelet, or nothing; raises `StartError`."""
    if root is not None:
        check_undeclared(config, root)
    if not config.beside_kubelet:
        return Neighbour()
    from agent.cluster.checks import check_kubelet  # noqa: PLC0415  # only beside one

    kubelet = check_kubelet(config, root or ROOT)
    return Neighbour(
        makes_cgroups=True,
        no_requests=_NO_REQUESTS,
        governing=kubelet.governing,
        managers=managers_beside_kubelet(config),
        conditions=kubelet.conditions(),
    )


def devices_of_kubelet(config: Config, worker: Worker) -> KubeletDevices | None:
    """Return the devices of the kubelet beside the agent, None without one.

    Raises `StartError` without the extra grpc.
    """
    if not config.beside_kubelet:
        return None
    try:
        from agent.cluster.kubelet.devices import KubeletDevices  # noqa: PLC0415  # needs the extra
    except ImportError as error:
        raise missing_extra("agent.kubelet.enabled", error) from error
    kubelet = config.agent.kubelet
    return KubeletDevices(kubelet.directory, worker.run, kubelet.exclusive_resource)


def kubelet_pods(inputs: SourceInputs) -> KubeletPods | None:
    """Return the kubelet beside the agent (`agent.kubelet`) as a source of pods, None without one.

    Raises `StartError` without the extra `grpc`.
    """
    kubelet = inputs.config.agent.kubelet
    if not kubelet.enabled:
        return None
    try:
        from agent.cluster.kubelet.device_checkpoint import DeviceCheckpoint  # noqa: PLC0415
        from agent.cluster.kubelet.pods_api import PodsApi  # noqa: PLC0415  # needs the extra
        from agent.cluster.kubelet.source import KubeletPods  # noqa: PLC0415
        from agent.cluster.kubelet.ways import KubeletWays  # noqa: PLC0415
    except ImportError as error:
        raise missing_extra("agent.kubelet.enabled", error) from error
    endpoint = None
    if kubelet.pods_endpoint:
        from agent.cluster.kubelet.pods_endpoint import EndpointAccess, PodsEndpoint  # noqa: PLC0415  # only for it

        trust = (kubelet.token_file, kubelet.ca_file, kubelet.verify_certificate)
        endpoint = PodsEndpoint(EndpointAccess(kubelet.pods_endpoint, *trust))
    ways = KubeletWays(PodsApi(kubelet.directory), endpoint)
    gate = inputs.config.gates.pod_level_resources
    awaits = DeviceCheckpoint(kubelet.directory, kubelet.exclusive_resource).awaits
    return KubeletPods(
        ways,
        inputs.clock,
        inputs.cgroups,
        pod_level=gate,
        awaits=awaits,
        same_boot=inputs.same_boot,
    )


def companions(inputs: CompanionInputs) -> Iterator[Companion]:
    """Yield what runs beside the agent's own loops."""
    config, controller, kubelet = inputs.config, inputs.controller, inputs.config.agent.kubelet
    if inputs.root is not None and not kubelet.enabled and not kubelet.ignored:
        watch = partial(watch_undeclared, controller, config, inputs.root)
        yield Companion("look for a kubelet", watch)
    if kubelet.enabled:
        from agent.cluster.checks import KubeletWatch  # noqa: PLC0415  # only for it
        from agent.cluster.companions import of_kubelet  # noqa: PLC0415  # only for it

        watched = KubeletWatch(
            config,
            controller,
            inputs.neighbour_conditions,
            inputs.govern,
            inputs.root or ROOT,
            _node_version(config),
        )
        yield Companion("kubelet checks", watched.serve)
        yield from of_kubelet(kubelet, controller, inputs.intakes)
    if config.agent.kubernetes.enabled:
        from agent.cluster.publishing import publishing  # noqa: PLC0415  # only for it

        yield publishing(config.agent.kubernetes, controller)


def _node_version(config: Config) -> Callable[[], Awaitable[ReportedVersion]] | None:
    """Return what asks the Node object, None where that is not configured; raises `StartError`."""
    if not config.agent.kubernetes.read_version:
        return None
    from agent.cluster.kubernetes.node import kubelet_version  # noqa: PLC0415  # only for it
    from agent.cluster.publishing import api_server_and_node  # noqa: PLC0415  # only for it

    return partial(kubelet_version, *api_server_and_node(config.agent.kubernetes))


PLUGS: Final = Plugs(
    sources=(manifest_directory, kubelet_pods),
    check=check,
    given_devices=devices_of_kubelet,
    companions=companions,
)
