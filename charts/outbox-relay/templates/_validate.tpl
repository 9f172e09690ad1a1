{{- /*
Refuses values that contradict each other, with what to change. What one value alone can get wrong is refused by
values.schema.json, which is made from the custom resources' own schema; the API server has the last word.
*/ -}}
{{- define "outbox-relay.validate" -}}
{{- $database := .Values.relay.database | default dict -}}
{{- $places := list -}}
{{- if .Values.database.existingSecret.name -}}{{- $places = append $places "database.existingSecret.name" -}}{{- end -}}
{{- if .Values.database.url -}}{{- $places = append $places "database.url" -}}{{- end -}}
{{- if $database.urlSecretRef -}}{{- $places = append $places "relay.database.urlSecretRef" -}}{{- end -}}
{{- if $database.host -}}{{- $places = append $places "relay.database.host" -}}{{- end -}}
{{- if not $places -}}
{{- fail "say where the database is: set database.existingSecret.name to a Secret of this namespace that holds a connection URL, or relay.database.host with dbname, user and passwordSecretRef" -}}
{{- end -}}
{{- if gt (len $places) 1 -}}
{{- fail (printf "say where the database is once, not by %s: keep one of them" (join " and " $places)) -}}
{{- end -}}
{{- if and .Values.policies (not (include "outbox-relay.policy" .)) -}}
{{- fail (printf "policies has no entry `default` (it has: %s) and relay.policyRef is not set, so the relay would use none of them: name one in relay.policyRef.name" (keys .Values.policies | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
