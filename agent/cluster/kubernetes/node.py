"""What the agent reads of its Node: the version of the kubelet, where the kubelet tells none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from agent.cluster.kubernetes.request_errors import OTHER_SERVER, ApiResource, ApiServerError
from agent.versions import ReportedVersion, version_of

if TYPE_CHECKING:
    from agent.cluster.kubernetes.api_server import ApiServer

#: Its role cannot be narrowed to one node: `resourceNames` are the same for all agents.
_NODES: Final = ApiResource("/api/v1/nodes", "nodes", "get", OTHER_SERVER)


async def kubelet_version(server: ApiServer, node: str) -> ReportedVersion:
    """Return the version in a Node's `status.nodeInfo`, or why none is known; raises nothing."""
    try:
        found: object = await server.call("GET", _NODES, f"/{quote(node, safe='')}")
    except ApiServerError as error:
        return ReportedVersion(problem=str(error))
    for name in ("status", "nodeInfo", "kubeletVersion"):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, str) or version_of(found) is None:
        return ReportedVersion(problem=f"the Node {node} has no version of a kubelet")
    return ReportedVersion("kubelet", found, f"the Node {node}")
