"""`python -m tests.guest`: the project's scenarios on real NUMA kernels, in QEMU."""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests import helm
from tests.guest import container, emulator, host, image, job, packages, runner, tsc, wheel
from tests.guest.cache import Cache
from tests.guest.errors import GuestError
from tests.guest.kubernetes import Kubernetes, etcd, programs
from tests.guest.scenarios import SCENARIOS, SUITE, SUITES, Kubelet, Scenario, When

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

#: What the list says of a scenario: when it runs that is not named.
WORDS: Final = {When.CI: "", When.NIGHTLY: " (nightly)", When.NEVER: " (only when named)"}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m tests.guest", description=__doc__)
    made.add_argument("scenario", nargs="*", help="scenarios to run; those of CI if none is named")
    made.add_argument("--nightly", action="store_true", help="run those that CI leaves out")
    made.add_argument("--list", action="store_true", help="list the scenarios and stop")
    made.add_argument(
        "--suite",
        default=SUITE,
        choices=SUITES,
        help="the suite of Debian that the guests are made of (default: %(default)s)",
    )
    made.add_argument("--jobs", type=int, default=2, help="guests at a time, one host core each")
    made.add_argument("--keep", action="store_true", help="keep the disks of each run")
    made.add_argument("--patience", type=float, default=1.0, help="factor on every timeout")
    made.add_argument(
        "--cache", type=Path, default=wheel.PROJECT / ".cache/guest", help="image, QEMU, wheels"
    )
    made.add_argument(
        "--kubernetes",
        type=Path,
        metavar="DIR",
        help="a directory with kubelet, kube-apiserver and kube-scheduler, which take the place of "
        "the fake kubelet; with containerd and containerd-shim-runc-v2 in it these are used, too",
    )
    made.add_argument("--results", type=Path, help="where logs and results go (in the cache)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run scenarios and return how that went.

    0: all passed, 1: one failed, 2: the guests could not be run, 3: one did not boot as it has to.
    """
    options = parser().parse_args(argv)
    try:
        if options.list:
            for scenario in SCENARIOS.values():
                real = scenario.kubelet is Kubelet.REAL
                when = " (with --kubernetes)" if real else WORDS[scenario.when]
                print(f"{scenario.name:<24} {scenario.topology:<14} {scenario.summary}{when}")
            return 0
        return _run(options)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    when = When.NIGHTLY if options.nightly else When.CI
    chosen = _chosen(options.scenario, when, options.suite, real=options.kubernetes is not None)
    named = programs.find(options.kubernetes) if options.kubernetes else None
    host.require_x86_64()
    host.provide(host.RUN_NEEDS)
    host.require_writable(options.cache)
    store = Cache(options.cache.resolve())
    # Says first what is missing: nothing is downloaded until then.
    image.require(store, options.suite)
    place = "results" if options.suite == SUITE else f"results-{options.suite}"
    results = options.results or options.cache / place
    # QEMU is unpacked while the image is made, and packages are built while guests run.
    with ThreadPoolExecutor(1) as beside:
        qemu = beside.submit(emulator.provide, store)
        made = image.provide(store, options.suite)
        contents = _contents(store, made, chosen, beside)
        if named:
            contents = _beside_kubelet(store, contents, named)
        setup = runner.Setup(
            *(store, made, qemu.result(), results),
            tsc_khz=tsc.frequency_khz(),
            keep=options.keep,
            patience=options.patience,
        )
        verdicts = _run_all(setup, chosen, contents, options.jobs)
    print(summary(verdicts), flush=True)
    return status(verdicts)


def summary(verdicts: Sequence[runner.Verdict]) -> str:
    """Return the last lines of a run: what was wrong where, and how many passed."""
    lines = []
    for verdict in verdicts:
        if not verdict.passed:
            lines += [verdict.line(), verdict.differed()]
    passed = sum(verdict.passed for verdict in verdicts)
    unbooted = sum(not verdict.booted for verdict in verdicts)
    failed = len(verdicts) - passed - unbooted
    counts = f"guest: {passed} passed, {failed} failed"
    return "\n".join([*lines, f"{counts}, {unbooted} did not boot" if unbooted else counts])


def status(verdicts: Sequence[runner.Verdict]) -> int:
    """Return the exit status of a run (see `main`)."""
    if not all(verdict.booted for verdict in verdicts):
        return 3
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _chosen(names: Sequence[str], when: When, suite: str, *, real: bool) -> list[Scenario]:
    """Return the scenarios of these names.

    Without names it is those that run then, with a real kubelet all that can have one; those that
    are made of packages for one suite run on no other.
    """
    for name in names:
        if name not in SCENARIOS:
            raise GuestError(f"no scenario is called {name!r}", f"known: {', '.join(SCENARIOS)}")
    chosen = [SCENARIOS[name] for name in names]
    bound = [each.name for each in chosen if not each.runs_on(suite)]
    if bound:
        raise GuestError(f"{', '.join(bound)}: made for {SUITE} alone", "leave --suite out")
    known = [each for each in SCENARIOS.values() if each.runs_on(suite)]
    if not real:
        for scenario in chosen:
            if scenario.kubelet is Kubelet.REAL:
                raise GuestError(
                    f"{scenario.name} needs a real kubelet",
                    "name a directory with Kubernetes' programs: --kubernetes DIR",
                )
        return chosen or [each for each in known if each.when is when]
    for scenario in chosen:
        if scenario.kubelet is Kubelet.NONE:
            raise GuestError(f"{scenario.name} has no kubelet", "leave --kubernetes out")
    return chosen or [each for each in known if each.kubelet is not Kubelet.NONE]


def _beside_kubelet(
    store: Cache, contents: Mapping[str, job.Contents], named: programs.Programs
) -> dict[str, job.Contents]:
    """Return the same contents with a real kubelet and what its control plane is made of."""
    helm.install()  # kubectl is among it
    real = Kubernetes(named.disk(store), named, tuple(etcd.provide(store)))
    return {name: replace(each, kubernetes=real) for name, each in contents.items()}


def _contents(
    store: Cache, made: image.Image, chosen: Sequence[Scenario], beside: Executor
) -> dict[str, job.Contents]:
    """Return what each scenario's guest gets; what none needs is not built.

    Packages, which take a minute, are built in `beside`: the scenario with them waits, no other.
    """
    sources = job.sources(store, made.python)
    if not any(scenario.agent or scenario.packages for scenario in chosen):
        return {scenario.name: job.Contents(sources) for scenario in chosen}
    wheels = wheel.provide(store, made.python)

    def disk(scenario: Scenario) -> Path | None:
        if scenario.image:
            return container.root(store, made.python, wheels)
        return wheel.environment(store, made.python, wheels) if scenario.agent else None

    packed = None
    if any(scenario.packages for scenario in chosen):
        packed = beside.submit(packages.provide, store, made.python, wheels).result
    return {
        scenario.name: job.Contents(sources, disk(scenario), packed if scenario.packages else None)
        for scenario in chosen
    }


def _run_all(
    setup: runner.Setup,
    chosen: Sequence[Scenario],
    contents: dict[str, job.Contents],
    jobs: int,
) -> list[runner.Verdict]:
    """Run scenarios, `jobs` at a time, and print each verdict as it falls.

    Raises `GuestError` where a guest could not be run; no other is booted after that.
    """
    hopeless = threading.Event()
    host_cores = sorted(os.sched_getaffinity(0))
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(jobs):
        cores.put(host_cores[number % len(host_cores)])

    def run(scenario: Scenario) -> runner.Verdict | None:
        if hopeless.is_set():
            return None
        core = cores.get()
        try:
            return runner.run(setup, scenario, contents[scenario.name], core)
        except GuestError:
            hopeless.set()
            raise
        finally:
            cores.put(core)

    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run, scenario) for scenario in chosen]):
            if (verdict := future.result()) is None:
                continue
            print(verdict.line(), flush=True)
            if not verdict.passed:
                print(verdict.report(), flush=True)
            verdicts.append(verdict)
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
