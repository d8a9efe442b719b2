"""Where the agent gets the kubelet's pods from: the best source that works is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from agent.tools.doctor.runtime_settings import version_of
from agent.tools.doctor.verdicts import HostCheck, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.tools.doctor.facts import GatheredFacts, KubeletFiles
    from agent.tools.doctor.kubelet_settings import KubeletSettings

_GATE: Final = "featureGates.PodsAPI"
#: The first version with the Pods API.
_FIRST: Final = (1, 36, 0)
_ON_BY_DEFAULT: Final = (1, 37, 0)
_ENDPOINT: Final = "set agent.kubelet.podsEndpoint and agent.kubelet.tokenFile"


def source_checks(facts: GatheredFacts, settings: KubeletSettings) -> Iterator[HostCheck]:
    """Yield whether pods' specifications reach the agent, and the gate that brings them best."""
    yield _source_check(facts, settings)
    yield _gate_check(facts, settings)


def _source_check(facts: GatheredFacts, settings: KubeletSettings) -> HostCheck:
    check, kubelet = "pod source", facts.kubelet
    failed = [f"{one.way}: {one.problem}" for one in facts.asked if one.problem]
    used = next((one for one in facts.asked if not one.problem), None)
    if used is not None:
        found = "; ".join((f"{used.way} lists {used.pods} pods", *failed))
        if not failed:
            return HostCheck(check, Verdict.OK, found)
        change = "see `journalctl -u kubelet`, and what agent.kubelet has of podsEndpoint"
        return HostCheck(check, Verdict.WARNING, found, change)
    if kubelet.pods_api.problem:
        failed.append(f"{kubelet.pods_api.path}: {kubelet.pods_api.problem}")
    elif not kubelet.pods_api.there:
        failed.append(f"there is no Pods API at {kubelet.pods_api.path}")
    change = _ENDPOINT if kubelet.pods_api.there else _set_gate(settings)
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


def _gate_check(facts: GatheredFacts, settings: KubeletSettings) -> HostCheck:
    check, kubelet = "gate PodsAPI", facts.kubelet
    version = "" if facts.runtime is None else facts.runtime.packages.get("kubelet", "")
    numbers = version_of(version)
    setting = settings.effective(_GATE)
    by_default = numbers is not None and numbers >= _ON_BY_DEFAULT
    on = by_default if setting is None else setting.value.lower() == "true"
    off = f"not set in {settings.file}" if setting is None else f"off in {setting.source}"
    if kubelet.pods_api.there and (on or (setting is None and settings.unread)):
        return HostCheck(check, Verdict.OK, f"{kubelet.pods_api.path} is served")
    if kubelet.pods_api.there:
        found = f"now {kubelet.pods_api.path} is served; at the kubelet's next start it is not, "
        found += f"for the gate is {off}" + ("" if setting else ", which turns it off before v1.37")
        return HostCheck(check, Verdict.WARNING, found, settings.change(_GATE, "true"))
    if numbers is not None and numbers < _FIRST:
        found = f"kubelet {version} (package kubelet) has no Pods API and does not know the gate"
        return HostCheck(check, Verdict.WARNING, found, _ENDPOINT)
    if not on:
        if setting is None and settings.unread:
            return HostCheck(check, Verdict.UNKNOWN, "; ".join(settings.unread))
        return HostCheck(check, Verdict.WARNING, off, _set_gate(settings))
    where = "by default" if setting is None else f"in {setting.source}"
    found = f"on {where}, but {kubelet.pods_api.path} is not a socket"
    verdict, change = Verdict.WARNING, "restart the kubelet"
    if kubelet.process is None:
        verdict, change, found = Verdict.UNKNOWN, "", f"{found} while no kubelet runs"
    return HostCheck(check, verdict, found, change)


def _set_gate(settings: KubeletSettings) -> str:
    """Return how the gate is set; a kubelet that does not know a gate does not start."""
    return (
        f"{settings.change(_GATE, 'true')} and restart the kubelet if it is of Kubernetes 1.36, "
        f"with which the gate came; {_ENDPOINT} if it is older"
    )
