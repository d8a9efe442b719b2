"""The NUMA node of a network interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.tools.run.pod import OptionError
from sysfs.devices import read_interfaces
from sysfs.files import SysfsTree
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from pathlib import Path

_OPTION: Final = "--near"
#: An error names this many interfaces at most.
_NAMED: Final = 8


def node_of_interface(root: Path, name: str) -> int:
    """Return the node of a network interface of the host whose sysfs is below `root`.

    Raises `OptionError` where there is no such interface, and where its node is not known: that of
    a bridge or bond is not, those of the interfaces in it are.
    """
    found = {device.name: device.node for device in read_interfaces(SysfsTree(root), EMPTY)}
    if name not in found:
        known = ", ".join(sorted(found)[:_NAMED]) or "none"
        raise OptionError(_OPTION, f"no interface of a device is called {name!r}; known: {known}")
    node = found[name]
    if node is None:
        raise OptionError(_OPTION, f"the kernel gives no NUMA node of {name}; leave --near out")
    return node
