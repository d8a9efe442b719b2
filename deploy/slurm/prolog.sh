#!/bin/sh
# Prolog= of slurm.conf: root, on the compute node, before the first task of a job. The job gets
# exclusive CPUs, and memory on their nodes, as the pod slurm-JOBID. Where the pod is rejected the
# job runs without: a Prolog that fails would drain the node.
set -eu
PATH=/opt/numawarden/bin:/usr/sbin:/usr/bin:/sbin:/bin
job=${SLURM_JOB_ID:?is set by slurmd}
shown=$("${SCONTROL:-scontrol}" --oneliner show job "$job")

field() {
    printf '%s\n' "$shown" | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1
}

# Slurm does not say here how the CPUs of a job are spread over several nodes.
[ "$(field NumNodes)" = 1 ] || exit 0
memory=$(field AllocTRES | tr ',' '\n' | sed -n 's/^mem=\([0-9]*[KMGT]\)$/, memory: \1i/p')
amounts="{cpu: '$(field NumCPUs)'$memory}"

numawarden admit - <<END || echo "numawarden: job $job runs without an allocation (exit code $?)"
apiVersion: v1
kind: Pod
metadata: {name: slurm-$job, namespace: slurm, uid: slurm-$job}
spec:
  containers:
  - {name: main, resources: {requests: $amounts, limits: $amounts}}
status: {qosClass: Guaranteed}
END
