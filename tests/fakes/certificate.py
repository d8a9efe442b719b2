"""A key and a certificate for addresses, made for each test, so that none is stored.

ECDSA on the curve P-256 (FIPS 186-4, D.1.2.3) and just as much DER (X.690) as a certificate needs
(RFC 5280). Good enough to be believed by OpenSSL in a test, and for nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Point = tuple[int, int] | None

_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_A: Final = -3
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_SIZE: Final = 32

_EC_PUBLIC_KEY: Final = (1, 2, 840, 10045, 2, 1)
_PRIME256V1: Final = (1, 2, 840, 10045, 3, 1, 7)
_ECDSA_SHA256: Final = (1, 2, 840, 10045, 4, 3, 2)
_COMMON_NAME: Final = (2, 5, 4, 3)
_ALTERNATIVE_NAME: Final = (2, 5, 29, 17)
_BASIC_CONSTRAINTS: Final = (2, 5, 29, 19)
_KEY_USAGE: Final = (2, 5, 29, 15)
_KEY_IDENTIFIER: Final = (2, 5, 29, 14)
_TRUE: Final = b"\x01\x01\xff"
#: digitalSignature and keyCertSign.
_SIGNS: Final = b"\x03\x02\x02\x84"


def write_certificate(file: Path, addresses: Sequence[str] = ("127.0.0.1",)) -> Path:
    """Write a new key and its certificate into one PEM file of mode 0600 and return the file.

    The certificate names IPv4 addresses.
    """
    private = secrets.randbelow(_ORDER - 1) + 1
    public = _point_bytes(_times(private, _BASE))
    file.touch(mode=0o600)
    file.write_text(
        _pem("CERTIFICATE", _signed(private, public, addresses)) + _key(private, public)
    )
    return file


def _key(private: int, public: bytes) -> str:
    content = _sequence(
        _integer(1),
        _der(0x04, private.to_bytes(_SIZE, "big")),
        _der(0xA0, _oid(_PRIME256V1)),
        _der(0xA1, _bits(public)),
    )
    return _pem("EC PRIVATE KEY", content)


def _signed(private: int, public: bytes, addresses: Sequence[str]) -> bytes:
    algorithm = _sequence(_oid(_ECDSA_SHA256))
    content = _unsigned(algorithm, public, addresses)
    digest = int.from_bytes(hashlib.sha256(content).digest(), "big")
    once = secrets.randbelow(_ORDER - 1) + 1
    point = _times(once, _BASE)
    assert point is not None
    r = point[0] % _ORDER
    s = pow(once, -1, _ORDER) * (digest + r * private) % _ORDER
    return _sequence(content, algorithm, _bits(_sequence(_integer(r), _integer(s))))


def _unsigned(algorithm: bytes, public: bytes, addresses: Sequence[str]) -> bytes:
    name = _sequence(_der(0x31, _sequence(_oid(_COMMON_NAME), _der(0x0C, b"numawarden test"))))
    now = datetime.now(UTC)
    validity = _sequence(_time(now - timedelta(days=1)), _time(now + timedelta(days=1)))
    key = _sequence(_sequence(_oid(_EC_PUBLIC_KEY), _oid(_PRIME256V1)), _bits(public))
    identifier = hashlib.sha256(public).digest()[:20]
    names = _sequence(*(_der(0x87, IPv4Address(address).packed) for address in addresses))
    extensions = _sequence(
        _sequence(_oid(_ALTERNATIVE_NAME), _der(0x04, names)),
        _sequence(_oid(_BASIC_CONSTRAINTS), _TRUE, _der(0x04, _sequence(_TRUE))),
        _sequence(_oid(_KEY_USAGE), _TRUE, _der(0x04, _SIGNS)),
        _sequence(_oid(_KEY_IDENTIFIER), _der(0x04, _der(0x04, identifier))),
    )
    version, serial = _der(0xA0, _integer(2)), _integer(secrets.randbits(64) + 1)
    return _sequence(version, serial, algorithm, name, validity, name, key, _der(0xA3, extensions))


def _times(factor: int, point: Point) -> Point:
    result: Point = None
    while factor:
        if factor & 1:
            result = _plus(result, point)
        point = _plus(point, point)
        factor >>= 1
    return result


def _plus(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2 and (y1 + y2) % _P == 0:
        return None
    if one == other:
        slope = (3 * x1 * x1 + _A) * pow(2 * y1, -1, _P)
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P


def _point_bytes(point: Point) -> bytes:
    assert point is not None
    return b"\x04" + b"".join(number.to_bytes(_SIZE, "big") for number in point)


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _der(0x03, b"\0" + content)


def _time(moment: datetime) -> bytes:
    return _der(0x18, f"{moment:%Y%m%d%H%M%SZ}".encode())


def _oid(numbers: tuple[int, ...]) -> bytes:
    first, second, *rest = numbers
    content = bytearray((first * 40 + second,))
    for number in rest:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        content += bytes(reversed(groups))
    return _der(0x06, bytes(content))


def _pem(label: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"
