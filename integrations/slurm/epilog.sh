#!/bin/sh
# EpilogSlurmctld: releases the units of a job, also of one that died. See prolog.sh.
set -u
here=$(cd "$(dirname "$0")" && pwd)
hold=$(command -v kofm-hold || echo "$here/../kofm-hold")
"$hold" stop "${KOFM_SLURM_DIR:-/run/kofm-slurm}/$SLURM_JOB_ID"
code=$?
# A lost lease is logged; it must not drain the node.
[ "$code" = 76 ] && logger -t kofm "slurm job $SLURM_JOB_ID: the lease was lost before the job ended"
exit 0
