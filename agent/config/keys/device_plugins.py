"""The keys of `agent.devicePlugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from agent.config.keys.key import Key, KeyGroup, Section
from agent.config.keys.scalars import OptionalPath, Period, RequiredPath, Switch
from agent.config.model import DevicePluginsConfig

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.keys.key import KeyReader, Schema
    from agent.yaml import Field

#: What every plugin's socket path and `kubelet.sock` have to fit in, with a plugin's own file name
#: of a usual length: 107 bytes (unix(7)).
_LONGEST_DIRECTORY: Final = 64
_SHORTEST_CALL: Final = 0.1
#: Below the minute that all deliveries to one pod may take together.
_LONGEST_CALL: Final = 30.0


class SocketDirectory(RequiredPath, frozen=True):
    """The absolute path of a directory of sockets, whose paths have at most 107 bytes."""

    words: ClassVar[str] = f"absolute path of at most {_LONGEST_DIRECTORY} bytes"

    def read(self, reader: KeyReader, at: Field, base: Path) -> Path:
        """Return the path."""
        path = super().read(reader, at, base)
        if len(str(path).encode()) > _LONGEST_DIRECTORY:
            reader.reject(
                at,
                f"the path of a directory of sockets has at most {_LONGEST_DIRECTORY} bytes, since "
                "the kernel allows 107 for a socket's",
            )
        return path

    def schema(self) -> Schema:
        """Return an absolute path or an empty text; its bytes are at least its characters."""
        return {**super().schema(), "maxLength": _LONGEST_DIRECTORY}


DEVICE_PLUGINS: Final = Section(
    DevicePluginsConfig(),
    (
        KeyGroup(
            "Device plugins",
            (
                Key(
                    "enabled",
                    Switch(),
                    since="0.1.0",
                    help="Whether device plugins can register, as with a kubelet (device plugin "
                    "API v1beta1). It needs the extra grpc: pip install 'numawarden[grpc]'. See "
                    "docs/devices.md.",
                ),
                Key(
                    "directory",
                    SocketDirectory(),
                    since="0.1.0",
                    help="The directory of plugins' sockets; in most plugins it is fixed, so it "
                    "is the kubelet's. It is not served while a kubelet serves it.",
                ),
                Key(
                    "registryDirectory",
                    OptionalPath(),
                    since="0.1.0",
                    help="The directory of the kubelet's plugin watcher, in which plugins serve "
                    "pluginregistration/v1 instead of registering themselves; empty: "
                    "plugins_registry beside the directory above. It need not exist.",
                ),
                Key(
                    "callTimeout",
                    Period(_SHORTEST_CALL, _LONGEST_CALL),
                    since="0.1.0",
                    help="How long a plugin may take to answer GetDevicePluginOptions, or "
                    "Allocate, while all admissions wait; half of it for GetPreferredAllocation. "
                    "PreStartContainer has 30s, as with the kubelet.",
                ),
            ),
        ),
    ),
)
