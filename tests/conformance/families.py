"""Which comparison belongs to which family of recorded cases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tests.conformance.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.outcome import Case

_FAMILIES: Final = frozenset(
    {
        "admit",
        "checkpoint",
        "cpuhints",
        "discover",
        "merge",
        "options",
        "podinfo",
        "restore",
        "take",
    }
)


def run_case(case: Case) -> Outcome:
    """Compare one case of any family; a case that crashes the comparison is wrong."""
    family = case.get("family")
    if family not in _FAMILIES:
        return Outcome.wrong(f"no comparison for family {family!r}")
    try:
        run: Callable[[Case], Outcome] = import_module(f"tests.conformance.{family}").run_case
        return run(case)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is this case's verdict)
        return Outcome.wrong(f"{type(error).__name__}: {error}")
