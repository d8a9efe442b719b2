from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.machine import Machine
from agent.tools.replay.reading import DescribedHost, HostReader
from agent.yaml import Field, read_document
from sysfs.described import regular_host, write_tree
from sysfs.mask import Mask

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
HERE = "/nowhere"


def read(text: str, folder: Path) -> tuple[DescribedHost | None, list[str]]:
    reader = HostReader()
    host = reader.host(Field("host", read_document(text)), folder)
    return host, [f"{problem.path}: {problem.message}" for problem in reader.problems]


def host_of(text: str, folder: Path) -> DescribedHost:
    host, problems = read(text, folder)
    assert problems == []
    assert host is not None
    return host


class TestShape:
    def test_without_numbers_it_is_the_regular_machine(self, tmp_path: Path) -> None:
        assert host_of("shape: {}", tmp_path).machine == Machine.of(regular_host())

    def test_every_number_counts(self, tmp_path: Path) -> None:
        text = """
        shape:
          {packages: 1, nodesPerPackage: 2, coresPerNode: 6, threads: 1, uncoresPerNode: 2,
           memory: 8Gi, hugepages: {2Mi: 16, 1Gi: 1}, adjacentThreads: true}
        """
        expected = regular_host(
            1, 2, 6, 1, 8 * GIB, uncores_per_node=2, adjacent_threads=True,
            hugepages=[(2 * MIB, 16), (GIB, 1)],
        )  # fmt: skip
        assert host_of(text, tmp_path).machine == Machine.of(expected)

    def test_cpus_may_be_offline_and_nodes_without_cpus(self, tmp_path: Path) -> None:
        host = host_of("shape: {offline: '3,11', memoryOnlyNodes: [64Gi]}", tmp_path)
        assert host.offline == Mask.of(3, 11)
        assert 3 not in host.machine.cpus.all
        assert [node.known_memory // GIB for node in host.machine.nodes] == [16, 16, 64]

    @pytest.mark.parametrize(
        ("shape", "problem"),
        [
            ("{cores: 4}", "host.shape.cores: unknown key"),
            ("{packages: 0}", "host.shape.packages: expected a whole number from 1 to 64"),
            ("{packages: 64, nodesPerPackage: 2}", "are more than 64 NUMA nodes"),
            (
                "{coresPerNode: 512, threads: 8, packages: 4}",
                "are more than 64 NUMA nodes and 8192",
            ),
            ("{memory: lots}", 'host.shape.memory: "lots" is not a quantity'),
            ("{hugepages: {big: 1}}", 'host.shape.hugepages.big: "big" is not a page size'),
            ("{offline: '99'}", "offline names CPUs 99 that it does not have"),
            ("{offline: 3-}", 'host.shape.offline: "3-" is not a list of CPUs'),
            ("{offline: 0-15}", "a machine needs at least one online CPU"),
        ],
    )
    def test_a_mistake_is_reported_with_its_place(
        self, tmp_path: Path, shape: str, problem: str
    ) -> None:
        _, problems = read(f"shape: {shape}", tmp_path)
        assert any(problem in text for text in problems), problems


class TestRoot:
    def test_it_is_an_unpacked_capture_beside_the_file(self, tmp_path: Path) -> None:
        host = regular_host(cores_per_node=2)
        write_tree(host, tmp_path / "captured")
        assert host_of("root: captured", tmp_path).machine.cpus == Machine.of(host).cpus

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        _, problems = read("root: captured", tmp_path)
        assert problems == [
            f"host.root: {tmp_path}/captured is not a directory with an unpacked capture"
        ]

    def test_a_folder_that_is_not_a_capture(self, tmp_path: Path) -> None:
        _, problems = read("root: .", tmp_path)
        assert problems[0].startswith("host.root: ")
        assert "cpu" in problems[0]


class TestRows:
    ROWS = """
    rows:
      cpus: [[4, 4, 0, 0], [5, 4, 0, 0], [8, 8, 1, 2, 7]]
      offline: "6"
      nodes:
        - {id: 0, memory: 4Gi, hugepages: {2Mi: 3}, distances: [10, 20]}
        - {id: 2, memory: 8Gi, distances: [20, 10]}
    """

    def test_ids_may_be_sparse_and_groups_uneven(self, tmp_path: Path) -> None:
        host = host_of(self.ROWS, tmp_path)
        assert host.machine.cpus.all == Mask.of(4, 5, 8)
        assert [core.size for core in host.machine.cpus.cores] == [2, 1]
        assert [row.uncore for row in host.machine.cpus.rows] == [0, 0, 7]
        assert [node.distances for node in host.machine.nodes] == [{0: 10, 2: 20}, {0: 20, 2: 10}]
        assert host.machine.nodes[0].hugepages == {2 * MIB: 3}
        assert host.offline == Mask.of(6)

    @pytest.mark.parametrize(
        ("old", "new", "problem"),
        [
            (
                "nodes:",
                "noodles:",
                'host.rows.noodles: unknown key "noodles"; did you mean "nodes"?',
            ),
            ("[4, 4, 0, 0]", "[4, 4, 0]", "host.rows.cpus[0]: a CPU is [cpu, core, package, node]"),
            ("[4, 4, 0, 0]", "[4, 4, 0, 1]", "host.rows.cpus: CPU 4 is in node 1, which is not"),
            ("[4, 4, 0, 0]", "[5, 4, 0, 0]", "host.rows: cpu 5 is listed twice"),
            ("id: 2", "id: 0", "host.rows.nodes[1]: node 0 is listed twice"),
            ("id: 2, ", "", "host.rows.nodes[1]: id is missing"),
            (
                "[10, 20]",
                "[10]",
                "host.rows.nodes[0].distances: 1 distances, give one to each of 2",
            ),
        ],
    )
    def test_a_mistake_is_reported_with_its_place(
        self, tmp_path: Path, old: str, new: str, problem: str
    ) -> None:
        assert old in self.ROWS
        _, problems = read(self.ROWS.replace(old, new, 1), tmp_path)
        assert any(text.startswith(problem) for text in problems), problems


@pytest.mark.parametrize("text", ["{}", "shape: {}\nroot: ."])
def test_exactly_one_kind_of_host_is_given(tmp_path: Path, text: str) -> None:
    assert read(text, tmp_path) == (None, ["host: give exactly one of shape, root, rows"])
