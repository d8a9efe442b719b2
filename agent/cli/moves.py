"""`numawarden plan` and `numawarden apply`: moves of running pods that make room for another."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from agent.api.client import AgentError
from agent.api.documents.document import Document, decode
from agent.api.documents.moves import DefragmentDocument, MoveRequest, MovesDocument
from agent.cli.common import agent_at
from agent.cli.errors import CommandError, ExitCode
from agent.cli.manifests import ManifestText, for_each_manifest
from agent.cli.options import Output, output_option, socket_option
from agent.cli.output import print_answer, print_lines, say, warn
from agent.cli.pod_text import state_lines
from agent.cli.reason_text import rejection_lines
from agent.files import read_bounded, take
from agent.managers.amounts import size_text
from agent.pods.model import full_name, name_and_uid
from agent.tools.numa_calls import migrate, processes
from cgroupfs.errors import CgroupError
from cgroupfs.tree import KernelTree
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.client import AgentClient
    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.moves import MoveDocument
    from agent.api.documents.pods import PodDocument

#: The longest plan that is read, in bytes.
_LONGEST: Final = 1 << 20
_MOUNT: Final = Path("/sys/fs/cgroup")
_PRESSURE: Final = MoveRequest(cpus="", new_cpus="").pressure


@click.command()
@click.option(
    "--for", "file", metavar="FILE|-", type=click.Path(path_type=Path),
    help="The manifest of the pod to make room for.",
)  # fmt: skip
@click.option(
    "--defragment", is_flag=True, help="Plan moves that give one NUMA node more free CPUs."
)
@output_option
@socket_option
def plan(file: Path | None, output: Output, socket_path: str, *, defragment: bool) -> int:
    """Say whether a pod fits now, else which running pods would have to move.

    Pods without the annotation move.numawarden.dev/allow stay. Nothing is changed. `-o json` writes
    what `numawarden apply` reads.

    Exits with 0 if the pod fits, now or after the moves, or moves defragment the host, else with 1.
    """
    if defragment == (file is not None):
        raise click.UsageError("give either --for FILE or --defragment")
    if file is None:
        with agent_at(socket_path) as agent:
            answer = agent.defragment()
        print_answer(answer, output, defragment_lines)
        return ExitCode.OK if answer.moves else ExitCode.REJECTED

    def asked(manifest: ManifestText) -> ExitCode:
        with agent_at(socket_path, manifest.name) as agent:
            found = agent.plan(manifest.text)
        print_answer(found, output, plan_lines)
        return ExitCode.OK if found.cpus is not None else ExitCode.REJECTED

    return for_each_manifest((file,), asked)


def plan_lines(found: MovesDocument) -> Iterator[str]:
    """Yield whether a pod fits, which moves make room, or which pods would have to allow one."""
    name = full_name(found)
    has = _place(found.cpus or "", found.nodes or "")
    if found.fits:
        yield f"{name} fits now: {has}"
        return
    yield f"{name} does not fit now"
    if found.rejection is not None:
        yield from rejection_lines(found.rejection)
    for move in found.moves:
        yield f"move {_change(move)}; {_cost(move)}"
    if found.cpus is None:
        yield "no move of pods that allow it makes room"
    else:
        yield f"then {name} fits: {has}"
    for pod in found.would_help:
        annotation = f"{pod.annotation}: {pod.value}"
        yield f"{name_and_uid(pod)} would make room with the annotation {annotation}"
    if found.limited:
        yield _LIMITED


def defragment_lines(found: DefragmentDocument) -> Iterator[str]:
    """Yield how many CPUs are free on one NUMA node, and which moves make them more."""
    free = found.free
    yield f"{free.free} CPUs are free, at most {free.on_one_node} on one NUMA node"
    for move in found.moves:
        yield f"move {_change(move)}; {_cost(move)}"
    if found.moves:
        yield f"then {found.then.on_one_node} are free on one NUMA node"
    else:
        yield "no move of pods that allow it gives one NUMA node more"
    if found.limited:
        yield _LIMITED


#: What takes back what is said of all moves.
_LIMITED: Final = "not all moves were tried, there are too many"


def _place(cpus: str, nodes: str) -> str:
    memory = [f"memory of node {nodes}"] if nodes else []
    return ", ".join([f"CPUs {cpus}" if cpus else "no CPUs of its own", *memory])


def _change(move: MoveDocument) -> str:
    changes = [f"CPUs {move.cpus} to {move.new_cpus}"] if move.cpus != move.new_cpus else []
    if move.nodes != move.new_nodes:
        changes.append(f"memory of node {move.nodes} to {move.new_nodes}")
    return f"{full_name(move)}: {', '.join(changes)}"


def _cost(move: MoveDocument) -> str:
    if move.bytes is None:
        return "how much memory would move is not known"
    return f"{size_text(move.bytes)} of memory move" if move.bytes else "no memory moves"


@click.command()
@click.argument("file", metavar="PLAN|-", type=click.Path(path_type=Path))
@click.option(
    "--pressure", metavar="PERCENT", type=click.FloatRange(0, 100), default=_PRESSURE,
    show_default=True,
    help="Stop before a pod whose tasks waited for CPUs or memory in more than this share of "
    "the last 10 seconds.",
)  # fmt: skip
@socket_option
def apply(file: Path, pressure: float, socket_path: str) -> int:
    """Move the pods of a PLAN, which `numawarden plan --for FILE -o json` wrote.

    One after the other, each as a whole. It stops at a move that is rejected, or that the kernel
    does not enforce: the pod may still use what the next one gets. Moves that were made stay.
    The pod of the plan is not admitted: `numawarden admit FILE` does that.

    Exits with 1 if a move is rejected, with 7 if the kernel does not enforce one.
    """
    found = _read(file)
    if not found.moves:
        say("the plan has no moves")
    for number, move in enumerate(found.moves):
        asked = MoveRequest(
            cpus=move.cpus,
            new_cpus=move.new_cpus,
            nodes=move.nodes,
            new_nodes=move.new_nodes,
            pressure=pressure,
        )
        try:
            with agent_at(socket_path) as agent:
                answer = _moved(agent, move, asked)
        except BaseException:
            _say_left(found, number + 1)
            raise
        print_lines(_moved_lines(move, answer))
        if answer.pod is None or not answer.pod.enforcement.enforced:
            _say_left(found, number + 1)
            return ExitCode.REJECTED if answer.pod is None else ExitCode.NOT_ENFORCED
    if found.moves:
        pod = f": admit {full_name(found)}" if isinstance(found, MovesDocument) else ""
        say(f"all moves are made{pod}")
    return ExitCode.OK


def _moved(agent: AgentClient, move: MoveDocument, asked: MoveRequest) -> AdmissionDocument:
    """Move a pod, its pages first; they go back if the pod is not moved.

    The kernel moves pages by the places of their nodes in both sets. So where some nodes stay and
    others are new, the agent's write moves all pages: none may be elsewhere by then.
    """
    old, new = Mask.parse(move.nodes), Mask.parse(move.new_nodes)
    left = old - new if old.isdisjoint(new) or new <= old else EMPTY
    pod: PodDocument | None = None

    def may_go_on() -> bool:
        return agent.move(move.uid, asked, dry_run=True).pod is not None

    try:
        tried = agent.move(move.uid, asked, dry_run=True)
        if tried.pod is None:
            return tried
        if left and not tried.already_admitted:
            pod = agent.pod(move.uid)
            # It makes no other change meanwhile.
            otherwise = f"the agent moves the memory of {full_name(pod)} itself"
            _migrate(pod, left, new, otherwise, may_go_on)
    except BaseException:
        _not_made(pod, move)
        raise
    try:
        answer = agent.move(move.uid, asked)
    except AgentError:
        _not_made(pod, move)
        raise
    except BaseException:
        say(f"not known whether made: {_change(move)}")
        raise
    if answer.pod is None:
        _back(pod, move)
    return answer


def _not_made(pod: PodDocument | None, move: MoveDocument) -> None:
    say(f"not made: {_change(move)}")
    _back(pod, move)


def _back(pod: PodDocument | None, move: MoveDocument) -> None:
    """Move the pages of a pod back, if they were moved; None: they were not."""
    old, new = Mask.parse(move.nodes), Mask.parse(move.new_nodes)
    if pod is not None and new - old:
        _migrate(
            pod, new - old, old, f"memory of {full_name(pod)} is left on node {move.new_nodes}"
        )


def _migrate(
    pod: PodDocument,
    old: Mask,
    new: Mask,
    otherwise: str,
    may_go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Move the pages of a pod's processes; between these ask, once a second, whether to go on.

    If this fails, that is a warning, which begins with `otherwise`: what becomes of the pages.
    """
    parts = (pod.kernel, *(container.kernel for container in pod.containers))
    cgroups = [each.cgroup.strip("/") for part in parts for each in part]
    asked = time.monotonic()
    try:
        with closing(KernelTree(_MOUNT)) as tree:
            for pid in processes(tree, cgroups):
                migrate(pid, old, new)
                if time.monotonic() - asked > 1:
                    if not may_go_on():
                        return
                    asked = time.monotonic()
    except (OSError, CgroupError) as error:
        warn([f"{otherwise}: {error}"])


def _moved_lines(move: MoveDocument, answer: AdmissionDocument) -> Iterator[str]:
    if answer.pod is None:
        yield f"not moved: {_change(move)}"
        if answer.rejection is not None:
            yield from rejection_lines(answer.rejection)
        return
    yield f"{'there already' if answer.already_admitted else 'moved'} {_change(move)}"
    yield from state_lines(answer.pod)


def _say_left(found: MovesDocument | DefragmentDocument, number: int) -> None:
    """Say which moves were not made, from a number on."""
    for move in found.moves[number:]:
        say(f"not made: {_change(move)}")


class _Named(Document, frozen=True):
    name: str | None = None


def _read(file: Path) -> MovesDocument | DefragmentDocument:
    """Return the plan of a file, `-` of standard input; raises `CommandError`."""
    is_input = str(file) == "-"
    name = "standard input" if is_input else str(file)
    text = take(sys.stdin.buffer, _LONGEST, "-") if is_input else read_bounded(file, _LONGEST)
    try:
        # Which of both it is can be seen by the name of the pod.
        if decode(text, _Named).name is None:
            return decode(text, DefragmentDocument)
        return decode(text, MovesDocument)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"{name} is no plan: {error}; write one: numawarden plan --for FILE -o json"
        raise CommandError(message, ExitCode.BAD_INPUT) from error
