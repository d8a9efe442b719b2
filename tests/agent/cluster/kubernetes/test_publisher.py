"""The topology is published when it changed, again after failures, and never over another's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent.cluster.kubernetes.node_topology import node_topology
from agent.cluster.kubernetes.request_errors import ApiServerError, Outcome
from agent.cluster.kubernetes.retries import Retries
from agent.cluster.kubernetes.topology_publisher import REFRESH_SECONDS, TopologyPublisher, remove
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod
from tests.fakes.api_server import TOPOLOGIES, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.cluster.kubernetes.api_server import ApiServer
    from tests.fakes.api_server import FakeApiServer

RULES = make_rules()
EMPTY = RULES.empty_ledger()
FULLER = with_pod(RULES, pod(app("a", guaranteed("cpu=2 memory=1Gi")), uid="u-1"))


def document(*, fuller: bool = False) -> Mapping[str, Any]:
    return node_topology(RULES, FULLER if fuller else EMPTY, "worker-1", ()).document


@pytest.fixture
def publisher(server: ApiServer) -> TopologyPublisher:
    return TopologyPublisher(server, "worker-1")


async def test_the_first_apply_creates_the_object_and_the_next_changes_it(
    fake: FakeApiServer, publisher: TopologyPublisher
) -> None:
    assert await publisher.publish(document(), 0.0) is Outcome.DONE
    assert fake.topologies["worker-1"]["zones"] == document()["zones"]
    assert await publisher.publish(document(fuller=True), 1.0) is Outcome.DONE
    assert fake.topologies["worker-1"]["zones"] == document(fuller=True)["zones"]
    assert {request.path for request in fake.requests} == {f"{TOPOLOGIES}worker-1"}
    assert all(request.query["fieldManager"] == ["numawarden"] for request in fake.requests)
    assert not any("force" in request.query for request in fake.requests)


async def test_only_a_change_is_due_and_an_old_object(publisher: TopologyPublisher) -> None:
    assert publisher.due(document(), 0.0)
    await publisher.publish(document(), 0.0)
    assert not publisher.due(document(), 1.0)
    assert publisher.due(document(fuller=True), 1.0)
    assert not publisher.due(document(), REFRESH_SECONDS - 1)
    assert publisher.due(document(), REFRESH_SECONDS)


async def test_what_failed_is_due_again_later_and_later_until_it_succeeds(
    fake: FakeApiServer, publisher: TopologyPublisher
) -> None:
    now, waits = 0.0, []
    fake.faults.extend([Failure(503, "starting")] * 7)
    for _ in range(7):
        assert await publisher.publish(document(), now) is Outcome.UNAVAILABLE
        assert publisher.error is not None
        wait = next(each for each in range(400) if publisher.due(document(), now + each))
        waits.append(wait)
        now += wait
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    assert await publisher.publish(document(), now) is Outcome.DONE
    assert publisher.error is None
    assert not publisher.due(document(), now)


def test_years_of_failures_wait_no_longer_than_the_longest_wait() -> None:
    retries = Retries(10.0, 300.0)
    for _ in range(5000):
        retries.failed(0.0)
    assert not retries.allow(299.0)
    assert retries.allow(300.0)


async def test_the_object_of_another_publisher_is_left_as_it_is(
    fake: FakeApiServer, publisher: TopologyPublisher
) -> None:
    theirs: dict[str, Any] = {
        "metadata": {
            "name": "worker-1",
            "uid": "theirs",
            "managedFields": [{"manager": "nfd-topology-updater"}],
        },
        "zones": [],
    }
    fake.topologies["worker-1"] = theirs
    assert await publisher.publish(document(), 0.0) is Outcome.CONFLICT
    assert fake.topologies["worker-1"] is theirs
    said = str(publisher.error)
    assert 'conflict with "nfd-topology-updater"' in said
    assert "kubectl delete noderesourcetopology worker-1" in said


async def test_what_the_agent_published_is_removed(
    fake: FakeApiServer, server: ApiServer, publisher: TopologyPublisher
) -> None:
    await publisher.publish(document(), 0.0)
    removal = await remove(server, "worker-1")
    assert removal.removed
    assert fake.topologies == {}
    assert not (await remove(server, "worker-1")).removed


@pytest.mark.parametrize("owners", [[{"manager": "other"}], [], None, "odd", [None]])
def test_what_is_anothers_is_not_removed(
    fake: FakeApiServer, server: ApiServer, owners: object
) -> None:
    metadata = {"name": "worker-1", "uid": "theirs", "managedFields": owners}
    fake.topologies["worker-1"] = {"metadata": metadata}
    removal = asyncio.run(remove(server, "worker-1"))
    assert not removal.removed
    assert "of another program" in removal.found
    assert fake.paths("DELETE") == []


async def test_an_object_that_was_made_again_meanwhile_is_not_removed(
    fake: FakeApiServer, server: ApiServer, publisher: TopologyPublisher
) -> None:
    await publisher.publish(document(), 0.0)
    again = {"metadata": {"uid": "another"}}
    read = fake.answer

    def replaced_after_the_get(request: Any, token: str) -> Any:  # noqa: ANN401  # as answered
        answer = read(request, token)
        fake.topologies["worker-1"] = again
        return answer

    fake.answer = replaced_after_the_get  # type: ignore[method-assign]
    with pytest.raises(ApiServerError) as caught:
        await remove(server, "worker-1")
    assert caught.value.outcome is Outcome.CONFLICT
    assert fake.topologies["worker-1"] is again


async def test_without_the_kind_nothing_is_removed(fake: FakeApiServer, server: ApiServer) -> None:
    fake.always = Failure(404, text="404 page not found\n")
    assert not (await remove(server, "worker-1")).removed


async def test_a_forbidden_removal_is_an_error(fake: FakeApiServer, server: ApiServer) -> None:
    fake.always = Failure(403, "forbidden")
    with pytest.raises(ApiServerError) as caught:
        await remove(server, "worker-1")
    assert caught.value.outcome is Outcome.FORBIDDEN
