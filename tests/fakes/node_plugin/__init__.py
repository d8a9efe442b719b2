"""A device plugin in JavaScript: gRPC and protobuf of others than the agent's, as a process.

`make plugin` installs its packages, by the lock file beside this one, into `.cache/node-plugin`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCES: Final = Path(__file__).parent
INSTALLED: Final = SOURCES.parents[2] / ".cache" / "node-plugin"
_FILES: Final = ("package.json", "package-lock.json", "device_plugin.proto", "plugin.js")


class MissingNodeError(Exception):
    """Node.js or npm is missing; the text says what to install."""


def install() -> None:
    """Install the packages; raises `MissingNodeError`, and `CalledProcessError` of npm."""
    if is_installed():
        return
    if shutil.which("node") is None or (npm := shutil.which("npm")) is None:
        raise MissingNodeError("node and npm are missing; on Debian: apt-get install nodejs npm")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in _FILES[:2]:
        shutil.copy(SOURCES / name, INSTALLED)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run((npm, "ci", *options), cwd=INSTALLED, check=True)
    for name in _FILES[2:]:
        shutil.copy(SOURCES / name, INSTALLED)


def is_installed() -> bool:
    """Return whether this version of the plugin is installed, with its packages."""
    return (INSTALLED / "node_modules").is_dir() and all(
        (INSTALLED / name).is_file()
        and (INSTALLED / name).read_bytes() == (SOURCES / name).read_bytes()
        for name in _FILES
    )


class NodePlugin:
    """The plugin as a process; `calls` are the methods that were called, with their ids."""

    def __init__(self, directory: Path, resource: str, endpoint: str) -> None:
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self._arguments = (str(directory), resource, endpoint)
        self._registered = asyncio.Event()
        self._error = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it registered; raises `RuntimeError` if it did not."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            "node",
            str(INSTALLED / "plugin.js"),
            *self._arguments,
            stdin=pipe,
            stdout=pipe,
            # A proxy of the surroundings is not meant for sockets.
            env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        )
        self._reading = asyncio.create_task(self._read())
        await self._registered.wait()
        if self._error:
            raise RuntimeError(self._error)

    def send(self, devices: Iterable[tuple[str, int, bool]]) -> None:
        """Send a list of devices: id, NUMA node, whether it is healthy."""
        assert self._process is not None
        assert self._process.stdin is not None
        listed = [
            {"id": name, "nodes": [node], "healthy": healthy} for name, node, healthy in devices
        ]
        self._process.stdin.write(json.dumps({"devices": listed}).encode() + b"\n")

    async def stop(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reading is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if "called" in event:
                self.calls.append((event["called"], tuple(event["ids"])))
            else:
                self._error = event.get("error", "")
                self._registered.set()
        self._error = self._error or "it ended before it registered"
        self._registered.set()
