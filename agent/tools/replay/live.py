"""A sequence that begins with what a running agent has: its machine, policy and allocations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config.load import load_config
from agent.config.resolve import managers_beside_kubelet, resolve
from agent.managers.effective_policy import EffectivePolicy
from agent.managers.registry import MANAGERS
from agent.pods.errors import ManifestError
from agent.pods.manifest import API_SOURCE, load_pod
from agent.state.codec import decode
from agent.tools.replay.play import Admit, ReplaySequence
from agent.tools.replay.reading import ReplayError
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.api.snapshot import SnapshotDocument

NAME: Final = "the agent's host"
#: What errors call the two documents that the agent sends.
_CONFIG: Final = "configuration of the agent"
_CHECKPOINT: Final = Path("checkpoint of the agent")


def live_sequence(
    snapshot: SnapshotDocument,
    manifests: Iterable[tuple[Path, bytes]],
    settings: Sequence[str] = (),
) -> ReplaySequence:
    """Return the admission of the pods of manifests, one after the other, as the agent would.

    A pod has the devices that the kubelet beside the agent gave to the pod of its name.
    `settings` are `key=value` texts that are laid over the agent's configuration. A pod without a
    uid has the one that the API would give it. Raises `ConfigError` for a configuration that is
    wrong or does not fit the machine, `ReplayError` for a manifest, `UnusableCheckpointError` for
    a checkpoint of another release, `CpuTopologyError`.
    """
    machine = snapshot.machine()
    config = load_config(snapshot.config, _CONFIG, settings)
    policy = resolve(config, machine, offline=Mask.parse(snapshot.offline), source=_CONFIG)
    rules = EffectivePolicy(machine, policy, (*managers_beside_kubelet(config), *MANAGERS))
    pod_level = config.gates.pod_level_resources
    steps = tuple(
        (number, _admit(snapshot, path, content, pod_level=pod_level))
        for number, (path, content) in enumerate(manifests)
    )
    ledger = decode(bytes(snapshot.checkpoint), _CHECKPOINT).ledger
    return ReplaySequence(NAME, rules, steps, ledger)


def _admit(snapshot: SnapshotDocument, path: Path, content: bytes, *, pod_level: bool) -> Admit:
    try:
        pod = load_pod(content, API_SOURCE, pod_level=pod_level)
    except ManifestError as error:
        raise ReplayError(str(path), error.problems) from error
    given = replace(pod, given_devices=snapshot.given(pod))
    return Admit(f"{pod.namespace}/{pod.name}", pod.uid, given)
