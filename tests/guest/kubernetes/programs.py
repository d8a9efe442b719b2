"""The programs of Kubernetes that the user names, and the disk that brings them into a guest."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest import cache, image
from tests.guest.errors import GuestError
from tests.helm import UNPACKED

if TYPE_CHECKING:
    from pathlib import Path

KUBECTL: Final = UNPACKED / "kubectl"
KUBELET: Final = "kubelet"
API_SERVER: Final = "kube-apiserver"
SCHEDULER: Final = "kube-scheduler"
#: What runs in the guest in place of Debian's packages, if the directory has all of it.
RUNTIME: Final = ("containerd", "containerd-shim-runc-v2")
DISK: Final = "kubernetes.img"
DISK_SIZE: Final = 512 * image.MIB


@dataclass(frozen=True, slots=True)
class Programs:
    """A directory with the programs; `own_runtime` says whether containerd is among them."""

    directory: Path
    own_runtime: bool

    @property
    def api_server(self) -> Path:
        """The API server, which runs on the host."""
        return self.directory / API_SERVER

    @property
    def scheduler(self) -> Path:
        """The scheduler, which runs on the host."""
        return self.directory / SCHEDULER

    def of_guest(self) -> list[Path]:
        """Return what the guest gets."""
        names = (KUBELET, *(RUNTIME if self.own_runtime else ()))
        return [KUBECTL, *(self.directory / name for name in names)]

    def disk(self, store: cache.Cache) -> Path:
        """Return a disk (ext4) with what the guest gets."""
        programs = self.of_guest()
        key = cache.key_of(
            *(part for each in programs for part in (each.name.encode(), each.read_bytes()))
        )
        # Two kinds, so that a run with a containerd does not remove the disk of one without.
        kind = "kubernetes-containerd" if self.own_runtime else "kubernetes"
        return store.entry(kind, key, self._make) / DISK

    def _make(self, directory: Path) -> None:
        tree, disk = directory / "tree", directory / DISK
        tree.mkdir()
        for program in self.of_guest():
            shutil.copy2(program, tree)
        with disk.open("wb") as handle:
            handle.truncate(DISK_SIZE)
        image.write_ext4(disk, tree, DISK_SIZE)
        shutil.rmtree(tree)


def find(directory: Path) -> Programs:
    """Return the programs in a directory; raises `GuestError` where one is missing."""
    missing = [
        name
        for name in (KUBELET, API_SERVER, SCHEDULER)
        if not os.access(directory / name, os.X_OK)
    ]
    if missing:
        raise GuestError(
            f"{directory} has no program {', '.join(missing)}",
            "name a directory with these programs, such as kubernetes/server/bin of a release of "
            "Kubernetes (kubernetes-server-linux-amd64.tar.gz)",
        )
    own_runtime = all(os.access(directory / name, os.X_OK) for name in RUNTIME)
    return Programs(directory.resolve(), own_runtime)
