"""Give damaged inputs to every interface: `make fuzz`, or `python -m tests.fuzz --inputs 1000000`.

The same seed gives the same inputs. For each target it prints how many inputs were tried and
accepted, and the slowest; an input that broke something is kept in `--failures`. Exits 1 when
there was one.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Final

from tests.fuzz.bindings import BINDINGS
from tests.fuzz.checkpoints import CHECKPOINTS
from tests.fuzz.configs import CONFIGS
from tests.fuzz.kubelet import STATE_FILES
from tests.fuzz.names import NAMES
from tests.fuzz.pods import MANIFESTS
from tests.fuzz.runtimes import RUNTIME_FILES
from tests.fuzz.sockets import MESSAGES
from tests.fuzz.trees import TREES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.fuzz.target import Check, Target

#: Every kind of bad input.
TARGETS: Final = (
    MANIFESTS,
    CONFIGS,
    CHECKPOINTS,
    STATE_FILES,
    TREES,
    RUNTIME_FILES,
    NAMES,
    MESSAGES,
    BINDINGS,
)
#: An input that takes longer, in seconds, counts as a hang.
_HANG = 60.0
#: So many failures of one target are enough to work on.
_ENOUGH = 20


@dataclass
class Tally:
    """What came of the inputs of one target."""

    inputs: int = 0
    accepted: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)


def main() -> int:
    """Try inputs and print what came of them."""
    arguments = _arguments()
    chosen = [target for target in TARGETS if target.name in arguments.only]
    total = 0
    found: list[str] = []
    for target, inputs in _shares(chosen, arguments.inputs):
        with target.open() as check:
            tally = run(target, check, inputs, arguments.seed, arguments.failures)
        print(
            f"{target.name:16} {tally.inputs:9} inputs {tally.accepted:8} accepted"
            f" {tally.slowest * 1000:9.1f} ms slowest {len(tally.failures):4} failures",
            flush=True,
        )
        for failure in tally.failures:
            print(f"    {failure}", flush=True)
        total += tally.inputs
        found += tally.failures
    print(f"{total} inputs, seed {arguments.seed}, {len(found)} failures")
    return 1 if found else 0


def run(target: Target, check: Check, inputs: int, seed: int, failures: Path | None) -> Tally:
    """Try the inputs of a seed; what fails is kept in the directory `failures` if given."""
    tally = Tally()
    for number in range(inputs):
        data = target.make(Random(f"{seed}/{target.name}/{number}"))  # noqa: S311  # no secret
        started = perf_counter()
        try:
            accepted = check(data)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
            tally.failures.append(_kept(target, number, data, error, failures))
            accepted = False
        seconds = perf_counter() - started
        if seconds > _HANG:
            hang = TimeoutError(f"{seconds:.0f} s")
            tally.failures.append(_kept(target, number, data, hang, failures))
        tally.inputs += 1
        tally.accepted += accepted
        tally.slowest = max(tally.slowest, seconds)
        if len(tally.failures) >= _ENOUGH:
            break
    return tally


def _kept(target: Target, number: int, data: bytes, error: Exception, failures: Path | None) -> str:
    """Keep an input with its traceback and return a line about it."""
    place = ""
    if failures is not None:
        failures.mkdir(parents=True, exist_ok=True)
        file = failures / f"{target.name}-{number}"
        file.write_bytes(data)
        text = "".join(traceback.format_exception(error))
        file.with_suffix(".txt").write_text(text, encoding="utf-8", errors="replace")
        place = f" ({file})"
    return f"{number}: {type(error).__name__}: {ascii(str(error))[:160]}{place}"


def _shares(targets: Sequence[Target], inputs: int) -> Iterator[tuple[Target, int]]:
    """Divide inputs among targets by their weights."""
    weights = sum(target.weight for target in targets)
    given = done = 0
    for target in targets:
        given += target.weight
        share = inputs * given // weights - done
        done += share
        yield target, share


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    names = [target.name for target in TARGETS]
    parser.add_argument("--inputs", type=int, default=20_000, help="how many in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TARGET")
    parser.add_argument("--failures", type=Path, default=Path(".cache/fuzz"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
