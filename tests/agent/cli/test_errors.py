from __future__ import annotations

import importlib

import pytest

from agent.api.client import Unreachable
from agent.cli.errors import EXIT_CODES, ExitCode, exit_code_of, lines_of
from agent.pods.model import ManifestError
from agent.reconcile.report import EnforcementStartError
from cgroupfs.errors import CgroupPathError


@pytest.mark.parametrize("name", EXIT_CODES)
def test_every_class_of_the_table_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), attribute), Exception)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ManifestError("a.yaml", ()), ExitCode.BAD_INPUT),
        (CgroupPathError("..", "no"), ExitCode.ENVIRONMENT),
        (EnforcementStartError("cgroup v2", "none", "mount it"), ExitCode.ENVIRONMENT),
        (Unreachable("/x", "gone"), ExitCode.UNREACHABLE),
        (FileNotFoundError(2, "No such file or directory", "a"), ExitCode.BAD_INPUT),
    ],
)
def test_an_error_has_the_code_of_its_family(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_a_defect_has_no_code() -> None:
    assert exit_code_of(KeyError("x")) is None


def test_an_error_of_a_file_names_the_file() -> None:
    error = FileNotFoundError(2, "No such file or directory", "pod.yaml")
    assert lines_of(error) == ["numawarden: error: pod.yaml: No such file or directory"]


def test_an_error_without_words_is_named_by_its_class() -> None:
    assert lines_of(TimeoutError()) == ["numawarden: error: TimeoutError"]


def test_exit_codes_are_those_that_scripts_rely_on() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "REJECTED": 1,
        "USAGE": 2,
        "BAD_INPUT": 3,
        "UNREACHABLE": 4,
        "ENVIRONMENT": 5,
        "NOT_FOUND": 6,
        "NOT_ENFORCED": 7,
        "AGENT_FAILED": 8,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07", "\u202e", "\udce9", "\x9b2J"])
def test_no_error_speaks_to_the_terminal(hostile: str) -> None:
    lines = lines_of(FileNotFoundError(2, "No such file or directory", f"a{hostile}b"))
    assert all(line.isprintable() and line.encode() for line in lines)
