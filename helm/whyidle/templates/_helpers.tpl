{{/* The name of the chart's objects, at most 63 characters. The release "whyidle" does not become "whyidle-whyidle". */}}
{{- define "whyidle.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default "whyidle" .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels of the DaemonSet's selector. A selector cannot change, so these labels must never change. */}}
{{- define "whyidle.selectorLabels" -}}
app.kubernetes.io/name: {{ default "whyidle" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "whyidle.agentLabels" -}}
{{ include "whyidle.selectorLabels" . }}
app.kubernetes.io/component: agent
{{- end -}}

{{/* The labels of every object. */}}
{{- define "whyidle.labels" -}}
{{ include "whyidle.objectLabels" (list . "" dict) }}
{{- end -}}

{{/* Labels of an object: (list $ component labels-of-the-values). If a key occurs twice, the chart's own label is used. */}}
{{- define "whyidle.objectLabels" -}}
{{- $context := index . 0 -}}
{{- $own := include "whyidle.selectorLabels" $context | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_") -}}
{{- $_ := set $own "app.kubernetes.io/version" $context.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $context.Release.Service -}}
{{- with index . 1 }}{{- $_ := set $own "app.kubernetes.io/component" . -}}{{- end -}}
{{- merge $own (index . 2) $context.Values.extraLabels | toYaml -}}
{{- end -}}

{{/* Labels of the agent's pods. They contain no versions, so that a new version of the chart alone restarts no pods. */}}
{{- define "whyidle.podLabels" -}}
{{- $own := include "whyidle.agentLabels" . | fromYaml -}}
{{- merge $own .Values.podLabels .Values.extraLabels | toYaml -}}
{{- end -}}

{{/* The image of the agent and of the sidecar, with its digest if one is set. */}}
{{- define "whyidle.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "whyidle.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "whyidle.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The uid and gid of the agent. 0 with podAttribution, because the kubelet's socket belongs to root. */}}
{{- define "whyidle.uid" -}}
{{- ternary 0 65532 .Values.podAttribution -}}
{{- end -}}

{{/* "true" if the agent gets a web configuration. */}}
{{- define "whyidle.web" -}}
{{- if or .Values.web.existingSecret .Values.web.tls.secretName .Values.web.basicAuth.users -}}true{{- end -}}
{{- end -}}

{{- define "whyidle.webSecretName" -}}
{{- default (printf "%s-web" (include "whyidle.fullname" .)) .Values.web.existingSecret -}}
{{- end -}}

{{/* The scheme of the agents. The chart cannot read an existing Secret, so `web.scheme` has the scheme for that case. */}}
{{- define "whyidle.scheme" -}}
{{- if .Values.web.existingSecret -}}{{ .Values.web.scheme }}{{- else -}}{{ ternary "https" "http" (ne .Values.web.tls.secretName "") }}{{- end -}}
{{- end -}}

{{/*
"true" if a probe can only open a connection, and not request a page. The kubelet has no password and no client
certificate. The chart does not know whether an existing Secret requires one.
*/}}
{{- define "whyidle.probeByTcp" -}}
{{- if or .Values.web.existingSecret .Values.web.basicAuth.users .Values.web.tls.clientCA -}}true{{- end -}}
{{- end -}}

{{- define "whyidle.probe" -}}
{{- if include "whyidle.probeByTcp" .context -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: {{ .path }}
  port: metrics
  {{- if eq (include "whyidle.scheme" .context) "https" }}
  scheme: HTTPS
  {{- end }}
{{- end -}}
{{- end -}}

{{/* The paths of the node, as arguments of the agent and of `whyidle doctor`. */}}
{{- define "whyidle.nodeArguments" -}}
- --ledger.dir={{ .Values.ledgers.mountPath }}
- --path.procfs=/host/proc
- --path.sysfs=/host/sys
{{- if or .Values.hostPaths.root .Values.hostPaths.podLogs .Values.podAttribution }}
- --path.rootfs=/host/root
{{- end }}
{{- end -}}
