"""How the agent works beside a kubelet, and in a cluster: `agent.kubelet`, `agent.kubernetes`."""

from __future__ import annotations

from pathlib import Path

from agent.config.keys import Section, key, switch
from agent.config.kinds import one_of
from agent.config.text_kinds import (
    HTTPS_ADDRESS,
    NODE_NAME,
    OPTIONAL_PATH,
    OPTIONAL_RESOURCE,
    OPTIONAL_SOCKET,
    PATH,
    SERVER_URL,
)
from agent.values import KeyChoice


class OnReject(KeyChoice):
    """What becomes of a pod that the kubelet admitted and the agent rejects."""

    FAIL = "fail", "its containers are not created; the pod waits until its resources are free"
    SHARE = "share", "it runs in the shared pool until it ends, also after a restart of the agent"


class BesideKubeletConfig(Section, frozen=True):
    """The pods of a cluster, beside this host's kubelet."""

    enabled: bool = switch(
        "Whether the agent admits the pods of this host's kubelet, whose own managers are off. It "
        "needs the extra grpc. See docs/kubernetes.md."
    )
    ignored: bool = switch(
        "Whether the agent starts although this host has a kubelet that is not enabled here. "
        "Reserve the kubelet's CPUs here, and use another cgroupRoot: the kubelet removes cgroups "
        "of pods that it does not know."
    )
    directory: Path = key(Path("/var/lib/kubelet"), PATH, "The kubelet's directory (--root-dir).")
    config_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'The kubelet\'s configuration (--config), to check that its managers are off. "" is the '
        "file that the flags of the running kubelet name, else config.yaml in its directory.",
    )
    nri_socket: Path | None = key(
        Path("/var/run/nri/nri.sock"),
        OPTIONAL_SOCKET,
        "The socket of the container runtime's NRI, over which containers get their CPUs and "
        'memory before they start; with "" they get them right after.',
    )
    on_reject: OnReject = key(
        OnReject.FAIL,
        one_of(OnReject),
        "What becomes of a pod that the kubelet admitted and the agent rejects.",
    )
    pods_endpoint: str = key(
        "",
        HTTPS_ADDRESS,
        "The kubelet's endpoint that lists its pods, such as https://127.0.0.1:10250/pods, "
        'asked where the kubelet\'s Pods API (feature gate PodsAPI) does not answer; "" is none.',
    )
    token_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file with the token for podsEndpoint, read at each request, of a service account that "
        "may get nodes/pods.",
    )
    ca_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file in PEM form with the authorities of the certificate of podsEndpoint, or that "
        'certificate itself; "" for those of the system. The certificate has to name the host.',
    )
    verify_certificate: bool = switch(
        "Whether podsEndpoint's certificate is checked; else any process there gets the token.",
        default=True,
    )
    exclusive_resource: str = key(
        "numawarden.dev/exclusive",
        OPTIONAL_RESOURCE,
        'With this resource a pod opts in to be rejected by the kubelet itself; "" is none. '
        "Where the agent starts after the kubelet, as in a DaemonSet, every boot rejects them all.",
    )

    @property
    def registered_resource(self) -> str:
        """The resource that the agent registers with the kubelet; "" where it registers none."""
        return self.exclusive_resource if self.enabled else ""

    @property
    def plugin_directory(self) -> Path:
        """The directory in which the kubelet and its device plugins have their sockets."""
        return self.directory / "device-plugins"


class KubernetesConfig(Section, frozen=True):
    """What is written to a cluster's API server, if anything. See docs/node-topology.md."""

    publish_topology: bool = switch(
        "Whether a NodeResourceTopology is published, for the topology-aware scheduler."
    )
    events: bool = switch("Whether a pod of the kubelet that the agent rejects gets an Event.")
    read_version: bool = switch(
        "Whether the Node object is asked for the kubelet's version where the kubelet's program "
        "does not say it, as in a pod."
    )
    node_name: str = key(
        "", NODE_NAME, 'The name of this node; "" is $NODE_NAME, else the name of the host.'
    )
    server: str = key(
        "",
        SERVER_URL,
        'The URL of the API server; "" in a pod is that of $KUBERNETES_SERVICE_HOST and '
        "$KUBERNETES_SERVICE_PORT.",
    )
    token_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'A file with the token of the agent\'s service account, read at each request; "" is the '
        "credential kubernetes-token of the unit, else the token of the pod.",
    )
    ca_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'A file in PEM form with the certificate of the cluster\'s authority; "" is the '
        "credential kubernetes-ca of the unit, else the certificate of the pod.",
    )

    @property
    def enabled(self) -> bool:
        """Whether anything is written to the API server."""
        return self.publish_topology or self.events
