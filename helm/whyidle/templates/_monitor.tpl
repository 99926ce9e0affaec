{{/* What PodMonitor and ServiceMonitor have in common: the endpoint of the agents. */}}
{{- define "whyidle.monitorEndpoint" -}}
{{- $monitor := .monitor -}}
{{- $web := .context.Values.web -}}
port: metrics
path: /metrics
interval: {{ $monitor.interval }}
scrapeTimeout: {{ $monitor.scrapeTimeout }}
# Series of the agent have the labels `namespace`, `pod` and `container` of the ranks.
honorLabels: true
{{- if eq (include "whyidle.scheme" .context) "https" }}
scheme: https
{{- with include "whyidle.monitorTls" .context }}
tlsConfig:
  {{- trim . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $web.basicAuth.scrapeSecret }}
{{- if .name }}
basicAuth:
  username:
    name: {{ .name }}
    key: {{ .usernameKey }}
  password:
    name: {{ .name }}
    key: {{ .passwordKey }}
{{- end }}
{{- end }}
relabelings:
  # The rules and alerts look for this job.
  - targetLabel: job
    replacement: whyidle
  # The instance is the node, so that series continue when the agent's pod is replaced.
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
  - regex: pod|container|endpoint|service
    action: labeldrop
  {{- with $monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "whyidle.monitorTls" -}}
{{- $tls := .Values.web.tls -}}
{{- with default $tls.secretName $tls.caSecretName }}
ca:
  secret:
    name: {{ . }}
    key: ca.crt
{{- end }}
{{- with $tls.scrapeSecretName }}
cert:
  secret:
    name: {{ . }}
    key: tls.crt
keySecret:
  name: {{ . }}
  key: tls.key
{{- end }}
{{- with $tls.serverName }}
serverName: {{ . }}
{{- end }}
{{- end -}}
