{{/* The name of what the chart makes, at most 63 characters. A release that is called whyidle is not named twice. */}}
{{- define "whyidle.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default "whyidle" .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What a DaemonSet's selector holds can never change: the two labels that stay. */}}
{{- define "whyidle.selectorLabels" -}}
app.kubernetes.io/name: {{ default "whyidle" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "whyidle.agentLabels" -}}
{{ include "whyidle.selectorLabels" . }}
app.kubernetes.io/component: agent
{{- end -}}

{{/* Of every object. */}}
{{- define "whyidle.labels" -}}
{{ include "whyidle.objectLabels" (list . "" dict) }}
{{- end -}}

{{/* Labels of an object: (list $ component labels-of-the-values). Where a key is there twice, the chart's own stays. */}}
{{- define "whyidle.objectLabels" -}}
{{- $context := index . 0 -}}
{{- $own := include "whyidle.selectorLabels" $context | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_") -}}
{{- $_ := set $own "app.kubernetes.io/version" $context.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $context.Release.Service -}}
{{- with index . 1 }}{{- $_ := set $own "app.kubernetes.io/component" . -}}{{- end -}}
{{- merge $own (index . 2) $context.Values.extraLabels | toYaml -}}
{{- end -}}

{{/* Labels of the agent's pods: without versions, so that an upgrade that changes nothing else restarts nothing. */}}
{{- define "whyidle.podLabels" -}}
{{- $own := include "whyidle.agentLabels" . | fromYaml -}}
{{- merge $own .Values.podLabels .Values.extraLabels | toYaml -}}
{{- end -}}

{{/* The image of the agent and of the sidecar: by its digest, if there is one. */}}
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

{{/* The uid and gid of the agent: the kubelet's socket is root's. */}}
{{- define "whyidle.uid" -}}
{{- ternary 0 65532 .Values.podAttribution -}}
{{- end -}}

{{/* "true" where the agent is given a web configuration. */}}
{{- define "whyidle.web" -}}
{{- if or .Values.web.existingSecret .Values.web.tls.secretName .Values.web.basicAuth.users -}}true{{- end -}}
{{- end -}}

{{- define "whyidle.webSecretName" -}}
{{- default (printf "%s-web" (include "whyidle.fullname" .)) .Values.web.existingSecret -}}
{{- end -}}

{{/* Whether agents speak TLS: the chart cannot read an existing Secret, so that one says it by `web.scheme`. */}}
{{- define "whyidle.scheme" -}}
{{- if .Values.web.existingSecret -}}{{ .Values.web.scheme }}{{- else -}}{{ ternary "https" "http" (ne .Values.web.tls.secretName "") }}{{- end -}}
{{- end -}}

{{/*
Whether a probe may ask for a page: the kubelet has neither a password nor a client's certificate, and can open a
connection only where either is asked for. What an existing Secret asks for is not known.
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

{{/* What the agent, and `whyidle doctor` beside it, are told of where the node is. */}}
{{- define "whyidle.nodeArguments" -}}
- --ledger.dir={{ .Values.ledgers.mountPath }}
- --path.procfs=/host/proc
- --path.sysfs=/host/sys
{{- if or .Values.hostPaths.root .Values.hostPaths.podLogs .Values.podAttribution }}
- --path.rootfs=/host/root
{{- end }}
{{- end -}}
