"""Pods with deliveries, for the tests of what is made of them."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from agent.managers.allocation import ContainerAllocation, PodAllocation
from agent.managers.delivery import Delivery, DeviceNode, Mount
from agent.pods.model import ContainerKind, QosClass
from tests.strategies import built

UID: Final = "5526cafe-0000-4000-8000-0000000000ab"

DELIVERY: Final = Delivery(
    environment={"EXAMPLE_DEVICES": "a=b c"},
    mounts=(Mount("/opt/example", "/usr/lib/example", read_only=True), Mount("/b", "/a")),
    device_nodes=(
        DeviceNode("/dev/given", "/dev/example0", "rw"),
        DeviceNode("/dev/x", "/dev/x", "r"),
    ),
    annotations={"example.com/devices": "0"},
    cdi_devices=("example.com/gpu=0",),
    pci_addresses=("0000:3b:02.1",),
)


def pod(uid: str = UID, **deliveries: Delivery) -> PodAllocation:
    """Return a pod with a container for each delivery."""
    containers = tuple(
        ContainerAllocation(name, ContainerKind.APP, delivery=delivery)
        for name, delivery in deliveries.items()
    )
    return PodAllocation(uid, "web", "shop", QosClass.GUARANTEED, "digest", containers)


_LETTERS: Final = st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp"))
_WORDS: Final = st.text(_LETTERS, max_size=6)
_NAMES: Final = st.text(st.characters(min_codepoint=33, exclude_characters="=", codec="ascii"))
_PAIRS: Final = st.dictionaries(_NAMES.filter(lambda name: name and "\x7f" not in name), _WORDS)
#: Also of letters that mean something to the tools that are given a path.
_SEGMENTS: Final = st.one_of(
    st.text(st.sampled_from("ab .,:=\"'\\%$"), min_size=1, max_size=6),
    st.text(
        _LETTERS.filter(lambda letter: letter != "/" and letter.isprintable()),
        min_size=1,
        max_size=6,
    ),
).filter(lambda segment: segment not in (".", ".."))
_PATHS: Final = st.lists(_SEGMENTS, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))

#: Any delivery that a container can get.
DELIVERIES: Final = built(
    Delivery,
    environment=_PAIRS,
    mounts=st.lists(built(Mount, _PATHS, _PATHS, st.booleans())).map(tuple),
    device_nodes=st.lists(
        built(DeviceNode, _PATHS, _PATHS, st.sampled_from(("r", "rw", "rwm", "m")))
    ).map(tuple),
    annotations=_PAIRS,
    cdi_devices=st.lists(st.from_regex(r"\A[a-z]+\.com/[a-z]+=[a-z0-9]+\Z")).map(tuple),
    pci_addresses=st.lists(st.from_regex(r"\A[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")).map(
        tuple
    ),
)

#: Uids that the agent accepts, usual ones and others, and names of containers.
UIDS: Final = st.one_of(
    st.uuids().map(str),
    st.uuids().map(lambda uid: uid.hex),
    st.from_regex(r"\A[A-Za-z0-9]([-A-Za-z0-9]{0,40}[A-Za-z0-9])?\Z"),
    st.from_regex(r"\A[a-z0-9]{1,4}\.[a-z0-9]{1,4}\Z"),
)
NAMES: Final = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?\Z")
