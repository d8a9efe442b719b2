"""Errors of the start and errors of requests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from agent.config.checks import INSTALL_GRPC
from agent.managers.cpu.topology import CpuTopologyError
from agent.managers.errors import ManagerError
from agent.pods.model import NO_IDENTITY
from agent.reconcile.report import EnforcementError
from agent.sources.source import SourceUnreadableError
from agent.state.checkpoint import CheckpointError
from agent.yaml import DocumentError, Mistake
from cgroupfs.errors import CgroupError
from sysfs.files import SysfsError
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocation import Source
    from agent.pods.model import PodIdentity


class StartError(Exception):
    """The agent cannot start; the message is one line with what was found and a remedy."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(f"{what}: {found}; {remedy}")


class RequestError(Exception):
    """A request that cannot be served; `code` is for programs, `details` are its mistakes."""

    code: ClassVar[str] = "InvalidRequest"

    def __init__(self, message: str, details: tuple[Mistake, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


#: Errors of the environment (disk, cgroups, host, systemd), of the configuration and of requests:
#: what happens to a sound agent. A log line says which, without a traceback.
EXPECTED: Final = (
    RequestError,
    StartError,
    OSError,
    DocumentError,
    ManagerError,
    CpuTopologyError,
    CheckpointError,
    EnforcementError,
    SysfsError,
    CgroupError,
    SystemdError,
    SourceUnreadableError,
)


def message_of(error: BaseException) -> str:
    """Return the message of an expected error in one line; an `OSError` begins with its file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


class NotReadyError(RequestError):
    """The agent is restoring its state or stopping."""

    code = "NotReady"

    def __init__(self) -> None:
        super().__init__("changes are not possible while the agent starts or stops; retry later")


def missing_extra(key: str, error: ImportError) -> StartError:
    """Return the error for a key that needs the extra `grpc`, which is not installed."""
    found = f"{error.name} is not installed"
    return StartError(key, found, INSTALL_GRPC)


class BusyError(RequestError):
    """Too many requests of one kind wait."""

    code = "Busy"

    def __init__(self) -> None:
        super().__init__("too many requests wait for their turn; try again in a few seconds")


class InvalidManifestError(RequestError):
    """The manifest is not a valid pod; `identity` is the pod's as far as it is known."""

    code = "InvalidManifest"

    def __init__(
        self,
        message: str,
        details: tuple[Mistake, ...] = (),
        identity: PodIdentity = NO_IDENTITY,
    ) -> None:
        super().__init__(message, details)
        self.identity = identity


class TooSlowError(RequestError):
    """The body of a request did not arrive in time."""

    code = "TooSlow"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body did not arrive within {seconds:g} seconds")


class PodNotFoundError(RequestError):
    """No pod of that uid is admitted."""

    code = "PodNotFound"

    def __init__(self, uid: str) -> None:
        super().__init__(
            f"no pod with uid {uid!r} is admitted; 'numawarden list --output json' has the uids"
        )


class PodRemovedError(RequestError):
    """A pod was removed before the answer to its admission."""

    code = "PodRemoved"

    def __init__(self, pod: str) -> None:
        super().__init__(
            f"pod {pod} was removed while its devices were being prepared; admit it again if it is"
            " still to run"
        )


class SourcePodError(RequestError):
    """The pod belongs to a source, such as the manifest directory, which would bring it back."""

    code = "ManagedByManifest"

    def __init__(self, uid: str, source: Source, removal: str) -> None:
        super().__init__(f"pod {uid!r} comes from {source}; {removal} to end it")


class ResizeError(RequestError):
    """A request for a resize does not say what is to be, or what can be."""

    code = "InvalidResize"


class MoveError(RequestError):
    """A request for a move does not say what is to be, or its pod cannot move."""

    code = "InvalidMove"


class PressureError(RequestError):
    """The pod that is to move waits for CPUs or memory too often."""

    code = "UnderPressure"

    def __init__(self, file: str, share: float, most: float) -> None:
        super().__init__(
            f"{file}: tasks of the pod waited in {share:.1f} % of the last 10 s, above {most:.1f} %"
            " it does not move; move it when it has less to do, or allow more (--pressure)"
        )


class SourceResizeError(RequestError):
    """The pod belongs to a source, which states its amounts."""

    code = "ManagedByManifest"

    def __init__(self, pod: str, source: Source) -> None:
        super().__init__(f"pod {pod} comes from {source}; state its new amounts there")


class NoRequestsError(RequestError):
    """No pod is admitted over the API: another program makes the pods of this host."""

    code = "ManagedByKubelet"


class ContainerNotFoundError(RequestError):
    """The pod has no container of that name."""

    code = "ContainerNotFound"

    def __init__(self, pod: str, container: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"pod {pod} has no container {container!r}; its containers are {', '.join(known)}"
        )


class BindingNotFoundError(RequestError):
    """The container has no binding to remove."""

    code = "BindingNotFound"

    def __init__(self, pod: str, container: str) -> None:
        super().__init__(
            f"container {container!r} of pod {pod} is not bound to a cgroup; see "
            "'numawarden show' for its cgroups"
        )


class KernelUnreadableError(RequestError):
    """The cgroup tree cannot be read; nothing was changed."""

    code = "KernelUnreadable"

    def __init__(self, error: OSError) -> None:
        where = "" if error.filename is None else f" at /{error.filename}"
        super().__init__(
            f"the cgroup tree cannot be read{where}: {error.strerror or error}; see the kernel log"
        )


class NoHistoryError(RequestError):
    """No history is kept."""

    code = "NoHistory"

    def __init__(self) -> None:
        super().__init__("no history is kept: agent.history.maxBytes is 0; the log has it all")


class HistoryUnreadableError(RequestError):
    """The files of the history cannot be read."""

    code = "HistoryUnreadable"

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the history cannot be read: {error.strerror or error}; see the state directory"
        )


@contextmanager
def readable() -> Iterator[None]:
    """Raise `KernelUnreadableError` for an `OSError` in the block."""
    try:
        yield
    except OSError as error:
        raise KernelUnreadableError(error) from error


class BindError(RequestError):
    """A container cannot be bound to the requested cgroup."""

    code = "InvalidBinding"


class CordonTargetError(RequestError):
    """What is to be cordoned, uncordoned or drained cannot be found on the host."""

    def __init__(self, target: str, found: str) -> None:
        super().__init__(f"target {target[:64]!r}: {found}", (Mistake("target", found),))


class CordonRejectedError(RequestError):
    """The cordon would leave no CPU to containers that share CPUs."""

    code = "CordonRejected"

    def __init__(self, cordon: object, why: str) -> None:
        super().__init__(f"{cordon} cannot be cordoned: {why}")


class NotCordonedError(RequestError):
    """Nothing of what is to be uncordoned is cordoned."""

    code = "NotCordoned"

    def __init__(self, asked: object, cordoned: object) -> None:
        super().__init__(f"{asked} is not cordoned; cordoned: {cordoned}")


class CheckpointFailedError(RequestError):
    """The change could not be saved and was not made."""

    code = "CheckpointFailed"

    def __init__(self, error: Exception) -> None:
        super().__init__(f"nothing was changed, the change cannot be saved: {error}")
