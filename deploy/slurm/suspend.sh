#!/bin/sh
# SuspendProgram and ResumeFailProgram of slurm.conf: has Navarch terminate nodes that Slurm gave
# up. While the bus is away it keeps trying for an hour, because Slurm does not run it again.
navarch=${NAVARCH:-/opt/navarch/bin/navarch}
log=${NAVARCH_SLURM_LOG:-/var/log/slurm/navarch.log}

exec "$navarch" slurm suspend "$1" >/dev/null 2>>"$log"
