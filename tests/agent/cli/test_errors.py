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
        (KeyError("x"), None),
    ],
)
def test_an_error_has_the_code_of_its_family_and_a_defect_has_none(
    error: Exception, code: ExitCode | None
) -> None:
    assert exit_code_of(error) is code


def test_an_error_without_words_is_named_by_its_class() -> None:
    assert lines_of(TimeoutError()) == ["numawarden: error: TimeoutError"]


def test_exit_codes_are_those_that_scripts_rely_on() -> None:
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


@pytest.mark.parametrize("hostile", ["", "\x1b]0;title\x07", "\u202e", "\udce9", "\x9b2J"])
def test_an_error_names_the_file_and_never_speaks_to_the_terminal(hostile: str) -> None:
    (line,) = lines_of(FileNotFoundError(2, "No such file or directory", f"a{hostile}b"))
    assert line.isprintable()
    assert line.encode()
    assert line.startswith("numawarden: error: a")
    assert line.endswith("b: No such file or directory")
