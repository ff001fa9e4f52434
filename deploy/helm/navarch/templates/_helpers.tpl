{{/* Labels of a part: `include "navarch.labels" (dict "root" $ "component" NAME)`. */}}
{{- define "navarch.labels" -}}
{{ include "navarch.selector" . }}
app.kubernetes.io/part-of: navarch
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "navarch.selector" -}}
app.kubernetes.io/name: navarch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Name of a part: after the release, so that two releases may share a namespace. */}}
{{- define "navarch.name" -}}
{{ printf "%s-%s" .root.Release.Name .component | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "navarch.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "navarch.configMap" -}}
{{ .Values.existingConfigMap | default (include "navarch.name" (dict "root" . "component" "config")) }}
{{- end }}

{{/* navarch.yaml: what the values say, and what the pods need it to say. */}}
{{- define "navarch.config" -}}
{{- $nats := dict "replicas" (int .Values.nats.replicas) -}}
{{- if .Values.nats.ownAuthority -}}
{{- $_ := set $nats "tls_ca_file" "/run/navarch/ca.pem" -}}
{{- end -}}
{{- $own := dict "nats" $nats
    "data_dir" "/var/lib/navarch"
    "http" (dict "host" "0.0.0.0" "port" 8080)
    "gateway" (dict "host" "0.0.0.0" "port" 8080) -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml -}}
{{- end }}

{{/* One service's values over the defaults, as YAML. */}}
{{- define "navarch.service" -}}
{{- $own := get .root.Values.services .component | default dict -}}
{{- mergeOverwrite (deepCopy .root.Values.defaults) $own | toYaml -}}
{{- end }}

{{/* Providers, notifiers and metrics sources of type kubernetes, without a kubeconfig, as JSON. */}}
{{- define "navarch.inCluster" -}}
{{- $providers := list -}}
{{- range $name, $each := .Values.config.providers | default dict -}}
{{- if and (eq (get $each "type" | default "") "kubernetes") (not (get $each "kubeconfig")) -}}
{{- $providers = append $providers $each -}}
{{- end -}}
{{- end -}}
{{- $notifiers := list -}}
{{- range $each := append (values (.Values.config.notifiers | default dict)) (.Values.config.notifier | default dict) -}}
{{- if and (eq (get $each "type" | default "") "kubernetes") (not (get $each "kubeconfig")) -}}
{{- $notifiers = append $notifiers $each -}}
{{- end -}}
{{- end -}}
{{- $sources := list -}}
{{- $pools := append (values (.Values.config.pools | default dict)) (.Values.config.defaults | default dict) -}}
{{- range $pool := $pools -}}
{{- $metrics := get $pool "metrics" | default dict -}}
{{- range $each := append (get $metrics "sources" | default list) $metrics -}}
{{- if and (eq (get $each "type" | default "") "kubernetes") (not (get $each "kubeconfig")) -}}
{{- $sources = append $sources $each -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "providers" $providers "notifiers" $notifiers "sources" $sources | toJson -}}
{{- end }}

{{/* What neither a pod nor its container may do, whatever it runs. */}}
{{- define "navarch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "navarch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
