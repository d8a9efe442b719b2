"""The metrics page, scraped by a real Prometheus and judged by promtool."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tests.guest.inside import prometheus
from tests.guest.inside.agent import METRICS, Agent, page
from tests.guest.inside.pods import POD_SCOPE

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

EXAMPLES: Final = {example.name: example for example in POD_SCOPE}
MIXED: Final = EXAMPLES["pod-scope-mixed"]
REJECTED: Final = EXAMPLES["pod-scope-admission-failure"]

#: Status of promtool when a page parses and only names are against its rules.
LINT: Final = 3
#: Metrics whose names the kubelet fixed: counters without `_total`, gauges with `_count`, `_ms`.
KUBELETS: Final = ("kubelet_", "resource_manager_container_assignments ")

#: After one mixed pod of three containers in pod scope: one exclusive slice and two in the pod's
#: shared pool, for CPU and for memory alike.
ASSIGNMENT: Final = "resource_manager_container_assignments"
ASSIGNMENTS: Final = {
    (kind, resource): count
    for resource in ("cpu", "memory")
    for kind, count in (("pod_exclusive", 1.0), ("pod_shared", 2.0))
}


def run(guest: Guest) -> None:
    """Admit one pod, reject another, and read what the metrics say of it."""
    # Each repair of what is provoked below waits for the next comparison.
    checks, agent = guest.checks, Agent(guest, cpuManagerReconcilePeriod="2s")
    agent.start()
    rules = guest.job / "deploy/prometheus/alerts.yaml"
    config = prometheus.write_config(guest.work / "prometheus.yml", "numawarden", METRICS, rules)
    reader = prometheus.Prometheus(guest.work, config)
    _healthy(checks)
    checks.require("a pod is admitted", agent.admit(MIXED.manifest)["admitted"])
    checks.check("a pod is rejected", not agent.admit(REJECTED.manifest)["admitted"])
    text = agent.metrics()
    guest.log("metrics.txt", text)
    _check_page(checks, text)
    for (kind, resource), value in ASSIGNMENTS.items():
        labels = f'assignment_type="{kind}",resource_name="{resource}"'
        expression = f"{ASSIGNMENT}{{{labels}}}"
        checks.eventually(expression, partial(reader.value, expression), value)
    checks.eventually("Prometheus: up", lambda: reader.value('up{job="numawarden"}'), 1.0)
    targets = "Prometheus: targets without an error"
    checks.eventually(targets, partial(_health, reader), [("up", "")])
    _check_alert(checks, agent, reader)
    reader.stop()


def _check_alert(checks: Checks, agent: Agent, reader: prometheus.Prometheus) -> None:
    """Keep changing a pod's cgroup: the rule that is shipped notices (it fires 5 minutes later)."""
    pod, wrong = agent.cgroup_of(MIXED.uid), {"cpu.weight": "77", "memory.max": "max"}
    alert = 'ALERTS{alertname="NumawardenContested",alertstate="pending"}'
    checks.equal("an alert before anything is wrong", reader.value(alert), None)

    def provoked() -> float | None:
        for file, value in wrong.items():
            if pod.read(file) != value:
                pod.write(file, value)
        return reader.value(alert)

    checks.eventually("drift that goes on: the alert is pending", provoked, 1.0)


def _check_page(checks: Checks, text: str) -> None:
    """Let promtool judge the page: it may only mind the names that are the kubelet's own."""
    verdict = prometheus.check_metrics(text)
    remarks = [line for line in verdict.stderr.splitlines() if not line.startswith(KUBELETS)]
    checks.check("promtool parses the page", verdict.status in (0, LINT), verdict)
    checks.equal("promtool has nothing against our names", remarks, [])


def _health(reader: prometheus.Prometheus) -> list[tuple[object, object]]:
    return [(target["health"], target["lastError"]) for target in reader.targets()]


def _healthy(checks: Checks) -> None:
    for path in ("healthz", "readyz"):
        try:
            answer = page(f"http://{METRICS}/{path}")
        except OSError as error:
            checks.check(path, condition=False, detail=error)
        else:
            checks.check(path, condition=True, detail=answer.strip())
