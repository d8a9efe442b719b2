"""etcd, an API server and a scheduler on the host's loopback, for the kubelet of one guest.

There is no controller manager: pods are made by the tests, and nothing taints a node. The guest
reaches the host's loopback at `HOST`, which QEMU's user network has.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fakes.certificate import write_certificate
from tests.guest import host
from tests.guest.errors import GuestError
from tests.guest.kubernetes.programs import KUBECTL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.guest.kubernetes.programs import Programs

LOOPBACK: Final = "127.0.0.1"
#: The host as a guest sees it.
HOST: Final = "10.0.2.2"
#: The guest's node.
NODE: Final = "guest"
#: Seconds until etcd and the API server answer.
PATIENCE: Final = 300.0
PAUSE: Final = 0.5
MANIFESTS: Final = Path(__file__).with_name("manifests")
#: What a volume with a service account's token has besides it, a ConfigMap and its key; the second
#: in OpenShift's builds.
AUTHORITIES: Final = {"kube-root-ca.crt": "ca.crt", "openshift-service-ca.crt": "service-ca.crt"}
#: Who may do what: name, group.
USERS: Final = {
    "admin": "system:masters",
    f"system:node:{NODE}": "system:nodes",
    "system:kube-scheduler": "",
}


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane: its directory, its address on the host, a token of each user."""

    directory: Path
    port: int
    tokens: Mapping[str, str]

    @property
    def certificate(self) -> Path:
        """The certificate of the API server, which is its own authority."""
        return self.directory / "server.crt"

    def kubeconfig(self, user: str, address: str = LOOPBACK) -> Path:
        """Write a user's configuration for the API server at an address and return the file."""
        cluster = {
            "server": f"https://{address}:{self.port}",
            "certificate-authority-data": base64.b64encode(self.certificate.read_bytes()).decode(),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "guest", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "guest", "context": {"cluster": "guest", "user": "user"}}],
            "current-context": "guest",
        }
        file = self.directory / f"{user.replace(':', '-')}@{address}.kubeconfig"
        file.write_text(json.dumps(content))
        return file

    def kubectl(self, *arguments: str | Path) -> str:
        """Run kubectl as admin and return what it printed; raises `CommandError`."""
        return host.run([KUBECTL, f"--kubeconfig={self.kubeconfig('admin')}", *arguments])

    def files(self) -> dict[str, str]:
        """Return what the guest gets of it: the files' texts by their names."""
        node = self.kubeconfig(f"system:node:{NODE}", HOST)
        token = self.kubectl("create", "token", "--namespace=numawarden", "numawarden")
        return {
            "server": f"https://{HOST}:{self.port}",
            "ca.crt": self.certificate.read_text(),
            "admin.token": self.tokens["admin"],
            "agent.token": token.strip(),
            "admin.kubeconfig": self.kubeconfig("admin", HOST).read_text(),
            "node.kubeconfig": node.read_text(),
        }


@contextmanager
def started(programs: Programs, etcd: Sequence[str], directory: Path) -> Iterator[ControlPlane]:
    """Run a control plane in a directory: etcd, the API server with the agent's roles, a scheduler.

    Raises `GuestError` where one of them does not start.
    """
    directory.mkdir(parents=True)
    client, peer, port = (_free_port() for _ in range(3))
    tokens = {user: secrets.token_hex(16) for user in USERS}
    plane = ControlPlane(directory, port, tokens)
    with ExitStack() as stack:
        stack.enter_context(_running(directory, "etcd", _etcd(etcd, directory, client, peer)))
        _write_credentials(plane)
        api_server = _api_server(programs, plane, client)
        stack.enter_context(_running(directory, "kube-apiserver", api_server))
        _await(plane)
        _prepare(plane)
        config = plane.kubeconfig("system:kube-scheduler")
        scheduler = [
            str(programs.scheduler),
            *(f"--kubeconfig={config}", f"--authentication-kubeconfig={config}"),
            *(f"--authorization-kubeconfig={config}", "--leader-elect=false"),
            *(f"--bind-address={LOOPBACK}", f"--secure-port={_free_port()}"),
        ]
        stack.enter_context(_running(directory, "kube-scheduler", scheduler))
        yield plane


def _etcd(etcd: Sequence[str], directory: Path, client: int, peer: int) -> list[str]:
    here, there = f"http://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{peer}"
    return [
        *etcd,
        *(f"--data-dir={directory / 'etcd'}", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={here}", f"--advertise-client-urls={here}"),
        *(f"--listen-peer-urls={there}", f"--initial-advertise-peer-urls={there}"),
        f"--initial-cluster=default={there}",
    ]


def _write_credentials(plane: ControlPlane) -> None:
    pair = write_certificate(plane.directory / "server.pem", (LOOPBACK, HOST))
    certificate, key = pair.read_text().split("-----BEGIN EC")
    plane.certificate.write_text(certificate)
    (plane.directory / "server.key").write_text("-----BEGIN EC" + key)
    lines = (f'{plane.tokens[user]},{user},{user},"{group}"\n' for user, group in USERS.items())
    (plane.directory / "tokens.csv").write_text("".join(lines))


def _api_server(programs: Programs, plane: ControlPlane, client: int) -> list[str]:
    directory = plane.directory
    key = directory / "server.key"
    return [
        str(programs.api_server),
        f"--etcd-servers=http://{LOOPBACK}:{client}",
        *(f"--bind-address={LOOPBACK}", f"--secure-port={plane.port}"),
        *(f"--advertise-address={HOST}", "--endpoint-reconciler-type=none"),
        *(f"--tls-cert-file={plane.certificate}", f"--tls-private-key-file={key}"),
        *("--service-account-issuer=https://guest.invalid", f"--service-account-key-file={key}"),
        *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/16"),
        *(f"--token-auth-file={directory / 'tokens.csv'}", "--authorization-mode=Node,RBAC"),
        # It needs the controller manager that is not there.
        "--disable-admission-plugins=TaintNodesByCondition",
    ]


def _prepare(plane: ControlPlane) -> None:
    """Give the API server the agent's objects and the definition of NodeResourceTopology.

    And what a controller manager would make: service accounts, the authority's certificate.
    """
    plane.kubectl("apply", "--server-side", "--kustomize", MANIFESTS)
    plane.kubectl("create", "serviceaccount", "default")
    for name, key in AUTHORITIES.items():
        certificate = f"--from-file={key}={plane.certificate}"
        plane.kubectl("create", "configmap", name, "--namespace=numawarden", certificate)


def _await(plane: ControlPlane) -> None:
    """Wait until the API server is ready; raises `GuestError` where it is not in `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            plane.kubectl("get", "--raw=/readyz", "--request-timeout=5s")
        except GuestError as error:
            if time.monotonic() > deadline:
                log = plane.directory / "kube-apiserver.log"
                raise GuestError(f"the API server is not ready: {error}", f"see {log}") from error
            time.sleep(PAUSE)
        else:
            return


@contextmanager
def _running(directory: Path, name: str, command: Sequence[str]) -> Iterator[None]:
    """Run a program, its words in a log, until the end of the context."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory)},
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
