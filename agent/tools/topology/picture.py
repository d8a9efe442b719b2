"""Drawing a host for a terminal of 80 columns or more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from agent.api.topology import totals
from agent.tools.topology.distances import distance_lines
from agent.tools.topology.parts import (
    Part,
    alike,
    cores_summary,
    counted,
    node_note,
    parts_of,
    plural,
    summary,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from sysfs.host import Device, Host

#: Above this many CPUs, neighbours that differ in their ids alone share a line.
COLLAPSE_ABOVE: Final = 128
#: Two neighbours alike are quicker read than their summary; packages are what people see.
_SHORTEST_RUN: Final[Mapping[str, int]] = {"package": 9, "die": 9, "node": 3, "L3": 3}
#: A cache with more cores than this shows the first and the last of them.
_CORES_ONE_BY_ONE: Final = 16
_LONGEST_LIST: Final = 44


class Scale(Struct, frozen=True):
    """Whether neighbours that are alike share a line, and whether every list is shown whole."""

    collapse: bool
    full: bool


#: What a PCI device is, by its base class (PCI Code and ID Assignment specification, 1).
_CLASSES: Final[Mapping[str, str]] = {
    "01": "storage",
    "02": "network",
    "03": "display",
    "04": "multimedia",
    "05": "memory",
    "06": "bridge",
    "08": "system",
    "0b": "processor",
    "0c": "serial bus",
    "0d": "wireless",
    "10": "encryption",
    "12": "accelerator",
}
#: These are what people place work by, so each is named with its address.
_NAMED_CLASSES: Final = ("display", "accelerator", "network", "memory", "processor")


def picture(host: Host, *, full: bool = False) -> Iterator[RenderableType]:
    """Yield what to print, from top to bottom; a `*` stands behind isolated CPUs.

    With `full` nothing is summed up or cut: every node with its CPUs, every core with its threads.
    """
    yield _headline(host)
    scale = Scale(collapse=len(host.cpus) > COLLAPSE_ABOVE and not full, full=full)
    tree = Tree(Text("machine", style="bold"))
    _grow(tree, parts_of(host), scale)
    for node in host.nodes:
        if not node.cpus:
            tree.add(_line(f"node {node.id}", f"{node_note(node)}, no CPUs"))
    yield tree
    yield from _sets(host)
    if len(host.nodes) > 1:
        yield Text("distances", style="bold")
        yield from (
            Padding(Text(line), (0, 0, 0, 2), expand=False) for line in distance_lines(host)
        )
    yield from _devices(host)


def plain_lines(part: RenderableType) -> Iterator[str]:
    """Yield the lines of a part of a picture as they are, for output that is not a terminal.

    A terminal's width means nothing to them: nothing is wrapped, nothing padded.
    """
    if isinstance(part, Tree):
        yield str(part.label)
        yield from _branches(part, "")
    elif isinstance(part, Padding):
        yield f"{' ' * part.left}{part.renderable}"
    else:
        yield str(part)


def _branches(tree: Tree, indent: str) -> Iterator[str]:
    for child in tree.children:
        last = child is tree.children[-1]
        yield f"{indent}{'└── ' if last else '├── '}{child.label}"
        yield from _branches(child, indent + ("    " if last else "│   "))


def id_list(ids: Mask, noun: str = "CPU") -> str:
    """Return the list, or its ends and how many they are where it is too long to be read."""
    text = str(ids)
    if len(text) <= _LONGEST_LIST:
        return text
    runs = text.split(",")
    return f"{','.join(runs[:3])},...,{runs[-1]} ({len(ids)} {plural(noun)})"


def _headline(host: Host) -> Text:
    counts = totals(host)
    groups = (
        (counts["packages"], "package"),
        (counts["dies"], "die"),
        (counts["clusters"], "cluster"),
        (counts["cores"], "core"),
        (counts["uncore_caches"], "L3 cache"),
        (counts["nodes"], "node"),
        (counts["memory_only_nodes"], "memory-only node"),
    )
    words = [f"{counted(counts['cpus'], 'CPU')} ({counts['online']} online)"]
    words += [counted(number, name) for number, name in groups if number]
    return Text(", ".join(words), style="bold")


def _grow(tree: Tree, parts: tuple[Part, ...], scale: Scale) -> None:
    for run in alike(parts):
        if scale.collapse and len(run) >= _SHORTEST_RUN[run[0].kind]:
            tree.add(_run_line(run))
            continue
        for part in run:
            branch = tree.add(_part_line(part, scale))
            _grow(branch, part.children, scale)
            if part.cores:
                branch.add(_cores_line(part, scale))


def _part_line(part: Part, scale: Scale) -> Text:
    name = f"no {part.kind}" if part.id is None else f"{part.kind} {part.id}"
    note = f"{part.note}, " if part.note else ""
    return _line(name, f"{note}CPUs {part.cpus if scale.full else id_list(part.cpus)}")


def _run_line(run: tuple[Part, ...]) -> Text:
    ids = Mask.from_ids(part.id for part in run if part.id is not None)
    cpus = Mask.from_ids(cpu for part in run for cpu in part.cpus)
    note = f"{run[0].note}, " if run[0].note else ""
    name = f"{len(run)} {plural(run[0].kind)} {id_list(ids, run[0].kind)}"
    return _line(name, f"each {note}{summary(run[0])}; CPUs {id_list(cpus)}")


def _cores_line(part: Part, scale: Scale) -> Text:
    isolated = Mask.from_ids(cpu for core in part.cores for cpu in core.isolated)
    text = cores_summary(part.cores)
    cores = ["+".join(_thread(cpu, isolated) for cpu in core.threads) for core in part.cores]
    cut = len(cores) > _CORES_ONE_BY_ONE and not scale.full
    if cut:
        cores[3:-1] = ["..."]
    text += f": {' '.join(cores)}"
    if isolated and cut:
        text += f", isolated {id_list(isolated)}"
    return Text(text)


def _thread(cpu: int, isolated: Mask) -> str:
    return f"{cpu}*" if cpu in isolated else str(cpu)


def _line(name: str, rest: str) -> Text:
    return Text.assemble((name, "bold"), f"  {rest}")


def _sets(host: Host) -> Iterator[Text]:
    for name, members in (
        ("offline", host.offline),
        ("isolated (*)", host.isolated),
        ("without a tick", host.nohz_full),
    ):
        if members:
            yield _line(name, str(members))


def _devices(host: Host) -> Iterator[RenderableType]:
    groups: dict[int | None, list[Device]] = {}
    for device in host.devices:
        groups.setdefault(device.node, []).append(device)
    if groups:
        yield Text("devices", style="bold")
    for node in sorted(groups, key=lambda node: (node is None, node or 0)):
        place = "no node" if node is None else f"node {node}"
        words = ", ".join(_device_words(groups[node]))
        yield Padding(Text(f"{place}: {words}"), (0, 0, 0, 2), expand=False)


def _device_words(devices: list[Device]) -> Iterator[str]:
    counts: dict[str, int] = {}
    shown = {device.address for device in devices if device.kind == "net"}
    for device in devices:
        name = _CLASSES.get(device.device_class[2:4], "other")
        if device.kind == "net":
            yield f"{device.name} ({device.address})" if device.address else device.name
        elif name == "network" and device.address in shown:
            continue
        elif name in _NAMED_CLASSES:
            yield f"{name} {device.address}"
        else:
            counts[name] = counts.get(name, 0) + 1
    yield from (f"{number} x {name}" for name, number in sorted(counts.items()))
