#!/bin/sh
# Puts driver, agent and unit into an image. The unit is not enabled: what a node is called and how
# it reaches the bus comes with its user data (`user_data: auto`), which enables it.
set -eu

export DEBIAN_FRONTEND=noninteractive
command -v cloud-init >/dev/null && cloud-init status --wait >/dev/null
apt-get update -q
apt-get install -y -q --no-install-recommends "$DRIVER" ${FABRIC_MANAGER:+"$FABRIC_MANAGER"} \
    python3-venv "linux-headers-$(uname -r)"
[ -z "$FABRIC_MANAGER" ] || systemctl enable nvidia-fabricmanager.service

python3 -m venv /opt/navarch
/opt/navarch/bin/pip install -q --no-cache-dir "$PACKAGE"
install -m 0644 /tmp/navarch-agent.service /etc/systemd/system/navarch-agent.service
install -d -m 0700 /etc/navarch

# The image is worth keeping only if the driver finds this machine's GPU and the agent starts.
modprobe nvidia
nvidia-smi
/opt/navarch/bin/navarch-agent --help >/dev/null

# Machines made of it are new ones: their own host keys, machine id and cloud-init run.
rm -f /etc/ssh/ssh_host_*
truncate -s 0 /etc/machine-id
cloud-init clean --logs
apt-get clean
rm -rf /var/lib/apt/lists/*
