from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.guest.inside import kernel

if TYPE_CHECKING:
    from pathlib import Path


def test_a_rejected_write_says_what_was_written_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "CGROUPS", tmp_path)
    (tmp_path / "one.slice/cpu.max").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"writing 'max 1000': .*one\.slice/cpu\.max"):
        kernel.Cgroup("one.slice").write("cpu.max", "max 1000")


def test_a_stopped_process_is_known() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        assert not kernel.is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert kernel.is_stopped(process.pid)
    finally:
        process.kill()
        process.communicate()
