#!/usr/bin/env bash
# Build a Kubernetes control plane and kwok from their Go modules, at the versions of go.mod, into a
# cache outside this repository: tests/real/kubernetes/install.sh [FOLDER]. Needs Go 1.26, 6 GB of
# disk and 20 to 40 minutes of two cores; the tests skip without it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
into=${1:-${NAVARCH_KUBERNETES_PARTS:-${XDG_CACHE_HOME:-$HOME/.cache}/navarch/kubernetes-1.37.2}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/go.mod" "$work/"
mkdir -p "$into"
cd "$work"
# go.sum is filled and checked by the public checksum database.
export GOFLAGS="-mod=mod -p=${JOBS:-1}" CGO_ENABLED=0 GOTOOLCHAIN=local
# What the server says of its release, which helm reads.
stated=k8s.io/component-base/version
stated="-X $stated.gitVersion=v1.37.2 -X $stated.gitMajor=1 -X $stated.gitMinor=37"
for package in \
    go.etcd.io/etcd/server/v3 \
    k8s.io/kubernetes/cmd/kube-apiserver \
    k8s.io/kubernetes/cmd/kube-scheduler \
    k8s.io/kubernetes/cmd/kube-controller-manager \
    sigs.k8s.io/kwok/cmd/kwok; do
    name=${package##*/}
    [[ $name != v3 ]] || name=etcd
    [[ -x $into/$name ]] && continue
    echo "building $name"
    nice go build -trimpath -ldflags "-s -w $stated" -o "$into/.$name" "$package"
    mv "$into/.$name" "$into/$name"
done
