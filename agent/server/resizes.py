"""Requests to resize a pod: which change is meant, and whether a request may make it.

In go a request and an allocation, out come `OtherAmounts` for `agent.managers.resize`. What is
wrong with a request raises a `RequestError`; nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.resize import OtherAmounts
from agent.managers.specification import specification_of
from agent.pods.changes import amount_of
from agent.pods.model import ContainerKind, full_name
from agent.pods.quantity import Quantity, QuantityError
from agent.pods.validation import find_problems
from agent.server.errors import ContainerNotFoundError, ResizeError, SourceResizeError
from agent.text import some_of
from agent.yaml import Mistake
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.api.documents.admissions import ResizeRequest
    from agent.managers.allocation import PodAllocation, Source
    from agent.pods.model import Pod

#: The most names of containers that a message lists.
_NAMED: Final = 8


class Resize(Struct, frozen=True):
    """What a request asks for, whatever the pod has when its turn comes."""

    uid: str
    container: str
    cpu: int | None
    memory: int | None
    #: CPUs that stay with their containers.
    keep: Mask

    def desired(self, allocation: PodAllocation) -> Pod:
        """Return the specification that the pod would have; raises as `change`."""
        pod = _specification(allocation)
        desired = self.change(allocation).of(pod)
        if problems := find_problems(desired):
            raise ResizeError("the pod would be invalid", tuple(problems))
        return desired

    def change(self, allocation: PodAllocation) -> OtherAmounts:
        """Return the change of the pod; raises `ResizeError`, `ContainerNotFoundError`."""
        pod = _specification(allocation)
        change = OtherAmounts(self.uid, self._container(pod), self.cpu, self.memory)
        for name, _ in change.amounts():
            if amount_of(pod, change.container, name) is None:
                whose = "the pod level" if change.container is None else change.container
                raise ResizeError(f"{whose} states no {name}, so it is not resized")
        return change

    def _container(self, pod: Pod) -> str | None:
        containers = pod.all_containers()
        if self.container:
            names = tuple(each.name for each in containers)
            if self.container not in names:
                raise ContainerNotFoundError(full_name(pod), self.container, names)
            return self.container
        if pod.resources is not None:
            return None
        lasting = [each.name for each in containers if each.kind is not ContainerKind.INIT]
        if len(lasting) > 1:
            raise ResizeError(f"name the container: {some_of(lasting, _NAMED)}")
        return lasting[0]


def _specification(allocation: PodAllocation) -> Pod:
    pod = specification_of(allocation)
    if pod is None:
        raise ResizeError(
            f"the specification of pod {full_name(allocation)} is not known; admit the one that it "
            "was started with first"
        )
    return pod


def resize_of(uid: str, request: ResizeRequest) -> Resize:
    """Return what a request asks for; raises `ResizeError` for what is no amount or no CPUs."""
    mistakes: list[Mistake] = []
    cpu = _amount("cpus", request.cpus, mistakes)
    memory = _amount("memory", request.memory, mistakes)
    keep = Mask(0)
    try:
        keep = Mask.parse(request.keep)
    except ValueError as error:
        mistakes.append(Mistake("keep", str(error)))
    if mistakes:
        raise ResizeError("the request is not valid", tuple(mistakes))
    if cpu is None and memory is None:
        raise ResizeError("state what to change: cpus, memory, or both")
    return Resize(
        uid,
        request.container,
        None if cpu is None else cpu.milli_value,
        None if memory is None else memory.value,
        keep,
    )


def check_owner(allocation: PodAllocation, owner: tuple[Source, str] | None) -> None:
    """Raise `SourceResizeError` for a pod whose amounts its source states."""
    if owner is not None:
        raise SourceResizeError(full_name(allocation), owner[0])


def _amount(key: str, text: str, mistakes: list[Mistake]) -> Quantity | None:
    if not text:
        return None
    try:
        amount = Quantity.parse(text)
    except QuantityError as error:
        mistakes.append(Mistake(key, str(error)))
        return None
    if amount.nano <= 0:
        mistakes.append(Mistake(key, "it is not above zero"))
    return amount
