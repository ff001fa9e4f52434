#!/bin/sh
# Installs the agent on a GPU host of Debian or Ubuntu, as root, from a checkout of Navarch:
#     deploy/install-agent.sh --package PATH-OR-URL --pool POOL --node NODE --nats-url URL \
#         [--creds FILE] [--ca FILE] [--gpus N] [--wheels FOLDER]
# --wheels: install from this folder alone, on a host that reaches no package index.
# Runs again safely: it upgrades the package and keeps settings that it is not given.
set -eu

fail() { echo "install-agent: $*" >&2; exit 1; }

package='' pool='' node='' url='' creds='' authority='' gpus='' wheels=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || fail "$1 needs a value"
    case $1 in
        --package) package=$2 ;;
        --pool) pool=$2 ;;
        --node) node=$2 ;;
        --nats-url) url=$2 ;;
        --creds) creds=$2 ;;
        --ca) authority=$2 ;;
        --gpus) gpus=$2 ;;
        --wheels) wheels=$2 ;;
        *) fail "$1 is unknown; see the head of this file" ;;
    esac
    shift 2
done
# A bare name would be taken from a public index, where anyone may register it.
case $package in
    # Anyone on the way could answer with a program of their own, which runs as root.
    http://*#sha256=*) ;;
    http://*) fail "--package must be fetched over https, or end with #sha256=DIGEST" ;;
    */*) ;;
    *) fail "--package must be a path (./navarch-0.1.0-py3-none-any.whl) or a URL" ;;
esac
[ "$(id -u)" -eq 0 ] || fail "run it as root: it writes /opt/navarch, /etc/navarch and a unit"
unit=$(dirname "$0")/../config/navarch-agent.service
[ -f "$unit" ] || fail "$unit is not there: run this from a checkout of Navarch"
settings=/etc/navarch/agent.env
if [ ! -f "$settings" ] && { [ -z "$pool" ] || [ -z "$node" ] || [ -z "$url" ]; }; then
    fail "--pool, --node and --nats-url are needed at the first installation"
fi
for each in "$creds" "$authority"; do
    [ -z "$each" ] || [ -f "$each" ] || fail "$each is not there"
done
[ -z "$wheels" ] || [ -d "$wheels" ] || fail "$wheels is not a folder"
if dpkg-query -W -f '${db:Status-Status}' navarch-agent 2>/dev/null | grep -qx installed; then
    fail "this host has the package navarch-agent, which is upgraded by dpkg -i"
fi

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    { apt-get update -q -o APT::Update::Error-Mode=any \
        && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv; } \
        || fail "python3-venv is missing and Debian's archive cannot be used: apt-get install python3-venv"
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or later is needed"
# A first installation that was interrupted begins again.
unfinished=/opt/navarch.unfinished
[ ! -e "$unfinished" ] || rm -rf /opt/navarch
if [ ! -x /opt/navarch/bin/python ]; then
    install -d /opt
    touch "$unfinished"
    python3 -m venv /opt/navarch
fi
case $package in
    *://*) wanted="navarch[credentials] @ $package" ;;
    *) wanted="$package[credentials]" ;;
esac
if [ -n "$wheels" ]; then
    /opt/navarch/bin/pip install -q --upgrade --no-index --find-links "$wheels" "$wanted" \
        || fail "$wheels lacks what is named above: pip wheel -w $wheels '$wanted', on a host \
with this Python"
else
    /opt/navarch/bin/pip install -q --upgrade --retries 2 "$wanted" \
        || fail "not installed: where no package index is reached, make the wheels on another host \
(pip wheel -w wheels '$wanted') and give --wheels wheels"
fi
rm -f "$unfinished"

umask 077
install -d -m 0700 /etc/navarch
# write NAME VALUE: puts one setting into the file, in place of an earlier one.
write() {
    [ -n "$2" ] || return 0
    touch "$settings"
    grep -v "^$1=" "$settings" >"$settings.new" || true
    echo "$1=$2" >>"$settings.new"
    mv "$settings.new" "$settings"
}
write NAVARCH_POOL "$pool"
write NAVARCH_NODE "$node"
write NAVARCH_NATS_URL "$url"
write NAVARCH_GPU_COUNT "$gpus"
if [ -n "$creds" ]; then
    install -m 0600 "$creds" /etc/navarch/agent.creds
    write NAVARCH_NATS_CREDS_FILE /etc/navarch/agent.creds
fi
if [ -n "$authority" ]; then
    install -m 0644 "$authority" /etc/navarch/bus-ca.pem
    write NAVARCH_NATS_TLS_CA_FILE /etc/navarch/bus-ca.pem
fi
install -m 0644 "$unit" /etc/systemd/system/navarch-agent.service
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable navarch-agent.service
    systemctl restart navarch-agent.service
    echo "the agent runs: journalctl -u navarch-agent"
else
    echo "installed; systemd does not run here, so the agent was not started"
fi
