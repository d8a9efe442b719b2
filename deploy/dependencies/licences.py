"""The licences of the locked dependencies, from the metadata of the installed packages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from license_expression import ExpressionError, get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.dependencies.lock import DependencyError, holds_on_linux

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boolean import Expression

    from deploy.dependencies.lock import Locked

#: What a dependency may be licensed under: compatible with Apache-2.0, nothing asked of those who
#: pass the agent on but to pass these texts on with it. Of `A OR B` one is enough, of `A AND B`
#: both have to be here. Read the text of a licence before adding the licence.
ALLOWED: Final = frozenset({"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "PSF-2.0"})

#: SPDX identifiers of what packages state in `License` instead of one.
STATED: Final = {"3-Clause BSD License": "BSD-3-Clause"}

#: SPDX identifiers of the classifiers that name one licence ("BSD License" names several).
CLASSIFIERS: Final = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
}

INTRODUCTION: Final = f"""\
Third-party licences

Numawarden runs with the Python packages below, in the versions of its lock file
(deploy/requirements/grpc.txt; grpcio and protobuf only where the extra "grpc" is installed). Its
wheel contains none of them; the Debian package, the container image and other installations do. A
package that offers several licences (`OR`) is used under those of
{", ".join(sorted(ALLOWED))}.
"""

_TEXTS: Final = ("LICENSE", "LICENCE", "COPYING", "NOTICE")
_RULE: Final = "=" * 80
_SPDX: Final = get_spdx_licensing()


@dataclass(frozen=True, slots=True)
class Licensed:
    """A locked dependency with what its installed package says of itself.

    `expression` is the SPDX expression, `texts` the name and content of each licence file,
    `requires` the canonical names of what it requires on Linux, without extras.
    """

    locked: Locked
    expression: str
    texts: tuple[tuple[str, str], ...]
    requires: tuple[str, ...]


def collect(locked: Iterable[Locked]) -> tuple[Licensed, ...]:
    """Return the licences of all dependencies, in the order given.

    Raises `DependencyError` where one is not installed in the locked version, its licence is not
    stated or not in `ALLOWED`, or it comes without a licence text.
    """
    return tuple(_licensed(one) for one in locked)


def choose(expression: str) -> frozenset[str]:
    """Return the licences of `ALLOWED` under which an SPDX expression lets the package be used.

    Empty where none is allowed; of `A OR B` every allowed one is returned. Raises
    `DependencyError` if the expression is not valid SPDX.
    """
    try:
        return _choose(_SPDX.parse(expression, validate=True))
    except ExpressionError as error:
        raise DependencyError(f"{expression!r} is not an SPDX expression: {error}") from error


def render(licensed: Iterable[Licensed]) -> str:
    """Return the text that is shipped: each dependency, its licence and its licence files."""
    parts = [INTRODUCTION]
    for one in licensed:
        head = f"{one.locked.name} {one.locked.version}\nLicence: {one.expression}\n"
        parts.append(f"{_RULE}\n{head}{_RULE}\n")
        parts += [f"--- {name} ---\n\n{text.strip()}\n" for name, text in one.texts]
    return "\n".join(parts)


def _choose(expression: Expression) -> frozenset[str]:
    parts = [_choose(part) for part in expression.args]
    if isinstance(expression, _SPDX.OR):
        return frozenset().union(*parts)
    if isinstance(expression, _SPDX.AND):
        return frozenset().union(*parts) if all(parts) else frozenset()
    # A symbol with an exception ("GPL-2.0-only WITH ...") reads as such and is not in the list.
    return ALLOWED & {str(expression)}


def _licensed(locked: Locked) -> Licensed:
    distribution = _installed(locked)
    expression = _expression(distribution)
    if not choose(expression):
        raise DependencyError(
            f"{locked.name} {locked.version} is licensed under {expression}, of which none is in"
            f" ALLOWED of {__name__}: {', '.join(sorted(ALLOWED))}"
        )
    texts = tuple(_texts(distribution))
    if not texts:
        raise DependencyError(f"{locked.name} {locked.version} comes without a licence text")
    required = map(Requirement, distribution.requires or ())
    names = {canonicalize_name(one.name) for one in required if holds_on_linux(one.marker)}
    return Licensed(locked, expression, texts, tuple(sorted(names)))


def _installed(locked: Locked) -> Distribution:
    try:
        distribution = Distribution.from_name(locked.name)
    except PackageNotFoundError as error:
        raise DependencyError(
            f"{locked.name} is in the lock file and not installed; run: make setup"
        ) from error
    if distribution.version != locked.version:
        raise DependencyError(
            f"{locked.name} {locked.version} is in the lock file, {distribution.version} is"
            " installed; lock deploy/requirements/dev.txt again and run: make setup"
        )
    return distribution


def _expression(distribution: Distribution) -> str:
    """Return the SPDX expression: of PEP 639 or, before it, `License` or the classifier."""
    metadata = distribution.metadata
    for field in ("License-Expression", "License"):
        for stated in metadata.get_all(field, ()):
            with suppress(ExpressionError):  # before PEP 639 the field could hold any text
                return str(_SPDX.parse(STATED.get(stated, stated), validate=True))
    classifiers = metadata.get_all("Classifier", ())
    found = {CLASSIFIERS[one] for one in classifiers if one in CLASSIFIERS}
    if len(found) != 1:
        raise DependencyError(
            f"{metadata['Name']} {metadata['Version']} states no SPDX expression, and its"
            f" classifiers name {len(found)} licences of CLASSIFIERS in {__name__} instead of one"
        )
    return found.pop()


def _texts(distribution: Distribution) -> list[tuple[str, str]]:
    """Return name and content of the licence files, which metadata before 2.4 do not list."""
    found = {}
    for file in distribution.files or ():
        path = PurePosixPath(file)
        if not path.parts[0].endswith(".dist-info"):
            continue
        inside = PurePosixPath(*path.parts[1:])
        if inside.parts[0] == "licenses" and len(inside.parts) > 1:
            name = str(PurePosixPath(*inside.parts[1:]))
        elif len(inside.parts) == 1 and inside.name.upper().startswith(_TEXTS):
            name = inside.name
        else:
            continue
        found[name] = file.read_text(encoding="utf-8")
    return sorted(found.items())
