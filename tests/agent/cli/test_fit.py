"""`numawarden fit` against a real agent: 16 CPUs on two nodes, CPU 0 reserved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.api.client import AgentError
from agent.cli.errors import ExitCode
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running


def test_it_says_where_a_pod_fits_and_what_is_free(agent: Running, shell: Shell) -> None:
    code, out, _ = shell.run("fit", "--cpus", "4", "--memory", "1Gi")
    assert code == ExitCode.OK
    assert out == (
        "fits on node 0\n"
        "free CPUs: 15, of which 14 in whole cores; at most 8 on one node (fragmentation 0%)\n"
    )
    assert agent.controller.state.ledger.allocations == {}


def test_it_counts_how_often_a_pod_fits_and_says_why_not_more_often(
    agent: Running, shell: Shell
) -> None:
    del agent
    code, out, _ = shell.run("fit", shell.file(manifest(cpu="4")), "--count")
    assert code == ExitCode.OK
    first, then, *rest = out.splitlines()
    assert first == "fits 3 times: 1 on node 0, 2 on node 1"
    assert then == "then"
    assert rest[0].startswith("  OutOfcpu: ")
    assert rest[-2] == "on this host without pods: 3 times"


def test_what_does_not_fit_has_the_reason_and_advice(agent: Running, shell: Shell) -> None:
    agent.client.admit(manifest(uid=OTHER_UID, cpu="10"))
    code, out, _ = shell.run("fit", "--cpus", "12")
    assert code == ExitCode.REJECTED
    assert out.startswith("does not fit\n  OutOfcpu: ")
    assert "request 5 of cpu in container main instead of 12" in out
    assert "on this host without pods: at least once\n" in out


def test_the_document_has_the_same_figures(agent: Running, shell: Shell) -> None:
    del agent
    _, out, _ = shell.run("fit", "--cpus", "4", "--count", "--output", "json")
    document = json.loads(out)
    assert document["count"] == 3
    assert document["on"] == {"0": 1, "1": 2}
    assert document["free"] == {
        "free": 15,
        "wholeCores": 14,
        "onOneNode": 8,
        "fragmentation": 0.0,
    }


def test_devices_and_huge_pages_can_be_asked_for(agent: Running, shell: Shell) -> None:
    del agent
    code, out, _ = shell.run(
        "fit", "--cpus", "1", "--hugepages", "2Mi=4Mi", "--device", "example.com/gpu=1"
    )
    assert code == ExitCode.REJECTED
    assert "hugepages-2Mi" in out
    assert "example.com/gpu" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a FILE or amounts such as --cpus 4 --memory 8Gi"),
        (("-", "--cpus", "4"), "give either a FILE or amounts"),
        (("--device", "gpu"), "'gpu' is not NAME=AMOUNT"),
    ],
)
def test_what_is_not_a_question_is_a_usage_error(
    shell: Shell, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = shell.run("fit", *arguments)
    assert code == ExitCode.USAGE
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cpus", "four"), "'four' is not a number of CPUs"),
        (("--cpus", "0"), "'0' is not a number of CPUs above 0"),
        (("--cpus", "2.5"), "exclusive CPUs are whole, such a pod gets none"),
        (("--memory", "8"), "'8' is a number of bytes; write 8Gi or 8Mi"),
        (("--device", "a.com/b=1", "--device", "a.com/b=2"), "'a.com/b' is given twice"),
    ],
)
@pytest.mark.usefixtures("agent")
def test_amounts_that_answer_another_question_are_mistakes(
    shell: Shell, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = shell.run("fit", *arguments)
    assert code == ExitCode.USAGE
    assert said in err


def test_the_query_has_a_bound(agent: Running) -> None:
    for text in ("0", "1001", "x", "%C2%B2", "9" * 40):
        with pytest.raises(AgentError, match="most is a whole number from 1 to 1000"):
            agent.client._request("POST", f"/v1/fit?most={text}", manifest(uid=UID))
