"""What both sides of a call over gRPC have in common: limits, the error, the bytes of a message."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.rpc.messages import Message


#: The longest message in bytes in either direction; the kubelet's limit is 16 MiB.
LONGEST_MESSAGE: Final = 16 << 20
LIMITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "grpc.max_receive_message_length": LONGEST_MESSAGE,
        "grpc.max_send_message_length": LONGEST_MESSAGE,
    }
)


class CallError(Exception):
    """A call failed; `code` is gRPC's name of the status, `message` what the server said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


def serialized(message: Message | bytes) -> bytes:
    """Return the bytes of a message; bytes are a message that was serialized before."""
    data: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return data
