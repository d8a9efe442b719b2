from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.errors import CgroupNameError, CgroupPathError
from cgroupfs.names import (
    ContainerName,
    Driver,
    Layout,
    PodName,
    Runtime,
    Tier,
    containers,
    containers_of,
    from_proc,
    parse_container,
)
from sysfs.mask import Mask
from systemd.units import slice_path

SYSTEMD = Layout(Driver.SYSTEMD)
CGROUPFS = Layout(Driver.CGROUPFS)
UID = "11111111-2222-3333-4444-555555555555"
UIDS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?", fullmatch=True)


ESCAPED = "pod11111111_2222_3333_4444_555555555555.slice"
SITE = "my_site.slice/my_site-x.slice/my_site-x-kubepods.slice/my_site-x-kubepods-"


@pytest.mark.parametrize(
    ("layout", "tier", "path"),
    [
        (
            *(SYSTEMD, Tier.BURSTABLE),
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{ESCAPED}",
        ),
        (SYSTEMD, Tier.GUARANTEED, f"kubepods.slice/kubepods-{ESCAPED}"),
        (CGROUPFS, Tier.BEST_EFFORT, f"kubepods/besteffort/pod{UID}"),
        (CGROUPFS, Tier.GUARANTEED, f"kubepods/pod{UID}"),
        (Layout(Driver.SYSTEMD, "/my-site/x"), Tier.GUARANTEED, SITE + ESCAPED),
        (Layout(Driver.CGROUPFS, "/my-site/x"), Tier.GUARANTEED, f"my-site/x/kubepods/pod{UID}"),
    ],
)
def test_a_pods_cgroup_is_where_the_kubelet_puts_it(layout: Layout, tier: Tier, path: str) -> None:
    assert layout.pod(UID, tier) == path
    assert layout.parse_pod(path) == PodName(UID, tier)


SYSTEM = "kubepods.slice/kubepods-system.slice/kubepods-system-"


@pytest.mark.parametrize(
    ("layout", "path", "tier"),
    [
        (CGROUPFS, "kubepods/system/pod1", Tier.GUARANTEED),
        (CGROUPFS, "kubepods/system/besteffort/pod1", Tier.BEST_EFFORT),
        (SYSTEMD, f"{SYSTEM}pod1.slice", Tier.GUARANTEED),
        (
            *(SYSTEMD, f"{SYSTEM}burstable.slice/kubepods-system-burstable-pod1.slice"),
            Tier.BURSTABLE,
        ),
    ],
)
def test_a_pod_of_the_system_partition_is_known_by_its_place(
    layout: Layout, path: str, tier: Tier
) -> None:
    assert layout.parse_pod(path) == PodName("1", tier, system=True)


@given(UIDS, st.sampled_from(Tier), st.sampled_from(Driver), st.sampled_from(["/", "/a/b-c"]))
def test_a_name_leads_back_to_its_pod(uid: str, tier: Tier, driver: Driver, root: str) -> None:
    layout = Layout(driver, root)
    path = layout.pod(uid, tier)
    assert layout.parse_pod(path) == PodName(uid, tier)
    if driver is Driver.SYSTEMD:
        assert slice_path(path.rpartition("/")[2]) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "kubepods.slice",
        "kubepods.slice/kubepods-burstable.slice",
        "kubepods.slice/kubepods-pod1.slice/x.scope",
        "system.slice/kubepods-pod1.slice",
        "kubepods.slice/kubepods-pod.slice",
    ],
)
def test_other_cgroups_are_no_pods(path: str) -> None:
    assert SYSTEMD.parse_pod(path) is None


@pytest.mark.parametrize(
    "uid", ["", "a/b", "..", "a..b", "-a", "a_b", "a\n", "é", "x" * 129, "a b"]
)
def test_a_uid_that_could_leave_its_place_is_rejected(uid: str) -> None:
    for layout in (SYSTEMD, CGROUPFS):
        with pytest.raises(CgroupNameError, match="pod uid"):
            layout.pod(uid, Tier.GUARANTEED)


@pytest.mark.parametrize("root", ["/..", "/a/./b", "/a b", "/ü"])
def test_a_root_that_is_not_a_plain_path_is_rejected(root: str) -> None:
    with pytest.raises(CgroupNameError, match="cgroupRoot"):
        Layout(Driver.CGROUPFS, root)


def test_a_name_longer_than_the_kernel_allows_is_rejected() -> None:
    with pytest.raises(CgroupNameError, match="would exceed 255 bytes"):
        Layout(Driver.SYSTEMD, "/" + "r" * 150).pod("u" * 128, Tier.GUARANTEED)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cri-containerd-abc.scope", ContainerName(Runtime.CONTAINERD, "abc")),
        ("crio-abc.scope", ContainerName(Runtime.CRIO, "abc")),
        ("crio-abc", ContainerName(Runtime.CRIO, "abc")),
        ("libpod-abc.scope", ContainerName(Runtime.PODMAN, "abc")),
        ("docker-abc.scope", ContainerName(Runtime.DOCKER, "abc")),
        ("run-u12.scope", ContainerName(Runtime.SYSTEMD, "run-u12")),
        ("worker.service", ContainerName(Runtime.SYSTEMD, "worker")),
        ("0a1b2c", ContainerName(Runtime.PLAIN, "0a1b2c")),
        ("crio-conmon-abc.scope", None),
        ("libpod-conmon-abc.scope", None),
        ("inner.slice", None),
        (".hidden", None),
        (".scope", None),
    ],
)
def test_a_containers_name_shows_the_runtime_and_its_id(
    name: str, expected: ContainerName | None
) -> None:
    assert parse_container(name) == expected


def test_containers_and_what_runtimes_put_inside_are_found() -> None:
    kernel = EmulatedKernel(Mask.of(0), Mask.of(0))
    for path in (
        "pod",
        "pod/cri-containerd-1.scope",
        "pod/cri-containerd-1.scope/container",
        "pod/cri-containerd-1.scope/init.scope",
        "pod/libpod-conmon-2.scope",
        "pod/job.service",
    ):
        kernel.mkdir(path)
    assert containers(kernel, "pod") == ("pod/cri-containerd-1.scope", "pod/job.service")
    assert containers(kernel, "gone") == ()
    assert containers_of("pod", kernel.listed("pod")) == {
        "pod/cri-containerd-1.scope": True,
        "pod/job.service": False,
    }


@pytest.mark.parametrize(
    "text",
    [
        "4:cpuset:/old\n",
        "",
        "0::/gone.scope (deleted)\n",
        "0::/../../other\n",
        "0::/user.slice\x0b/mine\n",
        "0::/user.slice\u2028/mine\n",
        "0::/user.slice\x85\n",
        "0::/user.slice/\udcff\n",
    ],
)
def test_a_process_without_a_usable_cgroup_is_an_error(text: str) -> None:
    with pytest.raises(CgroupPathError):
        from_proc(text)
