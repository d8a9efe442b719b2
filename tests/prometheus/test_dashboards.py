"""The dashboards: every query is asked of a real Prometheus with what a real agent exported."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import yaml
from msgspec.structs import replace

from agent.config.agent import MetricsConfig
from agent.managers.policy import PluginDevice
from agent.managers.registry import MANAGERS
from agent.server import metrics as names
from tests.agent.server.support import OTHER_UID, PATIENCE, make_world, manifest, running
from tests.prometheus import ROOT, program
from tests.prometheus.faults import POD, THIRD_UID, rejected
from tests.prometheus.server import serving
from tests.prometheus.tape import INSTANCE, Tape, TapeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.server.support import World
    from tests.prometheus.server import Served

FOLDER: Final = ROOT / "deploy/grafana"
BOARDS: Final[dict[str, dict[str, Any]]] = {
    file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))
}
#: What Grafana puts in the place of its variables.
VARIABLES: Final = {"$job": "numawarden", "$instance": INSTANCE, "$__rate_interval": "5m"}


class Query(NamedTuple):
    """One query of a panel."""

    board: str
    panel: str
    letter: str
    expression: str

    def __str__(self) -> str:
        return f"{self.board}: {self.panel} {self.letter}"


def panels(board: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without the titles of rows."""
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


QUERIES: Final = [
    Query(board, panel["title"], target["refId"], target["expr"])
    for board in BOARDS
    for panel in panels(board)
    for target in panel["targets"]
]
#: What shows something only once it is wrong, or with a device plugin.
EMPTY_WHEN_HEALTHY: Final = {
    "fleet: Alerts A",
    "host: Allocations that are not valid A",
    "host: Calls of device plugins A",
    "host: Conditions by type A",
    "host: Device plugins A",
    "host: Pod-level allocations B",
}


async def _day(world: World, tape: Tape) -> None:
    """Admit pods, reject one, and repair a change by another process."""
    async with asyncio.timeout(PATIENCE), running(world) as agent:
        await tape.run(agent, 5)
        await agent.ask(agent.client.admit, manifest())
        await agent.ask(agent.client.admit, manifest("db", OTHER_UID, cpu="1500m"))
        for pid, pod in enumerate((POD, f"kubepods/shared/pod{OTHER_UID}"), start=4711):
            world.kernel.mkdir(f"{pod}/c0")
            world.kernel.spawn(f"{pod}/c0", pid)
        await rejected(agent, manifest("large", THIRD_UID, cpu="99"), "OutOfcpu")
        world.kernel.write(POD, "cpuset.cpus", "0-15")
        await tape.run(agent, 2)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve what a healthy agent exported in some minutes."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("day")
    world = make_world(folder)
    devices = {"example.org/nic": (PluginDevice("a"), PluginDevice("b"))}
    agent = replace(
        world.config.agent,
        metrics=MetricsConfig(port=0, containers=10),
        devices=MappingProxyType(devices),
    )
    world.config = replace(world.config, agent=agent)
    world.clock = TapeClock()
    tape = Tape(world.clock)
    asyncio.run(_day(world, tape))
    with serving(tape, folder) as prometheus:
        yield prometheus


def filled_in(text: str) -> str:
    """Return a text with the values of Grafana's variables."""
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    assert "$" not in text
    return text


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_returns_data_or_shows_only_what_is_wrong(served: Served, query: Query) -> None:
    found = served.query(filled_in(query.expression))
    assert bool(found) is (str(query) not in EMPTY_WHEN_HEALTHY)
    assert all(series["value"][1] != "NaN" for series in found)


@pytest.mark.parametrize("board", BOARDS)
def test_the_variables_have_values_and_are_all_that_queries_use(served: Served, board: str) -> None:
    datasource, *others = BOARDS[board]["templating"]["list"]
    assert datasource["type"] == "datasource"
    for variable in others:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        found = {series["metric"][asked[2]] for series in served.query(filled_in(asked[1]))}
        assert found == {VARIABLES[f"${variable['name']}"]}
    used = {
        name
        for query in QUERIES
        if query.board == board
        for name in re.findall(r"\$(\w+)", query.expression)
    }
    assert used - {"__rate_interval"} == {variable["name"] for variable in others}


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_asks_for_metrics_and_shows_labels_that_exist(query: Query) -> None:
    known = {name for metric in names.all_of(MANAGERS) for name in metric.names}
    asked = re.findall(r"\b(?:numawarden|kubelet|resource_manager)_\w+", query.expression)
    assert {re.sub(r"_bucket$", "", name) for name in asked} <= known
    assert asked or re.search(r"\b(process_\w+|up\b|ALERTS\b)", query.expression)


def test_the_queries_of_the_reference_can_be_asked(served: Served) -> None:
    table = (ROOT / "docs/metrics.md").read_text().partition("| question | query |")[2]
    asked = re.findall(r"`(numawarden_[^`]+)`", table)
    assert len(asked) == 5
    for query in asked:
        served.query(query)  # a wrong one raises
        assert served.query(re.split(r"[{ ]", query)[0])


@pytest.mark.parametrize("board", BOARDS)
def test_a_legend_names_labels_that_its_series_have(served: Served, board: str) -> None:
    for panel in panels(board):
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for series in served.query(filled_in(target["expr"])):
                assert labels <= series["metric"].keys(), panel["title"]


@pytest.mark.parametrize("board", BOARDS)
def test_restarts_are_marked_on_every_panel(served: Served, board: str) -> None:
    (restarts,) = BOARDS[board]["annotations"]["list"]
    assert "numawarden_start_timestamp_seconds" in restarts["expr"]
    served.query(filled_in(restarts["expr"]))  # a wrong one raises
    assert served.query(filled_in(restarts["expr"].replace("> 0", ">= 0")))


def test_panels_that_need_a_key_of_the_configuration_name_it() -> None:
    for panel in panels("host"):
        if "numawarden_container_info" in str(panel) or "_container_exclusive_cpus" in str(panel):
            assert "agent.metrics.containers" in panel["description"]
            assert "agent.metrics.containers" in panel["fieldConfig"]["defaults"]["noValue"]


@pytest.mark.parametrize("board", BOARDS)
def test_panels_are_explained_do_not_overlap_and_ask_the_chosen_prometheus(board: str) -> None:
    for panel in panels(board):
        assert panel["description"].endswith(".")
        for asking in (panel, *panel["targets"]):
            assert asking["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    everything = BOARDS[board]["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    for one, other in combinations((panel["gridPos"] for panel in everything), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert one["x"] + one["w"] <= 24


def test_links_lead_to_the_other_dashboard() -> None:
    known = {board["uid"] for board in BOARDS.values()}
    linked = re.findall(r'"url": "/d/([\w-]+)', "".join(map(json.dumps, BOARDS.values())))
    assert set(linked) == known


def test_the_provisioning_loads_dashboards_from_files() -> None:
    (provider,) = yaml.safe_load((FOLDER / "provisioning.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"]
