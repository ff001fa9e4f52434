#!/bin/sh
# Makes the keys of the bus at the first start, and hands each container its own files alone.
# Each folder of /bus is a volume. Later starts keep every key, and renew what an upgrade changes.
set -eu
umask 077
fleet=compose
keys=/bus/all

# cluster.yaml names three.
servers=${NAVARCH_SERVERS:-}
options=
for each in $servers; do options="$options --server $each"; done
# shellcheck disable=SC2086 # words of their own
navarch nats-config write --dir "$keys" --fleet "$fleet" --no-tls --server-dir /etc/nats $options
test -e "$keys/creds/operator.creds" \
    || navarch nats-config user add operator --role operator --valid 365d --dir "$keys"
# The HTTP API's token. It stays here and in the gateway's volume.
test -e "$keys/gateway.token" || head -c 32 /dev/urandom | base64 >"$keys/gateway.token"

if [ -z "$servers" ]; then
    cp "$keys/nats.conf" "$keys/accounts.conf" /bus/nats/
fi
for each in $servers; do
    mkdir -p "/bus/$each/routes"
    cp "$keys/nats-$each.conf" "/bus/$each/nats.conf"
    cp "$keys/accounts.conf" "/bus/$each/"
    cp "$keys/routes/ca.pem" "$keys/routes/$each.pem" "/bus/$each/routes/"
done
for each in pool-manager health-monitor provisioner notifier metrics gateway operator; do
    cp "$keys/creds/$each.creds" "/bus/$each/nats.creds"
done
cp "$keys/agent-signing.json" "$keys/revocation.json" "$keys/revoker.creds" /bus/provisioner/
cp "$keys/gateway.token" /bus/gateway/
