"""`numawarden interference`: who else runs on exclusive CPUs, or interrupts them."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agent.cli.common import agent_at, find_pod
from agent.cli.completion import pod_argument
from agent.cli.errors import CommandError, ExitCode
from agent.cli.lines import labelled, table
from agent.cli.options import DOCUMENT, Output, host_option, output_of, socket_option
from agent.cli.output import print_answer
from agent.cli.workloads import MOUNT_VARIABLE, check_real
from agent.config.durations import seconds_of
from agent.reconcile.tasks import ExclusiveTerritory
from agent.tools.interference import (
    CGROUPS,
    InterferenceError,
    Measuring,
    Probes,
    all_cpus,
    leave,
    measure,
    read_counters,
    spinning_program,
    territories_of,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.api.documents.interference import DisturbedCpuDocument, InterferenceDocument

_EMULATED: Final = (
    "the CPUs of this machine are not those of the emulated host, and what runs on them says "
    "nothing of its pods; ask the agent of a real host"
)
#: How many lines of the second table are shown without --full.
_SHOWN: Final = 20
_LONGEST: Final = 7 * 86400.0


def _duration(_context: click.Context, _option: click.Parameter, text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None or not 0 < seconds <= _LONGEST:
        raise click.BadParameter(
            f"{text!r} is not a duration above 0 and of at most 168h, such as 10s"
        )
    return seconds


def _cpu_list(_context: click.Context, _option: click.Parameter, text: str | None) -> Mask | None:
    if text is None:
        return None
    try:
        cpus = Mask.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not cpus:
        raise click.BadParameter("the list is empty; name CPUs such as 2-3")
    return cpus


@click.command()
@pod_argument(required=False)
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="10s",
    show_default=True,
    callback=_duration,
    help="How long to watch: 10s, 5m, 24h.",
)
@click.option(
    "--cpus",
    metavar="LIST",
    callback=_cpu_list,
    help="Watch these CPUs, without asking an agent whose they are.",
)
@click.option(
    "--cgroup",
    "cgroups",
    multiple=True,
    metavar="PATH",
    help="With --cpus: a cgroup whose tasks belong there; may be repeated.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Spin on the CPUs as well, and say for how long the spinning was interrupted at most. It "
    "takes time from what runs there.",
)
@click.option("--sample", is_flag=True, help="Sample tasks, though the kernel could record them.")
@click.option("--full", is_flag=True, help="Show every task and source.")
@host_option("Look at the host whose proc and sys are in this directory.")
@output_of(Output.TEXT, *DOCUMENT, Output.PROMETHEUS)
@socket_option
def interference(  # noqa: PLR0913  # the options of a command
    pod: str | None,
    seconds: float,
    cpus: Mask | None,
    cgroups: tuple[str, ...],
    output: Output,
    root: Path,
    socket_path: str,
    *,
    probe: bool,
    sample: bool,
    full: bool,
) -> ExitCode:
    """Say who else ran on exclusive CPUs, or interrupted them: of a POD, or of all pods.

    Shown are for each CPU the tasks that do not belong there with how often and how long they ran,
    interrupts and softirqs by source, timer ticks, stolen time, switches and migrations. As root,
    where tracefs is mounted, the kernel records every switch on these CPUs; else tasks are sampled.
    Run as root: whose tasks they are is else known in part only. Nothing is changed.

    Exits with 1 if a task of others ran there; interrupts leave it at 0. Where none was seen, but a
    CPU was offline or records were lost, it exits with 5: who ran there is not known.
    """
    if cpus is not None and pod is not None:
        raise click.UsageError("--cpus asks no agent; leave POD or --cpus out")
    if cgroups and cpus is None:
        raise click.UsageError("--cgroup needs --cpus")
    if root == Path("/") and (mount := os.environ.get(MOUNT_VARIABLE)):
        check_real(Path(mount), _EMULATED)
    if cpus is None:
        territories = _of_agent(socket_path, pod)
    else:
        cgroups = tuple(path.strip("/") for path in cgroups)
        territories = (ExclusiveTerritory("", cpus, cgroups),)
    _check(root, all_cpus(territories), cgroups)
    leave(all_cpus(territories))
    how = Measuring(root, trace=not sample)
    try:
        with _interruptible():
            document = _measured(territories, seconds, how, probe=probe)
    except InterferenceError as error:
        raise CommandError(str(error), ExitCode.ENVIRONMENT) from error
    if output is Output.PROMETHEUS:
        click.echo(exposition(document), nl=False)
    else:
        print_answer(document, output, lambda shown: _lines(shown, full=full))
    if any(cpu.tasks for cpu in document.cpus):
        return ExitCode.REJECTED
    unseen = document.lost or not all(cpu.online for cpu in document.cpus)
    return ExitCode.ENVIRONMENT if unseen else ExitCode.OK


def _check(root: Path, cpus: Mask, cgroups: Iterable[str]) -> None:
    """Raise `CommandError` where no CPU is online, or a cgroup is not there."""
    if not read_counters(root, cpus).online:
        message = f"CPUs {cpus} are offline, or this host does not have them"
        raise CommandError(message, ExitCode.NOT_FOUND)
    mount = root / CGROUPS
    for path in cgroups if (mount / "cgroup.controllers").exists() else ():
        if not (mount / path).is_dir():
            message = f"there is no cgroup /{path} in {mount}; see 'systemd-cgls'"
            raise CommandError(message, ExitCode.NOT_FOUND)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have SIGTERM end this block as SIGINT does: the recording and the probes end with it."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _of_agent(socket_path: str, named: str | None) -> tuple[ExclusiveTerritory, ...]:
    """Return the exclusive CPUs of a pod or of all; raises `CommandError` where there are none."""
    with agent_at(socket_path) as agent:
        pods = agent.pods() if named is None else (find_pod(agent, named),)
        territories = territories_of(agent.pod(pod.uid) for pod in pods if pod.exclusive_cpus)
    if not territories:
        what = "no pod has" if named is None else f"pod {named!r} does not have"
        message = f"{what} exclusive CPUs; see 'numawarden list', or name CPUs with --cpus"
        raise CommandError(message, ExitCode.NOT_FOUND)
    return territories


def _measured(
    territories: tuple[ExclusiveTerritory, ...], seconds: float, how: Measuring, *, probe: bool
) -> InterferenceDocument:
    if not probe:
        return measure(territories, seconds, how)
    with ExitStack() as opened:
        program, kind = opened.enter_context(spinning_program())
        probes = opened.enter_context(Probes(territories, seconds, program, how.root / CGROUPS))
        return probes.added(measure(territories, seconds, how, probes.threads), kind)


def _lines(document: InterferenceDocument, *, full: bool) -> Iterator[str]:
    """Yield a table of the CPUs, and one of who was there."""
    how = "every switch recorded" if document.exact else "tasks sampled"
    probe = f", probe in {document.probe}" if document.probe else ""
    # The agent was not asked about CPUs named with --cpus: whether they are exclusive is not known.
    exclusive = "exclusive " if any(any(cpu.owners) for cpu in document.cpus) else ""
    noun = "CPU" if len(document.cpus) == 1 else "CPUs"
    yield f"{len(document.cpus)} {exclusive}{noun}, {document.seconds:.1f} s, {how}{probe}"
    yield ""
    longest = ("LONGEST",) if document.probe else ()
    header = ("CPU", "OWNER", "TASKS", "RAN", "INTERRUPTS", "TICKS", "SOFTIRQS", "STOLEN")
    rows = (
        (*_row(cpu), *((_time(cpu.longest_seconds or 0.0),) if longest else ()))
        for cpu in document.cpus
    )
    yield from table((*header, "SWITCHES", "MIGRATIONS", *longest), rows)
    disturbances = sorted(
        _who(document.cpus), key=lambda row: (row[0] != "task", -row[4], -row[3], row[1])
    )
    if disturbances:
        yield ""
        shown = disturbances if full else disturbances[:_SHOWN]
        yield from table(
            ("KIND", "WHO", "CPUS", "TIMES", "RAN"),
            (
                (kind, who, str(cpus), str(times), _time(ran) if ran else "")
                for kind, who, cpus, times, ran in shown
            ),
        )
        if len(disturbances) > len(shown):
            yield f"and {len(disturbances) - len(shown)} more; see --full"
    yield from labelled("note: ", document.notes)


def _row(cpu: DisturbedCpuDocument) -> tuple[str, ...]:
    return (
        str(cpu.cpu),
        ", ".join(cpu.owners),
        str(len(cpu.tasks)),
        _time(sum(task.seconds for task in cpu.tasks)),
        str(sum(cpu.interrupts.values())),
        str(cpu.ticks),
        str(sum(cpu.softirqs.values())),
        _time(cpu.steal_seconds),
        "" if cpu.switches is None else str(cpu.switches),
        str(cpu.migrations),
    )


def _who(cpus: Iterable[DisturbedCpuDocument]) -> Iterator[tuple[str, str, Mask, int, float]]:
    """Yield each task and source of interrupts: kind, name, CPUs, how often, for how long."""
    sums: dict[tuple[str, str], tuple[Mask, int, float]] = {}
    for cpu in cpus:
        of_cpu = Mask.of(cpu.cpu)
        counted = [
            *(
                (
                    "task",
                    f"{task.name} ({'kernel' if task.kernel else task.cgroup or 'ended'})",
                    task.times,
                    task.seconds,
                )
                for task in cpu.tasks
            ),
            *(("interrupt", name, times, 0.0) for name, times in cpu.interrupts.items()),
            *(("softirq", name, times, 0.0) for name, times in cpu.softirqs.items()),
        ]
        for kind, name, times, ran in counted:
            on, before, seconds = sums.get((kind, name), (of_cpu, 0, 0.0))
            sums[kind, name] = on | of_cpu, before + times, seconds + ran
    for (kind, name), (on, times, ran) in sums.items():
        yield kind, name, on, times, ran


def _time(seconds: float) -> str:
    """Return a time in seconds, milliseconds or microseconds."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"  # noqa: PLR2004  # a millisecond


def exposition(document: InterferenceDocument) -> str:
    """Return a document in the text format of Prometheus, for the textfiles of node_exporter."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415  # slow

    registry = CollectorRegistry()

    def gauge(name: str, about: str, *labels: str) -> Gauge:
        made = ("cpu", "owner", *labels) if labels or name != "window_seconds" else ()
        return Gauge(f"numawarden_interference_{name}", about, made, registry=registry)

    gauge("window_seconds", "How long the CPUs were watched.").set(document.seconds)
    counts: dict[str, tuple[str, Callable[[DisturbedCpuDocument], float | None]]] = {
        "task_seconds": (
            "How long tasks of others ran.",
            lambda c: sum(t.seconds for t in c.tasks),
        ),
        "task_runs": (
            "How often a task of others began to run.",
            lambda c: sum(t.times for t in c.tasks),
        ),
        "own_seconds": ("How long the owner's tasks ran.", lambda c: c.own_seconds),
        "ticks": ("Interrupts of the timer.", lambda c: c.ticks),
        "steal_seconds": ("Time that the hypervisor took.", lambda c: c.steal_seconds),
        "migrations": ("Tasks that came from another of the CPUs.", lambda c: c.migrations),
        "switches": ("How often any task began to run.", lambda c: c.switches),
        "longest_seconds": ("The longest interruption of a probe.", lambda c: c.longest_seconds),
    }
    for name, (about, value) in counts.items():
        made = gauge(name, about)
        for each in document.cpus:
            if (number := value(each)) is not None:
                made.labels(str(each.cpu), ",".join(each.owners)).set(number)
    interrupts = gauge("interrupts", "Interrupts by source, without those of the timer.", "source")
    softirqs = gauge("softirqs", "Softirqs by kind.", "kind")
    for each in document.cpus:
        place = str(each.cpu), ",".join(each.owners)
        for source, number in each.interrupts.items():
            interrupts.labels(*place, source).set(number)
        for kind, number in each.softirqs.items():
            softirqs.labels(*place, kind).set(number)
    return generate_latest(registry).decode()
