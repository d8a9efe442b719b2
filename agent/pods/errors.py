"""What can be wrong with a quantity or a pod manifest."""

from __future__ import annotations

from dataclasses import dataclass

from agent.parsing.errors import DocumentError
from agent.pods.identity import NOBODY, PodIdentity


@dataclass
class QuantityError(ValueError):
    """A text is not a Kubernetes quantity; `text` is what was found, `reason` why not."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text!r} is not a quantity: {self.reason}"


@dataclass
class ManifestError(DocumentError):
    """A pod manifest was rejected; `problems` holds every mistake in it with path and line.

    `identity` is whom it speaks of, as far as it could be read.
    """

    identity: PodIdentity = NOBODY

    what = "pod manifest"
