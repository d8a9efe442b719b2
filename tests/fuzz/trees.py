"""Trees of sysfs: what is accepted is a host that is consistent in itself, and rules decide on it.

An input is what was done to the files of one valid tree: JSON of {file: its content in base64,
null where it was removed}.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from agent.managers.cpu.topology import CpuTopologyError
from agent.managers.machine import Machine
from sysfs.described import regular_host, with_memory_only_nodes, write_tree
from sysfs.discover import discover
from sysfs.files import SysfsError
from sysfs.mask import MAX_ID
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.pods import check_decision
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from sysfs.host import Host
    from tests.fuzz.target import Check

_LISTS: Final = (
    b"0-7", b"0", b"", b"0-3,8-9", b"7", b"0-65535", b"65535", b"4-7", b"0-1", b"(null)",
)  # fmt: skip
_NUMBERS: Final = (b"0", b"-1", b"1", b"2", b"65535", b"65536", b"9" * 18, b"9" * 30, b"", b"0x1")
_DISTANCES: Final = (
    b"10 21 28", b"10", b"21 10 10 10", b"0 0 0", b"-1 10 10", b"10 20 99999999999",
)  # fmt: skip
_POD: Final = pod(app("a", guaranteed("cpu=2")))


def _host() -> Host:
    return with_memory_only_nodes(
        regular_host(cores_per_node=2, hugepages=((2 << 20, 8),)), [4 << 30]
    )


@cache
def _valid() -> dict[str, bytes]:
    """Return the files of the valid tree, by their paths."""
    with TemporaryDirectory() as directory:
        root = write_tree(_host(), Path(directory))
        files = sorted(path for path in root.rglob("*") if path.is_file() and not _linked(path))
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


def _linked(path: Path) -> bool:
    return any(part.is_symlink() for part in (path, *path.parents))


def make_tree(random: Random) -> bytes:
    """Draw what is done to one to four files of the tree."""
    valid = _valid()
    changed: dict[str, str | None] = {}
    for _ in range(random.randint(1, 4)):
        name = random.choice(tuple(valid))
        content = _content(random, name, valid[name])
        changed[name] = None if content is None else base64.b64encode(content).decode()
    return json.dumps(changed).encode()


def _content(random: Random, name: str, valid: bytes) -> bytes | None:
    kind = random.randrange(6)
    if kind == 0:
        return None
    if kind == 1:
        return damaged_bytes(random, valid, most=2)
    if kind == 2:
        return random.choice((*_LISTS, *_NUMBERS, *_DISTANCES)) + b"\n"
    if name.endswith("distance"):
        return random.choice(_DISTANCES)
    if name.endswith("meminfo"):
        return valid.replace(b"16777216", random.choice(_NUMBERS))
    return random.choice(_LISTS if b"-" in valid or b"," in valid else (*_NUMBERS, *_LISTS)) + b"\n"


def _check(root: Path) -> bool:
    """Discover a host; it is rejected, or all that is known of it fits together."""
    try:
        host = discover(root)
    except SysfsError as error:
        demand(error.path and error.found and error.remedy, "rejected without a reason")
        return False
    _check_cpus(host)
    _check_nodes(host)
    try:
        rules = make_rules(Machine.of(host), reserved=str(host.online.lowest), memory=False)
    except CpuTopologyError:
        demand(not host.online, "no topology although CPUs are online")
        return True
    check_decision(rules, _POD)
    return True


def _check_cpus(host: Host) -> None:
    ids = [cpu.id for cpu in host.cpus]
    demand(ids == sorted(set(ids)) and all(0 <= cpu <= MAX_ID for cpu in ids), f"CPUs {ids[:9]}")
    demand(host.online, "no CPU is online")
    demand(host.isolated <= host.online | host.offline, f"{host.isolated} are isolated")
    demand(host.nohz_full <= host.online | host.offline, f"{host.nohz_full} are without ticks")
    online = [cpu for cpu in host.cpus if cpu.online]
    demand(all(cpu.core is not None for cpu in online), "an online CPU is in no core")
    for kind in ("core", "cluster", "die", "uncore"):
        lowest: dict[int, int] = {}
        for cpu in online:
            if (group := getattr(cpu, kind)) is not None:
                lowest.setdefault(group, cpu.id)
        demand(all(group == first for group, first in lowest.items()), f"{kind} groups {lowest}")
        offline = (cpu for cpu in host.cpus if not cpu.online)
        demand(all(getattr(cpu, kind) is None for cpu in offline), "an offline CPU has a topology")


def _check_nodes(host: Host) -> None:
    ids = [node.id for node in host.nodes]
    demand(ids and ids == sorted(set(ids)), f"nodes {ids}")
    for node in host.nodes:
        demand(node.cpus <= host.online, f"node {node.id} has CPUs {node.cpus}")
        demand(0 <= (node.memory_bytes or 0) < 1 << 70, f"{node.memory_bytes} bytes")
        demand(all(p.size_bytes > 0 and p.count >= 0 for p in node.hugepages), f"{node.hugepages}")
        demand(all(distance >= 0 for distance in node.distances.values()), f"{node.distances}")
    by_id = {node.id: node for node in host.nodes}
    for cpu in host.cpus:
        listed = any(cpu.id in node.cpus for node in host.nodes)
        demand(cpu.node is None or cpu.node in by_id, f"CPU {cpu.id} is of node {cpu.node}")
        demand(not listed or cpu.node is not None, f"CPU {cpu.id} is of no node")


@contextmanager
def open_tree() -> Iterator[Check]:
    """Lay the valid tree out; one input after the other is done to it and undone."""
    with TemporaryDirectory() as directory:
        root = write_tree(_host(), Path(directory) / "host")

        def check(data: bytes) -> bool:
            changed: dict[str, str | None] = json.loads(data)
            try:
                for name, content in changed.items():
                    if content is None:
                        (root / name).unlink()
                    else:
                        (root / name).write_bytes(base64.b64decode(content))
                return _check(root)
            finally:
                for name in changed:
                    (root / name).write_bytes(_valid()[name])

        yield check


TREES: Final = Target("sysfs-tree", make_tree, open_tree)
