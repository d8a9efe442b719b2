"""What stands among the texts of the policy in format 1: cordons, and pods that run shared.

They are no fields of the state: releases that do not know a field take a file that has it for
damaged. Of a policy that differs such a release logs how, and goes on with all allocations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct

from agent.managers.allocations.cordons import CordonEntry, Cordons
from agent.managers.allocations.origin import Source
from agent.managers.policy import Cordon
from agent.state.checkpoint import SharedPod
from agent.state.delivery1 import Name  # noqa: TC001  # msgspec reads the annotations
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WireT = TypeVar("WireT")
#: What the keys begin with; a number follows.
_CORDON: Final = "cordon."
_SHARED: Final = "shared."


class CordonV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One cordon."""

    cpus: str = ""
    nodes: str = ""
    reason: str = ""
    since: float = 0.0


class SharedPodV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One pod that was rejected and runs in the shared pool; `source` and `key` asked for it."""

    uid: Name
    why: str
    source: Name
    key: str = ""
    name: str = ""
    namespace: str = ""


def texts_of(cordons: Cordons, shared: Mapping[str, SharedPod]) -> dict[str, str]:
    """Return cordons and shared pods as {key: JSON text}."""
    entries = (
        CordonV1(str(each.cordon.cpus), str(each.cordon.nodes), each.reason, each.since)
        for each in cordons
    )
    pods = (
        SharedPodV1(
            each.uid, each.why, each.source.name, each.source.key, each.name, each.namespace
        )
        for each in shared.values()
    )
    return {
        f"{prefix}{number}": msgspec.json.encode(each).decode()
        for prefix, values in ((_CORDON, entries), (_SHARED, pods))
        for number, each in enumerate(values)
    }


def policy_of(texts: Mapping[str, str]) -> dict[str, str]:
    """Return what of the texts is the policy."""
    return {key: text for key, text in texts.items() if not key.startswith((_CORDON, _SHARED))}


def cordons_of(texts: Mapping[str, str]) -> Cordons:
    """Return the cordons among the texts; raises `ValueError(field, problem)`."""
    return Cordons(tuple(_cordon(key, each) for key, each in _read(texts, _CORDON, CordonV1)))


def shared_of(texts: Mapping[str, str]) -> dict[str, SharedPod]:
    """Return the shared pods among the texts, by uid; raises `ValueError(field, problem)`."""
    return {
        each.uid: SharedPod(
            each.uid, each.name, each.namespace, Source(each.source, each.key), each.why
        )
        for _, each in _read(texts, _SHARED, SharedPodV1)
    }


def _cordon(key: str, wire: CordonV1) -> CordonEntry:
    try:
        cordon = Cordon(Mask.parse(wire.cpus), Mask.parse(wire.nodes))
    except ValueError as error:
        raise _damage(key, error) from error
    return CordonEntry(cordon, wire.reason, wire.since)


def _read(texts: Mapping[str, str], prefix: str, kind: type[WireT]) -> Iterator[tuple[str, WireT]]:
    """Yield the values whose keys begin with `prefix`, by their numbers."""
    numbered: dict[int, tuple[str, WireT]] = {}
    for key, text in texts.items():
        if key.startswith(prefix):
            try:
                number = int(key.removeprefix(prefix))
                numbered[number] = key, msgspec.json.decode(text, type=kind)
            except (msgspec.DecodeError, ValueError) as error:
                raise _damage(key, error) from error
    for number in sorted(numbered):
        yield numbered[number]


def _damage(key: str, error: Exception) -> ValueError:
    return ValueError(f"$.state.policy.{key}", str(error))
