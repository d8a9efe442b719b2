"""The keys of `agent.kubelet`."""

from __future__ import annotations

from typing import Final

from agent.config.config import BesideKubeletConfig, OnReject
from agent.config.keys.key import Key, KeyGroup, Section
from agent.config.keys.scalars import OneOf, OptionalSocketPath, RequiredPath, Switch

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
                Key(
                    "nriSocket",
                    OptionalSocketPath(),
                    since="0.1.0",
                    help="The socket of the container runtime's NRI, over which containers get "
                    'their CPUs, memory nodes and quota before they start. With "" they get them '
                    "right after.",
                ),
                Key(
                    "onReject",
                    OneOf(OnReject),
                    since="0.1.0",
                    help="What becomes of a pod that the kubelet admitted and that there are no "
                    "exclusive resources for.",
                    values={
                        OnReject.FAIL: "its containers are not created, so that it waits until "
                        "there are",
                        OnReject.SHARE: "it runs in the shared pool",
                    },
                ),
            ),
        ),
    ),
)
