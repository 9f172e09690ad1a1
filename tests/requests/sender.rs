//! A sender of a policy as a document says it, with secrets and names that a test gives.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use outbox_operator::{
    domain::{judge::Observation, settings::Policy},
    http::{Body, CredentialError, Credentials, Lookup, RowRequest, Sender, SystemLookup},
    spec,
};

/// The instant that the tests' database clock shows.
pub const NOW: Duration = Duration::from_secs(1_614_265_330);

/// Secrets by `name/key`.
pub type Secrets<'a> = &'a [(&'a str, &'a str)];

/// The policy of a document with these lines of spec; 127.0.0.0/8 is allowed and nobody is waited for long.
pub fn policy(lines: &str) -> Policy {
    try_policy(lines).unwrap()
}

/// The same, or what is wrong with it.
pub fn try_policy(lines: &str) -> Result<Policy, String> {
    let mut text = "apiVersion: outbox-operator.dev/v1alpha1\nkind: OutboxRelay\nmetadata: {name: test}\nspec:\n  \
                    database: {urlSecretRef: {name: db, key: uri}}\n  policyRef: {name: quick}\n---\n\
                    apiVersion: outbox-operator.dev/v1alpha1\nkind: DispatchPolicy\nmetadata: {name: quick}\nspec:\n"
        .to_owned();
    for default in ["timeouts: {connect: 2s, total: 5s}", "egress: {allowCidrs: ['127.0.0.0/8', '::1/128']}"] {
        let name = default.split(':').next().unwrap();
        if !lines.lines().any(|line| line.starts_with(name)) {
            text.extend(["  ", default, "\n"]);
        }
    }
    for line in lines.lines() {
        text.extend(["  ", line, "\n"]);
    }
    let shown = |problems: Vec<spec::Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let documents = spec::read([("policy.yaml", text.as_str())]).map_err(shown)?;
    spec::resolve(&documents.relays[0], &documents.policies).map(|settings| settings.policies.own.policy).map_err(shown)
}

/// Reads the secrets that a policy names.
pub fn credentials(policy: &Policy, secrets: Secrets<'_>) -> Result<Credentials, CredentialError> {
    let secrets: BTreeMap<&str, &str> = secrets.iter().copied().collect();
    Credentials::read(&policy.request, |secret| {
        let place = format!("{}/{}", secret.name, secret.key);
        secrets.get(place.as_str()).map(|value| (*value).to_owned()).ok_or(format!("no secret {place}"))
    })
}

/// A sender of this policy.
pub fn sender(lines: &str, secrets: Secrets<'_>) -> Sender {
    sender_with(lines, secrets, Arc::new(SystemLookup))
}

/// The same with names of its own.
pub fn sender_with(lines: &str, secrets: Secrets<'_>, lookup: Arc<dyn Lookup>) -> Sender {
    let policy = policy(lines);
    let credentials = credentials(&policy, secrets).unwrap();
    Sender::with_lookup(policy, credentials, lookup).unwrap()
}

/// Sends a row with key `key-1` and payload `{"n": 1}`.
pub async fn send(sender: &Sender, endpoint: &str) -> Observation {
    send_row(sender, endpoint, "key-1", r#"{"n": 1}"#, None).await
}

pub async fn send_row(sender: &Sender, endpoint: &str, key: &str, payload: &str, headers: Option<&str>) -> Observation {
    let row = RowRequest {
        tenant: "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11",
        operation: "create_invoice",
        key,
        endpoint,
        body: Body::Unchanged(payload.to_owned().into()),
        headers,
        attempt: 3,
    };
    sender.send(&row, now).await.seen
}

fn now() -> SystemTime {
    UNIX_EPOCH + NOW
}

/// What came of it, in short: `201`, or `not executed: tls`.
pub fn short(seen: &Observation) -> String {
    match seen {
        Observation::Answer(answer) => answer.status.to_string(),
        Observation::NotExecuted { reason, .. } => format!("not executed: {reason}"),
        Observation::Unknown { reason, .. } => format!("unknown: {reason}"),
        Observation::NotBuilt { reason, .. } => format!("not built: {reason}"),
    }
}

/// What it says to people.
pub fn detail(seen: &Observation) -> &str {
    match seen {
        Observation::Answer(_) => "",
        Observation::NotExecuted { detail, .. }
        | Observation::Unknown { detail, .. }
        | Observation::NotBuilt { detail, .. } => detail,
    }
}

/// Names and their addresses, which a test may change.
#[derive(Default)]
pub struct Names(Mutex<BTreeMap<String, Vec<IpAddr>>>);

impl Names {
    pub fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.0.lock().unwrap().insert(name.to_owned(), addresses);
    }
}

impl Lookup for Names {
    fn lookup(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let found = self.0.lock().unwrap().get(name).cloned();
        Box::pin(async move { found.ok_or_else(|| io::Error::other("Name or service not known")) })
    }
}
