# The commands of the project. `make demo` and `make test` install what they need and leave nothing running.
SHELL := /bin/bash
CARGO ?= cargo
IMAGE ?= outbox.local/outbox:dev
export CARGO_TERM_COLOR ?= auto

.PHONY: help demo demo-cluster test test-full check generate fmt cluster-up cluster-down image deny clean

help: ## Show these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## The whole relay story in a minute, on a throwaway PostgreSQL
	@hack/deps rust postgres
	@$(CARGO) build --locked
	@target/debug/outbox demo

demo-cluster: ## The same story on Kubernetes: charts, custom resources, pods, scaling
	@hack/demo-cluster

test: ## Everything: unit, PostgreSQL, charts, a real cluster with pods
	@hack/test

test-full: ## The long forms of the tests as well
	@OUTBOX_TEST_FULL=1 hack/test

check: ## Format, lints, unit tests, generated files: the quick part
	@hack/deps rust
	@$(CARGO) fmt --check
	@$(CARGO) clippy --locked --all-targets -- -D warnings
	@$(CARGO) test --locked --lib --bins --test architecture --quiet
	@$(CARGO) build --locked --quiet && hack/generate --check target/debug/outbox

generate: ## Write CRDs, chart copies, schemas and reference pages from the code
	@$(CARGO) build --locked --quiet && hack/generate target/debug/outbox

fmt: ## Format the code
	@$(CARGO) fmt

cluster-up: ## Start the test cluster (KUBECONFIG=... to use your own instead)
	@hack/deps go node
	@hack/cluster/cluster up

cluster-down: ## Stop the test cluster
	@hack/cluster/cluster down

image: ## Build the container image without an engine, as target/outbox-image.tar
	@$(CARGO) build --release --locked
	@hack/image/image target/outbox-image.tar $(IMAGE) target/release/outbox

deny: ## Check licences, sources and known-bad crates of all dependencies
	@hack/deny

clean: ## Remove what was built in this clone
	@$(CARGO) clean
