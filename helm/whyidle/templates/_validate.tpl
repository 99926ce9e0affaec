{{/* Rejects what values.schema.json cannot check, or would reject with an unreadable pattern, with a readable error. */}}
{{- define "whyidle.validate" -}}
{{- include "whyidle.validateFormats" . -}}
{{- include "whyidle.validateTogether" . -}}
{{- end -}}

{{/* Rows: the name of the value, the value, the pattern that it must match, and what to write. */}}
{{- define "whyidle.validateFormats" -}}
{{- $v := .Values -}}
{{- $path := "^/[A-Za-z0-9._/-]*$" -}}
{{- $own := "^/[A-Za-z0-9._-]+/[A-Za-z0-9._/-]+$" -}}
{{- $ownSays := "an absolute path to a separate directory, such as /dev/shm/whyidle" -}}
{{- $pathSays := "an absolute path, such as /dev/shm/whyidle" -}}
{{- $duration := "^([0-9]+([.][0-9]+)?(ms|[dhms]))+$" -}}
{{- $durationSays := "a number and a unit, such as 90s, 15m or 24h" -}}
{{- $interval := "^([5-9]|[12][0-9]|30)s$" -}}
{{- $intervalSays := "5s to 30s: the rules need two scrapes within a minute" -}}
{{- $name := "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" -}}
{{- $nameSays := "a name as in Kubernetes: lower-case letters, digits, - and ." -}}
{{- $rows := list
  (list "image.repository" $v.image.repository "^([^@\\s]*/)?[^:@/\\s]+$" "a registry and a name; the tag goes into image.tag, a digest into image.digest")
  (list "image.tag" $v.image.tag "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$" "a tag alone, such as 0.1.0")
  (list "image.digest" $v.image.digest "^sha256:[0-9a-f]{64}$" "sha256: and 64 hexadecimal digits")
  (list "agent.collectorDeadline" $v.agent.collectorDeadline $duration $durationSays)
  (list "agent.ledgerRetention" $v.agent.ledgerRetention $duration $durationSays)
  (list "agent.ledgerDeleteAfter" $v.agent.ledgerDeleteAfter $duration $durationSays)
  (list "hostPaths.podLogs" $v.hostPaths.podLogs $path $pathSays)
  (list "hostPaths.root" $v.hostPaths.root $path $pathSays)
  (list "nameOverride" $v.nameOverride $name $nameSays)
  (list "fullnameOverride" $v.fullnameOverride $name $nameSays)
  (list "nvidia.runtimeClassName" $v.nvidia.runtimeClassName $name $nameSays)
  (list "priorityClassName" $v.priorityClassName $name $nameSays)
  (list "serviceAccount.name" $v.serviceAccount.name $name $nameSays)
  (list "web.existingSecret" $v.web.existingSecret $name $nameSays)
  (list "web.tls.secretName" $v.web.tls.secretName $name $nameSays)
  (list "web.tls.serverName" $v.web.tls.serverName $name $nameSays)
  (list "web.tls.caSecretName" $v.web.tls.caSecretName $name $nameSays)
  (list "web.tls.scrapeSecretName" $v.web.tls.scrapeSecretName $name $nameSays)
  (list "web.basicAuth.scrapeSecret.name" $v.web.basicAuth.scrapeSecret.name $name $nameSays)
  (list "nvidia.visibleDevices" $v.nvidia.visibleDevices "^(all|[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*)$" "all, or indices or UUIDs with commas between them")
  (list "nvidia.driverCapabilities" $v.nvidia.driverCapabilities "^(all|([a-z]+,)*utility(,[a-z]+)*)$" "a list that contains utility, which provides NVML")
-}}
{{- range $must := list
  (list "hostPaths.proc" $v.hostPaths.proc $path $pathSays)
  (list "hostPaths.sys" $v.hostPaths.sys $path $pathSays)
  (list "hostPaths.podResources" $v.hostPaths.podResources $path $pathSays)
  (list "ledgers.hostPath" $v.ledgers.hostPath $own $ownSays)
  (list "ledgers.mountPath" $v.ledgers.mountPath $own $ownSays)
  (list "sidecar.ledgers.path" $v.sidecar.ledgers.path $path $pathSays)
  (list "sidecar.hooks.path" $v.sidecar.hooks.path $path $pathSays)
-}}
{{- include "whyidle.validateRow" $must -}}
{{- end -}}
{{- range $name, $monitor := dict "podMonitor" $v.podMonitor "serviceMonitor" $v.serviceMonitor -}}
{{- $rows = append $rows (list (printf "%s.interval" $name) $monitor.interval $interval $intervalSays) -}}
{{- $rows = append $rows (list (printf "%s.scrapeTimeout" $name) $monitor.scrapeTimeout $interval "5s to 30s, and not more than the interval") -}}
{{- end -}}
{{- $rows = append $rows (list "sidecar.podMonitor.interval" $v.sidecar.podMonitor.interval $interval $intervalSays) -}}
{{- range $user, $hash := $v.web.basicAuth.users -}}
{{- $rows = append $rows (list (printf "web.basicAuth.users.%s" $user) $hash "^[$]2[abxy][$](0[4-9]|[12][0-9]|3[01])[$][./A-Za-z0-9]{53}$" "a bcrypt hash, not a password; `htpasswd -nBC 10 prometheus` prints one") -}}
{{- end -}}
{{- range $row := $rows -}}
{{- if index $row 1 -}}
{{- include "whyidle.validateRow" $row -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "whyidle.validateRow" -}}
{{- if not (regexMatch (index . 2) (toString (index . 1))) -}}
{{- /* The error does not repeat what may be a password. */ -}}
{{- $got := ternary "wrong" (printf "%q" (toString (index . 1))) (hasPrefix "web.basicAuth.users" (index . 0)) -}}
{{- fail (printf "%s is %s: write %s" (index . 0) $got (index . 3)) -}}
{{- end -}}
{{- end -}}

{{/* Rejects values that cannot be combined. */}}
{{- define "whyidle.validateTogether" -}}
{{- $v := .Values -}}
{{- $web := $v.web -}}
{{- $monitored := or $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
{{- if and $web.existingSecret (or $web.tls.secretName $web.basicAuth.users) -}}
{{- fail "web.existingSecret has the whole web configuration: with it, leave web.tls.secretName and web.basicAuth.users empty" -}}
{{- end -}}
{{- if and $web.tls.clientCA (not $web.tls.secretName) -}}
{{- fail "web.tls.clientCA requires client certificates, which need TLS: set web.tls.secretName too" -}}
{{- end -}}
{{- if and $monitored $web.tls.clientCA (not $web.tls.scrapeSecretName) -}}
{{- fail "web.tls.clientCA requires a certificate of every client: set web.tls.scrapeSecretName to the Secret with Prometheus's certificate" -}}
{{- end -}}
{{- if and $monitored $web.tls.secretName (not $web.tls.serverName) -}}
{{- fail "web.tls.serverName is empty: Prometheus connects to pods by IP address, which is not in the certificate; write the name in the agents' certificate" -}}
{{- end -}}
{{- if and $monitored $web.basicAuth.users (not $web.basicAuth.scrapeSecret.name) -}}
{{- fail "web.basicAuth.users requires a password of every client: set web.basicAuth.scrapeSecret.name to the Secret with Prometheus's password" -}}
{{- end -}}
{{- $scrapes := list -}}
{{- range $name, $on := dict "podMonitor" $v.podMonitor.enabled "serviceMonitor" $v.serviceMonitor.enabled "scrapeAnnotations" $v.scrapeAnnotations.enabled -}}
{{- if $on -}}{{- $scrapes = append $scrapes $name -}}{{- end -}}
{{- end -}}
{{- if gt (len $scrapes) 1 -}}
{{- fail (printf "%s are enabled: each would scrape every agent, and every second would count twice; enable only one" (sortAlpha $scrapes | join " and ")) -}}
{{- end -}}
{{- if and $scrapes (not $v.agent.enabled) -}}
{{- fail (printf "%s is enabled and agent is not: there are no agents to scrape (sidecar.podMonitor scrapes sidecars)" (index $scrapes 0)) -}}
{{- end -}}
{{- if and $v.scrapeAnnotations.enabled (include "whyidle.web" .) -}}
{{- fail "scrapeAnnotations cannot contain a password or a certificate: use podMonitor or serviceMonitor, or your own scrape configuration" -}}
{{- end -}}
{{- range $name, $monitor := dict "podMonitor" $v.podMonitor "serviceMonitor" $v.serviceMonitor -}}
{{- if gt (trimSuffix "s" $monitor.scrapeTimeout | int) (trimSuffix "s" $monitor.interval | int) -}}
{{- fail (printf "%s.scrapeTimeout is %s, longer than its interval of %s: Prometheus rejects that" $name $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- if and $v.hostNetwork $v.networkPolicy.enabled -}}
{{- fail "networkPolicy has no effect on pods with hostNetwork: protect the port with web, or enable only one of the two" -}}
{{- end -}}
{{- if has $v.ledgers.hostPath (list "/dev/shm" "/dev/shm/" "/var/run" "/run/user") -}}
{{- fail (printf "ledgers.hostPath is %q, which other programs use too: choose a separate directory below it" $v.ledgers.hostPath) -}}
{{- end -}}
{{- end -}}
