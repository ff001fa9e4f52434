#!/usr/bin/env bash
# Build `docker compose` and `docker buildx` from their Go modules, as plugins of this user's docker:
# tests/real/install-compose.sh [FOLDER]. Needs Go 1.26, 2 GB of disk and 5 to 10 minutes of two
# cores. Without them the tests of containers use docker-compose 1.29 and the legacy builder.
set -euo pipefail
into=${1:-${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins}
compose=v2.40.3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# go.sum is filled and checked by the public checksum database.
cat >go.mod <<MODULE
module navarch.test/compose

go 1.26.0

require (
	github.com/docker/buildx v0.29.1
	github.com/docker/compose/v2 $compose
)
MODULE
mkdir -p "$into"
export GOFLAGS="-mod=mod -p=${JOBS:-1}" CGO_ENABLED=0 GOTOOLCHAIN=local
# Compose refuses features by its version, which a build does not state by itself.
version="-X github.com/docker/compose/v2/internal.Version=$compose"
nice go build -trimpath -ldflags "-s -w $version" -o docker-compose github.com/docker/compose/v2/cmd
nice go build -trimpath -ldflags "-s -w" -o docker-buildx github.com/docker/buildx/cmd/buildx
mv docker-compose docker-buildx "$into/"
