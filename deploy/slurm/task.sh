#!/bin/sh
# What TaskProlog= calls by sudo, with the pid of the task: binds the task to the pod of its job.
# The job is that of the task's cgroup, so a user can bind no task to the pod of another job.
# Prints what TaskProlog has to print for the task's environment.
set -eu
PATH=/opt/numawarden/bin:/usr/sbin:/usr/bin:/sbin:/bin
pid=${1:?is the pid of a task}
job=$(sed -n 's|^0::/.*slurmstepd\.scope/job_\([0-9]*\)/.*|\1|p' "/proc/$pid/cgroup")
[ -n "$job" ] || exit 0
numawarden bind "slurm-$job" main --pid "$pid" >&2 || exit 0
echo "export NUMAWARDEN_POD_UID=slurm-$job"
echo "export NUMAWARDEN_CPUS=$(sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$pid/status")"
echo "export NUMAWARDEN_MEMORY_NODES=$(sed -n 's/^Mems_allowed_list:\t//p' "/proc/$pid/status")"
