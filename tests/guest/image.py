"""The guest's disk image, kernel and Python, made from the recipe beside this file."""

from __future__ import annotations

import shlex
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest import cache, host
from tests.guest.errors import GuestError

if TYPE_CHECKING:
    from collections.abc import Iterator

RECIPE: Final = Path(__file__).with_name("recipe")

MIB: Final = 1 << 20
SECTOR: Final = 512
#: Size of the root file system; the file is sparse.
ROOT_SIZE: Final = 2048 * MIB
#: Where the one partition starts; room for the MBR and an alignment every disk likes.
ROOT_OFFSET: Final = MIB
ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
#: The MBR's disk signature; the kernel makes PARTUUID=6e756d61-01 of it (command line).
DISK_SIGNATURE: Final = 0x6E756D61

#: Directories of a tree that hold nothing once the packages are installed.
EMPTIED: Final = ("boot", "var/cache/apt", "var/lib/apt/lists", "var/log")

#: The guest's Python: a link to the program of the suite's version.
PYTHON: Final = "usr/bin/python3"
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True)
class Python:
    """The guest's own Python, run on the host with the guest's C library instead of the host's.

    It resolves, installs and compiles for the guest at the host's speed.
    """

    root: Path

    @property
    def name(self) -> str:
        """Its program's name, with the version: `python3.13`."""
        return (self.root / PYTHON).readlink().name

    def command(self, *args: str | Path) -> list[str]:
        """Return the command line that runs this Python with the given arguments."""
        binary = self.root / PYTHON
        loader = [self.root / LIBRARIES / "ld-linux-x86-64.so.2", "--argv0", binary]
        libraries = ["--library-path", self.root / LIBRARIES]
        return [str(part) for part in [*loader, *libraries, binary, *args]]

    def run(self, *args: str | Path) -> str:
        """Run this Python to its end and return what it printed; raises `CommandError`."""
        return host.run(self.command(*args), {"PYTHONHOME": str(self.root / "usr")})

    @property
    def pip(self) -> Path:
        """Where pip lies: inside its wheel, which Python can run."""
        return next((self.root / "usr/share/python-wheels").glob("pip-*.whl")) / "pip"


@dataclass(frozen=True, slots=True)
class Image:
    """A guest image in the cache."""

    directory: Path

    @property
    def kernel(self) -> Path:
        """The kernel that QEMU boots directly; it needs no initial RAM disk."""
        return self.directory / "vmlinux"

    @property
    def disk(self) -> Path:
        """The raw disk image with the root file system."""
        return self.directory / "root.img"

    @property
    def python(self) -> Python:
        """The guest's Python for use on the host."""
        return Python(self.directory / "python")


def require(store: cache.Cache, suite: str) -> None:
    """Raise `GuestError` where the image would have to be made and cannot: no root, no tools."""
    if not store.has(f"image-{suite}", recipe_key()):
        host.require_root("making the guest image")
        host.provide(host.BUILD_NEEDS)


def provide(store: cache.Cache, suite: str) -> Image:
    """Return the suite's image of the present recipe, made now if the cache does not have it."""
    require(store, suite)
    made = store.entry(f"image-{suite}", recipe_key(), lambda where: make(where, suite))
    return Image(made)


def recipe_key() -> str:
    """Return the hash of all files that define the image."""
    files = [path for path in RECIPE.rglob("*") if path.is_file()]
    return cache.key_of_files(RECIPE.parent, [*files, Path(__file__)])


def make(directory: Path, suite: str) -> None:
    """Make the image into an empty directory: bootstrap, customize, pack."""
    tree = directory / "tree"
    _bootstrap(tree, suite)
    _customize(tree)
    unpack_kernel(_kernel_of(tree), directory / "vmlinux")
    _keep_python(tree, directory / "python")
    packages = host.run(["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W"])
    (directory / "packages.txt").write_text(packages)
    _empty(tree)
    _pack(tree, directory / "root.img")
    shutil.rmtree(tree)


def _entries(name: str) -> Iterator[str]:
    for line in (RECIPE / name).read_text().splitlines():
        if line and not line.startswith("#"):
            yield line


def _bootstrap(tree: Path, suite: str) -> None:
    """Install the recipe's packages; no initial RAM disk is made, the kernel needs none."""
    # Once dpkg is there: each package that mmdebstrap itself unpacks would go through a filter.
    configure = f'printf "%s" {shlex.quote(_exclusions())} >"$1/etc/dpkg/dpkg.cfg.d/guest"'
    # A diversion, for apt gives packages' scripts a search path without /usr/local.
    no_initrd = (
        'chroot "$1" dpkg-divert --quiet --local --rename --add /usr/sbin/update-initramfs'
        ' && ln -s /bin/true "$1/usr/sbin/update-initramfs"'
    )
    host.run(
        [
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--format=directory"),
            "--architectures=amd64",
            '--aptopt=Acquire::Languages "none"',
            '--aptopt=APT::Install-Recommends "false"',
            *host.debian_options(),
            "--dpkgopt=force-unsafe-io",  # what is cut off is made again: no need to wait for disks
            f"--extract-hook={configure}",
            f"--essential-hook={no_initrd}",
            f"--include={','.join(_entries('packages'))}",
            *(suite, tree),
            *host.debian_sources(suite),
        ]
    )


def _exclusions() -> str:
    """Return what dpkg is not to unpack, for its configuration."""
    return "".join(f"path-exclude={pattern}\n" for pattern in _entries("excluded"))


def _customize(tree: Path) -> None:
    """Lay the recipe's own files over the tree and let targets start only what is listed."""
    shutil.copytree(RECIPE / "rootfs", tree, dirs_exist_ok=True)
    (tree / "etc/machine-id").write_text("")
    kept = set(_entries("units"))
    for units in ("usr/lib/systemd/system", "etc/systemd/system"):
        for link in (tree / units).glob("*.wants/*"):
            if link.name not in kept:
                link.unlink()
    wants = tree / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "guest-job.service").symlink_to("../guest-job.service")


def _kernel_of(tree: Path) -> Path:
    kernels = sorted((tree / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise GuestError(
            f"the image recipe gave {len(kernels)} kernels, it must give one",
            f"look at {RECIPE}/packages",
        )
    return kernels[0]


def unpack_kernel(packed: Path, kernel: Path) -> None:
    """Write the ELF file that is inside of a bzImage: to unpack itself takes a guest seconds.

    Documentation/arch/x86/boot.rst, "payload_offset". A payload in another format than zstd is left
    to the kernel.
    """
    image = packed.read_bytes()
    code = (image[0x1F1] + 1) * SECTOR
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[code + offset : code + offset + length]
    if not payload.startswith(ZSTD_MAGIC):
        kernel.write_bytes(image)
        return
    # Four bytes after the payload are its size, for the kernel's own unpacking.
    frame = kernel.with_suffix(".zst")
    frame.write_bytes(payload[:-4])
    host.run(["zstd", "--quiet", "--decompress", "--rm", frame, "-o", kernel])


def _keep_python(tree: Path, kept: Path) -> None:
    """Copy the guest's Python and the libraries it may load out of the tree."""
    program = (tree / PYTHON).readlink()
    link = kept / PYTHON
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    for part in (f"usr/bin/{program}", f"usr/lib/{program}", "usr/share/python-wheels"):
        source, target = tree / part, kept / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    (kept / LIBRARIES).mkdir(parents=True)
    for library in (tree / LIBRARIES).glob("*.so*"):
        shutil.copy2(library, kept / LIBRARIES / library.name, follow_symlinks=False)


def _empty(tree: Path) -> None:
    for name in EMPTIED:
        for path in (tree / name).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _pack(tree: Path, disk: Path) -> None:
    """Write a disk with one ext4 partition that contains the tree; no loop device, no mount."""
    with disk.open("wb") as handle:
        handle.write(_boot_record())
        handle.truncate(ROOT_OFFSET + ROOT_SIZE)
    write_ext4(disk, tree, ROOT_SIZE, ROOT_OFFSET)


def write_ext4(disk: Path, tree: Path, size: int, offset: int = 0) -> None:
    """Make an ext4 file system of `size` bytes that holds a tree, `offset` bytes into a file.

    A guest lives for minutes: its disks need no journal and no checksums.
    """
    host.run(
        [
            *("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum"),
            *("-E", f"offset={offset},lazy_itable_init=1,root_owner=0:0"),
            *("-d", tree, disk, f"{size // 1024}k"),
        ]
    )


def _boot_record() -> bytes:
    """Return an MBR: disk signature, one Linux partition (type 0x83), signature 55 AA."""
    partition = struct.pack(
        "<B3sB3sII", 0, b"", 0x83, b"", ROOT_OFFSET // SECTOR, ROOT_SIZE // SECTOR
    )
    record = bytearray(SECTOR)
    record[440:444] = DISK_SIGNATURE.to_bytes(4, "little")
    record[446 : 446 + len(partition)] = partition
    record[510:] = b"\x55\xaa"
    return bytes(record)
