//! Turns what was read into types that cannot be wrong. Pure; nothing after it looks at the raw spec to find a mistake.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use uuid::Uuid;

use super::{
    dereference::{MissingSecret, Policy, Referenced, Secrets},
    desired::{
        Owner, PodPlan, RelayPlan,
        documents::{self, RelayDocuments},
        names::short_hash,
    },
};
use crate::{
    api::{Database, DispatchPolicy, Migrations, OutboxRelay, SecretKeyRef},
    spec::{self, database},
    store::{ConnectSettings, SslSettings, TableName, backlog::Served},
};

/// Bytes of the Secrets' hash in the pod template: 4. The key (the relay's uid) is no secret, so the hash is cut so short
/// that a guessed password cannot be confirmed by it, and a rotation still changes it but for one in 4 billion.
const SECRETS_HASH_BYTES: usize = 4;
/// The operator's connections per database.
const OPERATOR_CONNECTIONS: u32 = 1;

/// Something that keeps a relay from running as its user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The reason of the condition.
    pub reason: &'static str,
    /// What is wrong and the mend.
    pub message: String,
}

/// Where the operator looks at the rows.
#[derive(Clone, Debug)]
pub struct Target {
    /// How to connect.
    pub connect: ConnectSettings,
    /// The same settings have the same fingerprint: one connection serves all relays of one database.
    pub fingerprint: String,
    /// The table.
    pub table: TableName,
    /// Which rows the relay serves.
    pub served: Served,
}

/// What a migration Job is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct MigrationPlan {
    /// The Job's pods; their image is the operator's own setting, whose version the table is brought to.
    pub pods: PodPlan,
}

/// The outcome, part by part: a relay whose policy is missing is still looked at and scaled.
#[derive(Clone, Debug)]
pub struct Validated {
    /// Where the operator looks at the rows, or why it cannot.
    pub target: Result<Target, Finding>,
    /// What the pods are made of, or everything that is in the way. The image is filled in later.
    pub pods: Result<RelayPlan, Vec<Finding>>,
    /// Whether what the policies say was found and fits.
    pub policies: Result<(), Finding>,
    /// What a migration is made of, if the operator is to migrate; or what is in the way.
    pub migration: Option<Result<MigrationPlan, Finding>>,
}

impl Validated {
    /// Something stands in the way that was found elsewhere: no pods are made, and it comes first.
    pub fn refuse(&mut self, finding: Finding) {
        match &mut self.pods {
            Ok(_) => self.pods = Err(vec![finding]),
            Err(findings) => findings.insert(0, finding),
        }
    }
}

/// Validates a relay with what it names.
pub fn validate(relay: &OutboxRelay, owner: &Owner, read: &Referenced) -> Validated {
    let found = read.policies.values().filter_map(|policy| match policy {
        Policy::Found(policy) => Some((**policy).clone()),
        _ => None,
    });
    let policies: Vec<DispatchPolicy> = found.collect();
    let settings = settings(relay, &read.policies, &policies);
    Validated {
        target: target(relay, &policies, &read.secrets),
        policies: settings.as_ref().map(|_| ()).map_err(Clone::clone),
        pods: pods(relay, owner, read, &policies, settings),
        migration: (relay.spec.migrations == Migrations::Auto).then(|| migration(relay, owner, &read.secrets)),
    }
}

/// The longest of the policies' deadlines in whole seconds, if relay and policies fit.
fn settings(relay: &OutboxRelay, read: &BTreeMap<String, Policy>, policies: &[DispatchPolicy]) -> Result<i64, Finding> {
    for (name, policy) in read {
        if let Policy::Undecodable(error) = policy {
            let message = format!("DispatchPolicy {name:?} cannot be read: {error}");
            return Err(Finding { reason: "PolicyInvalid", message });
        }
    }
    let settings = spec::resolve(relay, policies).map_err(|problems| {
        let reason = problems.first().map_or("Invalid", |problem| problem.code);
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Finding { reason, message: all.join("; ") }
    })?;
    let total = settings.policies.longest_deadline();
    let whole = total.as_secs() + u64::from(total.subsec_nanos() > 0);
    Ok(i64::try_from(whole).unwrap_or(i64::MAX))
}

fn pods(
    relay: &OutboxRelay,
    owner: &Owner,
    read: &Referenced,
    policies: &[DispatchPolicy],
    settings: Result<i64, Finding>,
) -> Result<RelayPlan, Vec<Finding>> {
    let refs = spec::secret_refs(relay, policies.iter().map(|policy| &policy.spec));
    let mut findings: Vec<Finding> = missing(&refs, &read.secrets).into_iter().collect();
    let deadline_seconds = settings.map_err(|finding| findings.insert(0, finding)).ok();
    let documents = serialised(documents::for_pods(relay, policies)).map_err(|finding| findings.push(finding)).ok();
    let hash = secrets_hash(owner, &refs, &read.secrets).map_err(|finding| findings.push(finding)).ok();
    match (deadline_seconds, documents, hash) {
        (Some(deadline_seconds), Some(documents), Some(secrets_hash)) if findings.is_empty() => {
            Ok(RelayPlan { pods: pod_plan(relay, owner, documents, refs), secrets_hash, deadline_seconds })
        }
        _ => Err(findings),
    }
}

fn pod_plan(relay: &OutboxRelay, owner: &Owner, documents: RelayDocuments, secrets: BTreeSet<SecretKeyRef>) -> PodPlan {
    PodPlan {
        owner: owner.clone(),
        image: String::new(),
        documents,
        secrets,
        memory_budget: relay.spec.memory_budget,
        template: relay.spec.template.clone(),
    }
}

fn serialised(documents: serde_json::Result<RelayDocuments>) -> Result<RelayDocuments, Finding> {
    documents
        .map_err(|error| Finding { reason: "Invalid", message: format!("the relay cannot be written out: {error}") })
}

/// The Secret keys that are not there, in one finding that names each.
fn missing(refs: &BTreeSet<SecretKeyRef>, secrets: &Secrets) -> Option<Finding> {
    let mut not_found = BTreeSet::new();
    let mut no_key = Vec::new();
    for reference in refs {
        match secrets.get(reference) {
            Some(Ok(_)) => {}
            Some(Err(MissingSecret::NoKey)) => {
                no_key.push(format!("{:?} in Secret {:?}", reference.key, reference.name));
            }
            Some(Err(MissingSecret::NotFound)) | None => {
                not_found.insert(format!("{:?}", reference.name));
            }
        }
    }
    if !not_found.is_empty() {
        let names: Vec<String> = not_found.into_iter().collect();
        let message = format!("there is no Secret {}: create it in the relay's namespace", names.join(", "));
        return Some(Finding { reason: "SecretNotFound", message });
    }
    let message = format!("there is no key {}: add it, or correct the reference", no_key.join(", "));
    (!no_key.is_empty()).then_some(Finding { reason: "KeyMissing", message })
}

/// A keyed hash over names and values; lengths stand before the parts, so that two lists of parts never read alike.
fn secrets_hash(owner: &Owner, refs: &BTreeSet<SecretKeyRef>, secrets: &Secrets) -> Result<String, Finding> {
    let internal = |_| Finding { reason: "Invalid", message: "the relay's uid is no key".to_owned() };
    let mut mac = Hmac::<Sha256>::new_from_slice(owner.uid.as_bytes()).map_err(internal)?;
    for reference in refs {
        let Some(Ok(value)) = secrets.get(reference) else { continue };
        for part in [reference.name.as_bytes(), reference.key.as_bytes(), value.0.as_slice()] {
            mac.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(part);
        }
    }
    let digest = mac.finalize().into_bytes();
    Ok(digest.iter().take(SECRETS_HASH_BYTES).fold(String::new(), |mut hash, byte| {
        let _ = write!(hash, "{byte:02x}");
        hash
    }))
}

/// Migrations connect by `adminUrlSecretRef`, else `directUrlSecretRef`, else as the relay does.
fn migration_refs(database: &Database) -> BTreeSet<SecretKeyRef> {
    let reference = database::migration_url_ref(database).or(database.password_secret_ref.as_ref());
    [reference, database.root_cert_secret_ref.as_ref()].into_iter().flatten().cloned().collect()
}

fn migration(relay: &OutboxRelay, owner: &Owner, secrets: &Secrets) -> Result<MigrationPlan, Finding> {
    let refs = migration_refs(&relay.spec.database);
    if let Some(finding) = missing(&refs, secrets) {
        return Err(finding);
    }
    let documents = serialised(documents::for_migration(relay))?;
    Ok(MigrationPlan { pods: pod_plan(relay, owner, documents, refs) })
}

fn target(relay: &OutboxRelay, policies: &[DispatchPolicy], secrets: &Secrets) -> Result<Target, Finding> {
    let database = &relay.spec.database;
    let refs = [&database.url_secret_ref, &database.password_secret_ref, &database.root_cert_secret_ref];
    let refs: BTreeSet<SecretKeyRef> = refs.into_iter().flatten().cloned().collect();
    if let Some(finding) = missing(&refs, secrets) {
        return Err(finding);
    }
    let connect = connect(database, secrets)?;
    connect.options().map_err(|error| Finding { reason: "DatabaseInvalid", message: error.to_string() })?;
    let ssl = format!("{:?}{:?}", connect.ssl.mode, connect.ssl.root_cert_pem);
    let fingerprint = short_hash(format!("{}\n{ssl}", connect.url).as_bytes(), 16);
    Ok(Target {
        connect,
        fingerprint,
        table: TableName::new(database.schema.clone(), database.table.clone()),
        served: served(relay, policies),
    })
}

/// As far as the policies are there: a relay is looked at also while one is missing.
fn served(relay: &OutboxRelay, policies: &[DispatchPolicy]) -> Served {
    let ordering = |name: Option<String>| {
        let found = policies.iter().find(|policy| policy.metadata.name == name);
        found.filter(|_| name.is_some()).and_then(|policy| spec::ordering(&policy.spec))
    };
    let names = spec::policy_names(relay);
    Served {
        scopes: names.iter().map(|name| spec::scope(relay, name.as_deref())).collect(),
        ordering: names.into_iter().map(ordering).collect(),
        routing: spec::routing(relay),
        tenants: relay.spec.tenants.iter().filter_map(|tenant| Uuid::parse_str(tenant).ok()).collect(),
    }
}

fn connect(database: &Database, secrets: &Secrets) -> Result<ConnectSettings, Finding> {
    let read = |reference: &Option<SecretKeyRef>| {
        reference.as_ref().and_then(|reference| secrets.get(reference)).and_then(|value| value.as_ref().ok())
    };
    let invalid = |message: &str| Finding { reason: "DatabaseInvalid", message: message.to_owned() };
    let text =
        |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| invalid("the database's Secret is not text"));
    let url = if let Some(url) = read(&database.url_secret_ref) {
        text(&url.0)?.trim().to_owned()
    } else {
        let password = read(&database.password_secret_ref).map(|password| text(&password.0)).transpose()?;
        database::url_of_parts(database, password.as_deref().map(str::trim_end))
            .ok_or_else(|| invalid("database.host and its parts make no URL"))?
    };
    Ok(ConnectSettings {
        url,
        ssl: SslSettings {
            mode: database.sslmode.map(|mode| database::ssl_mode(mode).to_owned()),
            root_cert_pem: read(&database.root_cert_secret_ref).map(|pem| pem.0.clone()),
        },
        max_connections: OPERATOR_CONNECTIONS,
        application_name: "outbox-operator".to_owned(),
    })
}

#[cfg(test)]
mod tests;
