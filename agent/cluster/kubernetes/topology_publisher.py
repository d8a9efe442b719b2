"""The NodeResourceTopology in the cluster: applied, applied again, removed.

Server-side apply creates the object or changes the fields that the agent owns. The apply is not
forced: where another program (a topology updater of NFD, a second agent of the same node name) owns
the fields, the server answers with a conflict, and the agent says so and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct

from agent.cluster.kubernetes.api_server import APPLY
from agent.cluster.kubernetes.node_topology import API_VERSION
from agent.cluster.kubernetes.request_errors import ApiResource, ApiServerError, Outcome
from agent.cluster.kubernetes.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.cluster.kubernetes.api_server import ApiServer


#: Who owns the fields that the agent applies.
FIELD_MANAGER: Final = "numawarden"
#: An unchanged object is applied again after so many seconds, in case it was deleted or changed.
REFRESH_SECONDS: Final = 600.0
NODE_TOPOLOGIES: Final = ApiResource(
    path=f"/apis/{API_VERSION}/noderesourcetopologies",
    rule="noderesourcetopologies of topology.node.k8s.io",
    verbs="get, create, patch and delete",
    missing="install the CustomResourceDefinition noderesourcetopologies.topology.node.k8s.io "
    "(manifests/noderesourcetopology/crd.yaml of kubernetes-sigs/scheduler-plugins), or set "
    "agent.kubernetes.publishTopology to false",
)


class TopologyPublisher:
    """Publishes the topology of one node; `error` is why the latest attempt failed, or None.

    Times are seconds of a clock that never runs backwards.
    """

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node
        self._published: Mapping[str, Any] | None = None
        self._refresh_at = float("-inf")
        self._retries = Retries()
        self.error: ApiServerError | None = None

    def due(self, document: Mapping[str, Any], now: float) -> bool:
        """Return whether a document is to be published now."""
        if not self._retries.allow(now):
            return False
        return self.error is not None or document != self._published or now >= self._refresh_at

    async def publish(self, document: Mapping[str, Any], now: float) -> Outcome:
        """Apply a document and return the result; `error` says why it failed."""
        path = f"{_path(self._node)}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict"
        try:
            await self._server.call("PATCH", NODE_TOPOLOGIES, path, document, APPLY)
        except ApiServerError as error:
            self.error = _advised(error, self._node)
            self._retries.failed(now)
            return error.outcome
        self.error = None
        self._published, self._refresh_at = document, now + REFRESH_SECONDS
        self._retries.succeeded()
        return Outcome.DONE


class Removal(Struct, frozen=True):
    """The result of the removal of a published object."""

    removed: bool
    #: What was removed, or why nothing was; one line.
    found: str


async def remove(server: ApiServer, node: str) -> Removal:
    """Remove the object of a node, unless it is not there or the agent did not make it.

    Raises `ApiServerError`.
    """
    path = _path(node)
    try:
        topology = await server.call("GET", NODE_TOPOLOGIES, path)
    except ApiServerError as error:
        if error.outcome in (Outcome.NOT_FOUND, Outcome.NOT_SERVED):
            return Removal(removed=False, found=f"no NodeResourceTopology of node {node}")
        raise
    uid = _uid_of_ours(topology)
    if uid is None:
        return Removal(
            removed=False,
            found=f"the NodeResourceTopology of node {node} is of another program, left as it is",
        )
    # The uid: another program may have made another object of this name meanwhile.
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    try:
        await server.call("DELETE", NODE_TOPOLOGIES, path, options)
    except ApiServerError as error:
        if error.outcome is not Outcome.NOT_FOUND:
            raise
    return Removal(removed=True, found=f"removed the NodeResourceTopology of node {node}")


def _path(node: str) -> str:
    return f"/{quote(node, safe='')}"


def _uid_of_ours(topology: Mapping[str, Any]) -> str | None:
    """Return the uid of an object that the agent applied, None for one of other programs alone."""
    metadata = topology.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    owners = metadata.get("managedFields")
    ours = any(
        isinstance(owner, dict) and owner.get("manager") == FIELD_MANAGER
        for owner in (owners if isinstance(owners, list) else ())
    )
    uid = metadata.get("uid")
    return uid if ours and isinstance(uid, str) else None


def _advised(error: ApiServerError, node: str) -> ApiServerError:
    """Return an error of the apply with a remedy that knows what a conflict means here."""
    if error.outcome is not Outcome.CONFLICT:
        return error
    remedy = (
        "stop the program that publishes the topology of this node, too (such as NFD's topology "
        f"updater), then delete its object: kubectl delete noderesourcetopology {node}"
    )
    return ApiServerError(error.outcome, error.asked, error.found, remedy)
