"""What is not needed is not imported; what is there after a start is not looked through again."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import weakref

import pytest

from agent.server.memory import as_if_missing, settle_memory

#: What the libraries bring along and no agent uses: colours.
NEVER_USED = frozenset({"rich", "pygments"})


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_is_there_at_the_start_is_not_looked_through_and_rubbish_before_and_after_is() -> None:
    kept, gone = Ring(), weakref.ref(Ring())
    try:
        settle_memory()
        assert gone() is None
        assert not any(seen is kept for seen in gc.get_objects())
        later = weakref.ref(Ring())
        gc.collect()
        assert later() is None
    finally:
        gc.unfreeze()


def modules_after(*lines: str) -> set[str]:
    """Return the modules that a new process has imported after these lines."""
    code = "\n".join((*lines, "import sys", "print(*sys.modules)"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_agent_imports_no_library_that_it_never_uses() -> None:
    found = modules_after("from agent.cli.agent import import_agent", "import_agent()")
    assert "aiohttp.web_protocol" in found
    assert found & NEVER_USED == set()


def test_an_optional_module_is_missing_while_it_is_hidden_unless_it_is_imported_already() -> None:
    sys.modules.pop("colorsys", None)
    with as_if_missing("colorsys"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").__name__ == "colorsys"
    with as_if_missing("gc"):
        assert importlib.import_module("gc") is gc
    assert importlib.import_module("gc") is gc


@pytest.mark.parametrize(
    ("beside", "imported"),
    [
        ("enabled=False, pods_endpoint='https://127.0.0.1:10250/pods'", []),
        ("enabled=True", ["grpc", "pods_api"]),
        (
            "enabled=True, pods_endpoint='https://127.0.0.1:10250/pods'",
            ["grpc", "pods_api", "pods_endpoint"],
        ),
    ],
)
def test_of_the_sources_of_a_kubelet_only_what_is_configured_is_imported(
    beside: str, imported: list[str]
) -> None:
    found = modules_after(
        "from agent.cli.agent import import_agent",
        "import_agent()",
        "from agent.config.agent import AgentConfig",
        "from agent.config.cluster import BesideKubeletConfig",
        "from agent.config.model import Config",
        "from agent.cluster.plugs import kubelet_pods",
        "from agent.server.plugs import SourceInputs",
        f"config = Config(agent=AgentConfig(kubelet=BesideKubeletConfig({beside})))",
        "assert bool(kubelet_pods(SourceInputs(config, None, set, True))) "
        "is config.agent.kubelet.enabled",
    )
    kubelet = "agent.cluster.kubelet"
    looked_for = {f"{kubelet}.pods_api", f"{kubelet}.pods_endpoint", "grpc"}
    assert sorted(name.rpartition(".")[2] for name in looked_for & found) == imported
