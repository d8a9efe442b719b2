"""Where the agent gets the kubelet's pods from: the best source that works is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from agent.tools.doctor.verdicts import HostCheck, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.tools.doctor.facts import GatheredFacts, KubeletFiles
    from agent.tools.doctor.kubelet_settings import KubeletSettings

_GATE: Final = "featureGates.PodsAPI"


def source_checks(facts: GatheredFacts, settings: KubeletSettings) -> Iterator[HostCheck]:
    """Yield whether pods' specifications reach the agent, and the gate that brings them best."""
    yield _source_check(facts, settings)
    yield _gate_check(facts.kubelet, settings)


def _source_check(facts: GatheredFacts, settings: KubeletSettings) -> HostCheck:
    check, kubelet = "pod source", facts.kubelet
    failed = [f"{one.way}: {one.problem}" for one in facts.asked if one.problem]
    used = next((one for one in facts.asked if not one.problem), None)
    if used is not None:
        found = "; ".join((f"{used.way} lists {used.pods} pods", *failed))
        return HostCheck(check, Verdict.WARNING if failed else Verdict.OK, found)
    if kubelet.pods_api.problem:
        failed.append(f"{kubelet.pods_api.path}: {kubelet.pods_api.problem}")
    elif not kubelet.pods_api.there:
        failed.append(f"there is no Pods API at {kubelet.pods_api.path}")
    change = f"{settings.change(_GATE, 'true')} and restart the kubelet, or set "
    change += "agent.kubelet.podsEndpoint and agent.kubelet.tokenFile"
    stored = _stored_pods(kubelet)
    if not stored:
        failed.append(f"what is left, {kubelet.allocated_pods.path}, says it in part")
        return HostCheck(check, Verdict.WARNING, "; ".join(failed), change)
    failed.append(stored)
    if kubelet.process is None:
        return HostCheck(check, Verdict.UNKNOWN, "; ".join(("no kubelet runs", *failed)))
    found = "; ".join((*failed, "pods whose specification is not known run shared"))
    return HostCheck(check, Verdict.ERROR, found, change)


def _stored_pods(kubelet: KubeletFiles) -> str:
    """Return why `allocated_pods_state` cannot be used, "" where it can."""
    file = kubelet.allocated_pods
    if file.text is None:
        return f"{file.path} {f'cannot be read: {file.problem}' if file.problem else 'is absent'}"
    try:
        document = msgspec.json.decode(file.text)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{file.path} is not JSON ({error})"
    return "" if isinstance(document, dict) else f"{file.path} is not the kubelet's"


def _gate_check(kubelet: KubeletFiles, settings: KubeletSettings) -> HostCheck:
    check = "gate PodsAPI"
    setting = settings.effective(_GATE)
    if kubelet.pods_api.there:
        return HostCheck(check, Verdict.OK, f"{kubelet.pods_api.path} is served")
    change = settings.change(_GATE, "true")
    change += " (Kubernetes 1.36; from 1.37 on the gate is on) and restart the kubelet"
    if setting is None:
        if settings.unread:
            return HostCheck(check, Verdict.UNKNOWN, "; ".join(settings.unread))
        return HostCheck(check, Verdict.WARNING, f"not set in {settings.file}", change)
    if setting.value.lower() != "true":
        return HostCheck(check, Verdict.WARNING, f"off in {setting.source}", change)
    found = f"on in {setting.source}, but {kubelet.pods_api.path} is not a socket"
    if kubelet.process is None:
        return HostCheck(check, Verdict.UNKNOWN, f"{found} while no kubelet runs")
    change = "restart the kubelet; before 1.36 it has no Pods API"
    return HostCheck(check, Verdict.WARNING, found, change)
