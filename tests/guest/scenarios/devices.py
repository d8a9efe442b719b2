"""Containers find what was delivered with their devices, however they are started.

First the devices of a pod that the agent admitted, then a delivery that no provider in the guest
makes: paths and values with every letter that means something to a shell, a runtime or systemd.
"""

from __future__ import annotations

import json
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import containerd, kernel, oci
from tests.guest.inside.agent import PROGRAM, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.cri import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

CDI: Final = Path("/run/cdi")
DISK: Final = "example.com/disk"
#: The agent's own Python, and what it runs for the second half.
PYTHON: Final = Path(PROGRAM).with_name("python3")
HANDED_OVER: Final = "tests/guest/inside/handed_over.py"

UID: Final = "5526cafe-0000-4000-8000-0000000000de"
POD: Final[Mapping[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "with-disk", "namespace": "default", "uid": UID},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "example",
                "resources": {"limits": {"cpu": "2", "memory": "1Gi", DISK: "1"}},
            }
        ]
    },
}
#: The NVMe disk of node 1.
CLASSES: Final = {DISK: [{"pciClass": "0108"}]}

ODD_TEXT: Final = "a=b  c:'d' \"e\" $HOME %h \\x20, {} * \u00e9"
NODE: Final = "/dev/nvme0n1"
GIVEN: Final = "/dev/given"
ODD_SLICE: Final = "guest-odd.slice"


@dataclass(frozen=True, slots=True)
class Odd:
    """A delivery: a variable, a read-only and a writable folder, a node at another path.

    `name` is the uid of a pod, which is none of the usual ones, and a part of both paths.
    """

    name: str
    letters: str

    @property
    def source(self) -> Path:
        """The folder of the host."""
        return Path(f"/run/guest/{self.name} {self.letters}")

    @property
    def inside(self) -> str:
        """Where the folder is in the container."""
        return f"/run/in {self.name} {self.letters}"

    @property
    def delivery(self) -> dict[str, object]:
        """The delivery as `handed_over` reads it."""
        return {
            "uid": self.name,
            "environment": {"ODD_TEXT": ODD_TEXT},
            "mounts": [
                {
                    "container_path": self.inside,
                    "host_path": str(self.source),
                    "read_only": True,
                },
                {"container_path": "/run/writable", "host_path": "/run/guest/writable"},
            ],
            "device_nodes": [{"container_path": GIVEN, "host_path": NODE, "permissions": "rw"}],
        }

    @property
    def script(self) -> str:
        """What says `SAID` where all of it is found, and no other disk."""
        file = shlex.quote(f"{self.inside}/file")
        return f"""\
printf '%s\\n' "$ODD_TEXT"
cat {file}
head -c 512 {GIVEN} | busybox wc -c
busybox touch {file} 2>/dev/null && echo "a read-only mount is written"
echo "$ODD_TEXT" > /run/writable/file && echo written
head -c 1 /dev/vda 2>/dev/null | busybox wc -c
"""


SAID: Final = [ODD_TEXT, "odd", "512", "written", "0"]
#: Letters that a shell, a runtime or systemd may not take as they are; systemd loses quotes.
QUOTED: Final = Odd("quoted", "a,b:\"c\"'d' %h $x \\y = \u00e9")
UNQUOTED: Final = Odd("unquoted", "a,b: %h $x \\y = \u00e9")


def run(guest: Guest) -> None:
    """Start containers in every way, with each kind of delivery."""
    checks = guest.checks
    root = oci.write_root(guest.work / "root")
    containerd.start(guest, "systemd")
    agent = Agent(guest, agent={"hostDevices": CLASSES})
    agent.start()
    _admitted(checks, agent, root)
    agent.stop()  # it would remove the files of pods that it does not know
    _odd(guest, root)


def _admitted(checks: Checks, agent: Agent, root: Path) -> None:
    answer = agent.admit(POD)
    checks.require("a pod with a disk is admitted", answer["admitted"], answer)
    delivery = answer["pod"]["containers"][0]["delivery"]
    name = f"numawarden.dev/pod={UID}-main"
    checks.equal("the answer has the name of the CDI device", delivery["cdiDevice"], name)
    said = [f"{variable}={value}" for variable, value in sorted(delivery["environment"].items())]
    checks.check("something was delivered", said, delivery)
    cpus = kernel.ids(answer["pod"]["containers"][0]["cpus"])
    said.extend(f"{node['containerPath']} is there" for node in delivery["deviceNodes"])
    script = "busybox env | grep -E 'NUMAWARDEN|PCIDEVICE' | busybox sort\n" + "".join(
        f"busybox test -e {node['containerPath']} && echo {node['containerPath']} is there\n"
        for node in delivery["deviceNodes"]
    )
    script += "grep Cpus_allowed_list /proc/self/status\n"
    file = CDI / f"numawarden-{UID}.json"
    status = file.stat()
    checks.equal("mode of the CDI file", oct(stat.S_IMODE(status.st_mode)), "0o644")
    parent = agent.cgroup_of(UID).path.name
    started: dict[str, Callable[[], list[str]]] = {
        "podman": lambda: _podman(_arguments("podman"), root, script),
        "systemd-run": lambda: _systemd_run(_arguments("systemd-run"), script),
        "ctr": lambda: _ctr(_arguments("containerd"), "first", script),
        "CRI": lambda: _cri(parent, name, script),
    }
    for way, start in started.items():
        *found, allowed = start()
        checks.equal(f"{way}: what was delivered is found", found, said)
        checks.equal(f"{way}: CPUs of the pod", kernel.ids(allowed.split()[-1]), cpus)
    _files(checks, agent, file)


def _files(checks: Checks, agent: Agent, file: Path) -> None:
    """Check that the file follows the pod, also where it is changed, and across a restart."""
    content = file.read_text()
    file.unlink()
    agent.restart()
    checks.eventually("a restart writes a CDI file that is missing", file.read_text, content)
    file.write_text("{}")
    ask("POST", "reconcile")
    checks.equal("a reconcile repairs a CDI file that was changed", file.read_text(), content)
    agent.remove(UID)
    checks.check("the CDI file is removed with the pod", not file.exists(), file)


def _arguments(tool: str) -> list[str]:
    """Return what `numawarden show` prints, as a shell reads it."""
    asked = ("show", "with-disk", "--container", "main", "--arguments", tool)
    return shlex.split(command(PROGRAM, *asked))


def _odd(guest: Guest, root: Path) -> None:
    """Check that every way delivers paths and values as they are."""
    (guest.work / "writable").mkdir()
    given = _handed_over(guest, QUOTED)
    script = QUOTED.script
    name = f"numawarden.dev/pod={QUOTED.name}_main"
    started: dict[str, Callable[[], list[str]]] = {
        "podman": lambda: _podman(given["podman"], root, script),
        "podman without CDI": lambda: _podman(given["podman without CDI"], root, script),
        "ctr": lambda: _ctr(given["containerd"], "second", script),
        "CRI": lambda: _cri(ODD_SLICE, name, script),
    }
    for way, start in started.items():
        _check_odd(guest, way, start)
    rejected = str(given["systemd-run"])
    guest.checks.check("systemd-run: quotes are an error", "the quote in" in rejected, rejected)
    arguments = _handed_over(guest, UNQUOTED)["systemd-run"]
    _check_odd(guest, "systemd-run", lambda: _systemd_run(arguments, UNQUOTED.script))


def _check_odd(guest: Guest, way: str, start: Callable[[], list[str]]) -> None:
    guest.checks.equal(f"{way}: an odd delivery is found", start(), SAID)
    written = guest.work / "writable/file"
    guest.checks.equal(f"{way}: a mount is writable", written.read_text(), f"{ODD_TEXT}\n")
    written.unlink()


def _handed_over(guest: Guest, odd: Odd) -> dict[str, Any]:
    """Have the agent's own code write a CDI file; return the arguments by tool."""
    odd.source.mkdir()
    (odd.source / "file").write_text("odd\n")
    program = (PYTHON, "-P", guest.job / HANDED_OVER)
    made = attempt(*program, CDI, f"/guest.slice/{ODD_SLICE}", stdin=json.dumps(odd.delivery))
    guest.checks.require(f"a CDI file is written: {odd.name}", made.ok, made)
    given = made.json()
    assert isinstance(given, dict)
    return given


def _podman(arguments: Sequence[str], root: Path, script: str) -> list[str]:
    options = ("--rm", "--network=host", "--log-driver=none")
    return command(
        "podman", "run", *options, *arguments, "--rootfs", root, "/bin/sh", "-c", script
    ).splitlines()


def _systemd_run(arguments: Sequence[str], script: str) -> list[str]:
    options = ("--quiet", "--wait", "--pipe", "--collect", "--expand-environment=no")
    shell = ("/bin/busybox", "sh", "-c", script)
    return command("systemd-run", *options, *arguments, *shell).splitlines()


def _ctr(arguments: Sequence[str], name: str, script: str) -> list[str]:
    shell = (containerd.IMAGE, name, "/bin/sh", "-c", script)
    return command("ctr", "--namespace=k8s.io", "run", "--rm", *arguments, *shell).splitlines()


def _cri(parent: str, device: str, script: str) -> list[str]:
    """Start a container as a kubelet does with a CDI device; returns what it wrote."""
    runtime = Runtime()
    sandbox = runtime.run_sandbox("delivery", device.rpartition("=")[2], parent)
    try:
        return runtime.output_of(
            sandbox, containerd.IMAGE, ("/bin/sh", "-c", script), cdi_devices=(device,)
        )
    finally:
        runtime.remove_sandbox(sandbox)
