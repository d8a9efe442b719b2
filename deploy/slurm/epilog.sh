#!/bin/sh
# Epilog= of slurm.conf: root, on the compute node, when a job has ended. Its CPUs are free again.
set -eu
PATH=/opt/numawarden/bin:/usr/sbin:/usr/bin:/sbin:/bin
numawarden remove "slurm-${SLURM_JOB_ID:?is set by slurmd}" || [ $? -eq 6 ] # 6: it had no pod
