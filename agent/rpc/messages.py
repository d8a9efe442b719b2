"""Message classes of gRPC, made from declarations in Python instead of generated modules.

A declaration is the part of a .proto file that matters on the wire: names, numbers and types. Each
package of messages has a pool of descriptors of its own. Generated modules demand a runtime at
least as new as their generator, and modules of packages with names such as `v1` collide in the
default pool with the modules of other programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor_pb2 import DescriptorProto


#: The fields of a message by name: (number, type). A type is a scalar (`string`, `bool`, ...), the
#: name of another message, either of them after "repeated ", or `MAP` of strings to strings.
Fields: TypeAlias = "Mapping[str, tuple[int, str]]"
#: A message class and a message. They are made at run time, so that no type checker knows fields.
MessageClass: TypeAlias = Any
Message: TypeAlias = Any
MAP: Final = "map<string, string>"
_REPEATED: Final = "repeated "
_SCALARS: Final = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "int32", "int64", "string", "uint32", "uint64")
}


class Messages:
    """The message classes of one package; `package` is "" or the name in the .proto file.

    Raises `TypeError` (of protobuf) if a declaration names a message that does not exist.
    """

    def __init__(self, package: str, declared: Mapping[str, Fields]) -> None:
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in declared.items():
            _declare(file.message_type.add(name=name), package, fields)
        pool = DescriptorPool()
        pool.Add(file)
        self._classes = {
            name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in declared
        }

    def __getitem__(self, name: str) -> MessageClass:
        """Return the class of the named message; raises `KeyError`."""
        return self._classes[name]


class RawMessage:
    """Stands in for a message class where the bytes that arrive are to stay bytes.

    The caller checks their length before it decodes them, and sees a damaged message itself.
    """

    @staticmethod
    def FromString(data: bytes) -> bytes:  # noqa: N802  # the name that protobuf's classes have
        """Return the bytes."""
        return data


def _declare(message: DescriptorProto, package: str, fields: Fields) -> None:
    for name, (number, declared) in fields.items():
        field = message.field.add(name=name, number=number)
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        kind = declared.removeprefix(_REPEATED)
        if kind != declared:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if declared == MAP:
            field.label = FieldDescriptorProto.LABEL_REPEATED
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{package}.{message.name}.{_entry_of(message, name)}"
        elif kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{package}.{kind}"


def _entry_of(message: DescriptorProto, field: str) -> str:
    """Declare the message of one entry of a map, as protoc names it, and return its name."""
    name = "".join(word.capitalize() for word in field.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), 1):
        entry.field.add(
            name=part,
            number=number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_STRING,
        )
    return name
