"""Who has some CPUs, in words: `numawarden map 4-7` names the pods that the map marks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from agent.api.documents.map import CpuUse
from agent.pods.model import full_name
from agent.tools.map.words import id_list, plural
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.documents.map import MapCpuDocument, MapDocument, MapOwnerDocument

_USES: Final = {
    CpuUse.OFFLINE: "offline",
    CpuUse.WITHHELD: "withheld by another cgroup",
    CpuUse.RESERVED: "reserved",
    CpuUse.FREE: "free for exclusive use",
    CpuUse.SHARED: "in the node's shared pool",
}


def owner_lines(document: MapDocument, cpus: Mask) -> Iterator[str]:
    """Yield a line for each owner, use and node, with all CPUs of which these are the same."""
    names = {pod.uid: full_name(pod) for pod in document.pods}
    groups: dict[str, list[int]] = defaultdict(list)
    for cpu in document.cpus:
        if cpu.id in cpus:
            groups[_text(cpu, names)].append(cpu.id)
    for text, ids in groups.items():
        noun = "CPU" if len(ids) == 1 else plural("CPU")
        yield f"{noun} {id_list(Mask.from_ids(ids))}: {text}"


def _text(cpu: MapCpuDocument, names: Mapping[str, str]) -> str:
    parts = [_USES[cpu.use]] if cpu.use in _USES else []
    parts += [" and ".join(_owner(owner, names) for owner in cpu.owners)] if cpu.owners else []
    parts += ["cordoned"] if cpu.cordoned else []
    parts += ["isolated"] if cpu.isolated else []
    parts += [f"node {cpu.node}"] if cpu.node is not None else []
    return ", ".join(parts)


def _owner(owner: MapOwnerDocument, names: Mapping[str, str]) -> str:
    pod = names.get(owner.uid, owner.uid)
    if owner.idle:
        return f"kept idle for pod {pod}"
    return f"pod {pod}, {f'container {owner.container}' if owner.container else 'shared in it'}"
