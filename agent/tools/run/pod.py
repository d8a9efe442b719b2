"""The pod of one command or systemd unit, as a manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.pods.lifetime import END, UNIT, End
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import Quantity, QuantityError
from agent.pods.requirements import NEAR_NODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The only container of the pod.
CONTAINER: Final = "main"


class OptionError(Exception):
    """An option that no pod can be made of; `option` names it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class Amounts(Struct, frozen=True):
    """What is asked for: a number of CPUs, a size, and further amounts by resource.

    `memory` "" leaves memory neither limited nor pinned.
    """

    cpus: str = "1"
    memory: str = ""
    others: Mapping[str, str] = {}


def listed_amounts(hugepages: Iterable[str], devices: Iterable[str]) -> dict[str, str]:
    """Return amounts by resource of texts such as `2Mi=512Mi` (huge pages) and `NAME=N` (devices).

    One text may list several, separated by commas. Raises `OptionError`.
    """
    amounts: dict[str, str] = {}
    for option, prefix, texts in (
        ("--hugepages", "hugepages-", hugepages),
        ("--device", "", devices),
    ):
        for text in (part for each in texts for part in each.split(",")):
            name, equals, amount = text.partition("=")
            if not (name and equals and amount):
                raise OptionError(option, f"{text!r} is not NAME=AMOUNT")
            amounts[prefix + name] = amount
    return amounts


def command_pod(
    uid: str, name: str, amounts: Amounts, *, shared: bool, near: int | None = None
) -> bytes:
    """Return the manifest of a pod that ends with the processes of a command.

    Its container has exclusive CPUs; with `shared` it runs in the node's shared pool, and `cpus` is
    a request: the weight against others. Memory is limited in both. `near` is the NUMA node on
    which it has to be. Raises `OptionError`.
    """
    if shared:
        _number_of_cpus(amounts.cpus)
    else:
        check_cpus(amounts.cpus, "a part of a CPU needs --shared")
    sizes = {MEMORY: amounts.memory} if amounts.memory else {}
    limits = {**sizes, **amounts.others}
    if not shared:
        limits[CPU] = amounts.cpus
    resources = {"requests": {CPU: amounts.cpus, **limits}, "limits": limits}
    annotations = {END: str(End.PROCESSES)}
    if near is not None:
        annotations[NEAR_NODES] = str(near)
    return _manifest(uid, name, annotations, resources, guaranteed=not shared)


def unit_pod(uid: str, name: str, unit: str, amounts: Amounts) -> bytes:
    """Return the manifest of a pod that ends with a systemd unit.

    Nothing is limited: the limits of the unit stay its own. Raises `OptionError`.
    """
    check_cpus(amounts.cpus, "name a whole number")
    sizes = {MEMORY: amounts.memory} if amounts.memory else {}
    requests = {CPU: amounts.cpus, **sizes, **amounts.others}
    resources = {"requests": requests, "limits": dict(amounts.others)}
    return _manifest(uid, name, {UNIT: unit}, resources, guaranteed=True)


def check_cpus(cpus: str, hint: str) -> None:
    """Raise `OptionError` unless a text is a number of exclusive CPUs; `hint` ends the message."""
    if not _number_of_cpus(cpus).is_whole:
        message = f"{cpus!r} is not a whole number of CPUs from 1; exclusive CPUs are whole, {hint}"
        raise OptionError("--cpus", message)


def _number_of_cpus(cpus: str) -> Quantity:
    try:
        amount = Quantity.parse(cpus)
    except QuantityError as error:
        raise OptionError("--cpus", f"{cpus!r} is not a number of CPUs: {error.reason}") from error
    if not amount.nano > 0:
        raise OptionError("--cpus", f"{cpus!r} is not a number of CPUs above 0")
    return amount


def _manifest(
    uid: str,
    name: str,
    annotations: dict[str, str],
    resources: Mapping[str, Mapping[str, str]],
    *,
    guaranteed: bool,
) -> bytes:
    pod: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": CONTAINER, "resources": resources}]},
    }
    if guaranteed:
        # The class of a pod without a limit of memory would not be Guaranteed, and its CPUs would
        # not be exclusive: the stated class wins over the computed one, as in the kubelet.
        pod["status"] = {"qosClass": "Guaranteed"}
    return json.dumps(pod).encode()
