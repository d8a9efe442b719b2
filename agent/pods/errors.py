"""Errors of quantities and pod manifests."""

from __future__ import annotations

from dataclasses import dataclass

from agent.pods.identity import NO_IDENTITY, PodIdentity
from agent.yaml import DocumentError


@dataclass
class ManifestError(DocumentError):
    """A pod manifest was rejected; `problems` are all its mistakes with path and line.

    `identity` is the identity of the pod as far as the manifest is readable.
    """

    identity: PodIdentity = NO_IDENTITY

    what = "pod manifest"
