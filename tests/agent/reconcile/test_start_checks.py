from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.reconcile.report import EnforcementStartError
from agent.reconcile.start_checks import make_enforcer, make_layout, open_tree
from cgroupfs.names import Driver
from tests.agent.reconcile.pods import kernel, layout

if TYPE_CHECKING:
    from pathlib import Path


def one_line(caught: pytest.ExceptionInfo[EnforcementStartError]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    with pytest.raises(EnforcementStartError, match="cpuset controller") as caught:
        open_tree(tmp_path, require_kernel=False)
    one_line(caught)


def test_a_usable_tree_is_opened(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    tree = open_tree(tmp_path, require_kernel=False)
    assert tree.exists("")
    tree.close()


def test_an_unknown_driver_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(EnforcementStartError, match="use systemd or cgroupfs") as caught:
        make_layout("openrc")
    one_line(caught)


def test_an_unusable_root_is_rejected() -> None:
    with pytest.raises(EnforcementStartError, match="cgroupRoot"):
        make_layout("systemd", "/a/../b")


def test_the_systemd_driver_needs_systemd() -> None:
    with pytest.raises(EnforcementStartError, match="no connection to systemd"):
        make_enforcer(kernel(), layout(Driver.SYSTEMD), None)
