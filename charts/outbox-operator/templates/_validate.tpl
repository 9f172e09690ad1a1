{{- /*
Refuses values that contradict each other, with what to change. What one value alone can get wrong is refused by
values.schema.json; a schema's message about two values would not say what to do.
*/ -}}
{{- define "outbox-operator.validate" -}}
{{- $values := .Values -}}
{{- if and $values.image.tag $values.image.digest -}}
{{- fail "image.tag and image.digest are both set, and a digest leaves a tag unread: remove one of them" -}}
{{- end -}}
{{- if and $values.relay.image.tag $values.relay.image.digest -}}
{{- fail "relay.image.tag and relay.image.digest are both set, and a digest leaves a tag unread: remove one of them" -}}
{{- end -}}
{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty: name the ServiceAccount that is to hold the operator's rights" -}}
{{- end -}}
{{- if and (not $values.serviceAccount.create) $values.serviceAccount.annotations -}}
{{- fail "serviceAccount.annotations are set, but serviceAccount.create is false: annotate that ServiceAccount yourself, or let the chart create it" -}}
{{- end -}}
{{- range $env := $values.extraEnv -}}
{{- if has $env.name (list "POD_NAMESPACE" "OUTBOX_NAMESPACES" "OUTBOX_RELAY_IMAGE" "OUTBOX_RELAY_ROLLOUT") -}}
{{- fail (printf "extraEnv sets %s, which is the chart's: remove it (scope.namespaces, relay.image and relay.rollout are the values for it)" $env.name) -}}
{{- end -}}
{{- end -}}
{{- range $label := keys (include "outbox-operator.labels" . | fromYaml) -}}
{{- range $key := list "podLabels" "podMonitor" "prometheusRule" -}}
{{- $given := index $values $key -}}
{{- $labels := ternary $given (get $given "labels") (eq $key "podLabels") -}}
{{- if hasKey ($labels | default dict) $label -}}
{{- fail (printf "%s sets the label %s, which is the chart's: remove it" (ternary $key (printf "%s.labels" $key) (eq $key "podLabels")) $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.networkPolicy.metricsFrom (not $values.networkPolicy.enabled) -}}
{{- fail "networkPolicy.metricsFrom is read only with networkPolicy.enabled: set that, or remove metricsFrom" -}}
{{- end -}}
{{- end -}}
