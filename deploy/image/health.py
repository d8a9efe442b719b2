#!/opt/numawarden/bin/python3
"""The image's health check: ask the agent's `/healthz`, where its configuration says.

Exit status 0: the agent gets on with its work. 1: it does not, or there is no answer; the line
says which. An agent that hangs answers 503 (docs/operations.md), and `numawarden status` would not
notice.
"""

from __future__ import annotations

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.config.load import load_config_file
from agent.config.model import ConfigError

if TYPE_CHECKING:
    from agent.config.agent import MetricsConfig

CONFIG: Final = Path("/etc/numawarden/config.yaml")
#: For the connection and for the answer, in seconds; the check as a whole has 10.
TIMEOUT: Final = 4.0


def main(config: Path = CONFIG) -> int:
    """Print how the agent is, return the exit status."""
    try:
        status, said = ask(load_config_file(config).agent.metrics)
    except (ConfigError, HTTPException, OSError) as error:
        print(f"/healthz cannot be asked: {error}")
        return 1
    print(said)
    return 0 if status == 200 else 1  # noqa: PLR2004 - HTTP's OK


def ask(metrics: MetricsConfig) -> tuple[int, str]:
    """Return status and text of the answer. Raises `OSError` and `HTTPException`."""
    address = ip_address(metrics.address)
    host = metrics.address
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - IP's version
    connection = HTTPConnection(host, metrics.port, timeout=TIMEOUT)
    if metrics.tls_certificate:
        # The listener's own certificate is what to trust; the name in it is not this address.
        context = ssl.create_default_context(cafile=metrics.tls_certificate)
        context.check_hostname = False
        connection = HTTPSConnection(host, metrics.port, timeout=TIMEOUT, context=context)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace").strip()
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
