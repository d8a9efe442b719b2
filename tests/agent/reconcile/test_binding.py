from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.managers.bindings import Binding, Bindings
from agent.reconcile.binding import OtherBindings, cgroup_named, cgroup_of_pid, make_binding
from agent.reconcile.report import BindingError
from cgroupfs.names import Driver
from tests.agent.reconcile.pods import OTHER, UID, kernel, layout, mixed, path_of

if TYPE_CHECKING:
    from cgroupfs.emulated.kernel import EmulatedKernel

POD = path_of(mixed(), Driver.SYSTEMD)
OTHER_POD = path_of(mixed(OTHER), Driver.SYSTEMD)
OWN = "system.slice/numawarden.service"


def host() -> EmulatedKernel:
    tree = kernel()
    for path in (
        f"{POD}/db.scope/container",
        f"{POD}/group/inner",
        f"{OTHER_POD}/db.scope",
        f"{OWN}/agent",
        "init.scope",
        "system.slice/systemd-udevd.service/udev",
        "system.slice/dbus.service/inner",
        "system.slice/docker-1f.scope",
        "system.slice/deep.service/a/b",
        "system.slice/dev-hugepages.mount",
        "machine.slice/libpod-1f.scope/container",
    ):
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            if not tree.exists(above):
                tree.mkdir(above)
    return tree


def bind(cgroup: str, container: str = "db", bindings: Bindings | None = None) -> Binding:
    return make_binding(
        host(),
        layout(Driver.SYSTEMD),
        mixed(),
        container,
        cgroup,
        others=OtherBindings(Bindings() if bindings is None else bindings, (UID, OTHER)),
        own=OWN,
    )


@pytest.mark.parametrize(
    ("cgroup", "bound"),
    [
        (f"{POD}/db.scope", f"{POD}/db.scope"),
        (f"{POD}/db.scope/container", f"{POD}/db.scope"),
        (f"{POD}/group", f"{POD}/group"),
        (f"{POD}/group/inner", f"{POD}/group/inner"),
        ("system.slice/docker-1f.scope", "system.slice/docker-1f.scope"),
        ("machine.slice/libpod-1f.scope", "machine.slice/libpod-1f.scope"),
        ("machine.slice/libpod-1f.scope/container", "machine.slice/libpod-1f.scope"),
    ],
)
def test_a_containers_own_cgroup_can_be_bound(cgroup: str, bound: str) -> None:
    assert bind(cgroup) == Binding(UID, "db", bound)


@pytest.mark.parametrize(
    ("cgroup", "why"),
    [
        ("", "the root of all cgroups"),
        ("nowhere", "no such cgroup"),
        (POD, "the whole pod"),
        (f"{OTHER_POD}/db.scope", "another pod"),
        (OTHER_POD, "another pod"),
        ("kubepods.slice", "the cgroup of all pods"),
        (OWN, "the agent's own"),
        (f"{OWN}/agent", "the agent's own"),
        ("system.slice", "the agent's own"),
        ("init.scope", "service manager"),
        ("system.slice/systemd-udevd.service/udev", "service manager"),
        ("system.slice/dbus.service/inner", "service manager"),
        ("machine.slice", "slice"),
        ("system.slice/deep.service", "cgroups in it"),
        ("system.slice/dev-hugepages.mount", "scope"),
    ],
)
def test_what_is_not_one_containers_own_is_rejected(cgroup: str, why: str) -> None:
    with pytest.raises(BindingError, match=why) as caught:
        bind(cgroup)
    assert "\n" not in str(caught.value)


def test_an_unknown_container_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(BindingError, match="it has db, backup, metrics"):
        bind(f"{POD}/db.scope", "web")


def test_cgroups_in_each_other_cannot_be_two_containers() -> None:
    inner = Bindings((Binding(UID, "backup", f"{POD}/group/inner"),))
    with pytest.raises(BindingError, match="bound to container backup"):
        bind(f"{POD}/group", bindings=inner)
    assert bind(f"{POD}/group", "backup", inner).cgroup == f"{POD}/group"
    outer = Bindings((Binding(OTHER, "x", f"{POD}/group"),))
    with pytest.raises(BindingError, match="bound to container x"):
        bind(f"{POD}/group/inner", bindings=outer)


def test_the_cgroup_of_another_pods_container_is_not_taken() -> None:
    cgroup = "system.slice/docker-1f.scope"
    taken = Bindings((Binding(OTHER, "x", cgroup),))
    with pytest.raises(BindingError, match=f"container x of pod {OTHER}.*remove pod {OTHER} first"):
        bind(cgroup, bindings=taken)
    sibling = Bindings((Binding(UID, "backup", cgroup),))
    assert bind(cgroup, bindings=sibling).cgroup == cgroup
    gone = Bindings((Binding("gone", "x", cgroup),))
    assert bind(cgroup, bindings=gone).cgroup == cgroup


def test_a_cgroup_in_one_that_was_bound_before_cannot_have_cpus_of_its_own() -> None:
    outer = "system.slice/deep.service"
    released = Bindings((), (outer, f"{POD}/group"))
    with pytest.raises(BindingError, match=r"was bound before.*end what runs in"):
        bind(f"{outer}/a/b", bindings=released)
    assert bind(f"{POD}/group/inner", bindings=released).cgroup == f"{POD}/group/inner"
    again = Bindings((), (f"{outer}/a/b",))
    assert bind(f"{outer}/a/b", bindings=again).cgroup == f"{outer}/a/b"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "no such process"),
        (b"4:cpuset:/a\n", "no cgroup v2"),
        (b"0::/a (deleted)\n", "outlived"),
        (b"0::/../../etc\n", r"'\.\.'"),
        (b"0::/system.slice/caf\xe9.scope\n", "it is not UTF-8"),
    ],
)
def test_a_process_without_a_usable_cgroup_is_rejected(
    tmp_path: Path, text: bytes | None, why: str
) -> None:
    for pid, content in ((41, b"1:name=x:/y\n0::/kubepods.slice/a.scope\n"), (42, text)):
        if content is not None:
            (tmp_path / f"{pid}").mkdir()
            (tmp_path / f"{pid}/cgroup").write_bytes(content)
    assert cgroup_of_pid(tmp_path, 41) == "kubepods.slice/a.scope"
    with pytest.raises(BindingError, match=why):
        cgroup_of_pid(tmp_path, 42)


@pytest.mark.parametrize(
    "text",
    ["a.slice/b.scope", "/a.slice/b.scope", "/sys/fs/cgroup/a.slice/b.scope", "/a.slice/b.scope/"],
)
def test_a_cgroup_can_be_named_from_its_root_or_as_a_file_path(text: str) -> None:
    assert cgroup_named(text, Path("/sys/fs/cgroup")) == "a.slice/b.scope"


@pytest.mark.parametrize("text", ["../etc", "/a/../../etc", "a//b", "a/./b", "a\nb", "x" * 5000])
def test_a_named_cgroup_cannot_leave_the_root(text: str) -> None:
    with pytest.raises(BindingError) as caught:
        cgroup_named(text, Path("/sys/fs/cgroup"))
    assert "\n" not in str(caught.value)
