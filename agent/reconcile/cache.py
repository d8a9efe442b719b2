"""What an enforcer remembers between two looks, pod by pod ("" for what is of no pod).

It saves work and tells what somebody undid from what is new; nothing goes wrong without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent.reconcile.desired.settings import Role
from agent.reconcile.differences import as_desired

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.reconcile.desired.settings import DesiredCgroup
    from agent.reconcile.snapshot import Observation
    from cgroupfs.state import CgroupState
    from cgroupfs.verify import WriterRecord
    from sysfs.mask import Mask


_Value = TypeVar("_Value")


class ObservationCache:
    """The settings that were last asked of the kernel, and what systemd was told."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, DesiredCgroup]] = {}
        self._told: dict[str, dict[str, WriterRecord]] = {}

    def was_asked(self, item: DesiredCgroup) -> bool:
        """Return whether just this was asked for at the last look, of a cgroup that was there."""
        known = self._asked.get(item.pod, {}).get(item.setting.cgroup)
        return known is not None and known.setting == item.setting

    def shows_former(self, item: DesiredCgroup, state: CgroupState | None) -> bool:
        """Return whether a cgroup shows what was asked of it, so that only the wish changed."""
        known = self._asked.get(item.pod, {}).get(item.setting.cgroup)
        if known is None or state is None or known.setting == item.setting:
            return False
        return as_desired(known.setting, state)

    def shares(self, uid: str, pool: Mask) -> bool:
        """Return whether the cgroup of a pod was to include this shared pool; True if unknown."""
        own = [item for item in self._asked.get(uid, {}).values() if item.role is Role.POD]
        return not own or any(one.setting.cpus is None or pool <= one.setting.cpus for one in own)

    def told(self, item: DesiredCgroup) -> WriterRecord | None:
        """Return what systemd was last told of a cgroup."""
        return self._told.get(item.pod, {}).get(item.setting.cgroup)

    def note_asked(self, scene: Observation, waiting: Collection[str] = ()) -> None:
        """Remember what is desired of each cgroup, but for those where it is not yet written."""
        self._forget(self._asked, scene)
        for item in scene.desired:
            if item.setting.cgroup in scene.states and item.setting.cgroup not in waiting:
                self._asked.setdefault(item.pod, {})[item.setting.cgroup] = item

    def note_told(
        self, scene: Observation, told: Iterable[tuple[DesiredCgroup, WriterRecord]]
    ) -> None:
        """Remember what systemd holds of the cgroups of a scene."""
        self._forget(self._told, scene)
        for item, record in told:
            self._told.setdefault(item.pod, {})[item.setting.cgroup] = record

    def forget_told(self, uid: str, cgroup: str) -> None:
        """Forget what systemd was told of a cgroup of a pod and of all that is inside it."""
        known = self._told.get(uid, {})
        for path in [path for path in known if f"{path}/".startswith(f"{cgroup}/")]:
            del known[path]

    @staticmethod
    def _forget(known: dict[str, dict[str, _Value]], scene: Observation) -> None:
        """Forget what is about to be noted again."""
        pods = scene.pods()
        if pods is None:
            known.clear()
            return
        for uid in pods:
            known.pop(uid, None)
        if scene.scope is not None and scene.scope.leftovers:
            known.pop("", None)
