"""The kit of deploy/evidence: its phases, what it takes back, and the report."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.api.documents import (
    DisturbedCpuDocument,
    InterferenceDocument,
    InterferingTaskDocument,
    encode,
)
from agent.config.isolation import IsolationConfig, PartitionMode, ResctrlConfig
from agent.config.load import override
from agent.config.model import Config
from agent.managers.policy import IsolationMode
from deploy.evidence.compare import report

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[3]
KIT = ROOT / "deploy/evidence"
#: A host on which everything is isolated.
EVERYTHING = (
    *("agent.isolation.hostSlices=true", "agent.isolation.kernelThreads=true"),
    *("agent.isolation.interrupts=always", "agent.isolation.smt=always"),
    *("agent.isolation.partitions=root", "agent.isolation.memory=dram"),
    "agent.isolation.powerClasses={own: {governor: performance}}",
    *("agent.isolation.power=own", "agent.isolation.resctrl.classes={half: {L3: 50%}}"),
    "agent.isolation.resctrl.defaultClass=half",
)
TASK = InterferingTaskDocument(
    name="cron", thread=7, cgroup="/c", kernel=False, times=4, seconds=0.001
)


def document(*tasks: InterferingTaskDocument, longest: float | None = None) -> bytes:
    cpu = DisturbedCpuDocument(
        cpu=2,
        owners=("default/evidence/main",),
        online=True,
        tasks=tasks,
        own_seconds=0.0,
        interrupts={"24 eth0": 6, "CAL Function call interrupts": 2},
        ticks=100,
        softirqs={"TIMER": 20},
        steal_seconds=0.0,
        switches=None,
        migrations=0,
        longest_seconds=longest,
    )
    return encode(InterferenceDocument(seconds=2.0, exact=True, lost=0, cpus=(cpu,), notes=("n",)))


def test_the_report_has_a_row_for_each_phase_in_rates(tmp_path: Path) -> None:
    (tmp_path / "0-nothing.json").write_bytes(document(TASK, longest=0.00025))
    (tmp_path / "2-all.json").write_bytes(document())
    header, nothing, everything, *notes = report(tmp_path).splitlines()
    assert header.split("   ")[0] == "PHASE"
    assert nothing.split() == ["nothing", "2.00", "500.00", "4.00", "10.00", "50.00", "250.0"]
    assert everything.split() == ["all", "0.00", "0.00", "4.00", "10.00", "50.00", "-"]
    assert notes == ["nothing: n", "all: n"]


def test_each_item_is_switched_on_alone_then_all_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, programs = tmp_path / "kit", tmp_path / "bin"
    (kit / "items").mkdir(parents=True)
    programs.mkdir()
    for name in ("measure.sh", "compare.py"):
        shutil.copy(KIT / name, kit / name)
    (kit / "agent.sh").write_text(f'echo "agent $1" >>{tmp_path}/calls\n')
    for item in ("first", "second"):
        (kit / "items" / item).write_text(f'echo "{item} $1" >>{tmp_path}/calls\n')
    (tmp_path / "document").write_bytes(document())
    numawarden = programs / "numawarden"
    numawarden.write_text(
        '#!/bin/sh\ncase $1 in run) while [ "$1" != -- ]; do shift; done; shift; exec "$@" ;;\n'
        f'interference) echo "$1 $4" >>{tmp_path}/calls; cat {tmp_path}/document; exit 1 ;; esac\n'
    )
    numawarden.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    output = tmp_path / "out"
    command = ["sh", str(kit / "measure.sh"), "-t", "8s", "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == [
        *("agent off", "interference 2s", "first on", "interference 2s", "first off"),
        *("second on", "interference 2s", "second off"),
        *("first on", "second on", "interference 2s", "first off", "second off"),
        "agent end",
    ]
    phases = [line.split()[0] for line in done.stdout.splitlines()[1:5]]
    assert phases == ["nothing", "first", "second", "all"]
    assert json.loads((output / "2-all.json").read_text())["seconds"] == 2.0


def test_items_of_the_agent_are_switched_by_a_drop_in_of_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, dropin = tmp_path / "bin", tmp_path / "numawarden.service.d/evidence.conf"
    programs.mkdir()
    (programs / "systemctl").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n')
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name, value in (("KIT", KIT), ("STATE", tmp_path), ("DROPIN", dropin)):
        monkeypatch.setenv(name, str(value))

    configured = override(Config(), EVERYTHING)

    def settings(*command: str) -> IsolationConfig:
        subprocess.run(["sh", *command], check=True, timeout=60)
        written = dropin.read_text()
        assert "ProtectKernelTunables=no" in written
        assert "CapabilityBoundingSet=CAP_SYS_ADMIN" in written
        return override(configured, re.findall('"--set=(.*?)"', written)).agent.isolation

    agent = str(KIT / "agent.sh")
    bare = settings(agent, "off", "none")
    # What is left of the configuration are classes that no pod is in.
    assert replace(bare, power_classes={}, resctrl=ResctrlConfig()) == IsolationConfig()
    assert bare.resctrl.default_class == ""
    items = [str(item) for item in (KIT / "items").iterdir()]
    *_, isolation = (settings(item, "on") for item in items)
    assert (isolation.host_slices, isolation.kernel_threads) == (True, True)
    assert isolation.interrupts is IsolationMode.ALWAYS
    assert isolation.partitions is PartitionMode.ISOLATED
    assert isolation.power_classes[isolation.power].resume_latency == "n/a"
    *_, isolation = (settings(item, "off") for item in items)
    assert isolation == bare
    subprocess.run(["sh", agent, "end"], check=True, timeout=60)
    assert not dropin.exists()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-2:] == ["daemon-reload", "restart numawarden.service"]
