#!/usr/bin/env bash
# Build helm, kustomize, kubeconform, actionlint and an OpenTelemetry collector from their Go modules,
# with definitions that the chart refers to, into a cache outside this repository:
# tests/real/kubernetes/install-tools.sh [FOLDER]. Needs Go 1.26, 3 GB of disk and 5 to 20 minutes of
# two cores, and pip; the tests skip without them.
set -euo pipefail
into=${1:-${NAVARCH_DEPLOY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/navarch/deploy-tools}}
mkdir -p "$into"
# The public checksum database checks each module.
export GOBIN=$into GOFLAGS="-p=${JOBS:-1}" CGO_ENABLED=0 GOTOOLCHAIN=local
for module in \
    helm.sh/helm/v3/cmd/helm@v3.22.0 \
    sigs.k8s.io/kustomize/kustomize/v5@v5.8.2 \
    github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 \
    github.com/rhysd/actionlint/cmd/actionlint@v1.7.12; do
    name=${module%@*}
    name=${name##*/}
    [[ $name != v5 ]] || name=kustomize
    [[ -x $into/$name ]] && continue
    echo "building $module"
    nice go install -trimpath -ldflags "-s -w" "$module"
done
# A collector is generated from the list of its parts.
if [[ ! -x $into/otelcol ]]; then
    parts=$(realpath "$(dirname "$0")/../collector-build.yaml")
    made=$(mktemp -d)
    echo "building the collector"
    GOBIN=$made nice go install go.opentelemetry.io/collector/cmd/builder@v0.165.0
    (cd "$made" && nice ./builder --config "$parts" && mv otelcol-build/otelcol "$into/otelcol")
    rm -rf "$made"
fi
# Schemas for kubeconform, which else fetches them from a web site: of the oldest release that is
# supported, and of the newest that there are. It finds what they refer to by URL only.
schemas=$into/schemas
if [[ ! -d $schemas ]]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m pip install -q --no-deps --target "$work" kubernetes-validate==1.37.0
    mkdir "$work/schemas"
    for version in 1.30.0 1.37.0; do
        mv "$work/kubernetes_validate/kubernetes-json-schema/v$version-local-strict" \
            "$work/schemas/$version"
        sed -i "s#\"/api/_definitions.json#\"file://$schemas/$version/_definitions.json#" \
            "$work/schemas/$version"/*.json
    done
    mv "$work/schemas" "$schemas"
fi
# What others define, by which the API server checks a route and monitors.
definitions=$into/definitions
if [[ ! -d $definitions ]]; then
    work=$(mktemp -d)
    route=sigs.k8s.io/gateway-api@v1.6.1
    monitor=github.com/prometheus-operator/prometheus-operator@v0.85.0
    go mod download "$route" "$monitor"
    modules=$(go env GOMODCACHE)
    install -m 644 -t "$work" \
        "$modules/$route/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml" \
        "$modules/$monitor/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"
    chmod 755 "$work"
    mv "$work" "$definitions"
fi
