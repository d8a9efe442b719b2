"""Every regular expression of the product, how it is used, and texts that are hard for it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from re import _constants as constants  # type: ignore[attr-defined]  # what it is parsed into
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

PACKAGES: Final = ("agent", "cgroupfs", "sysfs", "systemd")
#: How a pattern can be applied; where its name is only passed on, as a whole.
METHODS: Final = ("fullmatch", "match", "search", "findall", "finditer", "sub", "subn", "split")
_AS_A_WHOLE: Final = "fullmatch"
#: What ends a text that was promising so far; "" for one that is.
_ENDINGS: Final = ("", "\x00", "!", "x", "0", ".", "-", "\n")


#: What `re` makes of a pattern, which it does not document.
_Parsed: TypeAlias = Any


class Used(Struct, frozen=True):
    """A pattern of the product, where it stands, and the methods by which it is applied."""

    name: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]


def modules() -> Iterator[ModuleType]:
    """Yield every module of the product."""
    for package in map(importlib.import_module, PACKAGES):
        yield package
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(info.name)


def patterns() -> Iterator[Used]:
    """Yield every pattern that a module holds, alone, in a class, or in a collection."""
    for module in modules():
        methods = _methods(module)
        for name, value in vars(module).items():
            for found in _found(value, module.__name__):
                used = tuple(sorted(methods[name])) or (_AS_A_WHOLE,)
                yield Used(f"{module.__name__}.{name}", found, used)


def hidden_uses() -> Iterator[str]:
    """Yield each call of `re` that makes no pattern of a module, and so escapes `patterns`."""
    for module in modules():
        tree = ast.parse(inspect.getsource(module) or "")
        inside = {
            inner
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(function)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            called = ast.unparse(call.func)
            if called.startswith("re.") and (called != "re.compile" or call in inside):
                yield f"{module.__name__}:{call.lineno}: {called}"


def hostile_texts(pattern: re.Pattern[Any]) -> Iterator[Callable[[int], Any]]:
    """Yield what makes texts of a length that a pattern takes long to reject, if it can.

    The texts follow what leads to each of its repetitions and repeat what that repeats, or any two
    of its characters, before an end that does not fit.
    """
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    parsed = parser.parse(text, pattern.flags & ~re.UNICODE)
    characters = sorted(set(_characters(parsed)))
    pairs = {first + second for first in characters for second in characters}
    pumps = {("", pair) for pair in (*characters, *sorted(pairs))} | set(_pumps(parsed, ""))
    for lead, repeated in sorted(pumps):
        if repeated:
            for end in _ENDINGS:
                yield _maker(lead, repeated, end, as_bytes=isinstance(pattern.pattern, bytes))


def _maker(lead: str, repeated: str, end: str, *, as_bytes: bool) -> Callable[[int], Any]:
    def make(length: int) -> str | bytes:
        text = lead + repeated * (length // len(repeated)) + end
        return text.encode() if as_bytes else text

    return make


def _found(value: object, module: str) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from _among((*value, *value.values()), module)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _among(value, module)
    elif isinstance(value, type) and value.__module__ == module:
        yield from _among(vars(value).values(), module)


def _among(values: Iterable[object], module: str) -> Iterator[re.Pattern[Any]]:
    for value in values:
        yield from _found(value, module)


def _methods(module: ModuleType) -> dict[str, set[str]]:
    """Return by name how the patterns of a module are applied in it."""
    methods: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(ast.parse(inspect.getsource(module) or "")):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            methods[name].add(node.attr)
    return methods


def _pumps(parsed: _Parsed, lead: str) -> Iterator[tuple[str, str]]:
    """Yield what leads to each repetition without a bound, and each thing that it can repeat."""
    for kind, argument in parsed:
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            _, most, body = argument
            if most == constants.MAXREPEAT:
                for character in sorted(set(_characters(body))):
                    yield lead, character
                yield lead, _sample(body)
        for inner in _inner(kind, argument):
            yield from _pumps(inner, lead)
        lead += _sample([(kind, argument)])


def _inner(kind: _Parsed, argument: _Parsed) -> Iterable[_Parsed]:
    """Return the patterns within one."""
    if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
        return (argument[2],)
    if kind is constants.SUBPATTERN:
        return (argument[3],)
    if kind is constants.BRANCH:
        return tuple(argument[1])
    if kind in (constants.ASSERT, constants.ASSERT_NOT):
        return (argument[1],)
    if kind is constants.ATOMIC_GROUP:
        return (argument,)
    return ()


def _sample(parsed: _Parsed) -> str:
    """Return a short text that a pattern matches, each repetition as rarely as it may be."""
    text = ""
    for kind, argument in parsed:
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            text += _sample(argument[2]) * argument[0]
        elif kind is constants.BRANCH:
            text += _sample(argument[1][0])
        elif kind not in (constants.ASSERT, constants.ASSERT_NOT):
            for inner in _inner(kind, argument):
                text += _sample(inner)
            text += next(iter(_of_one(kind, argument)), "")
    return text


def _characters(parsed: _Parsed) -> Iterator[str]:
    """Yield each literal of a pattern, and the ends of each of its ranges."""
    for kind, argument in parsed:
        yield from _of_one(kind, argument)
        for inner in _inner(kind, argument):
            yield from _characters(inner)


def _of_one(kind: _Parsed, argument: _Parsed) -> Iterator[str]:
    if kind is constants.LITERAL:
        yield chr(argument)
    elif kind is constants.RANGE:
        yield from map(chr, argument)
    elif kind is constants.IN:
        for inner_kind, inner in argument:
            yield from _of_one(inner_kind, inner)
    elif kind is constants.CATEGORY:
        yield _OF_CATEGORY.get(argument, "a")
    elif kind in (constants.ANY, constants.NOT_LITERAL):
        yield "a"


_OF_CATEGORY: Final = {constants.CATEGORY_DIGIT: "1", constants.CATEGORY_SPACE: " "}
