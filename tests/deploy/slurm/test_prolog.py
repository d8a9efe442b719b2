from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.pods.manifest import load_pod
from deploy.slurm import prolog

ROOT = Path(__file__).resolve().parents[3]
#: As 23.02 and later print numbers; 22.05 printed them plain.
NUMBER = {"set": True, "infinite": False}
NAMES = [
    "x NumCPUs=40",
    "x NumNodes=1 NumCPUs=40 AllocTRES=cpu=40,mem=60G",
    """x NumCPUs=2',"vendor.com/gpu":'2""",
    'x\n      "cpus": 40,\n    kind: Pod',
    '","cpus":40,"job_name":"',
    "\u2028\x1b]0;x\x07",
]


def job(**fields: object) -> dict[str, Any]:
    """Return one job with the fields that are read, beside others, in the shape of Slurm 24.05."""
    return {
        "account": "lab",
        "array_job_id": {**NUMBER, "number": 0},
        "comment": "",
        "cpus": {**NUMBER, "number": 2},
        "job_id": 7,
        "job_resources": {"nodes": {"count": 1, "list": "node1"}},
        "job_state": ["CONFIGURING"],
        "memory_per_node": {**NUMBER, "number": 256},
        "name": "train",
        "node_count": {**NUMBER, "number": 1},
        "tres_req_str": "cpu=2,mem=256M,node=1,billing=2",
        "tres_alloc_str": "cpu=2,mem=256M,node=1,billing=2",
        **fields,
    }


def printed(*jobs: dict[str, Any]) -> str:
    return json.dumps({"meta": {"slurm": {"version": {"major": "24"}}}, "jobs": jobs, "errors": []})


def amounts(shown: str) -> dict[str, str]:
    manifest = prolog.manifest("7", shown)
    [container] = manifest["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    found: dict[str, str] = container["resources"]["limits"]
    return found


def test_a_job_gets_what_slurm_allocated_in_each_shape_of_numbers() -> None:
    assert amounts(printed(job())) == {"cpu": "2", "memory": "256Mi"}
    assert amounts(printed(job(cpus=2, node_count=1))) == {"cpu": "2", "memory": "256Mi"}


@pytest.mark.parametrize(
    ("listed", "memory"),
    [
        ("cpu=2,mem=62.50G,node=1", "62.50Gi"),
        ("mem=4T,cpu=2", "4Ti"),
        ("cpu=2,mem=4096", "4096Mi"),
        ("cpu=2,node=1,gres/mem=9G,fs/disk=1", None),
        ("cpu=2,mem=4G evil,node=1", None),
        ("", None),
        (None, None),
    ],
)
def test_memory_is_a_number_with_a_unit_or_none(listed: str | None, memory: str | None) -> None:
    assert amounts(printed(job(tres_alloc_str=listed))).get("memory") == memory


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["name", "comment", "account", "admin_comment"])
def test_no_text_of_a_user_gets_into_the_manifest(field: str, name: str) -> None:
    whole = prolog.manifest("7", printed(job(**{field: name})))
    assert whole == prolog.manifest("7", printed(job()))
    assert load_pod(json.dumps(whole), "-").name == "slurm-7"


def test_the_task_of_an_array_is_found_among_the_others() -> None:
    others = job(job_id=8, cpus=40), job(job_id=9, cpus=41)
    assert amounts(printed(others[0], job(), others[1]))["cpu"] == "2"


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        printed(),
        printed(job(), job()),
        printed(job(job_id="7")),
        *(
            printed(job(**{field: value}))
            for field in ("cpus", "node_count")
            for value in (0, -1, "2", "2 x", True, 1.5, None, [2], {"number": 2})
        ),
        printed(job(cpus={"set": False, "infinite": False, "number": 2})),
        printed(job(cpus={"set": True, "infinite": True, "number": 2})),
        printed(job(cpus={"set": True, "infinite": False, "number": "2"})),
        printed(job(node_count={**NUMBER, "number": 2})),
    ],
)
def test_what_cannot_be_read_gives_no_allocation(shown: str) -> None:
    with pytest.raises(prolog.WithoutAllocation):
        prolog.manifest("7", shown)


def fake(directory: Path, body: str, name: str) -> Path:
    file = directory / name
    file.write_text(f"#!{sys.executable} -I\n{body}")
    file.chmod(0o755)
    return file


def test_the_prolog_asks_for_json_and_admits_on_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = "import sys\nassert sys.argv[1:] =="
    show = f"{asked} ['--json', 'show', 'job', '7']\nprint({printed(job(name=NAMES[0]))!r})\n"
    monkeypatch.setenv("SCONTROL", str(fake(tmp_path, show, "scontrol")))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    file = tmp_path / "admitted"
    admit = f"{asked} ['admit', '-']\nopen({str(file)!r}, 'w').write(sys.stdin.read())\n"
    monkeypatch.setattr(prolog, "NUMAWARDEN", str(fake(tmp_path, admit, "numawarden")))
    assert prolog.main() == 0
    assert capfd.readouterr().out == ""
    admitted = json.loads(file.read_text())
    assert admitted["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"


@pytest.mark.parametrize("wrong", ["", "7 8", "7\n", "-1", "../7", "7" * 30, "\u0667"])
def test_a_job_of_no_number_runs_without(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], wrong: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", wrong)
    assert prolog.main() == 0
    assert "runs without an allocation: SLURM_JOB_ID is" in capfd.readouterr().out


def test_a_rejected_job_runs_without_and_the_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    show = f"print({printed(job())!r})\n"
    monkeypatch.setenv("SCONTROL", str(fake(tmp_path, show, "scontrol")))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    rejected = fake(tmp_path, "import sys\nsys.exit('rejected: no CPUs')\n", "numawarden")
    monkeypatch.setattr(prolog, "NUMAWARDEN", str(rejected))
    assert prolog.main() == 0
    assert "job 7 runs without an allocation: numawarden ended with 1: rejected: no CPUs" in (
        capfd.readouterr().out
    )
    monkeypatch.setenv("SCONTROL", "/no/such/scontrol")
    assert prolog.main() == 0
    assert "/no/such/scontrol" in capfd.readouterr().out


def test_slurmd_can_start_the_hooks() -> None:
    for name in ("prolog.py", "task.py"):
        file = ROOT / "deploy/slurm" / name
        assert file.read_text().startswith("#!/opt/numawarden/bin/python3 -I\n")
        assert file.stat().st_mode & stat.S_IXUSR
