"""The host as it was last read, and the rules that follow from it and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.config.errors import ConfigError
from agent.config.resolve import resolve, resolve_what_fits
from agent.managers.admission import admit
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.effective_policy import EffectivePolicy
from agent.managers.machine import Machine

if TYPE_CHECKING:
    from agent.config.config import Config
    from agent.managers.allocations.ledger import Ledger
    from agent.pods.model import Pod
    from sysfs.host import Host


class ConfiguredHost(Struct, frozen=True):
    """What decisions and enforcement are based on.

    `misfits` says what of the configuration does not fit the host, a line each. `frozen`: so far
    it never fitted, so the rules are only what is left of it and no new pod is admitted by them.
    """

    host: Host
    rules: EffectivePolicy
    misfits: tuple[str, ...] = ()
    frozen: bool = False

    def problems(self) -> tuple[str, ...]:
        """Return what an operator should know of it, a line each."""
        effect = (
            "pods keep what they hold and no new one is admitted"
            if self.frozen
            else "the rules of before stay in force"
        )
        return tuple(f"{misfit}; until this fits the host, {effect}" for misfit in self.misfits)


def decide(situation: ConfiguredHost, ledger: Ledger, pod: Pod) -> Decision:
    """Decide by the rules in force; a frozen situation admits no new pod."""
    if situation.frozen and pod.uid not in ledger.allocations:
        rejection = Rejection(
            Reason.UNEXPECTED,
            f"the configuration does not fit this host: {'; '.join(situation.misfits)}",
            remedy="correct the configuration and start the agent again; pods run on meanwhile",
        )
        return Decision(pod.uid, ledger, cause=rejection)
    return admit(situation.rules, ledger, pod)


def situate(
    config: Config, host: Host, previous: ConfiguredHost | None = None, *, holding: bool = False
) -> ConfiguredHost:
    """Return the rules of a configuration on a host.

    When the configuration does not fit (its reserved CPUs are gone, say) the `previous` policy
    stays in force on the host as it is now. Without one, what fits of the configuration serves to
    keep what pods hold already (`holding`), and otherwise `ConfigError` is raised: where nothing
    is at stake a clear rejection helps more.
    """
    machine = Machine.of(host)
    try:
        return ConfiguredHost(
            host, EffectivePolicy(machine, resolve(config, machine, offline=host.offline))
        )
    except ConfigError as error:
        misfits = tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
        if previous is not None:
            rules = EffectivePolicy(machine, previous.rules.policy)
            return ConfiguredHost(host, rules, misfits, previous.frozen)
        if not holding:
            raise
        rules = EffectivePolicy(machine, resolve_what_fits(config, machine))
        return ConfiguredHost(host, rules, misfits, frozen=True)
