"""The image's SBOM: the Python packages that are installed in it, and the Debian packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.component import Component, ComponentType
from packageurl import PackageURL

from agent import __version__
from deploy.dependencies import lock, sbom
from deploy.dependencies.__main__ import direct
from deploy.image.debian import RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploy.dependencies.licences import Licensed
    from deploy.image.debian import Package


def render(
    packages: Sequence[Package], licensed: Iterable[Licensed], installed: Mapping[str, str]
) -> str:
    """Return the bill of an image with these Debian packages and installed Python packages.

    `licensed` are the locked Python packages, `installed` the versions of what is in the image, by
    canonical name. Raises `DependencyError` where something is installed that is not locked.
    """
    listed = tuple(licensed)
    lock.require_locked(installed, (one.locked for one in listed), __version__)
    inside = [one for one in listed if one.locked.name in installed]
    return sbom.render(sbom.agent(__version__), direct(), inside, [*map(component, packages)])


def component(package: Package) -> Component:
    """Return the component of a Debian package; its licences are in its copyright file."""
    purl = PackageURL(
        "deb",
        namespace="debian",
        name=package.name,
        version=package.version,
        qualifiers={"arch": package.architecture, "distro": f"debian-{RELEASE}"},
    )
    copyright_file = ExternalReference(
        type=ExternalReferenceType.LICENSE,
        url=XsUri(f"file:///usr/share/doc/{package.name}/copyright"),
    )
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
        external_references=[copyright_file],
    )
