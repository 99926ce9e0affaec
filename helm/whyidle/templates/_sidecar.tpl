{{/*
The parts that a training pod needs, for charts that have this one as a dependency, and for the Kyverno policy.

    labels:
      {{- include "whyidle.sidecar.labels" .Subcharts.whyidle | nindent 6 }}
    initContainers:
      {{- include "whyidle.hooks.initContainer" .Subcharts.whyidle | nindent 6 }}
      {{- include "whyidle.sidecar.container" .Subcharts.whyidle | nindent 6 }}
    containers:
      - name: trainer
        env:
          {{- include "whyidle.sidecar.env" .Subcharts.whyidle | nindent 10 }}
        volumeMounts:
          {{- include "whyidle.sidecar.mounts" .Subcharts.whyidle | nindent 10 }}
    volumes:
      {{- include "whyidle.sidecar.volumes" .Subcharts.whyidle | nindent 6 }}

Each template gives items of a list (the labels: of a map), or nothing if a value turns it off.
*/}}

{{/* The pod's label by which the PodMonitor finds the sidecar. */}}
{{- define "whyidle.sidecar.labels" -}}
{{- if .Values.sidecar.enabled -}}
{{ .Values.sidecar.label }}: "true"
{{- end -}}
{{- end }}

{{/* The agent as a native sidecar, which is an init container that keeps running. It needs no privileges. */}}
{{- define "whyidle.sidecar.container" -}}
{{- if .Values.sidecar.enabled -}}
- name: whyidle
  image: {{ include "whyidle.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - agent
    - --web.listen-address=:{{ .Values.sidecar.port }}
    - --ledger.dir={{ .Values.sidecar.ledgers.path }}
    {{- $wanted := .Values.sidecar.collectors }}
    {{- range include "whyidle.sidecar.collectors" . | fromJsonArray }}
    {{- if not (has . $wanted) }}
    - --no-collector.{{ . }}
    {{- end }}
    {{- end }}
    {{- with .Values.sidecar.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    # For `kubectl exec … -c whyidle -- whyidle report`.
    - name: WHYIDLE_DIR
      value: {{ .Values.sidecar.ledgers.path }}
    - name: WHYIDLE_NODE
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
  ports:
    - name: whyidle
      containerPort: {{ .Values.sidecar.port }}
  {{- /* Only a liveness probe: a startup or readiness probe could keep the training from starting, or its pod from being ready. */}}
  livenessProbe:
    httpGet:
      path: /healthz
      port: whyidle
    periodSeconds: 30
    timeoutSeconds: 5
    failureThreshold: 4
  {{- with .Values.sidecar.lingerSeconds }}
  lifecycle:
    preStop:
      sleep:
        seconds: {{ . }}
  {{- end }}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.sidecar.securityContext | nindent 4 }}
  volumeMounts:
    - name: whyidle-ledgers
      mountPath: {{ .Values.sidecar.ledgers.path }}
{{- end -}}
{{- end }}

{{/* Copies the hooks into the pod, for a training image without whyidle. If this fails, the pod trains without hooks. */}}
{{- define "whyidle.hooks.initContainer" -}}
{{- if .Values.sidecar.hooks.enabled -}}
{{- if hasPrefix "/opt/whyidle/" (printf "%s/" .Values.sidecar.hooks.path) -}}
{{- fail "sidecar.hooks.path: a volume at /opt/whyidle would hide the agent, which the image has there: choose another directory" -}}
{{- end -}}
- name: whyidle-hooks
  image: {{ include "whyidle.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - inject
    - --never-fail
    - {{ .Values.sidecar.hooks.path }}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.sidecar.securityContext | nindent 4 }}
  volumeMounts:
    - name: whyidle-hooks
      mountPath: {{ .Values.sidecar.hooks.path }}
{{- end -}}
{{- end }}

{{/* Environment variables of the training container. Only PYTHONPATH is not specific to whyidle. */}}
{{- define "whyidle.sidecar.env" -}}
{{- include "whyidle.sidecar.ownEnv" . }}
{{- with .Values.sidecar.run.label }}
- name: WHYIDLE_JOB
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['{{ . }}']
- name: WHYIDLE_RUN
  value: $(WHYIDLE_JOB)
{{- end }}
{{- if .Values.sidecar.hooks.enabled }}
- name: PYTHONPATH
  value: {{ join ":" (concat (list (include "whyidle.sidecar.pythonPath" .)) (compact (list .Values.sidecar.hooks.imagePythonPath))) }}
{{- end }}
{{- end }}

{{- define "whyidle.sidecar.ownEnv" -}}
- name: WHYIDLE
  value: "1"
- name: WHYIDLE_DIR
  value: {{ .Values.sidecar.ledgers.path }}
- name: WHYIDLE_NODE
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: WHYIDLE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/* Mounts of the training container, which writes ledgers and reads the hooks. */}}
{{- define "whyidle.sidecar.mounts" -}}
- name: whyidle-ledgers
  mountPath: {{ .Values.sidecar.ledgers.path }}
{{- if .Values.sidecar.hooks.enabled }}
- name: whyidle-hooks
  mountPath: {{ .Values.sidecar.hooks.path }}
  readOnly: true
{{- end }}
{{- end }}

{{/* With the sidecar, the ledgers are in the pod's memory. Without it, they are in the node's directory, for its agent. */}}
{{- define "whyidle.sidecar.volumes" -}}
- name: whyidle-ledgers
{{- if .Values.sidecar.enabled }}
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sidecar.ledgers.sizeLimit }}
{{- else }}
  hostPath:
    path: {{ .Values.ledgers.hostPath }}
    type: DirectoryOrCreate
{{- end }}
{{- if .Values.sidecar.hooks.enabled }}
- name: whyidle-hooks
  emptyDir:
    sizeLimit: 16Mi
{{- end }}
{{- end }}

{{/* The directory in PYTHONPATH by which Python finds the hooks that `whyidle inject` has copied. */}}
{{- define "whyidle.sidecar.pythonPath" -}}
{{- printf "%s/whyidle/torch_hooks/autoload" .Values.sidecar.hooks.path -}}
{{- end }}

{{/* The names of all collectors, as in `whyidle agent --help`. */}}
{{- define "whyidle.sidecar.collectors" -}}
["ranks","gpu","nic","tcp","qdisc","rdma","disk","nfs","lustre","fuse","filesystem","pressure","cgroup","cpu","memory","process","placement","clock","identity","advice"]
{{- end }}
