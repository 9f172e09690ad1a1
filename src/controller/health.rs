//! Whether the operator can do its work: `/readyz` names the resource and the verb that fail.

use std::{collections::BTreeMap, sync::Mutex, sync::PoisonError};

use kube::runtime::watcher;
use tokio::sync::watch;

/// What a readiness endpoint reads: the text says what is wrong.
pub type Readiness = watch::Receiver<Result<(), String>>;

/// Collects what is wrong.
pub struct Health {
    troubles: Mutex<BTreeMap<String, String>>,
    sender: watch::Sender<Result<(), String>>,
}

impl Default for Health {
    fn default() -> Self {
        Self { troubles: Mutex::default(), sender: watch::Sender::new(Ok(())) }
    }
}

impl Health {
    /// What the endpoint reads.
    pub fn readiness(&self) -> Readiness {
        self.sender.subscribe()
    }

    /// Notes that a part of the operator cannot work.
    pub fn trouble(&self, part: &str, why: String) {
        self.change(|troubles| troubles.insert(part.to_owned(), why.clone()) != Some(why));
    }

    /// Notes that it works.
    pub fn well(&self, part: &str) {
        self.change(|troubles| troubles.remove(part).is_some());
    }

    /// Notes what a watch yielded. Errors are logged when they are new.
    pub fn watched<T>(&self, resource: &str, item: &Result<T, watcher::Error>) {
        match item {
            Ok(_) => self.well(resource),
            Err(error) => self.trouble(resource, describe(resource, error)),
        }
    }

    fn change(&self, act: impl FnOnce(&mut BTreeMap<String, String>) -> bool) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if !act(&mut troubles) {
            return;
        }
        let all: Vec<String> = troubles.values().cloned().collect();
        if all.is_empty() {
            tracing::info!("all watches work again");
            drop(self.sender.send_replace(Ok(())));
        } else {
            let all = all.join("; ");
            tracing::warn!(troubles = %all, "the operator is not ready");
            drop(self.sender.send_replace(Err(all)));
        }
    }
}

/// The verb and the resource that failed, and what the API server said.
fn describe(resource: &str, error: &watcher::Error) -> String {
    let (verb, source) = match error {
        watcher::Error::InitialListFailed(source) => ("list", api_message(source)),
        watcher::Error::WatchStartFailed(source) | watcher::Error::WatchFailed(source) => {
            ("watch", api_message(source))
        }
        watcher::Error::WatchError(status) => ("watch", status.message.clone()),
        watcher::Error::NoResourceVersion => ("watch", "the server sent no resourceVersion".to_owned()),
    };
    format!("cannot {verb} {resource}: {source}")
}

fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.is_not_found() => {
            "the API server does not know this resource; is its CRD installed?".to_owned()
        }
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
