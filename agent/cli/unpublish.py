"""`numawarden unpublish`: take the topology of the node out of the cluster."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import configuration_options
from agent.cli.output import say
from agent.cluster.kubernetes.access import (
    AccessError,
    api_access,
    node_name,
    with_credentials_of_unit,
)
from agent.cluster.kubernetes.api_server import ApiServer
from agent.cluster.kubernetes.request_errors import ApiServerError
from agent.cluster.kubernetes.topology_publisher import Removal, remove
from agent.config.load import load_config_file

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.cluster import KubernetesConfig


@click.command()
@configuration_options("The agent's configuration, which has agent.kubernetes.")
@click.option(
    "--if-configured",
    is_flag=True,
    help="Do nothing where agent.kubernetes.publishTopology is false.",
)
def unpublish(file: Path, settings: tuple[str, ...], *, if_configured: bool) -> None:
    """Remove the NodeResourceTopology that the agent has published for this node.

    An object of another program is left as it is. A running agent with publishTopology publishes
    again: stop it, or set publishTopology to false before.
    """
    kubernetes = load_config_file(file, settings).agent.kubernetes
    if if_configured and not kubernetes.publish_topology:
        return
    say(_removed(kubernetes).found)


def _removed(config: KubernetesConfig) -> Removal:
    """Remove the object; raises `CommandError`."""
    environ = with_credentials_of_unit(os.environ)
    try:
        server = ApiServer(api_access(config, environ))
        return asyncio.run(remove(server, node_name(config, environ)))
    except (AccessError, ApiServerError) as error:
        raise CommandError(str(error), ExitCode.ENVIRONMENT) from error
