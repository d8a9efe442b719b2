"""What follows from the row of a setting, for every row (`cgroupfs.settings`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.api.documents.document import encode
from agent.reconcile.desired import DesiredCgroup, Role
from agent.reconcile.diff import diff
from agent.reconcile.drivers import read_record, record_of, to_properties
from agent.reconcile.report import CgroupReport
from agent.server.verification import kernel_document
from cgroupfs.apply import apply, enable
from cgroupfs.plan import Setting, make_plan
from cgroupfs.settings import VALUES, huge_pages, reserved_pages
from cgroupfs.state import read_state
from tests.agent.reconcile.pods import FakeSystemd, kernel

if TYPE_CHECKING:
    from cgroupfs.settings import ValueFile

PATH = "a.slice"
#: A value of each file that is not the unset one.
TEXTS = {
    "cpu.max": "50000 100000",
    "cpu.weight": "7",
    "memory.max": "8192",
    "memory.min": "8192",
    "memory.low": "4096",
    "memory.high": "8192",
    "pids.max": "4096",
    "hugetlb.2MB.max": "4194304",
    "hugetlb.2MB.rsvd.max": "2097152",
}
ROWS = (*VALUES, huge_pages(1 << 21), reserved_pages(1 << 21))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_a_row_is_read_compared_written_recorded_and_shown(row: ValueFile) -> None:
    tree, text = kernel(), TEXTS[row.file]
    systemd = FakeSystemd(tree)
    systemd.start_transient(PATH, ())
    enable(tree, PATH, tuple({"cpuset", "cpu", row.controller}))
    item = DesiredCgroup(Setting(PATH, values={row.file: text}), Role.POD, "u-1")
    files = tuple(each.file for each in ROWS)
    before = read_state(tree, PATH, files)
    assert before is not None
    assert before.values[row.file] == row.unset
    assert [each.file for each in diff(item, before)] == [row.file]
    assert apply(tree, make_plan({PATH: before}, (item.setting,))).ok
    after = read_state(tree, PATH, files)
    assert after is not None
    assert diff(item, after) == ()
    shown = json.loads(encode(kernel_document(CgroupReport(item, after))))
    assert text in (*shown.values(), *shown["hugetlb"].values())
    properties = to_properties(record_of(item, after))
    assert any(each.name == row.unit_property for each in properties) == bool(row.unit_property)
    systemd.set_properties(PATH, properties)
    assert read_record(systemd, PATH).values.get(row.file, text) == text
