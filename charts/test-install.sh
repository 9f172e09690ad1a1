#!/bin/bash
# Installs, upgrades and removes both charts in a real cluster, without running the operator: no pod needs to start.
#   KUBECONFIG=... charts/test-install.sh
# The cluster must not have the operator: the definitions are the cluster's, and the test removes them. Everything that
# it makes is removed at the end, also after a failure. Uses helm and kubectl of PATH, else those of hack/cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
PATH=$PATH:$(../hack/cluster/cluster bin)
WORK=$(mktemp -d)
GROUP=outbox-operator.dev
NAMESPACES=(charts-test-operator charts-test-other charts-test-a charts-test-b charts-test-c)
OPERATOR=(outbox-operator -n charts-test-operator)
IMAGE=(--set image.repository=outbox.local/outbox --set image.tag=dev)

say() { printf 'charts: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
expect() { # WHAT WANTED GOT
  [[ $2 == "$3" ]] || die "$1: wanted '$2', got '$3'"
  say "ok: $1"
}
fails() { # WHAT MESSAGE COMMAND...
  local what=$1 message=$2; shift 2
  ! "$@" >"$WORK/out" 2>&1 || die "$what: was taken"
  grep -qF -- "$message" "$WORK/out" || die "$what: wanted '$message', got: $(cat "$WORK/out")"
  say "ok: $what"
}
quietly() { "$@" >"$WORK/out" 2>&1 || die "$*: $(cat "$WORK/out")"; }
crds() { kubectl get crd -o name | grep -c "\.$GROUP$" || true; }
can() { # USER VERB RESOURCE [ARGUMENT...]
  local user=$1; shift
  kubectl auth can-i --as "$user" "$@" 2>/dev/null || true
}

[[ -n ${KUBECONFIG:-} ]] || die "set KUBECONFIG to the cluster to test in"
[[ $(crds) == 0 ]] || die "the cluster has definitions of $GROUP already; this test would remove them"
for namespace in "${NAMESPACES[@]}"; do
  ! kubectl get namespace "$namespace" >/dev/null 2>&1 || die "the cluster has a namespace $namespace already"
done

cleanup() {
  local release namespace
  for namespace in "${NAMESPACES[@]}"; do
    for release in $(helm list -aq -n "$namespace" 2>/dev/null); do helm uninstall "$release" -n "$namespace" >/dev/null 2>&1 || true; done
  done
  kubectl delete crd "outboxrelays.$GROUP" "dispatchpolicies.$GROUP" --ignore-not-found >/dev/null 2>&1 || true
  kubectl delete namespace "${NAMESPACES[@]}" --ignore-not-found --timeout=60s >/dev/null 2>&1 || true
  rm -rf "$WORK"
}
trap cleanup EXIT
for namespace in "${NAMESPACES[@]}"; do
  quietly kubectl create namespace "$namespace"
  quietly kubectl label namespace "$namespace" pod-security.kubernetes.io/enforce=restricted
done

# --- the operator for the whole cluster --------------------------------------------------------------------------------

# A chart of an earlier day, whose definitions differ.
cp -r outbox-operator "$WORK/earlier"
sed -i 's/maximum: 4096$/maximum: 4095/; s/maximum: 4096\.0$/maximum: 4095/' "$WORK"/earlier/templates/crds/*.yaml
quietly helm install "${OPERATOR[@]}" "$WORK/earlier" "${IMAGE[@]}"
quietly kubectl wait --for=condition=Established "crd/outboxrelays.$GROUP" "crd/dispatchpolicies.$GROUP" --timeout=30s
pods=0
for _ in $(seq 100); do
  pods=$(kubectl get pods -n charts-test-operator -o name | wc -l)
  ((pods == 0)) || break
  sleep 0.2
done
expect 'a pod of the operator passes Pod Security restricted' 1 "$pods"

account=system:serviceaccount:charts-test-operator:outbox-operator
expect 'the operator reads Secrets anywhere' yes "$(can "$account" watch secrets -n charts-test-a)"
expect 'the operator writes Deployments anywhere' yes "$(can "$account" patch deployments.apps -n charts-test-a)"
expect 'the operator writes no Secret' no "$(can "$account" patch secrets -n charts-test-a)"
expect 'the operator writes no OutboxRelay' no "$(can "$account" patch "outboxrelays.$GROUP" -n charts-test-a)"
expect 'the operator takes leases at home' yes "$(can "$account" create leases.coordination.k8s.io -n charts-test-operator)"
expect 'the operator renews its lease' yes "$(can "$account" update leases.coordination.k8s.io/outbox-operator -n charts-test-operator)"
expect 'the operator takes no other lease' no "$(can "$account" update leases.coordination.k8s.io/another -n charts-test-operator)"
expect 'the operator takes no lease elsewhere' no "$(can "$account" create leases.coordination.k8s.io -n charts-test-a)"

# --- tenants -----------------------------------------------------------------------------------------------------------

# The controller manager brings the aggregated rules into `edit` a moment later.
quietly kubectl create rolebinding tenant --clusterrole=edit --user=tenant -n charts-test-a
for _ in $(seq 100); do
  [[ $(can tenant create "outboxrelays.$GROUP" -n charts-test-a) != yes ]] || break
  sleep 0.2
done
quietly helm install billing outbox-relay -n charts-test-a --kube-as-user tenant -f outbox-relay/tests/values/existing-secret.yaml
expect 'a tenant with `edit` installs a relay' billing-default "$(kubectl get obr billing -n charts-test-a -o jsonpath='{.spec.policyRef.name}')"
quietly helm install audit outbox-relay -n charts-test-a -f outbox-relay/tests/values/parts.yaml
quietly helm install billing outbox-relay -n charts-test-b -f outbox-relay/tests/values/trial.yaml
quietly helm install a-release-name-that-is-as-long-as-helm-allows-53-char outbox-relay -n charts-test-b -f outbox-relay/tests/values/parts.yaml
expect 'two relays in one namespace, one name in two' 4 "$(kubectl get obr -A -o name | wc -l)"
expect 'the URL of a trial' 'postgres://app:pa"ss@db.example.com:5432/app' "$(kubectl get secret billing-database -n charts-test-b -o jsonpath='{.data.uri}' | base64 -d)"
fails 'what the schema cannot see, the API server refuses' 'scaling.minReplicas must be at most scaling.maxReplicas' \
  helm install wrong outbox-relay -n charts-test-a --set database.existingSecret.name=a --set relay.scaling.minReplicas=20
helm uninstall wrong -n charts-test-a >/dev/null 2>&1 || true
quietly helm install nulls outbox-relay -n charts-test-a -f outbox-relay/tests/values/nulls.yaml
say 'ok: null is taken for unset'
quietly helm upgrade billing outbox-relay -n charts-test-a --kube-as-user tenant --reuse-values --set relay.concurrency=4095
expect 'an upgraded relay' 4095 "$(kubectl get obr billing -n charts-test-a -o jsonpath='{.spec.concurrency}')"
fails 'the earlier definition binds' 'should be less than or equal to 4095' \
  helm upgrade billing outbox-relay -n charts-test-a --reuse-values --set relay.concurrency=4096

# --- upgrade -----------------------------------------------------------------------------------------------------------

quietly helm upgrade "${OPERATOR[@]}" outbox-operator "${IMAGE[@]}" --set replicas=2
for _ in $(seq 50); do # the API server takes a moment to serve a changed schema
  ! helm upgrade billing outbox-relay -n charts-test-a --reuse-values --set relay.concurrency=4096 >"$WORK/out" 2>&1 || break
  sleep 0.2
done
expect 'an upgrade of the operator brings the new definitions' 4096 "$(kubectl get obr billing -n charts-test-a -o jsonpath='{.spec.concurrency}')"
expect 'a disruption budget for two pods' 1 "$(kubectl get pdb -n charts-test-operator -o name | wc -l)"
helm get manifest outbox-operator -n charts-test-operator >"$WORK/before"
quietly helm upgrade "${OPERATOR[@]}" outbox-operator "${IMAGE[@]}" --set replicas=2
helm get manifest outbox-operator -n charts-test-operator >"$WORK/after"
expect 'an upgrade to the same' '' "$(diff "$WORK/before" "$WORK/after")"

# --- uninstall, and another release ------------------------------------------------------------------------------------

relays=$(kubectl get obr,obdp -A -o jsonpath='{.items[*].metadata.uid}')
quietly helm uninstall "${OPERATOR[@]}"
expect 'definitions stay when the operator goes' 2 "$(crds)"
expect 'relays and policies stay when the operator goes' "$relays" "$(kubectl get obr,obdp -A -o jsonpath='{.items[*].metadata.uid}')"
expect 'cluster roles go with the operator' '' "$(kubectl get clusterrole,clusterrolebinding -o name | grep outbox || true)"
quietly helm install "${OPERATOR[@]}" outbox-operator "${IMAGE[@]}"
say 'ok: the same release comes back to its definitions'
quietly helm upgrade "${OPERATOR[@]}" outbox-operator --reset-then-reuse-values --set crds.install=false
expect 'definitions stay when a release is told to leave them to another' "2 $relays" "$(crds) $(kubectl get obr,obdp -A -o jsonpath='{.items[*].metadata.uid}')"
quietly helm uninstall "${OPERATOR[@]}"
fails 'another release does not take them unasked' 'invalid ownership metadata' helm install second outbox-operator -n charts-test-other "${IMAGE[@]}"
helm uninstall second -n charts-test-other >/dev/null 2>&1 || true
quietly helm install second outbox-operator -n charts-test-other "${IMAGE[@]}" --take-ownership
expect 'another release takes the definitions over' second "$(kubectl get crd "outboxrelays.$GROUP" -o jsonpath='{.metadata.annotations.meta\.helm\.sh/release-name}')"
expect 'relays and policies outlive the change of owner' "$relays" "$(kubectl get obr,obdp -A -o jsonpath='{.items[*].metadata.uid}')"
quietly helm uninstall second -n charts-test-other

# --- the operator for namespaces ---------------------------------------------------------------------------------------

quietly kubectl create rolebinding admin --clusterrole=admin --user=admin-of-b -n charts-test-b
SCOPED=(-n charts-test-b --kube-as-user admin-of-b "${IMAGE[@]}" --set 'scope.namespaces={charts-test-b}' --set crds.install=false)
# Nobody gives away a right that he has not, and `admin` knows nothing of the custom resources without the aggregated roles.
fails 'an admin of a namespace cannot give rights on the custom resources' 'attempting to grant RBAC permissions not currently held' \
  helm install scoped outbox-operator "${SCOPED[@]}"
helm uninstall scoped -n charts-test-b >/dev/null 2>&1 || true
# The Role of docs/install.md.
quietly kubectl apply -n charts-test-b -f - < <(sed -n '/^kind: Role$/,/^```$/{/^```$/d;p}' ../docs/install.md | sed '1i apiVersion: rbac.authorization.k8s.io/v1')
quietly kubectl create rolebinding outbox-tenant --role=outbox-tenant --user=admin-of-b -n charts-test-b
quietly helm install scoped outbox-operator "${SCOPED[@]}"
account=system:serviceaccount:charts-test-b:scoped-outbox-operator
expect 'a scoped operator serves its namespace' yes "$(can "$account" patch deployments.apps -n charts-test-b)"
expect 'a scoped operator serves no other' no "$(can "$account" get secrets -n charts-test-a)"
expect 'a scoped operator has no cluster role' '' "$(kubectl get clusterrole,clusterrolebinding -o name | grep outbox || true)"
quietly helm uninstall scoped -n charts-test-b --kube-as-user admin-of-b

# --- a relay goes ------------------------------------------------------------------------------------------------------

quietly helm uninstall billing -n charts-test-b
expect 'a relay goes with its release, and nothing of the other one' a-release-name-that-is-as-long-as-helm-allows-53-char \
  "$(kubectl get obr -n charts-test-b -o jsonpath='{.items[*].metadata.name}')"
expect 'the Secret of a trial goes with it' '' "$(kubectl get secret billing-database -n charts-test-b -o name 2>/dev/null || true)"
say 'installed, upgraded and removed'
