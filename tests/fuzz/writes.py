"""What fanotify reports of writes, damaged."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cgroupfs.writers import parse_events
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.target import Target, demand, plain_check

if TYPE_CHECKING:
    from random import Random

_EVENT: Final = struct.Struct("=IBBHQii")
_MASKS: Final = (0x2, 0x4000, 0x4002, 0, 1 << 63)


def _make(random: Random) -> bytes:
    events = bytearray()
    for _ in range(random.randrange(6)):
        extra = random.randbytes(random.choice((0, 0, 4, 60)))
        length = _EVENT.size + len(extra)
        fd, pid = random.randrange(-1, 4096), random.randrange(1 << 22)
        events += _EVENT.pack(length, 3, 0, _EVENT.size, random.choice(_MASKS), fd, pid) + extra
    return damaged_bytes(random, bytes(events))


def _check(data: bytes) -> bool:
    events = parse_events(data)
    demand(len(events) * _EVENT.size <= len(data), "more events than bytes for them")
    for event in events:
        for number in (event.fd, event.pid):
            demand(struct.pack("=i", number) in data, f"{number} is not in what was read")
    return bool(events)


WRITES: Final = Target("writes", _make, plain_check(_check))
