#!/usr/bin/env bash
# Start a Docker engine for the tests of containers, as root on Debian, with everything in FOLDER, and
# make an image to build on where no registry is reached: tests/real/start-docker.sh FOLDER. It prints
# the variables that the tests want, as lines for a shell, and takes half a minute, or with the image
# two to four. `tests/real/start-docker.sh FOLDER stop` ends the engine and removes FOLDER.
set -euo pipefail
folder=$(realpath -m "$1")
socket=unix://$folder/docker.sock

if [[ ${2:-} == stop ]]; then
    [[ -e $folder/docker.pid ]] || exit 0
    # What still runs would keep the folder's mounts.
    timeout 60 docker -H "$socket" ps -q | xargs -r timeout 60 docker -H "$socket" kill >/dev/null || true
    engine=$(<"$folder/docker.pid")
    kill "$engine" 2>/dev/null || true
    for _ in {1..300}; do
        if ! kill -0 "$engine" 2>/dev/null; then
            rm -rf "$folder"
            exit 0
        fi
        sleep 0.1
    done
    echo "dockerd $engine has not ended, so $folder stays" >&2
    exit 1
fi

if ! command -v dockerd docker-compose debootstrap >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends docker.io docker-compose debootstrap >/dev/null
fi
mkdir -p "$folder"
# No rules of the host's firewall are changed; containers reach each other, and no network besides.
setsid dockerd --host "$socket" --data-root "$folder/data" --exec-root "$folder/exec" \
    --pidfile "$folder/docker.pid" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
    >"$folder/dockerd.log" 2>&1 </dev/null &
for _ in {1..300}; do
    timeout 5 docker -H "$socket" info >/dev/null 2>&1 && break
    sleep 0.1
done
if ! timeout 5 docker -H "$socket" info >/dev/null; then
    tail -5 "$folder/dockerd.log" >&2
    "$0" "$folder" stop
    exit 1
fi
echo "export DOCKER_HOST=$socket"

if [[ -z ${NAVARCH_BASE:-} ]] && ! timeout 60 docker -H "$socket" pull -q python:3.11-slim >&2; then
    system=$folder/system
    debootstrap --variant=minbase \
        --include=python3,python3-venv,ca-certificates,openssh-server,procps bookworm "$system" >&2
    # As on this host: who signs for the package indexes, and where pip finds them.
    cp /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/"
    if [[ -e /etc/pip.conf ]]; then cp /etc/pip.conf "$system/etc/"; fi
    tar -C "$system" -c . | docker -H "$socket" import - navarch-base:test >&2
    rm -rf "$system"
    echo "export NAVARCH_BASE=navarch-base:test NAVARCH_NODE_BASE=navarch-base:test"
fi
