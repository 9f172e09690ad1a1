//! The operator against a real API server: it runs in this process, as an account that holds exactly the rights of
//! `rbac.yaml`, and each test has a namespace and a database of its own. Tests wait for conditions with a deadline; none
//! sleeps and hopes.
//!
//! `KUBECONFIG` (or `OUTBOX_TEST_CLUSTER`) names the cluster: `hack/cluster/cluster up --no-node` makes one, and a node is
//! not needed. No pod of these tests ever runs; where one has to be ready, the test says so in its place.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod admission;
mod children;
mod election;
mod migrations;
mod references;
mod replicas;
mod scaling;
mod support;
