#!/bin/sh
# HealthCheckProgram of slurm.conf: drains a node that Navarch judged unhealthy, and resumes it when
# it is healthy again. It resumes only what it drained itself. It needs no bus: the agent keeps the
# verdict in a file, and a node of which nothing is known counts as healthy.
agent=${NAVARCH_AGENT:-/opt/navarch/bin/navarch-agent}
node=${SLURMD_NODENAME:-$(hostname -s)}
mark="navarch: health check:"

answer=$("$agent" healthy 2>/dev/null)
code=$?
reason=$(sinfo -h -N -n "$node" -o %E | head -n 1)

if [ "$code" -eq 1 ]; then
    # A reason that is there already is an administrator's, or the notifier's: it stays.
    case $reason in
        "" | none) scontrol update NodeName="$node" State=DRAIN Reason="$mark $answer" ;;
    esac
elif [ "$code" -eq 0 ] && [ "$answer" = healthy ]; then
    case $reason in
        "$mark"*) scontrol update NodeName="$node" State=RESUME ;;
    esac
fi
exit 0
