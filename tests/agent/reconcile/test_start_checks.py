from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.reconcile.report import EnforcementStartError
from agent.reconcile.start_checks import make_enforcer, make_layout, open_tree
from cgroupfs.names import Driver
from tests.agent.reconcile.pods import kernel, layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_tree_is_opened_unless_it_misses_a_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    tree = open_tree(tmp_path, require_kernel=False)
    assert tree.exists("")
    tree.close()
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    with pytest.raises(EnforcementStartError, match="cpuset controller"):
        open_tree(tmp_path, require_kernel=False)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (lambda: make_layout("openrc"), "use systemd or cgroupfs"),
        (lambda: make_layout("systemd", "/a/../b"), "cgroupRoot"),
        (lambda: make_enforcer(kernel(), layout(Driver.SYSTEMD), None), "no connection to systemd"),
    ],
)
def test_what_cannot_be_enforced_is_said_in_one_line(
    start: Callable[[], object], says: str
) -> None:
    with pytest.raises(EnforcementStartError, match=says) as caught:
        start()
    assert "\n" not in str(caught.value)
