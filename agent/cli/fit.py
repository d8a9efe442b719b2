"""`numawarden fit`: whether and how often a pod would fit, without changing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agent.api.documents.admissions import ResizeRequest
from agent.cli.common import agent_at
from agent.cli.completion import complete_pods
from agent.cli.errors import ExitCode
from agent.cli.manifests import ManifestText, for_each_manifest
from agent.cli.options import Output, output_option, socket_option
from agent.cli.output import print_answer, say, warn
from agent.cli.reason_text import rejection_lines
from agent.cli.resize import resized
from agent.cli.workloads import option_errors
from agent.tools.run import check_amount, check_cpus, listed_amounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.admissions import FitDocument

#: With `--count` no more copies than this are tried.
MOST: Final = 1000


@click.command()
@click.argument("files", metavar="[FILE|-]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--cpus", metavar="N", help="Exclusive CPUs, in place of a FILE.")
@click.option("--memory", metavar="SIZE", help="Memory, such as 32Gi (by default 1Gi).")
@click.option(
    "--hugepages", metavar="PAGE=SIZE", multiple=True, help="Huge pages, such as 2Mi=1Gi."
)
@click.option(
    "--device", metavar="NAME=N", multiple=True, help="Devices, such as example.com/gpu=1."
)
@click.option(
    "--resize", metavar="POD", shell_complete=complete_pods,
    help="Whether this running pod could have --cpus and --memory: numawarden resize --dry-run.",
)  # fmt: skip
@click.option(
    "-c", "--container", default="", help="Of --resize: which container, if it has several."
)
@click.option("--count", is_flag=True, help=f"Count how many would fit, up to {MOST}.")
@output_option
@socket_option
def fit(  # noqa: PLR0913  # each is an argument or option of the command
    *,
    files: tuple[Path, ...],
    cpus: str | None,
    memory: str | None,
    hugepages: tuple[str, ...],
    device: tuple[str, ...],
    resize: str | None,
    container: str,
    output: Output,
    socket_path: str,
    count: bool,
) -> int:
    """Say whether a pod would be admitted now, where, and what would help if not.

    The pod is that of a manifest, or has one Guaranteed container with the amounts of the options;
    each pod of a List is tried alone. Nothing is changed. Exits with 0 if the pod fits at least
    once, else with 1.
    """
    if resize is not None:
        if files or hugepages or device or count:
            raise click.UsageError("--resize takes --cpus and --memory alone")
        asked = ResizeRequest(container=container, cpus=cpus or "", memory=memory or "")
        return resized(resize, asked, output, socket_path, dry_run=True)

    def tried(manifest: ManifestText) -> ExitCode:
        with agent_at(socket_path, manifest.name) as agent:
            found = agent.fit(manifest.text, MOST if count else 1)
        warn(found.warnings)
        if manifest.of_list and output is Output.TEXT:
            say(manifest.name)
        print_answer(found, output, lambda found: _lines(found, counted=count))
        return ExitCode.OK if found.count else ExitCode.REJECTED

    amounts = _amounts(cpus, memory, hugepages, device)
    if count and len(files) > 1 and str(files[0]).isdecimal():
        message = f"--count takes no number, it counts up to {MOST}: leave {files[0]} out"
        raise click.UsageError(message)
    if len(files) != (amounts is None):
        raise click.UsageError("give either one FILE or amounts such as --cpus 4 --memory 8Gi")
    if amounts is None:
        return for_each_manifest(files, tried)
    _check(cpus, memory)
    return tried(ManifestText(_manifest(amounts), "the pod of the options"))


def _check(cpus: str | None, memory: str | None) -> None:
    """Raise `click.BadParameter` for CPUs of which none would be exclusive, and for odd memory."""
    if cpus is not None:
        with option_errors():
            check_cpus(cpus, "such a pod gets none; a FILE says what fits in the shared pool")
    if memory is not None:
        with option_errors():
            check_amount("--memory", memory)
    if memory is not None and memory.isdecimal() and int(memory) < 1 << 20:
        message = f"{memory!r} is a number of bytes; write {memory}Gi or {memory}Mi"
        raise click.BadParameter(message, param_hint="--memory")


def _amounts(
    cpus: str | None, memory: str | None, hugepages: tuple[str, ...], devices: tuple[str, ...]
) -> dict[str, str] | None:
    """Return the amounts of the options by resource, None if no option is given."""
    if cpus is None and memory is None and not hugepages and not devices:
        return None
    with option_errors():
        others = listed_amounts(hugepages, devices)
    return {"cpu": cpus or "1", "memory": memory or "1Gi", **others}


def _manifest(amounts: dict[str, str]) -> bytes:
    container = {
        "name": "main",
        "image": "fit",
        "resources": {"limits": amounts},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "fit"},
        "spec": {"containers": [container]},
    }
    return json.dumps(pod).encode()


def _lines(found: FitDocument, *, counted: bool) -> Iterator[str]:
    if not found.count:
        yield "does not fit"
    elif not counted:
        yield f"fits {_where(next(iter(found.on)))}"
    else:
        places = ", ".join(f"{number} {_where(nodes)}" for nodes, number in found.on.items())
        more = " and more" if found.limited else ""
        yield f"fits {_times(found.count)}{more}: {places}"
    if found.rejection is not None:
        if found.count:
            yield "then"
        yield from rejection_lines(found.rejection)
    if counted or not found.count:
        # Without --count one copy is tried, so that "once" is all that is known.
        least = "at least " if found.empty and not counted else ""
        yield f"on this host without pods: {least}{_times(found.empty)}"
    free = found.free
    yield (
        f"free CPUs: {free.free}, of which {free.whole_cores} in whole cores; at most"
        f" {free.on_one_node} on one node (fragmentation {free.fragmentation:.0%})"
    )


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _where(nodes: str) -> str:
    if not nodes:
        return "on no node in particular"
    return f"on node {nodes}" if nodes.isdecimal() else f"across nodes {nodes}"
