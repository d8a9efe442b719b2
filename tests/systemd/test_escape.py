from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systemd.errors import UnitNameError
from systemd.escape import (
    cgroup_component,
    check_unit,
    escape,
    slice_name,
    slice_path,
    unescape,
)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("", ""),
        ("hello", "hello"),
        ("a/b", "a-b"),
        ("a-b", r"a\x2db"),
        (".x.", r"\x2ex."),
        ("grün", r"gr\xc3\xbcn"),
        (r"a\b", r"a\x5cb"),
    ],
)
def test_escaping_is_systemds(text: str, escaped: str) -> None:
    assert escape(text) == escaped
    assert unescape(escaped) == text


@given(st.text())
def test_what_was_escaped_comes_back_and_is_a_name(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert unescape(escape(text)) == text
    if text and len(escape(text)) < 240:
        assert check_unit(f"{escape(text)}.scope").endswith(".scope")


@pytest.mark.parametrize("text", ["\\", r"\x2", r"a\xzz", "Ā"])
def test_text_that_was_never_escaped_is_rejected(text: str) -> None:
    with pytest.raises(UnitNameError):
        unescape(text)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("-.slice", ""),
        ("kubepods.slice", "kubepods.slice"),
        (
            "kubepods-burstable-pod1_2.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
        ),
    ],
)
def test_a_slices_dashes_are_its_place(name: str, path: str) -> None:
    assert slice_path(name) == path
    assert slice_name(path) == name


@pytest.mark.parametrize(
    "name",
    ["a--b.slice", "-a.slice", "a-.slice", "--.slice", "a.scope", "a", ".slice", "a b.slice"],
)
def test_a_bad_slice_name_is_rejected(name: str) -> None:
    with pytest.raises(UnitNameError):
        slice_path(name)


def test_a_path_whose_parts_do_not_build_on_each_other_is_not_a_slice() -> None:
    with pytest.raises(UnitNameError, match=r"its cgroup would be b.slice, not a.slice/b.slice"):
        slice_name("a.slice/b.slice")


@pytest.mark.parametrize(
    ("unit", "directory"),
    [
        ("app.scope", "app.scope"),
        ("cpuset.slice", "_cpuset.slice"),
        ("cgroup.slice", "_cgroup.slice"),
        ("_x.scope", "__x.scope"),
        ("tasks", "_tasks"),
    ],
)
def test_names_that_collide_with_the_kernels_files_are_moved_aside(
    unit: str, directory: str
) -> None:
    assert cgroup_component(unit) == directory


@pytest.mark.parametrize("name", ["a" * 250 + ".slice", "x.timerr", "@x.service", "é.scope"])
def test_a_bad_unit_name_is_rejected(name: str) -> None:
    with pytest.raises(UnitNameError):
        check_unit(name)


def test_the_needed_type_is_named() -> None:
    with pytest.raises(UnitNameError, match=r"a \.slice is needed"):
        check_unit("x.scope", "slice")
