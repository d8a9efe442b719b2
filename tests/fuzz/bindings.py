"""Bindings of a running agent: what is bound may be bound, whatever the request names.

An input is the body of a request to bind the only container of an admitted pod. The host has
cgroups that may be bound and many that may not.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.agent.server.support import OTHER_UID, UID, manifest
from tests.fuzz.damage import damaged_bytes, damaged_document, damaged_text
from tests.fuzz.sockets import running_agent
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.fuzz.target import Check

_POD: Final = f"kubepods/pod{UID}"
#: Cgroups that may be the container's, as the agent writes their paths.
_ALLOWED: Final = frozenset(
    (f"{_POD}/c0", f"{_POD}/c0/inner", "app.scope", "app.service", "plain", "deep/in/here",
     "user.slice/app.scope")
)  # fmt: skip
_OTHERS: Final = (
    f"kubepods/pod{OTHER_UID}/c0", "system.slice", "init.scope", "systemd-udevd.service",
    "dbus.service/inner",
)  # fmt: skip
_FIRST_PID: Final = 5000
_TEXTS: Final = (
    *(f"/{path}" for path in (*_ALLOWED, *_OTHERS)),
    "/", "", ".", "/..", "/kubepods", f"/{_POD}", f"/kubepods/pod{OTHER_UID}", "/plain/", "//plain",
    "/plain/../plain", "/plain/./", "plain", "/deep", "/deep/in", "/nowhere", "/plain\\x00",
    "/plain\n", "/\u202eplain", "/proc/self", "/sys/fs/cgroup/plain", "/cgroup.procs",
    "/plain/cgroup.procs",
)  # fmt: skip
_PIDS: Final = (
    0, -1, 1, 2, True, 1.0, "5000", None, 2**31, 2**63, 10**30,
    *range(_FIRST_PID, _FIRST_PID + len(_ALLOWED) + len(_OTHERS)),
)  # fmt: skip


def make_binding(random: Random) -> bytes:
    """Draw the body of a request to bind."""
    if random.randrange(3):
        text = damaged_text(random, _TEXTS) if random.randrange(2) else random.choice(_TEXTS)
        path = text if isinstance(text, str) else text.decode("utf-8", "replace")
        body = json.dumps({"cgroup": path})
    else:
        body = json.dumps({"pid": random.choice(_PIDS)})
    if not random.randrange(6):
        body = json.dumps(damaged_document(random, json.loads(body), most=2))
    data = body.encode()
    return data if random.randrange(8) else damaged_bytes(random, data)


@contextmanager
def open_bindings() -> Iterator[Check]:
    """Run an agent that holds two pods, on a host with cgroups of all kinds."""
    with running_agent() as agent:
        for uid in (UID, OTHER_UID):
            demand(agent.admit(manifest(uid=uid)), "a sound pod is not admitted")
        kernel = agent.world.kernel
        for number, path in enumerate(sorted((*_ALLOWED, *_OTHERS))):
            above = ""
            for part in path.split("/"):
                above = f"{above}/{part}".lstrip("/")
                if not kernel.exists(above):
                    kernel.mkdir(above)
            kernel.spawn(path, _FIRST_PID + number)

        def check(body: bytes) -> bool:
            head = f"POST /v1/pods/{UID}/containers/c0/bind HTTP/1.1\r\nHost: x\r\n"
            length = f"Content-Length: {len(body)}\r\n\r\n"
            accepted = agent.check(b"F" + f"{head}{length}".encode() + body)
            for binding in agent.bindings():
                demand(binding.pod_uid == UID, f"{binding} is of another pod")
                demand(binding.cgroup in _ALLOWED, f"/{binding.cgroup} is bound")
            return accepted

        yield check


BINDINGS: Final = Target("binding", make_binding, open_bindings)
