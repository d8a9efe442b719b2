from __future__ import annotations

import pytest

from systemd.units import UnitNameError, cgroup_component, check_unit, slice_path


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


@pytest.mark.parametrize(
    "name",
    ["a--b.slice", "-a.slice", "a-.slice", "--.slice", "a.scope", "a", ".slice", "a b.slice"],
)
def test_a_bad_slice_name_is_rejected(name: str) -> None:
    with pytest.raises(UnitNameError):
        slice_path(name)


@pytest.mark.parametrize("name", ["a" * 250 + ".slice", "x.timerr", "@x.service", "é.scope"])
def test_a_bad_unit_name_is_rejected_and_the_needed_type_is_named(name: str) -> None:
    with pytest.raises(UnitNameError):
        check_unit(name)
    with pytest.raises(UnitNameError, match=r"a \.slice is needed"):
        check_unit("x.scope", "slice")
