"""The specification of an admitted pod, from the text that its allocation keeps.

In goes what `agent.pods.model.spec_text` wrote, with the identity and the annotations; out comes
the pod. The text states amounts exactly, so the pod has the digest of the one that was admitted.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from agent.pods.model import Container, ContainerKind, Pod, QosClass, Resources
from agent.pods.quantity import Notation, Quantity
from agent.pods.requests import is_memory_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Named

#: Resources and amounts in units of 10^-9.
_Amounts = tuple[tuple[str, int], ...]
#: Requests and limits.
_Resources = tuple[_Amounts, _Amounts]


class _Text(msgspec.Struct, array_like=True, frozen=True):
    """The members of the text, in their order."""

    format: int
    containers: tuple[tuple[str, ContainerKind, _Resources], ...]
    resources: _Resources | None
    status_qos: QosClass | None
    overhead: _Amounts = ()


def pod_of(text: str, named: Named, annotations: Mapping[str, str]) -> Pod:
    """Return the pod of a `spec_text`; raises `ValueError` for any other text."""
    saved = msgspec.json.decode(text, type=_Text)
    containers = [
        Container(name, kind, _resources(resources)) for name, kind, resources in saved.containers
    ]
    return Pod(
        uid=named.uid,
        name=named.name,
        namespace=named.namespace,
        containers=tuple(each for each in containers if each.kind is ContainerKind.APP),
        init_containers=tuple(each for each in containers if each.kind is not ContainerKind.APP),
        resources=None if saved.resources is None else _resources(saved.resources),
        status_qos=saved.status_qos,
        annotations=annotations,
        overhead=_amounts(saved.overhead),
    )


def _resources(saved: _Resources) -> Resources:
    return Resources(*map(_amounts, saved))


def _amounts(saved: _Amounts) -> Mapping[str, Quantity]:
    return MappingProxyType(
        {
            name: Quantity(nano, Notation.BINARY if is_memory_type(name) else Notation.DECIMAL)
            for name, nano in saved
        }
    )
