"""The software bill of materials: CycloneDX 1.6, the same bytes for the same dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from deploy.dependencies.licences import Licensed

#: Of serial numbers: the same bill has the same one, another bill another one.
NAMESPACE: Final = UUID("6e756d61-7761-5264-8e00-000000000001")


def agent(version: str, purl: PackageURL | None = None) -> Component:
    """Return the component of the agent itself, the subject of its bills.

    `purl` says as what it is shipped; without one, as the wheel.
    """
    purl = purl or PackageURL("pypi", name="numawarden", version=version)
    return Component(
        name="numawarden",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=str(purl),
        purl=purl,
        licenses=[_licence("Apache-2.0")],
    )


def package(licensed: Licensed, scope: ComponentScope | None = None) -> Component:
    """Return the component of a locked Python package; without a scope it is required.

    The lock allows several files of a version, for one platform each; their hashes are those of the
    component's distribution, for no single one of them is the component.
    """
    locked = licensed.locked
    purl = PackageURL("pypi", name=locked.name, version=locked.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/project/{locked.name}/{locked.version}/"),
        comment="SHA-256 of each file that the lock file allows",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in locked.hashes],
    )
    return Component(
        name=locked.name,
        version=locked.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        scope=scope,
        licenses=[_licence(licensed.expression)],
        external_references=[files],
    )


def render(
    subject: Component,
    direct: Iterable[str],
    licensed: Sequence[Licensed],
    system: Sequence[Component] = (),
    *,
    optional: Container[str] = (),
) -> str:
    """Return the bill as JSON text that ends with a line feed.

    `direct` are the canonical names of the packages that `subject` itself requires, `licensed` all
    packages that belong to it, `optional` the names of those that an extra brings, `system` what it
    contains besides Python packages. Required packages that are not among `licensed` are left out:
    they belong to another platform or Python. Without a time: the same dependencies have to give
    the same bytes.
    """
    scopes = {True: ComponentScope.OPTIONAL, False: None}
    components = {
        one.locked.name: package(one, scopes[one.locked.name in optional]) for one in licensed
    }
    bom = Bom(
        metadata=BomMetaData(
            component=subject, lifecycles=[PredefinedLifecycle(LifecyclePhase.BUILD)]
        ),
        components=[*components.values(), *system],
        serial_number=NAMESPACE,
    )
    # The format lets it be absent; the library's signature does not say so.
    bom.metadata.timestamp = None  # type: ignore[assignment]
    required = [components[name] for name in direct if name in components]
    bom.register_dependency(subject, [*required, *system])
    for one in licensed:
        below = [components[name] for name in one.requires if name in components]
        bom.register_dependency(components[one.locked.name], below)
    bom.serial_number = uuid5(NAMESPACE, _text(bom))
    return _text(bom)


def _text(bom: Bom) -> str:
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _licence(expression: str) -> LicenseExpression:
    return LicenseExpression(expression, acknowledgement=LicenseAcknowledgement.DECLARED)
