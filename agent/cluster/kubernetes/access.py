"""How the API server of a cluster is reached: its address, a token, a certificate authority.

1. What `agent.kubernetes` names holds.
2. An address that it does not name is that of KUBERNETES_SERVICE_HOST and _PORT. A token and a
   certificate authority are credentials of the agent's unit (`LoadCredential`, systemd.exec), or
   else files of the service account that Kubernetes puts into every container of a pod.

No file is opened here: each request reads them (`agent.cluster.kubernetes.api_server`).
"""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.cluster import KubernetesConfig


#: Where Kubernetes puts the files of a pod's service account.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: The names of the unit's credentials.
TOKEN_CREDENTIAL: Final = "kubernetes-token"  # noqa: S105  # the name of a file
CA_CREDENTIAL: Final = "kubernetes-ca"
#: Where systemd has the credentials as long as the unit runs, readable for root.
UNIT_CREDENTIALS: Final = Path("/run/credentials/numawarden.service")
_HTTPS_PORT: Final = 443
#: What to do where a file is missing.
_REMEDIES: Final = {
    "tokenFile": "name a file with the token of a service account, or give the unit the credential "
    f"{TOKEN_CREDENTIAL} (LoadCredential={TOKEN_CREDENTIAL}:FILE)",
    "caFile": "name a file with the certificate of the cluster's certificate authority, or give "
    f"the unit the credential {CA_CREDENTIAL} (LoadCredential={CA_CREDENTIAL}:FILE)",
}


class ApiAccess(Struct, frozen=True):
    """How the API server is reached."""

    host: str
    port: int
    #: The path before `/api`, mostly "".
    prefix: str
    token_file: Path
    ca_file: Path

    @property
    def url(self) -> str:
        """The URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}{self.prefix}"


class AccessError(Exception):
    """The API server cannot be asked; `key` is of `agent.kubernetes`, with a remedy."""

    def __init__(self, key: str, found: str, remedy: str) -> None:
        super().__init__(f"agent.kubernetes.{key}: {found}; {remedy}")
        self.key = key
        self.found = found
        self.remedy = remedy

    @property
    def advice(self) -> str:
        """What was found and what to do, without the key."""
        return f"{self.found}; {self.remedy}"


def api_access(
    config: KubernetesConfig,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
) -> ApiAccess:
    """Return how to reach the API server, without a look at the files.

    Raises `AccessError` if neither configuration nor environment names a server.
    """
    token = config.token_file or _default(TOKEN_CREDENTIAL, "token", environ, service_account)
    ca = config.ca_file or _default(CA_CREDENTIAL, "ca.crt", environ, service_account)
    if config.server:
        url = urlsplit(config.server)
        return ApiAccess(url.hostname or "", url.port or _HTTPS_PORT, url.path, token, ca)
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "") or str(_HTTPS_PORT)
    if not host or not port.isascii() or not port.isdigit():
        raise AccessError(
            "server",
            "not set, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of this process name "
            "no server",
            "set it to the URL of the API server, such as https://10.0.0.1:6443",
        )
    return ApiAccess(host, int(port), "", token, ca)


def node_name(config: KubernetesConfig, environ: Mapping[str, str]) -> str:
    """Return the name of this host as a node: configured, of `$NODE_NAME`, or the host's name.

    The kubelet names its node by the host's name in lower case, too (`--hostname-override`).
    """
    return config.node_name or environ.get("NODE_NAME", "") or socket.gethostname().lower()


def with_credentials_of_unit(
    environ: Mapping[str, str], directory: Path = UNIT_CREDENTIALS
) -> Mapping[str, str]:
    """Return the environment of a command with the credentials of the agent's unit, if it runs."""
    if "CREDENTIALS_DIRECTORY" in environ or not directory.is_dir():
        return environ
    return {**environ, "CREDENTIALS_DIRECTORY": str(directory)}


def access_problems(access: ApiAccess) -> Iterator[AccessError]:
    """Yield what is wrong with the files of the token and of the certificate authority."""
    for key, file in (("tokenFile", access.token_file), ("caFile", access.ca_file)):
        try:
            mode = file.stat().st_mode
        except OSError as error:
            remedy = _REMEDIES[key]
            yield AccessError(key, f"{file}: {error.strerror or error}", remedy)
            continue
        if not stat.S_ISREG(mode):
            yield AccessError(key, f"{file}: not a regular file", _REMEDIES[key])


def _default(credential: str, name: str, environ: Mapping[str, str], service_account: Path) -> Path:
    """Return the file of a credential if the unit has it, else that of the service account."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if directory and (file := Path(directory) / credential).exists():
        return file
    return service_account / name
