"""Pods for single commands and systemd units: made from options, entered by the process itself.

The calling process enters the cgroup of its container and becomes the command. Below a slice that
cgroup is a scope, which systemd makes around the process; elsewhere it is a directory. Whatever the
process starts or becomes (execve) stays there.
"""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec import Struct

from agent.api.client import AgentError, Unreachable
from agent.api.documents.admissions import BindRequest
from agent.api.variables import allocation_variables
from agent.managers.allocation import Isolation
from agent.managers.numa_policy import NumaMode, NumaPolicy
from agent.pods.model import (
    CPU,
    END,
    INTERLEAVE,
    MEMORY,
    NEAR_NODES,
    NUMA_POLICY,
    UNIT,
    End,
    full_name,
)
from agent.pods.quantity import Quantity, QuantityError
from agent.pods.validation import resource_name_fault
from agent.tools.numa_calls import set_numa_policy
from cgroupfs.tree import join
from sysfs.devices import read_interfaces
from sysfs.files import SysfsTree
from sysfs.mask import EMPTY, Mask
from systemd.units import NoSuchUnitError, bytes_mask, description, in_slice, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.api.client import AgentClient
    from agent.api.documents.pods import ContainerDocument, DeliveryDocument, PodDocument
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd


#: The only container of the pod.
CONTAINER: Final = "main"


class OptionError(Exception):
    """An option that no pod can be made of; `option` names it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class Amounts(Struct, frozen=True):
    """What is asked for: a number of CPUs, a size, and further amounts by resource.

    `memory` "" leaves memory neither limited nor pinned.
    """

    cpus: str = "1"
    memory: str = ""
    others: Mapping[str, str] = {}


def listed_amounts(hugepages: Iterable[str], devices: Iterable[str]) -> dict[str, str]:
    """Return amounts by resource of texts such as `2Mi=512Mi` (huge pages) and `NAME=N` (devices).

    One text may list several, separated by commas. Raises `OptionError`.
    """
    amounts: dict[str, str] = {}
    for option, prefix, texts in (
        ("--hugepages", "hugepages-", hugepages),
        ("--device", "", devices),
    ):
        for text in (part for each in texts for part in each.split(",")):
            name, equals, amount = text.partition("=")
            if not (name and equals and amount):
                raise OptionError(option, f"{text!r} is not NAME=AMOUNT")
            if prefix + name in amounts:
                raise OptionError(option, f"{name!r} is given twice; write the sum once")
            check_amount(option, amount)
            if fault := resource_name_fault(prefix + name):
                raise OptionError(option, f"{text!r}: {fault}")
            amounts[prefix + name] = amount
    return amounts


def check_amount(option: str, text: str) -> None:
    """Raise `OptionError` unless a text is an amount of a resource."""
    try:
        Quantity.parse(text)
    except QuantityError as error:
        raise OptionError(option, str(error)) from error


def command_pod(  # each is an option of the command
    uid: str,
    name: str,
    amounts: Amounts,
    *,
    shared: bool,
    near: int | None = None,
    interleave: bool = False,
) -> bytes:
    """Return the manifest of a pod that ends with the processes of a command.

    Its container has exclusive CPUs; with `shared` it runs in the node's shared pool, and `cpus` is
    a request: the weight against others. Memory is limited in both. `near` is the NUMA node on
    which it has to be; with `interleave` its memory is on all of its nodes. Raises `OptionError`.
    """
    if shared:
        _number_of_cpus(amounts.cpus)
    else:
        check_cpus(amounts.cpus, "a part of a CPU needs --shared")
    sizes = _sizes(amounts.memory)
    limits = {**sizes, **amounts.others}
    if not shared:
        limits[CPU] = amounts.cpus
    resources = {"requests": {CPU: amounts.cpus, **limits}, "limits": limits}
    annotations = {END: str(End.PROCESSES)}
    if near is not None:
        annotations[NEAR_NODES] = str(near)
    if interleave:
        annotations[NUMA_POLICY] = INTERLEAVE
    return _manifest(uid, name, annotations, resources, guaranteed=not shared)


def _sizes(memory: str) -> dict[str, str]:
    """Return the amount of `--memory`, if there is one; raises `OptionError`."""
    if not memory:
        return {}
    check_amount("--memory", memory)
    return {MEMORY: memory}


def check_cpus(cpus: str, hint: str) -> None:
    """Raise `OptionError` unless a text is a number of exclusive CPUs; `hint` ends the message."""
    if not _number_of_cpus(cpus).is_whole:
        message = f"{cpus!r} is not a whole number of CPUs from 1; exclusive CPUs are whole, {hint}"
        raise OptionError("--cpus", message)


def _number_of_cpus(cpus: str) -> Quantity:
    try:
        amount = Quantity.parse(cpus)
    except QuantityError as error:
        raise OptionError("--cpus", f"{cpus!r} is not a number of CPUs: {error.reason}") from error
    if not amount.nano > 0:
        raise OptionError("--cpus", f"{cpus!r} is not a number of CPUs above 0")
    return amount


def _manifest(
    uid: str,
    name: str,
    annotations: dict[str, str],
    resources: Mapping[str, Mapping[str, str]],
    *,
    guaranteed: bool,
) -> bytes:
    pod: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": CONTAINER, "resources": resources}]},
    }
    if guaranteed:
        # The class of a pod without a limit of memory would not be Guaranteed, and its CPUs would
        # not be exclusive: the stated class wins over the computed one, as in the kubelet.
        pod["status"] = {"qosClass": "Guaranteed"}
    return json.dumps(pod).encode()


_OPTION: Final = "--near"
#: An error names this many interfaces at most.
_NAMED: Final = 8


def node_of_interface(root: Path, name: str) -> int:
    """Return the node of a network interface of the host whose sysfs is below `root`.

    Raises `OptionError` where there is no such interface, and where its node is not known: that of
    a bridge or bond is not, those of the interfaces in it are.
    """
    found = {device.name: device.node for device in read_interfaces(SysfsTree(root), EMPTY)}
    if name not in found:
        known = ", ".join(sorted(found)[:_NAMED]) or "none"
        raise OptionError(_OPTION, f"no interface of a device is called {name!r}; known: {known}")
    node = found[name]
    if node is None:
        raise OptionError(_OPTION, f"the kernel gives no NUMA node of {name}; leave --near out")
    return node


def environment(
    pod: PodDocument, container: ContainerDocument, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a command: what it inherits, its devices', and its allocation.

    Variables of the allocation of another command, from inside which this one was started, are
    left out.
    """
    own = allocation_variables(full_name(pod), pod.uid, container.cpus, container.mems or "")
    delivered = {} if container.delivery is None else container.delivery.environment
    return {**inherited, **delivered, **own}


def not_given(delivery: DeliveryDocument | None) -> str:
    """Return what of a container's devices a process of the host cannot get, "" for nothing.

    It sees the host's device nodes and files at their own places, and no others.
    """
    if delivery is None:
        return ""
    if delivery.cdi_devices:
        return f"the CDI device {delivery.cdi_devices[0]}"
    for node in delivery.device_nodes:
        if node.container_path != node.host_path:
            return f"the device node {node.host_path} as {node.container_path}"
    for mount in delivery.mounts:
        if mount.container_path != mount.host_path:
            return f"the mount of {mount.host_path} at {mount.container_path}"
    return ""


_SLICE: Final = ".slice"
#: Where the kernel says on what a process may run (proc(5), status).
_FILES: Final = {"CPUs": "Cpus_allowed_list", "memory nodes": "Mems_allowed_list"}


def enter(
    pid: int,
    pod_cgroup: str,
    uid: str,
    tree: Callable[[], CgroupTree],
    systemd: Callable[[], Systemd],
) -> str:
    """Move a process into a new cgroup in the pod's, and return its path below the root.

    `uid` is the pod's. Only one of `tree` and `systemd` is opened. Raises `OSError` and
    `SystemdError`, both where the caller is not root.
    """
    slice_name = pod_cgroup.rpartition("/")[2]
    if slice_name.endswith(_SLICE):
        scope = f"{uid}-{CONTAINER}.scope"
        about = description(f"Command of pod {uid} of Numawarden")
        systemd().start_transient(scope, (about, in_slice(slice_name), processes((pid,))))
        return join(pod_cgroup, scope)
    opened, path = tree(), join(pod_cgroup, CONTAINER)
    if not opened.exists(path):
        opened.mkdir(path)
    opened.write(path, "cgroup.procs", str(pid))
    return path


def why_elsewhere(status: str, container: ContainerDocument) -> str:
    """Return where a process may run instead of where its container should, "" if it is right.

    `status` is the text of its `/proc/PID/status`. The node's shared pool is not compared: it
    changes with every other pod.
    """
    shown = _allowed(status)
    own = container.cpus if container.isolation != Isolation.HOST else None
    desired = {"CPUs": own, "memory nodes": container.mems}
    differing = [
        f"{what} {shown[file] or 'none'} instead of {text}"
        for what, text in desired.items()
        if text is not None and Mask.parse(shown[file := _FILES[what]]) != Mask.parse(text)
    ]
    return ", ".join(differing)


def _allowed(status: str) -> Mapping[str, str]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: text.strip() for name, _, text in lines if name in _FILES.values()}


#: Signals that Python ignores; what is ignored stays so over an execve.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class NotStartedError(Exception):
    """A command was not started; the message says why and what to do."""


class NotConfinedError(NotStartedError):
    """The kernel does not confine the process to what was allocated."""


class OwnProcess(Struct, frozen=True):
    """The process that becomes the command, and how it reaches the host.

    `status` returns its `/proc/PID/status`. `set_numa_policy` raises `OSError`. `execute` replaces
    it (`os.execve`): path of the program, arguments, environment.
    """

    pid: int
    tree: Callable[[], CgroupTree]
    systemd: Callable[[], Systemd]
    status: Callable[[], str]
    set_numa_policy: Callable[[NumaPolicy], None]
    execute: Callable[[str, Sequence[str], Mapping[str, str]], None]


def this_process(mount: Path) -> OwnProcess:
    """Return this process, on the host whose cgroups are mounted at `mount`."""

    # Imported here: only one of the two is used, and D-Bus takes time.
    def tree() -> CgroupTree:
        from cgroupfs.tree import KernelTree  # noqa: PLC0415

        return KernelTree(mount)

    def systemd() -> Systemd:
        from systemd.bus import SystemBus  # noqa: PLC0415

        return SystemBus()

    status = Path("/proc/self/status").read_text
    return OwnProcess(os.getpid(), tree, systemd, status, set_numa_policy, _become)


def start(
    caller: OwnProcess,
    agent: AgentClient,
    pod: PodDocument,
    program: str,
    arguments: Sequence[str],
    inherited: Mapping[str, str],
) -> None:
    """Let the caller become a command in the container of an admitted pod.

    Nothing follows after that, unless `OwnProcess.execute` stands in for it and returns.
    Before the command's first instruction the cgroup exists, the agent has set it, the kernel
    confines the caller to the container's CPUs and memory nodes, and it has the pod's NUMA policy.
    If anything of that fails the pod is removed. Raises `NotStartedError`, `AgentError`, `OSError`
    and `SystemdError`.
    """
    try:
        container = _confine(caller, agent, pod)
        _set_numa_policy(caller, pod)
        caller.execute(program, arguments, environment(pod, container, inherited))
    except BaseException:
        # The agent frees the pod in any case, but only after a while.
        with suppress(AgentError, Unreachable):
            agent.remove(pod.uid)
        raise


def _confine(caller: OwnProcess, agent: AgentClient, pod: PodDocument) -> ContainerDocument:
    """Move the caller into the cgroup of the pod's container, and return the container."""
    (container,) = pod.containers
    missing = not_given(container.delivery)
    if missing:
        raise NotStartedError(
            f"a process of the host cannot get {missing}; start a container instead"
        )
    if not pod.kernel:
        raise NotConfinedError(f"the cgroup of pod {pod.uid} does not exist; see the agent's log")
    pod_cgroup = pod.kernel[0].cgroup.strip("/")
    cgroup = enter(caller.pid, pod_cgroup, pod.uid, caller.tree, caller.systemd)
    bound = agent.bind(pod.uid, CONTAINER, BindRequest(cgroup=f"/{cgroup}"))
    lacking = "; ".join(bound.enforcement.differences)
    elsewhere = why_elsewhere(caller.status(), container)
    if lacking or elsewhere:
        detail = lacking or f"the kernel would let it run on {elsewhere}"
        raise NotConfinedError(f"the command was not started in /{cgroup}: {detail}")
    return container


def _set_numa_policy(caller: OwnProcess, pod: PodDocument) -> None:
    """Give the caller the NUMA policy of the pod, if it has one; raises `NotConfinedError`."""
    if pod.numa_policy is None:
        return
    mode, nodes = pod.numa_policy.mode, pod.numa_policy.nodes
    try:
        caller.set_numa_policy(NumaPolicy(NumaMode(mode), Mask.parse(nodes)))
    except OSError as error:
        message = f"the kernel does not set the NUMA policy {mode}: {error.strerror}"
        raise NotConfinedError(f"the command was not started: {message}") from error


def _become(program: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    os.execve(program, list(arguments), variables)  # noqa: S606  # it is what the user asked for


_NO_POD_NAME: Final = re.compile(r"[^a-z0-9.-]+|^[^a-z0-9]+|[^a-z0-9]+$")
_TYPES: Final = (".service", ".scope")


def unit_name(text: str) -> str:
    """Return the name of a unit; without a type it is a service, as for systemctl."""
    return text if text.endswith(_TYPES) else f"{text}.service"


def connect() -> Systemd:
    """Return the systemd of this host."""
    from systemd.bus import SystemBus  # noqa: PLC0415  # takes time that other commands do not need

    return SystemBus()


def running_cgroup(systemd: Systemd, unit: str) -> str:
    """Return the cgroup of a unit that runs, "" of any other. Raises `SystemdError`."""
    if not systemd.active_state(unit).running:
        return ""
    try:
        return systemd.control_group(unit)
    except NoSuchUnitError:  # it was stopped meanwhile
        return ""


class _OfService(Struct, frozen=True):
    """A setting of a service that narrows what its cgroup has, and how its start fails for it."""

    name: str
    #: The D-Bus property with its set; the value of the setting that takes it back.
    mask: str
    none: str
    what: str
    status: str


_AFFINITY: Final = _OfService("CPUAffinity=", "CPUAffinity", "", "CPUs", "215/CPUAFFINITY")
_NUMA: Final = _OfService("NUMAPolicy=", "NUMAMask", "default", "memory nodes", "242/NUMA_POLICY")
#: preferred, bind, interleave, preferred-many, weighted-interleave (linux/mempolicy.h).
_POLICIES_WITH_NODES: Final = frozenset({1, 2, 3, 5, 6})


def narrowing_settings(systemd: Systemd, unit: str, container: ContainerDocument) -> Iterator[str]:
    """Yield what settings of a unit's own leave of its container's CPUs and memory nodes.

    Raises `NotConfinedError` where one leaves none: the kernel then rejects it, and systemd ends
    the unit at its next start (systemd.exec(5), "Process Exit Codes"). Raises `SystemdError`.
    """
    if not unit.endswith(".service"):
        return
    masks = (_AFFINITY.mask, _NUMA.mask, "NUMAPolicy")
    affinity, nodes, policy = systemd.unit_properties(unit, *masks)
    for setting, value, text in (
        (_AFFINITY, affinity, container.cpus),
        (_NUMA, nodes if policy in _POLICIES_WITH_NODES else b"", container.mems),
    ):
        own = bytes_mask(value if isinstance(value, bytes) else b"")
        allocated = Mask.parse(text or "")
        if not own or allocated <= own:
            continue
        if allocated.isdisjoint(own):
            raise NotConfinedError(
                f"{unit} has {setting.name} with {setting.what} {own}, and would get {allocated}: "
                f"it could not be started again ({setting.status}); write '{setting.name}"
                f"{setting.none}' in its section [Service] (systemctl edit {unit}), restart it and "
                "attach it again"
            )
        yield (
            f"{unit} has {setting.name} with {setting.what} {own}: of {allocated} it uses "
            f"{allocated & own} alone"
        )


def pod_of_unit(unit: str, cpus: str, memory: str, hugepages: Iterable[str]) -> bytes:
    """Return the manifest of a pod that ends with a systemd unit, under a new uid.

    Nothing is limited: the limits of the unit stay its own. Raises `OptionError`.
    """
    others = listed_amounts(hugepages, ())
    check_cpus(cpus, "name a whole number")
    sizes = _sizes(memory)
    resources = {"requests": {CPU: cpus, **sizes, **others}, "limits": others}
    name = _NO_POD_NAME.sub("-", unit.lower()).strip("-.")
    return _manifest(str(uuid4()), name, {UNIT: unit}, resources, guaranteed=True)
