{{- define "outbox-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* A release that is called like the chart does not say it twice. */ -}}
{{- define "outbox-operator.fullname" -}}
{{- $name := include "outbox-operator.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- include "outbox-operator.join" (list .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{- /* Joins two names within 63 characters. What must be cut ends in a hash of the whole, so that two long names stay two. */ -}}
{{- define "outbox-operator.join" -}}
{{- $whole := join "-" . -}}
{{- if le (len $whole) 63 -}}
{{- $whole -}}
{{- else -}}
{{- printf "%s-%s" ($whole | trunc 54 | trimAll "-.") ($whole | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "outbox-operator.leaderElection" -}}
{{- include "outbox-operator.join" (list (include "outbox-operator.fullname" .) "leader-election") -}}
{{- end -}}

{{- define "outbox-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "outbox-operator.fullname" .) -}}
{{- end -}}

{{- define "outbox-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "outbox-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "outbox-operator.labels" -}}
{{ include "outbox-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: controller
app.kubernetes.io/part-of: outbox-operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* An image's reference, of a dict with repository, tag and digest. */ -}}
{{- define "outbox-operator.reference" -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end -}}
{{- end -}}

{{- define "outbox-operator.image" -}}
{{- $image := .Values.image -}}
{{- include "outbox-operator.reference" (dict "repository" $image.repository "tag" ($image.tag | default .Chart.AppVersion) "digest" $image.digest) -}}
{{- end -}}

{{- define "outbox-operator.relayImage" -}}
{{- $image := .Values.relay.image -}}
{{- if or $image.repository $image.tag $image.digest -}}
{{- include "outbox-operator.reference" (dict "repository" ($image.repository | default .Values.image.repository) "tag" ($image.tag | default .Chart.AppVersion) "digest" $image.digest) -}}
{{- else -}}
{{- include "outbox-operator.image" . -}}
{{- end -}}
{{- end -}}

{{- define "outbox-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "outbox-operator.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
