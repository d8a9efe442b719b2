"""The keys of `agent.kubelet`."""

from __future__ import annotations

from typing import Final

from agent.config.keys.key import Key, KeyGroup, Section
from agent.config.keys.names import OptionalResource
from agent.config.keys.scalars import (
    HttpsAddress,
    OneOf,
    OptionalPath,
    OptionalSocketPath,
    RequiredPath,
    Switch,
)
from agent.config.model import BesideKubeletConfig, OnReject

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
                    "ignored",
                    Switch(),
                    since="0.1.0",
                    help="Whether the agent starts although a kubelet runs here that is not "
                    "enabled. Unless the kubelet has its CPUs reserved here, both give the same "
                    "ones to different pods, and the kubelet removes pods' cgroups that it does "
                    "not know, but for another cgroupRoot.",
                ),
                Key(
                    "directory",
                    RequiredPath(),
                    since="0.1.0",
                    help="The kubelet's directory (--root-dir).",
                ),
                Key(
                    "configFile",
                    OptionalPath(),
                    since="0.1.0",
                    help="The kubelet's configuration (--config), to check that its managers are "
                    'off. "" takes the file that the flags of the running kubelet name, else '
                    "config.yaml in its directory.",
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
                        OnReject.SHARE: "it runs in the shared pool until it ends, over restarts "
                        "of the agent, too",
                    },
                ),
                Key(
                    "podsEndpoint",
                    HttpsAddress(),
                    since="0.1.0",
                    help="The kubelet's endpoint that lists its pods, such as "
                    "https://127.0.0.1:10250/pods. It is asked where the kubelet's Pods API "
                    '(feature gate PodsAPI) does not answer; with "" it is not used.',
                ),
                Key(
                    "tokenFile",
                    OptionalPath(),
                    since="0.1.0",
                    help="A file with the token for podsEndpoint, read at each request: that of a "
                    "service account that may get nodes/pods, or a credential of the unit.",
                ),
                Key(
                    "caFile",
                    OptionalPath(),
                    since="0.1.0",
                    help="A file in PEM form with the authorities that the certificate of "
                    'podsEndpoint is checked with, or that certificate itself; "" for those of '
                    "the system. The certificate has to name the host of podsEndpoint.",
                ),
                Key(
                    "verifyCertificate",
                    Switch(),
                    since="0.1.0",
                    help="Whether the certificate of podsEndpoint is checked. Kubelets sign their "
                    "own unless the cluster does: false sends the token to whichever process "
                    "listens there.",
                ),
                Key(
                    "exclusiveResource",
                    OptionalResource(),
                    since="0.1.0",
                    help="The resource with which a pod opts in to be rejected by the kubelet "
                    "itself where the agent rejects the pod: a container asks for one of it in its "
                    'limits. The agent offers it to the kubelet as a device plugin. With "" it '
                    "does not. An agent that starts after the kubelet, as in a DaemonSet, has it "
                    "reject all such pods at every boot.",
                ),
            ),
        ),
    ),
)
