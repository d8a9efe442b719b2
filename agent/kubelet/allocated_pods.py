"""The kubelet's file `allocated_pods_state`: what it allocated to each pod, by uid.

Kubelets up to v1.36 keep there requests and limits by the names of containers, and of pods as a
whole. Which containers are init containers or sidecars is not in it, containers that cannot be
resized may be missing, and so are names, annotations and phases of pods. So nothing can be decided
from it: that a pod is there is known, not what it asks for. Later kubelets (version "v2") add the
whole pods as protobuf; a pod that such a kubelet took over from the older form is known as little
as before, which shows by its missing name.

Neither version says that a pod has ended.
"""

from __future__ import annotations

import base64
import binascii
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.kubelet.errors import PodsUnavailableError, UnreadablePodError
from agent.kubelet.pod_messages import CORE_V1, read_messages
from agent.kubelet.reported_pods import checked_uid
from agent.safe_files import UntrustedPathError, read_trusted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.kubelet.reported_pods import ReportedPod

FILE_NAME: Final = "allocated_pods_state"
#: The longest file in bytes.
LONGEST_FILE: Final = 64 << 20
_WITH_PODS: Final = "v2"


class AllocatedPods(Struct, frozen=True):
    """What the file says: the uids of all its pods, and those by uid that it has whole."""

    uids: frozenset[str] = frozenset()
    pods: Mapping[str, ReportedPod] = MappingProxyType({})


class _File(Struct, frozen=True):
    data: str = ""
    version: str = ""


class _Data(Struct, frozen=True, rename={"pod_list": "podList"}):
    entries: dict[str, Any] | None = None
    pod_list: str = ""


def read_allocated(directory: Path) -> AllocatedPods:
    """Return what the file of a kubelet's directory says; raises `PodsUnavailableError`.

    The checksum is the kubelet's affair: a file whose text can be read is used for nothing but
    that a pod is there, or has all that a pod needs.
    """
    path = directory / FILE_NAME
    try:
        return _read(read_trusted(path, LONGEST_FILE))
    except FileNotFoundError:
        raise PodsUnavailableError(str(path), "there is no such file", expected=True) from None
    except OSError as error:
        raise PodsUnavailableError(str(path), error.strerror or str(error)) from error
    except UntrustedPathError as error:
        raise PodsUnavailableError(str(path), f"{error.risk}; {error.risk.remedy}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PodsUnavailableError(str(path), f"it cannot be decoded ({error})") from error
    except (DecodeError, binascii.Error) as error:
        raise PodsUnavailableError(str(path), f"its podList cannot be decoded ({error})") from error


def _read(content: bytes) -> AllocatedPods:
    file = msgspec.json.decode(content, type=_File)
    data = msgspec.json.decode(file.data or "{}", type=_Data)
    uids = frozenset(uid for uid in data.entries or () if _is_uid(uid))
    if file.version != _WITH_PODS:
        return AllocatedPods(uids)
    raw = base64.b64decode(data.pod_list, validate=True)
    listed = read_messages(CORE_V1["PodList"].FromString(raw).items)
    whole = {pod.uid: pod for pod in listed.pods if pod.name}
    return AllocatedPods(uids | whole.keys(), MappingProxyType(whole))


def _is_uid(text: str) -> bool:
    try:
        checked_uid(text)
    except UnreadablePodError:
        return False
    return True
