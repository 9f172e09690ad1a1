{{- /* What the operator may do where relays live: in the whole cluster, or in each namespace of scope.namespaces. */ -}}
{{- define "outbox-operator.rules" -}}
- apiGroups: [outbox-operator.dev]
  resources: [outboxrelays]
  verbs: [list, watch]
- apiGroups: [outbox-operator.dev]
  resources: [dispatchpolicies]
  verbs: [get, list, watch]
- apiGroups: [outbox-operator.dev]
  resources: [outboxrelays/status]
  verbs: [patch]
# What the operator made goes with its owner, by the cluster's garbage collector; it deletes only what is replaced as a whole.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch, create, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, delete]
# A changed Secret rolls the pods that read it. List and watch cannot be narrowed to the Secrets that relays name.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
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
