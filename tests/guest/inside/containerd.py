"""containerd in the guest: configured for a cgroup driver, started, with an image of busybox."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import oci
from tests.guest.inside.commands import run

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

IMAGE: Final = "guest.invalid/busybox:1"
CONFIG: Final = Path("/etc/containerd/config.toml")

TEMPLATE: Final = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "{runtime}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = {systemd}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
  BinaryName = "crun"
  SystemdCgroup = {systemd}
"""
#: Off by default in the 1.7 of Debian 13. The time that a plugin has for an answer is the default.
NRI: Final = """\
[plugins."io.containerd.nri.v1.nri"]
  disable = false
"""


RUNC: Final = Path("/usr/sbin/runc")

#: What has the service run another containerd than Debian's.
DROP_IN: Final = Path("/etc/systemd/system/containerd.service.d/programs.conf")
#: The file of deploy/ for containerd 2.
CONTAINERD_2: Final = Path("/job/deploy/kubernetes/node/containerd-2.toml")


def use(programs: Path) -> None:
    """Have the service run the containerd of a directory, a 2.x, instead of Debian's 1.7."""
    DROP_IN.parent.mkdir(parents=True)
    path = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    DROP_IN.write_text(
        f"[Service]\nEnvironment=PATH={path}\nExecStart=\nExecStart={programs}/containerd\n"
    )
    run("systemctl", "daemon-reload")


def _migrated(text: str) -> str:
    """Return a configuration in the version of the containerd in use, with `CONTAINERD_2`."""
    CONFIG.write_text(text)
    program = DROP_IN.read_text().rstrip().rpartition("ExecStart=")[2]
    migrated = run(program, "--config", CONFIG, "config", "migrate")
    kept = [line for line in migrated.splitlines() if not line.startswith("imports")]
    return "\n".join([f'imports = ["{CONTAINERD_2}"]', *kept, ""])


@cache
def _sealed(program: Path) -> Path:
    """Return where a copy of a program lies in sealed memory, for as long as this process lives.

    runc copies itself into such a file for each process of a container, unless it is one already
    (CVE-2019-5736). An emulator translates the code of each copy again: three quarters of the time
    of a container.
    """
    memory = os.memfd_create(program.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(memory), "wb") as copy:
        copy.write(program.read_bytes())
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return Path(f"/proc/{os.getpid()}/fd/{memory}")


def start(
    guest: Guest, driver: str, runtime: str = "runc", *, nri: bool = False, sealed: bool = False
) -> None:
    """Start containerd for the cgroup driver `systemd` or `cgroupfs` and give it an image.

    It has the handlers `runc` and `crun`; `runtime` is the default one. With `nri` plugins may
    register at its socket. With `sealed` runc is fast; but now and then a container is not created
    then, as systemd has just replaced the filter of devices that runc is about to replace ("can't
    attach program: no such file or directory"), and the caller has to try again.
    """
    systemd = str(driver == "systemd").lower()
    CONFIG.parent.mkdir(exist_ok=True)
    runc = _sealed(RUNC) if sealed else RUNC.name
    text = TEMPLATE.format(image=IMAGE, runtime=runtime, runc=runc, systemd=systemd)
    text += NRI if nri else ""
    CONFIG.write_text(_migrated(text) if DROP_IN.exists() else text)
    run("systemctl", "start", "containerd.service")
    root = oci.write_root(guest.work / "image-root")
    archive = oci.write_image(guest.work / "image.tar", IMAGE, root)
    run("ctr", "--namespace=k8s.io", "images", "import", "--local", archive)
