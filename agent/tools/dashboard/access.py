"""Who may use the dashboard: requests with its token, sent by its page, to its address."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The address that was printed; ports differ where ssh forwards one. No other name of this host:
#: for `localhost` a browser asks at [::1] first, where another user may listen.
_HOST: Final = re.compile(r"127\.0\.0\.1(:[0-9]{1,5})?", re.ASCII)
_SCHEME: Final = "Bearer "
#: Bytes of randomness in a token.
_TOKEN_BYTES: Final = 32

#: What the page may load and do (Content Security Policy Level 3): its own files and requests to
#: its own server; no inline code, no text that is parsed as HTML, no frame around it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: The headers of every answer.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "numawarden",
}


def new_token() -> str:
    """Return a token that cannot be guessed, of letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def is_own_host(headers: Mapping[str, str]) -> bool:
    """Return whether a request was sent to an address of this host.

    A page of another site whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name.
    """
    return _HOST.fullmatch(headers.get("Host", "")) is not None


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from no page at all, or from one of this address."""
    origin = headers.get("Origin")
    return origin is None or origin == f"http://{headers.get('Host', '')}"


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Return whether a request has the token; the time does not depend on where they differ."""
    given = headers.get("Authorization", "")
    desired = (_SCHEME + token).encode()
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), desired)
