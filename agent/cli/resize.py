"""`numawarden resize`: other amounts for a running pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from agent.api.documents.admissions import ResizeRequest
from agent.cli.common import agent_at, find_pod
from agent.cli.completion import complete_containers, pod_argument
from agent.cli.errors import ExitCode
from agent.cli.lines import labelled
from agent.cli.options import Output, output_option, socket_option
from agent.cli.output import print_answer
from agent.cli.pod_text import state_lines
from agent.cli.reason_text import explanation_lines, rejection_lines
from agent.managers.amounts import size_text
from agent.pods.model import name_and_uid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.pods import ContainerDocument, PodDocument


@click.command()
@pod_argument()
@click.option(
    "-c",
    "--container",
    default="",
    shell_complete=complete_containers,
    help="Which container, if the pod has several. Without it, the pod-level resources of a pod "
    "that states some.",
)
@click.option("--cpus", metavar="N", default="", help="The new number of CPUs.")
@click.option("--memory", metavar="SIZE", default="", help="The new memory, such as 12Gi.")
@click.option(
    "--keep",
    metavar="CPUS",
    default="",
    help="CPUs that stay, such as 2-3: a container that gets fewer CPUs keeps those that it was "
    "admitted with, unless as many are named here.",
)
@click.option("--dry-run", is_flag=True, help="Decide as it would be now, and change nothing.")
@output_option
@socket_option
def resize(  # noqa: PLR0913  # each is an argument or option of the command
    *,
    pod: str,
    container: str,
    cpus: str,
    memory: str,
    keep: str,
    output: Output,
    socket_path: str,
    dry_run: bool,
) -> int:
    """Give a running POD (uid, name or namespace/name) more or fewer CPUs, more or less memory.

    It keeps what it has and gets the rest as near to that as it can be; its processes run on. A pod
    of a manifest file is resized in its file.

    Exits with 1 for a resize that is rejected, which changes nothing, and 7 for one that the kernel
    does not enforce.
    """
    asked = ResizeRequest(container=container, cpus=cpus, memory=memory, keep=keep)
    return resized(pod, asked, output, socket_path, dry_run=dry_run)


def resized(
    pod: str, asked: ResizeRequest, output: Output, socket_path: str, *, dry_run: bool
) -> ExitCode:
    """Ask for a resize of the named pod, print the answer, and return how the command exits."""
    with agent_at(socket_path) as agent:
        former = find_pod(agent, pod)
        answer = agent.resize(former.uid, asked, dry_run=dry_run)
    print_answer(answer, output, lambda document: resize_lines(former, document))
    if answer.pod is None:
        return ExitCode.REJECTED
    return ExitCode.OK if answer.pod.enforcement.enforced else ExitCode.NOT_ENFORCED


def resize_lines(former: PodDocument, answer: AdmissionDocument) -> Iterator[str]:
    """Yield what became of a pod that had what `former` says, or why it did not."""
    name = name_and_uid(answer)
    if answer.pod is None:
        yield f"{'would not resize' if answer.dry_run else 'not resized:'} {name}"
        if answer.rejection is not None:
            yield from rejection_lines(replace(answer.rejection, advice=None))
            tried = [advice.text for advice in answer.rejection.advice or ()]
            yield from labelled("  it can be resized now, which was tried: ", tried)
        if answer.explanation is not None:
            yield from explanation_lines(answer.explanation)
        return
    if answer.already_admitted:
        yield f"{name} has these amounts already"
        return
    yield f"{'would resize' if answer.dry_run else 'resized'} {name}"
    if former.cpus != answer.pod.cpus:
        yield f"  the pod: CPUs {former.cpus}, now {answer.pod.cpus}"
    for before, after in zip(former.containers, answer.pod.containers, strict=True):
        yield from labelled(f"  {after.name}: ", _changes(before, after))
    yield from state_lines(answer.pod)
    if answer.plan is not None:
        writes = (f"{write.cgroup}/{write.file} = {write.value}" for write in answer.plan.writes)
        yield from labelled("  would write ", writes)


def _changes(before: ContainerDocument, after: ContainerDocument) -> Iterator[str]:
    """Yield what a container has of CPUs and memory, where that changed."""
    if before.cpus != after.cpus:
        yield f"CPUs {before.cpus}, now {after.cpus}"
    if before.mems != after.mems:
        yield f"memory nodes {before.mems or 'all'}, now {after.mems or 'all'}"
    had = {block.type: block.bytes for block in before.memory}
    for block in after.memory:
        if had.get(block.type) != block.bytes:
            sizes = [size_text(each) for each in (had.get(block.type, 0), block.bytes)]
            yield f"{block.type} {', now '.join(sizes)}"
