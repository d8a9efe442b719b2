"""What an enforcer remembers between two observations, by pod uid ("" for cgroups of no pod).

The cache saves work, and distinguishes drift from settings that are new. The result of an
enforcement does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from agent.reconcile.desired.settings import Role
from agent.reconcile.diff import diff
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.reconcile.desired.settings import DesiredCgroup
    from agent.reconcile.snapshot import Observation
    from cgroupfs.state import CgroupState, WriterRecord
    from sysfs.mask import Mask


_Value = TypeVar("_Value")


class ObservationCache:
    """The settings last written to the kernel, and the properties last recorded in systemd."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, DesiredCgroup]] = {}
        #: The pods (uids) whose own cgroup was to have what the cgroup above has.
        self.inheriting: set[str] = set()
        self._recorded: dict[str, dict[str, WriterRecord]] = {}

    def was_asked(self, item: DesiredCgroup) -> bool:
        """Return whether the same setting was desired last time, of a cgroup that existed."""
        known = _known(self._asked, item)
        return known is not None and known.setting == item.setting

    def is_new(self, item: DesiredCgroup) -> bool:
        """Return whether a cgroup appeared after others were observed; False before the first."""
        return bool(self._asked) and _known(self._asked, item) is None

    def shows_former(self, item: DesiredCgroup, state: CgroupState | None) -> bool:
        """Return whether a cgroup shows its former setting: only the desired setting changed."""
        known = _known(self._asked, item)
        if known is None or state is None or known.setting == item.setting:
            return False
        former = known.setting
        if item.setting.mems is None and not item.setting.whole_mems:
            former = replace(former, mems=None, whole_mems=EMPTY)  # they were not read
        return not diff(replace(known, setting=former), state)

    def shares(self, uid: str, pool: Mask) -> bool:
        """Return whether the cgroup of a pod was to include this shared pool; True if unknown."""
        own = [item for item in self._asked.get(uid, {}).values() if item.role is Role.POD]
        return not own or any(one.setting.cpus is None or pool <= one.setting.cpus for one in own)

    def recorded(self, item: DesiredCgroup) -> WriterRecord | None:
        """Return what was last recorded in systemd for a cgroup."""
        return _known(self._recorded, item)

    def note_asked(self, observed: Observation, waiting: Collection[str] = ()) -> None:
        """Remember what is desired of each cgroup, except where it is not yet written."""
        self._forget(self._asked, observed)
        pods = observed.pods()
        self.inheriting -= self.inheriting if pods is None else pods
        for item in observed.desired:
            if item.setting.cgroup in observed.states and item.setting.cgroup not in waiting:
                self._asked.setdefault(item.pod, {})[item.setting.cgroup] = item
                if item.role is Role.POD and item.setting.whole_cpus.bits:
                    self.inheriting.add(item.pod)

    def note_recorded(
        self, observed: Observation, records: Iterable[tuple[DesiredCgroup, WriterRecord]]
    ) -> None:
        """Remember what systemd has on record for the observed cgroups."""
        self._forget(self._recorded, observed)
        for item, record in records:
            self._recorded.setdefault(item.pod, {})[item.setting.cgroup] = record

    def forget_recorded(self, uid: str, cgroup: str) -> None:
        """Forget what was recorded for a cgroup of a pod and for all cgroups inside it."""
        known = self._recorded.get(uid, {})
        for path in [path for path in known if f"{path}/".startswith(f"{cgroup}/")]:
            del known[path]

    @staticmethod
    def _forget(known: dict[str, dict[str, _Value]], observed: Observation) -> None:
        """Forget the entries that are about to be written again."""
        pods = observed.pods()
        if pods is None:
            known.clear()
            return
        for uid in pods:
            known.pop(uid, None)
        if observed.scope is not None and observed.scope.orphaned:
            known.pop("", None)


def _known(known: dict[str, dict[str, _Value]], item: DesiredCgroup) -> _Value | None:
    """Return what is known of a cgroup: of its pod, or of no pod from before its admission."""
    path = item.setting.cgroup
    found = known.get(item.pod, {}).get(path)
    return known.get("", {}).get(path) if found is None else found
