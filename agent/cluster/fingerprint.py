"""The fingerprint of a set of pods, by which a scheduler sees that it knows of the same pods.

Defined by the Go package github.com/k8stopologyawareschedwg/podfingerprint, version v001: the hash
of each pod's name, seeded with the hash of its namespace; then one hash over all of these in
ascending order, eight bytes each with the lowest first. The hash is XXH64 (the algorithm is in
doc/xxhash_spec.md of xxHash); names that collide can be made on purpose.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What fingerprints of this version begin with.
PREFIX: Final = "pfp0v001"

_BITS: Final = 64
_ALL: Final = (1 << _BITS) - 1
_PRIMES: Final = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_P1, _P2, _P3, _P4, _P5 = _PRIMES
_STRIPE: Final = 32
_LANE: Final = 8
_WORD: Final = 4


def pod_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint of pods, each as namespace and name, in whatever order they are."""
    hashes = sorted(xxh64(name.encode(), xxh64(namespace.encode())) for namespace, name in pods)
    return f"{PREFIX}{xxh64(struct.pack(f'<{len(hashes)}Q', *hashes)):016x}"


def xxh64(content: bytes, seed: int = 0) -> int:
    """Return the XXH64 hash of bytes, from 0 to 2**64 - 1, as `seed` is."""
    whole = len(content) - len(content) % _STRIPE
    if whole:
        lanes = [(seed + _P1 + _P2) & _ALL, (seed + _P2) & _ALL, seed, (seed - _P1) & _ALL]
        for start in range(0, whole, _STRIPE):
            words = struct.unpack_from("<4Q", content, start)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        result = sum(_rotated(lane, by) for lane, by in turns) & _ALL
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _ALL
    else:
        result = (seed + _P5) & _ALL
    return _finished(_with_rest((result + len(content)) & _ALL, content[whole:]))


def _with_rest(result: int, rest: bytes) -> int:
    """Return the hash with the bytes after the last stripe: words of 8 and 4 bytes, then bytes."""
    at = 0
    while at + _LANE <= len(rest):
        (word,) = struct.unpack_from("<Q", rest, at)
        result = (_rotated(result ^ _round(0, word), 27) * _P1 + _P4) & _ALL
        at += _LANE
    if at + _WORD <= len(rest):
        (word,) = struct.unpack_from("<I", rest, at)
        result = (_rotated(result ^ (word * _P1 & _ALL), 23) * _P2 + _P3) & _ALL
        at += _WORD
    for byte in rest[at:]:
        result = _rotated(result ^ (byte * _P5 & _ALL), 11) * _P1 & _ALL
    return result


def _finished(result: int) -> int:
    result = (result ^ result >> 33) * _P2 & _ALL
    result = (result ^ result >> 29) * _P3 & _ALL
    return result ^ result >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _ALL, 31) * _P1 & _ALL


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> _BITS - by) & _ALL
