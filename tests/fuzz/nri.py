"""What a runtime sends through NRI: frames, messages and requests, to the real service."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from structlog.testing import capture_logs

from agent.cluster.nri.messages import PLUGIN, V1ALPHA1, Adjustment, subscription
from agent.cluster.nri.protocol import (
    LONGEST_SENT,
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    Demultiplexer,
    MessageReader,
    NriProtocolError,
    RuntimeCall,
    TtrpcError,
)
from agent.cluster.nri.session import PluginService
from sysfs.mask import Mask
from tests.agent.cluster.nri.support import CONTAINER, POD, RecordingHandler
from tests.fakes.nri_runtime import TTRPC, frame, ttrpc_message
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.fuzz.target import Check

_OF_CONTAINER: Final = {"pod": POD, "container": CONTAINER}
_REQUESTS: Final = (
    ("Configure", V1ALPHA1["ConfigureRequest"](runtime_name="containerd", request_timeout=2000)),
    ("Synchronize", V1ALPHA1["SynchronizeRequest"](pods=[POD], containers=[CONTAINER, CONTAINER])),
    ("Synchronize", V1ALPHA1["SynchronizeRequest"](pods=[POD, POD], more=True)),
    ("StateChange", V1ALPHA1["StateChangeEvent"](event=1, pod=POD)),
    ("StateChange", V1ALPHA1["StateChangeEvent"](event=7, **_OF_CONTAINER)),
    ("StateChange", V1ALPHA1["StateChangeEvent"](event=-(2**31))),
    ("RunPodSandbox", V1ALPHA1["PodEvent"](pod=POD)),
    ("UpdatePodSandbox", V1ALPHA1["UpdatePodSandboxRequest"](pod=POD)),
    ("RemovePodSandbox", V1ALPHA1["PodEvent"]()),
    ("CreateContainer", V1ALPHA1["ContainerEvent"](**_OF_CONTAINER)),
    ("UpdateContainer", V1ALPHA1["UpdateContainerRequest"](**_OF_CONTAINER)),
    ("StopContainer", V1ALPHA1["ContainerEvent"]()),
    ("Shutdown", V1ALPHA1["Empty"]()),
    ("", V1ALPHA1["Empty"]()),
)


def make_frames(random: Random) -> bytes:
    """Draw the bytes of a few requests: damaged as messages, as frames, or not at all."""
    data = b""
    for number in range(random.randint(1, 6)):
        method, message = random.choice(_REQUESTS)
        payload = message.SerializeToString()
        if not random.randrange(4):
            payload = damaged_bytes(random, payload)
        request = TTRPC["Request"](service=PLUGIN, method=method, payload=payload)
        body = request.SerializeToString()
        if not random.randrange(6):
            body = damaged_bytes(random, body)
        sent = ttrpc_message(2 * number + 1, random.choice((1, 1, 1, 2)), body)
        cut = random.randrange(len(sent) + 1)
        connection = random.choice((PLUGIN_SERVICE, PLUGIN_SERVICE, RUNTIME_SERVICE))
        data += frame(connection, sent[:cut]) + frame(connection, sent[cut:])
    return damaged_bytes(random, data) if random.randrange(2) else data


async def _check(data: bytes) -> bool:
    handler = RecordingHandler()
    handler.adjustment = handler.update = Adjustment(cpus=Mask.of(1), environment={"A": "1"})
    handler.repairs = {CONTAINER["id"]: handler.adjustment}
    service = PluginService(
        handler,
        lambda remaining: demand(not remaining, "updates that do not fit"),
        seconds=60,
        synchronizing=60,
        observe=lambda _method, _outcome, seconds: demand(seconds >= 0, "negative seconds"),
        events=lambda info: subscription(info.name, info.version, info.nri_version),
    )
    frames = Demultiplexer()
    readers = {PLUGIN_SERVICE: MessageReader(), RUNTIME_SERVICE: MessageReader()}
    try:
        for connection, piece in frames.feed(data):
            for message in readers[connection].feed(piece):
                if connection == PLUGIN_SERVICE:
                    await _answer(service, message.body)
    except NriProtocolError as error:
        demand(str(error).isprintable(), f"no line: {error!s}")
        return False
    return True


async def _answer(service: PluginService, body: bytes) -> None:
    try:
        request = TTRPC["Request"].FromString(body)
    except Exception:  # noqa: BLE001  # what protobuf rejects never gets to the service
        return
    try:
        answer = await service.answer(RuntimeCall(request.method, request.payload, 0, 0))
    except TtrpcError as error:
        demand(error.code == "UNIMPLEMENTED", f"{request.method} is an error: {error}")
    else:
        demand(len(answer) <= LONGEST_SENT, "an answer that cannot be sent")


@contextmanager
def _open() -> Iterator[Check]:
    with asyncio.Runner() as runner, capture_logs() as logged:

        def judge(data: bytes) -> bool:
            logged.clear()
            accepted = runner.run(_check(data))
            for entry in logged:
                demand(entry["event"] == "NRI runtime shuts down", f"logged {entry}")
            return accepted

        yield judge


NRI_FRAMES: Final = Target("nri-frames", make_frames, _open, weight=2)
