//! `--relay NS/NAME`: where a relay's table is, from its custom resource and its Secrets, with the caller's own rights.

use std::{collections::BTreeMap, process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, Config};

use super::{
    Error,
    database::{self, DatabaseArgs, Role},
    rows::refuse,
};
use crate::{
    api::{OutboxRelay, SecretKeyRef},
    store::{ConnectSettings, TableName},
};

/// How long the API server may take to be connected to.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may stay silent.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// A relay of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayName {
    namespace: String,
    name: String,
}

impl FromStr for RelayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("write NAMESPACE/NAME, such as tenant-a/billing".to_owned()),
        }
    }
}

impl std::fmt::Display for RelayName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `--relay` of a command.
#[derive(Clone, Debug, Args)]
pub struct RelayArg {
    /// Take database, schema and table from this OutboxRelay of the cluster that your kubeconfig names, and from its Secret. DATABASE_URL is not looked at then.
    #[arg(long, value_name = "NS/NAME", conflicts_with_all = ["schema", "table"])]
    relay: Option<RelayName>,
}

impl RelayArg {
    /// What the relay says, where one is named. The inner error is the exit code, its reason shown.
    pub async fn find(
        &self,
        database: &DatabaseArgs,
        role: Role,
    ) -> Result<Option<Result<(ConnectSettings, TableName), ExitCode>>, Error> {
        let Some(relay) = &self.relay else { return Ok(None) };
        // The variable may be there for other commands; what is written beside --relay is a contradiction.
        if database.database_url.is_some() && database.database_url != std::env::var("DATABASE_URL").ok() {
            return Ok(Some(Err(refuse("--relay and --database-url each say which database: give one, not both"))));
        }
        Ok(Some(Ok(find(relay, role).await?)))
    }
}

/// Reads the relay and the Secrets that its connection needs. The error says what is missing, or which right.
async fn find(relay: &RelayName, role: Role) -> Result<(ConnectSettings, TableName), String> {
    let mut config = Config::infer().await.map_err(|error| {
        format!("--relay needs a cluster, and no kubeconfig leads to one (KUBECONFIG, ~/.kube/config): {error}")
    })?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    let client = Client::try_from(config).map_err(|error| format!("the kubeconfig is of no use: {error}"))?;
    let found = Api::<OutboxRelay>::namespaced(client.clone(), &relay.namespace)
        .get(&relay.name)
        .await
        .map_err(|error| why_no_relay(relay, &error))?;
    let database = &found.spec.database;
    let mut read = BTreeMap::new();
    for reference in database::references(database, role) {
        let value = read_secret(&client, relay, reference).await?;
        read.insert(reference.clone(), value);
    }
    let get = |reference: &SecretKeyRef| {
        read.get(reference).cloned().ok_or_else(|| format!("secret {} was not read", reference.name))
    };
    let settings =
        database::settings_from(database, get, role).map_err(|message| format!("OutboxRelay {relay}: {message}"))?;
    Ok((settings, database::table(database)))
}

fn why_no_relay(relay: &RelayName, error: &kube::Error) -> String {
    match error {
        // The API server says of an unknown kind that a page is not found, and of an unknown object its name.
        kube::Error::Api(status) if status.is_not_found() && status.message.contains("page not found") => {
            "the cluster does not know OutboxRelays: its operator is not installed, or the kubeconfig's context is another cluster".to_owned()
        }
        kube::Error::Api(status) if status.is_not_found() => format!(
            "there is no OutboxRelay {} in namespace {}: kubectl get obr -A lists them",
            relay.name, relay.namespace
        ),
        kube::Error::Api(status) if status.code == 403 => format!(
            "you may not read OutboxRelay {relay}: ask for the right to get outboxrelays.outbox-operator.dev in namespace {}",
            relay.namespace
        ),
        error => format!("read OutboxRelay {relay}: {error}"),
    }
}

async fn read_secret(client: &Client, relay: &RelayName, reference: &SecretKeyRef) -> Result<String, String> {
    let (namespace, SecretKeyRef { name, key }) = (&relay.namespace, reference);
    let secret = Api::<Secret>::namespaced(client.clone(), namespace).get(name).await.map_err(|error| match &error {
        kube::Error::Api(status) if status.is_not_found() => {
            format!("OutboxRelay {relay} takes its database from Secret {name}, and there is none in namespace {namespace}")
        }
        kube::Error::Api(status) if status.code == 403 => format!(
            "you may not read Secret {name} in namespace {namespace}, where OutboxRelay {relay} has its database: ask for the right to get it, or for the URL and give it by --database-url"
        ),
        error => format!("read Secret {name} in namespace {namespace}: {error}"),
    })?;
    let data = secret.data.unwrap_or_default();
    let Some(value) = data.get(key) else {
        let keys: Vec<_> = data.keys().map(String::as_str).collect();
        let has = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        return Err(format!("Secret {name} in namespace {namespace} has no key {key}; it has: {has}"));
    };
    String::from_utf8(value.0.clone())
        .map_err(|_| format!("key {key} of Secret {name} in namespace {namespace} is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_named_by_namespace_and_name() {
        assert_eq!("tenant-a/billing".parse::<RelayName>().unwrap().to_string(), "tenant-a/billing");
        for refused in ["billing", "/billing", "tenant-a/", "a/b/c", ""] {
            assert!(refused.parse::<RelayName>().is_err(), "{refused}");
        }
    }
}
