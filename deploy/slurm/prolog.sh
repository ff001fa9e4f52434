#!/bin/sh
# Prolog of slurm.conf: no job starts on a node that Navarch judged unhealthy. The job is requeued,
# and the node is drained with the reason. As Epilog it drains the node after the job.
agent=${NAVARCH_AGENT:-/opt/navarch/bin/navarch-agent}

answer=$("$agent" healthy 2>/dev/null)
[ $? -eq 1 ] || exit 0
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN \
    Reason="navarch: health check: $answer"
[ "$SLURM_SCRIPT_CONTEXT" = epilog_slurmd ] && exit 0
exit 1
