#!/bin/bash
# Tests of the charts that need no cluster: lint, golden renders, refused values, names, rights, generated files.
#   charts/test.sh                    exit 1 on the first kind of failure that is left at the end, all of them printed
#   UPDATE_GOLDEN=1 charts/test.sh    rewrite tests/golden/ instead of comparing
# tests/values/NAME.yaml renders to tests/golden/NAME.yaml; its first line names release and namespace.
# tests/refused/NAME.yaml must be refused; its first line is a part of the message.
# Uses helm of PATH (or $HELM), else the one of hack/cluster, which it builds; kubeconform and promtool where they are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
ROOT=$(cd .. && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
# No user's plugins, repositories or cluster have a say.
export HELM_CONFIG_HOME=$WORK/config HELM_CACHE_HOME=$WORK/cache HELM_DATA_HOME=$WORK/data KUBECONFIG=/dev/null

failures=0
passed=0
ok() { passed=$((passed + 1)); }
bad() { printf 'charts: %s\n' "$*" >&2; failures=$((failures + 1)); }

PATH=$PATH:$("$ROOT/hack/cluster/cluster" bin)
HELM=${HELM:-helm}
if ! command -v "$HELM" >/dev/null; then
  "$ROOT/hack/cluster/cluster" build helm
fi

# --- what helm itself finds ------------------------------------------------------------------------------------------

for chart in outbox-operator outbox-relay; do
  for values in "$chart"/values.yaml "$chart"/tests/values/*.yaml; do
    if "$HELM" lint --strict --quiet -f "$values" "$chart" >"$WORK/out" 2>&1; then ok; else bad "lint $values: $(cat "$WORK/out")"; fi
  done
done

# --- golden renders --------------------------------------------------------------------------------------------------

for chart in outbox-operator outbox-relay; do
  mkdir -p "$chart/tests/golden"
  for values in "$chart"/tests/values/*.yaml; do
    golden=$chart/tests/golden/$(basename "$values")
    read -r _ _ release _ namespace <"$values"
    # The definitions are generated and have a test of their own; here they would drown the rest.
    skip=()
    [[ $chart == outbox-relay ]] || skip=(--set crds.install=false)
    if ! "$HELM" template "$release" "$chart" -n "$namespace" -f "$values" "${skip[@]}" >"$WORK/golden" 2>"$WORK/err"; then
      bad "render $values: $(cat "$WORK/err")"
      continue
    fi
    # The words on the screen are rendered by an installation only.
    { echo '---'; echo '# NOTES'
      "$HELM" install "$release" "$chart" -n "$namespace" -f "$values" "${skip[@]}" --dry-run=client --hide-secret 2>"$WORK/err" |
        sed '1,/^NOTES:$/d; s/^\(.\)/# \1/; s/[[:space:]]*$//'; } >>"$WORK/golden"
    if [[ -n ${UPDATE_GOLDEN:-} ]]; then
      cp "$WORK/golden" "$golden"
    elif diff -u "$golden" "$WORK/golden" >"$WORK/diff" 2>&1; then
      ok
    else
      bad "$golden is not what $values renders to (UPDATE_GOLDEN=1 rewrites it): $(cat "$WORK/diff")"
    fi
  done
  for golden in "$chart"/tests/golden/*.yaml; do
    [[ -f $chart/tests/values/$(basename "$golden") ]] || bad "$golden has no values"
  done
done

# --- refused values --------------------------------------------------------------------------------------------------

for refused in */tests/refused/*.yaml; do
  chart=${refused%%/*}
  message=$(sed -n '1s/^# refused: //p' "$refused")
  if [[ -z $message ]]; then
    bad "$refused does not say what it expects"
  elif "$HELM" template billing "$chart" -n tenant-a -f "$refused" >/dev/null 2>"$WORK/err"; then
    bad "$refused was taken"
  elif grep -qF -- "$message" "$WORK/err"; then
    ok
  else
    bad "$refused was refused with another message than '$message': $(cat "$WORK/err")"
  fi
done

# --- what must not be there ------------------------------------------------------------------------------------------

kinds() { sed -n 's/^kind: //p' "$@" | sort -u | tr '\n' ' '; }
expect() { # WHAT WANTED GOT
  if [[ $2 == "$3" ]]; then ok; else bad "$1: wanted '$2', got '$3'"; fi
}
expect 'kinds of outbox-relay, none of them cluster-scoped' 'DispatchPolicy OutboxRelay Secret ' "$(kinds outbox-relay/tests/golden/*.yaml)"
expect 'cluster-scoped kinds with scope.namespaces' '' "$(kinds outbox-operator/tests/golden/namespaces.yaml | grep -o 'Cluster[A-Za-z]*' || true)"
expect 'a disruption budget for one pod' '' "$(grep -l PodDisruptionBudget outbox-operator/tests/golden/defaults.yaml || true)"
expect 'names above 63 characters' '' "$(sed -n 's/^ *name: *//p' ./*/tests/golden/*.yaml | awk 'length > 63')"

# --- the definitions -------------------------------------------------------------------------------------------------

"$HELM" template outbox-operator outbox-operator >"$WORK/all.yaml"
expect 'definitions that stay when the release goes' 2 "$(grep -c '^    helm.sh/resource-policy: keep$' "$WORK/all.yaml")"
expect 'definitions' 2 "$(grep -c '^kind: CustomResourceDefinition$' "$WORK/all.yaml")"
expect 'definitions with crds.install=false' 0 "$("$HELM" template outbox-operator outbox-operator --set crds.install=false | grep -c '^kind: CustomResourceDefinition$' || true)"
for crd in outbox-operator/templates/crds/*.yaml; do
  expect "template actions in $crd beside its first and last line" '' "$(sed '1d;$d' "$crd" | grep -F '{{' || true)"
done

# --- generated files -------------------------------------------------------------------------------------------------

if HELM=$HELM "$ROOT/hack/charts/definitions" >"$WORK/crds.json" 2>"$WORK/err" && "$ROOT/hack/charts/values-schema" --check "$WORK/crds.json" 2>>"$WORK/err"; then
  ok
else
  bad "values.schema.json: $(cat "$WORK/err")"
fi
if "$ROOT/hack/charts/values-table" --check 2>"$WORK/err"; then ok; else bad "README.md: $(cat "$WORK/err")"; fi
version=$(sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
for chart in outbox-operator outbox-relay; do
  expect "appVersion of $chart" "$version" "$(sed -n 's/^appVersion: //p' "$chart/Chart.yaml")"
done

# --- with other programs, where they are there -----------------------------------------------------------------------

# hack/cluster builds Kubernetes from its module, which also holds the schema of each kind.
module=$(sed -n 's/^KUBERNETES=.*:-\(.*\)}$/\1/p' "$ROOT/hack/cluster/cluster")
swagger=$(go env GOMODCACHE 2>/dev/null || true)/k8s.io/kubernetes@v$module/api/openapi-spec/swagger.json
if command -v kubeconform >/dev/null && [[ -r $swagger ]]; then
  "$ROOT/hack/charts/kube-schemas" "$swagger" "$WORK/crds.json" "$WORK/schemas"
  # Nobody has the Prometheus Operator's kinds here.
  if kubeconform -strict -summary -skip PodMonitor,PrometheusRule \
    -schema-location "$WORK/schemas/{{.ResourceKind}}-{{.ResourceAPIVersion}}.json" ./*/tests/golden/*.yaml >"$WORK/out" 2>&1; then ok; else bad "kubeconform: $(cat "$WORK/out")"; fi
else
  echo 'charts: kubeconform or the sources of Kubernetes are not there, so field names were not checked' >&2
fi

if command -v promtool >/dev/null; then
  # The alerts are a Prometheus rule file, two spaces to the right.
  awk '/^---/ {rule = 0} /^kind: PrometheusRule$/ {rule = 1} rule && spec {print substr($0, 3)} rule && /^spec:$/ {spec = 1} !rule {spec = 0}' \
    outbox-operator/tests/golden/everything.yaml >"$WORK/rules.yaml"
  if promtool check rules "$WORK/rules.yaml" >"$WORK/out" 2>&1; then ok; else bad "alerts: $(cat "$WORK/out")"; fi
else
  echo 'charts: promtool is not on PATH, so the alerts were not parsed' >&2
fi

if ((failures)); then
  printf 'charts: %d of %d checks failed\n' "$failures" "$((failures + passed))" >&2
  exit 1
fi
printf 'charts: %d checks passed\n' "$passed"
