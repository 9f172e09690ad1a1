{{- /* What the operator may do where relays live: in the whole cluster, or in each namespace of scope.namespaces. */ -}}
{{- define "outbox-operator.rules" -}}
- apiGroups: [outbox-operator.dev]
  resources: [outboxrelays, dispatchpolicies]
  verbs: [get, list, watch]
- apiGroups: [outbox-operator.dev]
  resources: [outboxrelays/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# A changed Secret rolls the pods that read it. List and watch cannot be narrowed to the Secrets that relays name.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- /* What electing a leader takes, in the operator's own namespace only. */ -}}
{{- define "outbox-operator.leaderElectionRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "outbox-operator.fullname" . }}]
  verbs: [get, update]
{{- end -}}
