"""`numawarden interference` asks the agent whose the exclusive CPUs are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.cli.errors import ExitCode
from tests.agent.server.support import manifest
from tests.agent.tools.test_interference import FakeProc

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running


def test_the_owner_of_each_cpu_is_a_container_of_the_agent(
    shell: Shell, agent: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cli.interference.leave", lambda _: None)
    host = FakeProc(tmp_path / "fake")
    watched = ("interference", "--root", str(host.root), "--for", "1ms", "-o", "json")
    code, _, err = shell.run(*watched)
    assert code == ExitCode.NOT_FOUND
    assert "no pod has exclusive CPUs; see 'numawarden list'" in err
    pod = agent.client.admit(manifest()).pod
    assert pod is not None
    code, out, err = shell.run(*watched)
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert "CPUs 1,9 are offline, or this host does not have them" in err
    (host.proc / "stat").write_text("cpu1 1 0 1 1 0 0 0 0 0 0\ncpu9 1 0 1 1 0 0 0 0 0 0\n")
    for asked in ((*watched, "web"), watched):
        code, out, _ = shell.run(*asked)
        assert code == ExitCode.OK
        cpus = json.loads(out)["cpus"]
        assert ",".join(str(each["cpu"]) for each in cpus) == pod.exclusive_cpus
        assert {tuple(each["owners"]) for each in cpus} == {("shop/web/c0",)}
    assert shell.run(*watched, "other")[0] == ExitCode.NOT_FOUND
