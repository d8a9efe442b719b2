"""What the comparison of one recorded case with our own answer came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeAlias

#: One recorded case as it stands in the file; its schema is that of the recording.
Case: TypeAlias = dict[str, Any]


class Verdict(StrEnum):
    """How our answer relates to the recorded one."""

    EQUAL = "equal"
    #: A flag of the case or a rule says that the kubelet is wrong there, and our answer is valid.
    RIGHT = "right-instead"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one case; `differences` are filled where it is wrong.

    `rules` name the reasons for which an answer is right instead of equal, where they have names.
    """

    verdict: Verdict
    differences: tuple[str, ...] = ()
    rules: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def equal(cls) -> Self:
        """Return the verdict on the same answer."""
        return cls(Verdict.EQUAL)

    @classmethod
    def right_instead(cls, *rules: str) -> Self:
        """Return the verdict on another, valid answer where a flag or a named rule allows it."""
        return cls(Verdict.RIGHT, rules=frozenset(rules))

    @classmethod
    def wrong(cls, *differences: str) -> Self:
        """Return the verdict on another answer, and how it differs."""
        return cls(Verdict.WRONG, differences)

    @classmethod
    def of(cls, differences: list[str]) -> Self:
        """Return equal when there are no differences, wrong otherwise."""
        return cls.wrong(*differences) if differences else cls.equal()
