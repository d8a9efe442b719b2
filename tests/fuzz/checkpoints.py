"""Checkpoints: what is accepted is written again as it was read, and can be restored."""

from __future__ import annotations

import hashlib
import json
import re
from functools import reduce
from itertools import combinations
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.managers.admission import admit, remove
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.device.manager import allocated_devices
from agent.managers.quality import invalid_allocations
from agent.managers.rules import restored
from agent.managers.violations import Rule
from agent.state.checkpoint import UnusableCheckpointError, decode, encode
from sysfs.mask import EMPTY
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, pod
from tests.agent.state.states import example
from tests.fuzz.damage import damaged_bytes, damaged_document
from tests.fuzz.target import Target, demand, plain_check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from agent.managers.ledger import Ledger

_PATH: Final = Path("checkpoint.json")
_BASE: Final = encode(example())


def _two_pods() -> str:
    """Return the state of the example with a second pod, on the other node."""
    state = json.loads(_BASE)["state"]
    (pod_,) = state["pods"]
    text = json.dumps({**pod_, "uid": "u-2", "name": "other"})
    for old, new in (("2-7", "8-13"), ("2-5", "8-11"), ("6-7", "12-13"), ("nic", "nic1")):
        text = text.replace(f'"{old}', f'"{new}')
    second = json.loads(text.replace('"nodes": "0"', '"nodes": "1"'))
    return json.dumps({**state, "pods": [pod_, second]})


STATE: Final = _two_pods()
_SET: Final = re.compile(r"[0-9]+([-,][0-9]+)*")
_RULES: Final = make_rules(SMT)
_NEWCOMER: Final = pod(app("a", guaranteed("cpu=2 memory=64Mi")), uid="newcomer")


def make_checkpoint(random: Random) -> bytes:
    """Draw a damaged checkpoint: its bytes, or its content under a checksum that is right."""
    if not random.randrange(4):
        return damaged_bytes(random, _BASE)
    state = json.loads(STATE)
    if random.randrange(3):
        state = damaged_document(random, state, most=2)
    else:
        _mix_up(random, state)
    body = json.dumps(state).encode()
    if not random.randrange(4):
        body = damaged_bytes(random, body, most=1)
    version = random.choice((b"2", b"2", b"2", b"2", b"2", b"2", b"0", b"3", b"-1", b"1e400"))
    return sealed(body, version)


def sealed(body: bytes, version: bytes = b"2") -> bytes:
    """Return a checkpoint with this state under a checksum that is right."""
    digest = hashlib.sha256(body).hexdigest()
    return b'{"format":"numawarden-checkpoint","version":%s,"checksum":"sha256:%s","state":%s}' % (
        version,
        digest.encode(),
        body,
    )


def _mix_up(random: Random, state: object) -> None:
    """Let one set of CPUs or nodes be another's: sound in form, and allocated twice or nowhere."""
    places = list(_sets(state))
    (source, origin), (target, name) = random.choice(places), random.choice(places)
    target[name] = random.choice((source[origin], source[origin], "0-3", "70-71", ""))


def _sets(value: object) -> Iterator[tuple[dict[str, object], str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str) and _SET.fullmatch(inner):
                yield value, name
            yield from _sets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sets(inner)


def check_checkpoint(data: bytes) -> bool:
    """Try one checkpoint."""
    try:
        state = decode(data, _PATH)
    except UnusableCheckpointError as error:
        demand(error.problem, "rejected without a reason")
        return False
    again = decode(encode(state), _PATH)
    demand(again == state, "written again, it is another state")
    ledger = restored(_RULES, state.ledger)
    _check_reported(ledger)
    _check_kept(ledger)
    for uid in state.ledger.allocations:
        ledger = remove(_RULES, ledger, uid)
        allocated = reduce(
            or_, (allocation.exclusive_cpus for allocation in ledger.allocations.values()), EMPTY
        )
        demand(
            exclusive_cpus(ledger) == allocated,
            f"{allocated}, not {exclusive_cpus(ledger)}",
        )
    demand(not exclusive_cpus(ledger), f"{exclusive_cpus(ledger)} are of no pod")
    demand(
        not any(allocated_devices(ledger).values()), f"{allocated_devices(ledger)} are of no pod"
    )
    msgspec.json.encode(sorted(state.ledger.allocations))  # names are text that can be sent
    return True


def _check_reported(ledger: Ledger) -> None:
    """Whatever is wrong with an allocation is reported to the operator."""
    reported = {(broken.uid, broken.rule) for broken in invalid_allocations(_RULES, ledger, EMPTY)}
    allocations = ledger.allocations.values()
    for one, other in combinations(allocations, 2):
        if one.exclusive_cpus & other.exclusive_cpus:
            both = {(one.uid, Rule.CPU_ALLOCATED_TWICE), (other.uid, Rule.CPU_ALLOCATED_TWICE)}
            demand(reported & both, f"{one.uid} and {other.uid} share CPUs, not reported")
    for allocation in allocations:
        if allocation.exclusive_cpus - SMT.cpus.all:
            demand(
                (allocation.uid, Rule.CPU_MISSING) in reported,
                f"CPUs of {allocation.uid} are missing",
            )


def _check_kept(ledger: Ledger) -> None:
    """Admit one more: it gets nothing that another pod has, and changes no other allocation."""
    if _NEWCOMER.uid in ledger.allocations:
        return
    decision = admit(_RULES, ledger, _NEWCOMER)
    if decision.allocation is None:
        demand(decision.ledger == ledger, "a rejected pod left something behind")
        return
    taken = decision.allocation.exclusive_cpus
    demand(not taken & exclusive_cpus(ledger), f"{taken} are given a second time")
    for uid, allocation in ledger.allocations.items():
        demand(decision.ledger.allocations[uid] == allocation, f"{uid} changed")


CHECKPOINTS: Final = Target("checkpoint", make_checkpoint, plain_check(check_checkpoint), weight=12)
