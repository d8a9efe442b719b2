"""The keys of `agent.kubelet`."""

from __future__ import annotations

from typing import Final

from agent.config.config import BesideKubeletConfig
from agent.config.keys.key import Key, KeyGroup, Section
from agent.config.keys.scalars import RequiredPath, Switch

BESIDE_KUBELET: Final = Section(
    BesideKubeletConfig(),
    (
        KeyGroup(
            "Beside a kubelet",
            (
                Key(
                    "enabled",
                    Switch(),
                    since="0.1.0",
                    help="Whether the pods of this host's kubelet are admitted. The kubelet makes "
                    "and removes their cgroups, and its own managers are off. It needs the extra "
                    "grpc: pip install 'numawarden[grpc]'. See docs/kubernetes.md.",
                ),
                Key(
                    "directory",
                    RequiredPath(),
                    since="0.1.0",
                    help="The kubelet's directory (--root-dir).",
                ),
            ),
        ),
    ),
)
