"""`numawarden unpublish`: take the topology of the node out of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import configuration_options

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.model import KubernetesConfig
    from agent.kubernetes.publisher import Removal


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
    from agent.config.load import load_config_file  # noqa: PLC0415  # help needs none of it

    kubernetes = load_config_file(file, settings).agent.kubernetes
    if if_configured and not kubernetes.publish_topology:
        return
    click.echo(_removed(kubernetes).found)


def _removed(config: KubernetesConfig) -> Removal:
    """Remove the object; raises `CommandError`."""
    import asyncio  # noqa: PLC0415  # as above
    import os  # noqa: PLC0415

    from agent.kubernetes.access import (  # noqa: PLC0415
        AccessError,
        api_access,
        node_name,
        with_credentials_of_unit,
    )
    from agent.kubernetes.api_server import ApiServer, ApiServerError  # noqa: PLC0415
    from agent.kubernetes.publisher import remove  # noqa: PLC0415

    environ = with_credentials_of_unit(os.environ)
    try:
        server = ApiServer(api_access(config, environ))
        return asyncio.run(remove(server, node_name(config, environ)))
    except (AccessError, ApiServerError) as error:
        raise CommandError(str(error), ExitCode.ENVIRONMENT) from error
