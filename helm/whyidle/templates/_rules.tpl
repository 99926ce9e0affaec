{{/* The groups of one file of rules, "recording" or "alerts", as YAML, with the settings in rules.config. */}}
{{- define "whyidle.rules" -}}
{{- $root := index . 0 -}}
{{- $file := index . 1 -}}
{{- if $root.Values.rules.config -}}
{{- $chart := $root.Files.Get "files/rules/chart.json" | fromJson -}}
{{- $config := include "whyidle.config" $root | fromJson -}}
{{- $text := include "whyidle.filled" (list (index $chart $file | toJson) $config) -}}
{{- $groups := list -}}
{{- range $group := printf "{\"groups\":%s}" $text | fromJson | dig "groups" list -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $other := dig "overrides" ($rule.alert | default "") dict $root.Values.rules.config -}}
{{- if $rule.alert -}}
{{- $severity := $other.severity | default $rule.labels.severity -}}
{{- $_ := set $rule "labels" (merge dict ($other.labels | default dict) ($root.Values.rules.config.labels | default dict) $rule.labels) -}}
{{- $_ := set $rule.labels "severity" $severity -}}
{{- with $other.for -}}{{- $_ := set $rule "for" . -}}{{- end -}}
{{- if eq ($other.for | default "") "0s" -}}{{- $_ := unset $rule "for" -}}{{- end -}}
{{- end -}}
{{- if dig "enabled" true $other -}}{{- $rules = append $rules $rule -}}{{- end -}}
{{- end -}}
{{- if $rules -}}{{- $groups = append $groups (merge (dict "rules" $rules) $group) -}}{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- else -}}
{{- $root.Files.Get (printf "files/rules/%s.yaml" $file) | trim -}}
{{- end -}}
{{- end -}}

{{/* JSON in which the tokens of settings are replaced by their values. */}}
{{- define "whyidle.filled" -}}
{{- $text := index . 0 -}}
{{- $config := index . 1 -}}
{{- if not $config.selector -}}
{{- $text = $text | replace "{⟦selector⟧}" "" | replace ", ⟦selector⟧" "" | replace ",⟦selector⟧" "" | replace "{⟦selector⟧, " "{" -}}
{{- end -}}
{{- range $name, $value := $config -}}
{{- $text = replace (printf "⟦%s⟧" $name) ($value | toString | toJson | trimPrefix "\"" | trimSuffix "\"") $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* All settings by name, as JSON. Checks the settings in rules.config. */}}
{{- define "whyidle.config" -}}
{{- $root := . -}}
{{- $chart := $root.Files.Get "files/rules/chart.json" | fromJson -}}
{{- $found := dict -}}
{{- range $name, $setting := $chart.settings -}}{{- $_ := set $found $name $setting.default -}}{{- end -}}
{{- range $section, $values := dict "" (omit $root.Values.rules.config "alerts" "labels" "overrides") "alerts." ($root.Values.rules.config.alerts | default dict) -}}
{{- range $key, $value := $values -}}
{{- $name := printf "%s%s" $section $key -}}
{{- if has $name $chart.fixed -}}
{{- fail (printf "rules.config.%s cannot be changed in the chart, because the dashboards query the series of the default. `whyidle rules --config` can change it" $name) -}}
{{- end -}}
{{- if not (hasKey $chart.settings $name) -}}
{{- fail (printf "rules.config.%s is not a setting: `whyidle rules --print-config` prints all settings" $name) -}}
{{- end -}}
{{- include "whyidle.rulesSetting" (list $name $value (index $chart.settings $name)) -}}
{{- $_ := set $found $name $value -}}
{{- end -}}
{{- end -}}
{{- $alerts := dict -}}
{{- range $group := $chart.alerts -}}{{- range $rule := $group.rules -}}{{- with $rule.alert -}}{{- $_ := set $alerts . true -}}{{- end -}}{{- end -}}{{- end -}}
{{- range $name, $other := $root.Values.rules.config.overrides -}}
{{- if not (hasKey $alerts $name) -}}
{{- fail (printf "rules.config.overrides.%s is not an alert: docs/runbook.md lists them" $name) -}}
{{- end -}}
{{- end -}}
{{- if has $found.cluster_label $chart.taken -}}
{{- fail (printf "rules.config.cluster_label cannot be %s: series have a label of this name with another meaning" $found.cluster_label) -}}
{{- end -}}
{{- range $where, $other := merge (dict "" $root.Values.rules.config) ($root.Values.rules.config.overrides | default dict) -}}
{{- range $name, $_ := $other.labels | default dict -}}
{{- if has $name $chart.taken -}}
{{- fail (printf "rules.config.%slabels.%s cannot be set: alerts have a label %s that says what they concern" (empty $where | ternary "" (printf "overrides.%s." $where)) $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* Checks one setting: (list name value limits-of-the-setting). */}}
{{- define "whyidle.rulesSetting" -}}
{{- $name := index . 0 -}}
{{- $value := index . 1 -}}
{{- $setting := index . 2 -}}
{{- if hasKey $setting "pattern" -}}
{{- if or (not (kindIs "string" $value)) (not (regexMatch $setting.pattern (toString $value))) -}}
{{- fail (printf "rules.config.%s is %v: write %s" $name $value $setting.says) -}}
{{- end -}}
{{- if hasKey $setting "expression" -}}
{{- range $each := contains "\"" $value | ternary (regexFindAll `[=!]~"([^"\\]|\\.)*"` $value -1) (list (printf "=~%q" $value)) -}}
{{- $expression := substr 3 (int (sub (len $each) 1)) $each | replace `\\` `\` -}}
{{- /* An empty alternative matches always, unless the expression does not compile. */ -}}
{{- if not (regexMatch (printf "|%s" $expression) "") -}}
{{- fail (printf "rules.config.%s has an invalid regular expression: %s" $name $expression) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- else if not (or (kindIs "float64" $value) (kindIs "int64" $value) (kindIs "int" $value)) -}}
{{- fail (printf "rules.config.%s is %v: write a number" $name $value) -}}
{{- else if or (lt (float64 $value) (float64 $setting.least)) (gt (float64 $value) (float64 (dig "most" $value $setting))) -}}
{{- fail (printf "rules.config.%s is %v: write a number from %v%s" $name $value $setting.least (hasKey $setting "most" | ternary (printf " to %v" (dig "most" "" $setting)) " on")) -}}
{{- end -}}
{{- end -}}
