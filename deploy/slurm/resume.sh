#!/bin/sh
# ResumeProgram of slurm.conf: has Navarch launch the nodes that Slurm needs. Slurm runs it once and
# drops its output. Nodes that could not be requested are therefore set DOWN, which requeues their
# jobs, and powered down, so that Slurm may resume them again.
navarch=${NAVARCH:-/opt/navarch/bin/navarch}
log=${NAVARCH_SLURM_LOG:-/var/log/slurm/navarch.log}

failed=$("$navarch" slurm resume "$1" 2>>"$log") && exit 0
failed=${failed:-$1}
reason="navarch: not launched, see $log on $(hostname -s)"
scontrol update NodeName="$failed" State=DOWN Reason="$reason"
scontrol update NodeName="$failed" State=POWER_DOWN_FORCE Reason="$reason"
exit 1
