"""A point at each await of modules: the code of their functions is exchanged by code with points.

The awaits are found in the source: each module is compiled again with a point at each of its
awaits.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import pkgutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import ModuleType

#: With `NUMAWARDEN_FAULTS=all` every await fails in each way, otherwise some in one of them.
ALL: Final = os.environ.get("NUMAWARDEN_FAULTS") == "all"
FAULTS: Final = ("cancellation", "exception", "hang")


class Points:
    """The awaits that are reached, and the one that fails, once."""

    def __init__(self) -> None:
        self.log: dict[str, None] = {}
        self.fails = ""
        self.fault = ""

    async def reach(self, where: str) -> None:
        self.log[where] = None
        if where != self.fails:
            return
        self.fails = ""
        if self.fault == "cancellation":
            raise asyncio.CancelledError
        if self.fault == "exception":
            raise RuntimeError(f"a fault at {where}")
        await asyncio.Event().wait()


POINTS: Points = Points()


async def await_point(where: str, awaited: Awaitable[Any]) -> Any:  # noqa: ANN401  # any await
    try:
        await POINTS.reach(where)
    except BaseException:
        if inspect.iscoroutine(awaited):
            awaited.close()
        raise
    return await awaited


async def stream_point(where: str, stream: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if isinstance(stream, AsyncGenerator):  # a watcher of events is none
            await stack.enter_async_context(aclosing(stream))
        async for each in stream:
            await POINTS.reach(where)
            yield each


@asynccontextmanager
async def context_point(
    where: str, entered: AbstractAsyncContextManager[Any]
) -> AsyncIterator[Any]:
    await POINTS.reach(where)
    async with entered as value:
        yield value


#: What `async with` enters without an await.
_ENTERED_AT_ONCE: Final = frozenset(
    {"aclosing", *(f"asyncio.{name}" for name in ("timeout", "timeout_at", "TaskGroup"))}
)


class _WithPoints(ast.NodeTransformer):
    def __init__(self, file: str) -> None:
        self._file = file
        self.points: set[str] = set()

    def _call(self, name: str, node: ast.expr | ast.stmt, value: ast.expr) -> ast.expr:
        where = f"{self._file}:{node.lineno}:{node.col_offset}"
        self.points.add(where)
        return ast.Call(ast.Name(name, ast.Load()), [ast.Constant(where), value], [])

    def visit_Await(self, node: ast.Await) -> ast.Await:
        self.generic_visit(node)
        node.value = self._call("await_point", node, node.value)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AsyncFor:
        self.generic_visit(node)
        node.iter = self._call("stream_point", node, node.iter)
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AsyncWith:
        self.generic_visit(node)
        for item in node.items:
            made = item.context_expr
            if not (isinstance(made, ast.Call) and ast.unparse(made.func) in _ENTERED_AT_ONCE):
                item.context_expr = self._call("context_point", made, made)
        return node


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for found in vars(module).values():
        members = vars(found).values() if inspect.isclass(found) else (found,)
        for member in members:
            function = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


def modules_of(*packages: str) -> Iterator[ModuleType]:
    """Yield all modules of packages."""
    for package in packages:
        found = import_module(package)
        for each in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not each.ispkg:
                yield import_module(each.name)


@contextmanager
def instrumented(modules: Iterable[ModuleType]) -> Iterator[set[str]]:
    """Exchange the code of all functions of modules by code with points, and give it back.

    Yields all points.
    """
    former: list[tuple[FunctionType, CodeType]] = []
    points: set[str] = set()
    for module in modules:
        assert module.__file__ is not None
        file = Path(module.__file__)
        making = _WithPoints(f"{file.parent.name}/{file.name}")
        tree = making.visit(ast.parse(file.read_text()))
        points |= making.points
        code = compile(ast.fix_missing_locations(tree), str(file), "exec")
        made = {(each.co_qualname, each.co_firstlineno): each for each in _codes(code)}
        for function in _functions(module):
            old = function.__code__
            former.append((function, old))
            function.__code__ = made[old.co_qualname, old.co_firstlineno]
        vars(module).update(
            await_point=await_point, stream_point=stream_point, context_point=context_point
        )
    yield points
    for function, old in former:
        function.__code__ = old


def chosen(reached: list[str], number: int, of: int) -> list[str]:
    """Return the awaits for one of `of` tests; all of them with `NUMAWARDEN_FAULTS=all`."""
    return reached if ALL else reached[number::of]
