#!/bin/sh
# Makes the keys of the bus at the first start, and hands each container its own files alone.
# Each folder of /bus is a volume. Later starts keep every key, renew what an upgrade changes, and
# the operator's credentials, which are renewed nowhere else: `docker compose run --rm credentials`.
set -eu
umask 077
fleet=compose
keys=/bus/all

# Put a file into a folder that a running container reads: whole, or as it was.
put() {
    cp "$1" "$2/.${3:-$(basename "$1")}.new"
    mv -f "$2/.${3:-$(basename "$1")}.new" "$2/${3:-$(basename "$1")}"
}

# cluster.yaml names three.
servers=${NAVARCH_SERVERS:-}
options=
for each in $servers; do options="$options --server $each"; done
# shellcheck disable=SC2086 # words of their own
navarch nats-config write --dir "$keys" --fleet "$fleet" --no-tls --server-dir /etc/nats \
    --files "$NAVARCH_NATS_FILES" $options
if [ -e "$keys/creds/operator.creds" ]; then
    navarch nats-config user renew operator --valid 365d --dir "$keys"
else
    navarch nats-config user add operator --role pool-admin --valid 365d --dir "$keys"
fi
# The HTTP API's token. It stays here and in the gateway's volume.
test -e "$keys/gateway.token" || head -c 32 /dev/urandom | base64 >"$keys/gateway.token"

if [ -z "$servers" ]; then
    put "$keys/nats.conf" /bus/nats
    put "$keys/accounts.conf" /bus/nats
fi
for each in $servers; do
    mkdir -p "/bus/$each/routes"
    put "$keys/nats-$each.conf" "/bus/$each" nats.conf
    put "$keys/accounts.conf" "/bus/$each"
    put "$keys/routes/ca.pem" "/bus/$each/routes"
    put "$keys/routes/$each.pem" "/bus/$each/routes"
done
for each in pool-manager health-monitor provisioner notifier metrics gateway operator; do
    put "$keys/creds/$each.creds" "/bus/$each" nats.creds
done
for each in agent-signing.json revocation.json revoker.creds users.json; do
    put "$keys/$each" /bus/provisioner
done
put "$keys/gateway.token" /bus/gateway
