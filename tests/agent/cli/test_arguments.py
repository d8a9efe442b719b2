"""What a container gets with its devices, as text and as arguments that start it with them."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest
from hypothesis import given as drawn
from msgspec.structs import replace

from agent.api.documents.kernel import KernelDocument
from agent.api.documents.pods import MemoryDocument, PodDocument, PodListDocument
from agent.api.views import pod_document
from agent.cli.errors import CommandError, ExitCode
from agent.cli.list_text import list_lines
from agent.cli.pod_text import pod_lines
from agent.cli.start_arguments import Tool, start_arguments, start_lines
from agent.devices.cdi import device_names
from agent.managers.allocation import Isolation
from agent.managers.delivery import NOTHING, Delivery, DeviceNode, Mount
from sysfs.mask import Mask
from tests.agent.devices.pods import DELIVERIES, DELIVERY, UID, pod

SLICE = "kubepods-pod5526cafe.slice"
CGROUPS = {"systemd": f"/kubepods.slice/{SLICE}", "cgroupfs": "/kubepods/pod5526cafe"}
MAIN = f"numawarden.dev/pod={UID}-main"


def document(delivery: Delivery, *, driver: str = "systemd", cdi: bool = False) -> PodDocument:
    allocation = pod(main=delivery)
    kernel: dict[str | None, tuple[KernelDocument, ...]] = {
        None: (KernelDocument(cgroup=CGROUPS[driver]),)
    }
    names = device_names(allocation) if cdi else {}
    return pod_document(allocation, Mask.of(0), kernel=kernel, cdi_names=names)


def given_by(
    tool: Tool, delivery: Delivery, *, driver: str = "systemd", cdi: bool = False
) -> list[str]:
    found = document(delivery, driver=driver, cdi=cdi)
    return start_arguments(tool, found, found.containers[0])


OWN = ["--cpuset-cpus=1-2,17-18", "--cpuset-mems=0"]
SYSTEMD_OWN = ["--property=AllowedCPUs=1-2,17-18", "--property=AllowedMemoryNodes=0"]


# Shows in differences.md: start-on-cpus
@pytest.mark.parametrize(
    ("tool", "given"),
    [
        (Tool.PODMAN, OWN),
        (Tool.DOCKER, OWN),
        (Tool.NERDCTL, OWN),
        (Tool.SYSTEMD_RUN, SYSTEMD_OWN),
        (Tool.CONTAINERD, []),  # which has no option for sets
    ],
)
@pytest.mark.parametrize("isolation", [Isolation.CONTAINER, Isolation.POD])
def test_a_container_begins_on_its_own_cpus_and_not_on_those_of_its_pod(
    tool: Tool, given: list[str], isolation: Isolation
) -> None:
    found = document(NOTHING)
    container = replace(found.containers[0], isolation=isolation, cpus="1-2,17-18", mems="0")
    anywhere = replace(container, mems=None)
    for each, sets in ((container, given), (anywhere, given[:1])):
        told = start_arguments(tool, replace(found, containers=(each,)), each)
        assert [text for text in told if "cpuset" in text or "Allowed" in text] == sets


def test_a_container_that_shares_begins_on_the_nodes_pool_beside_an_exclusive_sibling() -> None:
    found = document(NOTHING)
    sharing = replace(found.containers[0], isolation=Isolation.HOST, cpus="0,3-31")
    sibling = replace(sharing, name="db", isolation=Isolation.CONTAINER, cpus="1-2")
    mixed, alone = (replace(found, containers=each) for each in ((sibling, sharing), (sharing,)))
    assert start_arguments(Tool.PODMAN, mixed, sharing)[-1] == "--cpuset-cpus=0,3-31"
    assert start_arguments(Tool.PODMAN, alone, sharing) == [f"--cgroup-parent={SLICE}"]


@pytest.mark.parametrize("tool", Tool)
@pytest.mark.parametrize("driver", CGROUPS)
def test_a_tool_is_given_what_it_was(tool: Tool, driver: str) -> None:
    """A CDI file is written under systemd here, and read by podman alone for certain.

    With NUMAWARDEN_GOLDEN set the texts are written anew: read what changed.
    """
    delivery = DELIVERY
    if tool is Tool.SYSTEMD_RUN:
        delivery = Delivery(DELIVERY.environment, DELIVERY.mounts, DELIVERY.device_nodes)
        driver = "systemd"
    given = given_by(tool, delivery, driver=driver, cdi=driver == "systemd")
    text = "".join(f"{each}\n" for each in given)
    file = Path(__file__).parent / "texts" / f"{tool}-{driver}.txt"
    if os.environ.get("NUMAWARDEN_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def node(host_path: str, container_path: str) -> Delivery:
    return Delivery(device_nodes=(DeviceNode(container_path, host_path, "rw"),))


@pytest.mark.parametrize(
    ("tool", "driver", "delivery", "what"),
    [
        (Tool.SYSTEMD_RUN, "cgroupfs", NOTHING, "/kubepods/pod5526cafe, which is not a slice"),
        (Tool.SYSTEMD_RUN, "systemd", Delivery(cdi_devices=("a.com/b=c",)), "CDI device a.com/b=c"),
        (Tool.SYSTEMD_RUN, "systemd", Delivery(environment={"A.B": "c"}), "the variable A.B"),
        (Tool.SYSTEMD_RUN, "systemd", node("/dev/a b", "/dev/a"), "device node /dev/a b"),
        (Tool.SYSTEMD_RUN, "systemd", Delivery(mounts=(Mount("/a'b", "/b"),)), "the path /a'b"),
        (Tool.SYSTEMD_RUN, "systemd", Delivery(mounts=(Mount("/b", '/a"b'),)), 'the path /a"b'),
        (
            Tool.PODMAN,
            "systemd",
            node("/dev/a", "/dev/a:b"),
            "podman run has no argument for",
        ),
        (
            Tool.PODMAN,
            "systemd",
            node("/dev/a:b", "/dev/a"),
            "podman run has no argument for",
        ),
        (
            Tool.DOCKER,
            "systemd",
            node("/dev/a:b", "/dev/a"),
            "docker run has no argument for",
        ),
        (Tool.NERDCTL, "systemd", node("/dev/a:b", "/dev/a"), "nerdctl run has no argument for"),
    ],
)
def test_what_a_tool_cannot_give_is_an_error(
    tool: Tool, driver: str, delivery: Delivery, what: str
) -> None:
    with pytest.raises(CommandError, match=re.escape(what)) as raised:
        given_by(tool, delivery, driver=driver)
    assert raised.value.code is ExitCode.BAD_INPUT


@pytest.mark.parametrize("tool", Tool)
def test_a_pod_whose_cgroup_was_not_found_gets_no_arguments(tool: Tool) -> None:
    found = pod_document(pod(main=DELIVERY), Mask.of(0))
    with pytest.raises(CommandError, match="was not found") as raised:
        start_arguments(tool, found, found.containers[0])
    assert raised.value.code is ExitCode.NOT_ENFORCED


@drawn(DELIVERIES)
def test_paths_with_commas_and_quotes_stay_one_field(delivery: Delivery) -> None:
    mounts = Delivery(mounts=delivery.mounts)
    for tool, source, target in (
        (Tool.PODMAN, "source", "destination"),
        (Tool.CONTAINERD, "src", "dst"),
    ):
        found = [text for text in given_by(tool, mounts) if text.startswith("--mount=")]
        read = [next(csv.reader([text.removeprefix("--mount=")])) for text in found]
        assert [row[1:3] for row in read] == [
            [f"{source}={mount.host_path}", f"{target}={mount.container_path}"]
            for mount in mounts.mounts
        ]


@drawn(DELIVERIES)
def test_paths_of_bind_mounts_are_read_by_systemd_as_they_are(delivery: Delivery) -> None:
    mounts = tuple(
        mount
        for mount in delivery.mounts
        if {"'", '"'}.isdisjoint(mount.host_path + mount.container_path)
    )
    found = given_by(Tool.SYSTEMD_RUN, Delivery(mounts=mounts))[2:]
    read = [_words(text.split("=", 2)[2]) for text in found]
    assert read == [[mount.host_path, mount.container_path] for mount in mounts]


def _words(text: str) -> list[str]:
    """Return the words between colons as systemd's extract_first_word does.

    A backslash may stand before a space, a colon or a backslash.
    """
    words, characters = [""], iter(text)
    for character in characters:
        if character == ":":
            words.append("")
            continue
        assert character != " ", "would end the word"
        kept = next(characters) if character == "\\" else character
        assert character != "\\" or kept in " :\\"
        words[-1] += kept
    return words


def test_a_delivery_is_shown_short_in_lists_and_in_full_alone() -> None:
    found = document(DELIVERY, cdi=True)
    assert list(list_lines(PodListDocument(pods=(found,))))[2:5] == [
        f"        CDI: {MAIN}",
        "        CDI of the provider: example.com/gpu=0",
        "        PCI: 0000:3b:02.1",
    ]
    lines = list(pod_lines(found))
    start = lines.index(f"  CDI       {MAIN}")
    assert lines[start + 1 : start + 9] == [
        "  CDI       example.com/gpu=0 (of the provider)",
        "  PCI       0000:3b:02.1",
        "  variable  EXAMPLE_DEVICES=a=b c",
        "  node      /dev/given from /dev/example0 (rw)",
        "  node      /dev/x (r)",
        "  mount     /opt/example from /usr/lib/example (read-only)",
        "  mount     /b from /a (read-write)",
        "  annotated example.com/devices=0",
    ]


@pytest.mark.parametrize(
    ("size", "said"),
    [(8 * 10**9, "8G"), (2, "2 bytes"), (3 << 29, "1536Mi"), (1000 << 20, "1000Mi"), (0, "0")],
)
def test_memory_is_shown_as_it_is_asked_for(size: int, said: str) -> None:
    found = document(NOTHING)
    (container,) = found.containers
    container = replace(container, memory=(MemoryDocument(type="memory", bytes=size, nodes="0"),))
    shared = replace(container, sharing="pod")
    lines = list(pod_lines(replace(found, containers=(container, shared))))
    assert [line for line in lines if line.startswith("  memory ")] == [
        f"  memory    {said} of memory on node 0",
        f"  memory    {said} of memory on node 0 (of the pod, shared in it)",
    ]


def test_without_a_cdi_file_a_list_counts_what_was_delivered() -> None:
    lines = list(list_lines(PodListDocument(pods=(document(DELIVERY),))))
    assert "        environment variables: 1, mounts: 2, device nodes: 2" in lines
    bare = Delivery(mounts=(Mount("/a", "/a"),))
    assert "        mounts: 1" in list(list_lines(PodListDocument(pods=(document(bare),))))
    assert len(list(list_lines(PodListDocument(pods=(document(NOTHING),))))) == 2


def test_how_a_container_is_started_is_a_line_to_copy() -> None:
    """`golden/` has the one without systemd."""
    assert list(start_lines(document(NOTHING))) == [
        f"start     podman run --name main --cgroup-parent={SLICE} IMAGE",
        "          numawarden show shop/web",
        "          --arguments podman|systemd-run|containerd|docker|nerdctl",
    ]


def test_nothing_is_to_be_started_where_all_containers_run_or_no_cgroup_exists() -> None:
    waiting = document(NOTHING)
    running = tuple(
        replace(each, kernel=(KernelDocument(cgroup="/x"),)) for each in waiting.containers
    )
    assert list(start_lines(replace(waiting, containers=running))) == []
    assert list(start_lines(replace(waiting, kernel=()))) == []
    assert list(start_lines(replace(waiting, unit="db.service"))) == []
