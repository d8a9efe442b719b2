"""Checkpoints: what is accepted is written again as it was read, and can be restored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.checkpoint.codec import decode, encode
from agent.checkpoint.errors import UnusableCheckpointError
from agent.managers.admission import remove
from agent.service.restore import restored
from tests.agent.checkpoint.states import example
from tests.agent.managers.hosts import SMT, make_rules
from tests.fuzz.damage import damaged_bytes, damaged_document
from tests.fuzz.target import Target, demand, plain_check

if TYPE_CHECKING:
    from random import Random

_PATH: Final = Path("checkpoint.json")
_BASE: Final = encode(example())
_STATE: Final = json.dumps(json.loads(_BASE)["state"])
_RULES: Final = make_rules(SMT)


def make_checkpoint(random: Random) -> bytes:
    """Draw a damaged checkpoint: its bytes, or its content under a checksum that is right."""
    if not random.randrange(4):
        return damaged_bytes(random, _BASE)
    body = json.dumps(damaged_document(random, json.loads(_STATE), most=2)).encode()
    if not random.randrange(4):
        body = damaged_bytes(random, body, most=1)
    digest = hashlib.sha256(body).hexdigest()
    version = random.choice((b"1", b"1", b"1", b"1", b"1", b"1", b"0", b"2", b"-1", b"1e400"))
    return b'{"format":"numawarden-checkpoint","version":%s,"checksum":"sha256:%s","state":%s}' % (
        version,
        digest.encode(),
        body,
    )


def check_checkpoint(data: bytes) -> bool:
    """Try one checkpoint."""
    try:
        state = decode(data, _PATH)
    except UnusableCheckpointError as error:
        demand(error.problem, "refused without a reason")
        return False
    again = decode(encode(state), _PATH)
    demand(again == state, "written again, it is another state")
    ledger = restored(_RULES, state.ledger)
    for uid in state.ledger.grants:
        ledger = remove(_RULES, ledger, uid)
    demand(not ledger.exclusive_cpus, f"{ledger.exclusive_cpus} are held by nobody")
    demand(not any(ledger.devices.values()), f"{ledger.devices} are held by nobody")
    msgspec.json.encode(sorted(state.ledger.grants))  # names are text that can be sent
    return True


CHECKPOINTS: Final = Target("checkpoint", make_checkpoint, plain_check(check_checkpoint), weight=12)
