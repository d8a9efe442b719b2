"""The pods of the playground: small enough for each of its hosts, but for one."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIXED: Final = """\
# A budget for the pod: the database has four of its CPUs for itself, the others share the rest.
apiVersion: v1
kind: Pod
metadata: {name: mixed}
spec:
  resources:
    requests: {cpu: "6", memory: 4Gi}
    limits: {cpu: "6", memory: 4Gi}
  containers:
    - name: database
      image: example.com/database
      resources:
        requests: {cpu: "4", memory: 2Gi}
        limits: {cpu: "4", memory: 2Gi}
    - {name: metrics, image: example.com/metrics}
    - {name: logs, image: example.com/logs}
"""
_GUARANTEED: Final = """\
# Whole CPUs, requests equal to limits: the container has them for itself.
apiVersion: v1
kind: Pod
metadata: {name: guaranteed}
spec:
  containers:
    - name: main
      image: example.com/main
      resources:
        requests: {cpu: "2", memory: 1Gi}
        limits: {cpu: "2", memory: 1Gi}
"""
_SHARED: Final = """\
# Requests below limits: the container runs on the shared pool, with the other pods of its kind.
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  containers:
    - name: main
      image: example.com/main
      resources:
        requests: {cpu: 500m, memory: 256Mi}
        limits: {cpu: "2", memory: 1Gi}
"""
_TOO_LARGE: Final = """\
# More CPUs than any host of the playground has.
apiVersion: v1
kind: Pod
metadata: {name: too-large}
spec:
  containers:
    - name: main
      image: example.com/main
      resources:
        requests: {cpu: "200", memory: 1Gi}
        limits: {cpu: "200", memory: 1Gi}
"""


def manifests() -> Mapping[str, str]:
    """Return the manifests by the name of their pod."""
    return MappingProxyType(
        {
            "mixed": _MIXED,
            "guaranteed": _GUARANTEED,
            "shared": _SHARED,
            "too-large": _TOO_LARGE,
        }
    )
