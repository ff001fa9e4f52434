#!/bin/sh
# Builds the agent's Debian package of a wheel, for the Debian (and its Python) that this is:
#     deploy/deb/build.sh WHEEL FOLDER
# It holds a venv in /opt/navarch with the agent's own dependencies, each checked against its hash in
# requirements-agent-lock.txt, and the unit. It needs dpkg-deb, python3-venv and a package index;
# without one, name a folder of wheels in PIP_FIND_LINKS and set PIP_NO_INDEX=1.
set -eu
# pip takes a Navarch that it sees there for the one that it is to install.
unset PYTHONPATH

fail() { echo "build deb: $*" >&2; exit 1; }

[ $# -eq 2 ] && [ -f "$1" ] && [ -d "$2" ] || fail "give it a wheel and a folder"
here=$(cd "$(dirname "$0")/../.." && pwd)
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
python=/usr/bin/python3
version=$(basename "$wheel" | cut -d- -f2)
series=$($python -c 'import sys; print(*sys.version_info[:2], sep=".")') || fail "$python is not there"
next=$($python -c 'import sys; print(3, sys.version_info[1] + 1, sep=".")')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

$python -m venv "$root/opt/navarch"
"$root/opt/navarch/bin/pip" install -q --require-hashes --no-deps -r "$here/requirements-agent-lock.txt"
"$root/opt/navarch/bin/pip" install -q --no-deps "$wheel"
"$root/opt/navarch/bin/pip" uninstall -q -y pip setuptools
rm "$root"/opt/navarch/lib/python*/site-packages/navarch-*.dist-info/direct_url.json
# The agent runs as root from where the package puts it, and writes nothing there.
grep -rlI "$root" "$root/opt/navarch/bin" "$root/opt/navarch/pyvenv.cfg" | xargs sed -i "s#$root##g"
find "$root" -name __pycache__ -type d -prune -exec rm -r {} +
$python -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$root/opt/navarch/lib"
install -D -m 0644 "$here/config/navarch-agent.service" \
    "$root/lib/systemd/system/navarch-agent.service"
install -D -m 0644 "$here/LICENSE" "$root/usr/share/doc/navarch-agent/copyright"

mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: navarch-agent
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The Navarch authors
Depends: python3 (>= $series), python3 (<< $next)
Installed-Size: $(du -sk "$root" | cut -f1)
Section: admin
Priority: optional
Description: Navarch's agent: reports a GPU host's hardware
 Watches the kernel log and NVML, reports faults and sends heartbeats to Navarch's bus. Settings
 are in /etc/navarch/agent.env; it is not started before they are there.
CONTROL
for each in preinst postinst prerm postrm; do
    install -m 0755 "$here/deploy/deb/$each" "$root/DEBIAN/$each"
done
dpkg-deb --root-owner-group --build "$root" "$2" >/dev/null
echo "built $2/navarch-agent_${version}_$(dpkg --print-architecture).deb"
