#!/opt/numawarden/bin/python3 -I
"""`Prolog=` of slurm.conf: root, on the compute node, before the first task of a job.

The job gets exclusive CPUs, and memory on their nodes, as the pod slurm-JOBID. Where that is not
possible it runs without, and the line says why: a Prolog that fails would drain the node.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

#: The command of the environment whose Python runs this.
NUMAWARDEN: Final = str(Path(sys.executable).with_name("numawarden"))
#: In seconds.
TIMEOUT: Final = 30
#: The memory in the list of a job's trackable resources (`cpu=2,mem=62.50G,node=1`); no unit: MiB.
MEMORY: Final = re.compile(r"(?:^|,)mem=([0-9]+(?:\.[0-9]+)?)([KMGTP]?)(?=,|$)", re.ASCII)


class WithoutAllocation(Exception):  # noqa: N818 - the job goes on
    """Why a job gets no allocation."""


def main() -> int:
    """Admit the pod of the job in the environment; return the exit status, which is always 0."""
    job = os.environ.get("SLURM_JOB_ID", "")
    try:
        admit(job)
    except WithoutAllocation as reason:
        sys.stdout.write(f"numawarden: job {job} runs without an allocation: {reason}\n")
    return 0


def admit(job: str) -> None:
    """Admit the pod of a job; raises `WithoutAllocation`."""
    if re.fullmatch("[0-9]{1,10}", job, re.ASCII) is None:
        raise WithoutAllocation(f"SLURM_JOB_ID is {job!r}; slurmd sets it")
    scontrol = os.environ.get("SCONTROL", "scontrol")
    # The text form has names as they are, which users choose: only JSON can be read safely.
    shown = output([scontrol, "--json", "show", "job", job])
    output([NUMAWARDEN, "admit", "-"], stdin=json.dumps(manifest(job, shown)))


def manifest(job: str, shown: str) -> dict[str, Any]:
    """Return the manifest of a job's pod; `shown` is what scontrol prints of it as JSON.

    Nothing in it is text from Slurm: numbers and one of six units. Raises `WithoutAllocation`.
    """
    try:
        jobs = [one for one in json.loads(shown)["jobs"] if one["job_id"] == int(job)]
        if len(jobs) != 1:
            raise WithoutAllocation(f"scontrol shows {len(jobs)} jobs of this id")
        cpus, nodes = number(jobs[0]["cpus"]), number(jobs[0]["node_count"])
        memory = MEMORY.search(str(jobs[0].get("tres_alloc_str") or ""))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WithoutAllocation(f"scontrol's JSON cannot be read ({error!r})") from error
    if nodes != 1:
        # Slurm does not say here how the CPUs of a job are spread over several nodes.
        raise WithoutAllocation(f"it has {nodes} nodes; one is what is supported")
    amounts = {"cpu": str(cpus)}
    if memory is not None:
        amounts["memory"] = f"{memory[1]}{memory[2] or 'M'}i"
    name = f"slurm-{job}"
    resources = {"requests": amounts, "limits": amounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "slurm", "uid": name},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"qosClass": "Guaranteed"},
    }


def number(value: object) -> int:
    """Return a number of Slurm's: a plain one (22.05), or `{"set": true, "number": 2}` (23.02).

    Raises `ValueError` for anything else and for a number below 1.
    """
    if isinstance(value, dict):
        known = value.get("set") is True and value.get("infinite") is not True
        value = value.get("number") if known else None
    if type(value) is not int or value < 1:
        raise ValueError(f"no number above 0: {value!r}")
    return value


def output(command: list[str], stdin: str = "") -> str:
    """Return what a command printed, which goes to the log of slurmd where it fails.

    Raises `WithoutAllocation`.
    """
    try:
        done = subprocess.run(  # noqa: S603 - no shell; scontrol is the administrator's choice
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise WithoutAllocation(str(error)) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise WithoutAllocation(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
