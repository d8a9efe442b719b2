"""What is not needed is not imported; what is there after a start is not looked through again."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import pytest

from agent.server.memory import as_if_missing, settle_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What the libraries bring along and no agent uses: colours, web applications.
NEVER_USED = frozenset({"rich", "pygments", "aiohttp.web_app"})


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Leave the collector as it was."""
    yield
    gc.unfreeze()


def test_what_is_there_is_out_of_the_collectors_sight() -> None:
    kept = Ring()
    settle_memory()
    assert not any(seen is kept for seen in gc.get_objects())


def test_rubbish_from_before_is_not_kept() -> None:
    gone = weakref.ref(Ring())
    settle_memory()
    assert gone() is None


def test_what_comes_later_is_collected() -> None:
    settle_memory()
    gone = weakref.ref(Ring())
    gc.collect()
    assert gone() is None


def modules_after(*lines: str) -> set[str]:
    """Return the modules that a new process has imported after these lines."""
    code = "\n".join((*lines, "import sys", "print(*sys.modules)"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_agent_imports_no_library_that_it_never_uses() -> None:
    found = modules_after("from agent.cli.agent import import_agent", "import_agent()")
    assert "aiohttp.web_protocol" in found
    assert found & NEVER_USED == set()


def test_what_is_imported_already_stays_as_it_is() -> None:
    with as_if_missing("gc"):
        assert importlib.import_module("gc") is gc
    assert importlib.import_module("gc") is gc


def test_an_optional_module_is_missing_for_as_long_as_it_is_hidden() -> None:
    sys.modules.pop("colorsys", None)
    with as_if_missing("colorsys"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").__name__ == "colorsys"
