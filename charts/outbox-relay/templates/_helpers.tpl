{{- /* Joins two names within 63 characters. What must be cut ends in a hash of the whole, so that two long names stay two. */ -}}
{{- define "outbox-relay.join" -}}
{{- $whole := join "-" . -}}
{{- if le (len $whole) 63 -}}
{{- $whole -}}
{{- else -}}
{{- printf "%s-%s" ($whole | trunc 54 | trimAll "-.") ($whole | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "outbox-relay.labels" -}}
app.kubernetes.io/name: outbox-relay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: relay
app.kubernetes.io/part-of: outbox-operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* The Secret of `database.url`. */ -}}
{{- define "outbox-relay.trialSecret" -}}
{{- include "outbox-relay.join" (list .Release.Name "database") -}}
{{- end -}}

{{- /* The name of the DispatchPolicy that `relay.policyRef` means; empty for none. */ -}}
{{- define "outbox-relay.policy" -}}
{{- $name := get (.Values.relay.policyRef | default dict) "name" -}}
{{- $key := $name | default "default" -}}
{{- if hasKey .Values.policies $key -}}
{{- include "outbox-relay.join" (list .Release.Name $key) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- /*
A mapping as JSON, without the keys whose value is null. A document that is copied from the reference says null for unset,
and the API server refuses some of them: in an enumeration, and for `replicas`, which `kubectl scale` reads.
*/ -}}
{{- define "outbox-relay.withoutNulls" -}}
{{- $out := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $out $key (include "outbox-relay.withoutNulls" $value | fromJson) -}}
{{- else if kindIs "slice" $value -}}
{{- $items := list -}}
{{- range $item := $value -}}
{{- $items = append $items (index (include "outbox-relay.withoutNulls" (dict "item" $item) | fromJson) "item") -}}
{{- end -}}
{{- $_ := set $out $key $items -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- /* The spec of the OutboxRelay: the values' own, with the database and the policy filled in. */ -}}
{{- define "outbox-relay.spec" -}}
{{- $spec := deepCopy .Values.relay -}}
{{- $database := $spec.database | default dict -}}
{{- with .Values.database.existingSecret.name -}}
{{- $_ := set $database "urlSecretRef" (dict "name" . "key" $.Values.database.existingSecret.key) -}}
{{- end -}}
{{- if .Values.database.url -}}
{{- $_ := set $database "urlSecretRef" (dict "name" (include "outbox-relay.trialSecret" .) "key" "uri") -}}
{{- end -}}
{{- $_ := set $spec "database" $database -}}
{{- with include "outbox-relay.policy" . -}}
{{- $_ := set $spec "policyRef" (dict "name" .) -}}
{{- end -}}
{{- include "outbox-relay.withoutNulls" $spec | fromJson | toYaml -}}
{{- end -}}
