#!/bin/sh
# PrologSlurmctld: acquires units before a job starts, once per job, on the controller.
#
#   slurm.conf:   PrologSlurmctld=/etc/slurm/kofm/prolog.sh
#                 EpilogSlurmctld=/etc/slurm/kofm/epilog.sh
#   job:          sbatch --comment 'kofm=gpu:2,licence' job.sh
#
# A job without such a comment needs nothing. If nothing is granted, the script fails and Slurm requeues
# the job. KOFM_SLURM_DIR (default /run/kofm-slurm) must be writable for SlurmUser.
set -u
here=$(cd "$(dirname "$0")" && pwd)
comment=$(scontrol show job -o "$SLURM_JOB_ID" | tr ' ' '\n' | sed -n 's/^Comment=//p' | head -n 1)
case $comment in
kofm=*) want=$(printf %s "${comment#kofm=}" | tr , ' ') ;;
*) exit 0 ;;
esac
hold=$(command -v kofm-hold || echo "$here/../kofm-hold")
# shellcheck disable=SC2086 # the demands are separate words
exec "$hold" start "${KOFM_SLURM_DIR:-/run/kofm-slurm}/$SLURM_JOB_ID" $want \
    --wait "${KOFM_SLURM_WAIT:-1m}" --ttl 2m --owner "${SLURM_JOB_USER:-slurm}" \
    --reason "slurm job $SLURM_JOB_ID" >/dev/null
