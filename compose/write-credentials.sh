#!/bin/sh
# Makes the keys of the bus at the first start, and hands each container its own files alone.
# Each folder of /bus is a volume. Later starts keep every key, and renew what an upgrade changes.
set -eu
umask 077
fleet=compose
keys=/bus/all

navarch nats-config write --dir "$keys" --fleet "$fleet" --no-tls
test -e "$keys/creds/operator.creds" \
    || navarch nats-config user add operator --role operator --valid 365d --dir "$keys"
# The HTTP API's token. It stays here and in the gateway's volume.
test -e "$keys/gateway.token" || head -c 32 /dev/urandom | base64 >"$keys/gateway.token"

cp "$keys/nats.conf" "$keys/accounts.conf" /bus/nats/
for each in pool-manager health-monitor provisioner notifier metrics gateway operator; do
    cp "$keys/creds/$each.creds" "/bus/$each/nats.creds"
done
cp "$keys/agent-signing.json" "$keys/revocation.json" "$keys/revoker.creds" /bus/provisioner/
cp "$keys/gateway.token" /bus/gateway/
