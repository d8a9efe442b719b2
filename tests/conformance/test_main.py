from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING

from tests.conformance.__main__ import main
from tests.conformance.select import SELECTION
from tests.conformance.selected import selected
from tests.conformance.test_take import CASE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

WRONG = {**CASE, "name": "take/wrong", "expected": {"cpus": "1,3"}}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    return main()


def write(file: Path, *cases: object) -> None:
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(lines.encode()))
    else:
        file.write_text(lines)


def test_every_file_has_a_line_and_all_of_them_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "plain.jsonl", CASE, CASE)
    write(tmp_path / "small.jsonl.gz", CASE, {**CASE, "expected": {"hang": True}})
    assert run(monkeypatch, "--vectors", str(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "plain: equal 2, right-instead-of-equal 0, wrong 0 of 2",
        "small: equal 1, right-instead-of-equal 1, wrong 0 of 2",
        "conformance: 4 of 4",
    ]


def test_a_wrong_case_is_shown_in_full_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "take.jsonl", CASE, WRONG)
    assert run(monkeypatch, "--vectors", str(tmp_path)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "take: equal 1, right-instead-of-equal 0, wrong 1 of 2",
        "  take/wrong",
        "    cpus 0,2, kubelet {'cpus': '1,3'}",
        "conformance: 1 of 2",
    ]


def test_a_folder_without_cases_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--vectors", str(tmp_path)) == 1
    assert f"no *.jsonl or *.jsonl.gz in {tmp_path}" in capsys.readouterr().err


def test_a_choice_that_fits_no_case_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "take.jsonl", CASE)
    assert run(monkeypatch, "--vectors", str(tmp_path), "--only", "nothing/like/it") == 1


def test_without_the_shared_folder_the_projects_own_selection_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMAWARDEN_SHARED", str(tmp_path / "absent"))
    assert run(monkeypatch, "--only", "options/cpu/") == 0
    number = sum(case["name"].startswith("options/cpu/") for case in selected("options"))
    assert f"conformance: {number} of {number}" in capsys.readouterr().out
    assert SELECTION.is_dir()
