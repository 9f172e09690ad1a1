//! Whether the operator can do its work: `/readyz` names the resource and the verb that fail.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use kube::runtime::watcher;
use tokio::sync::watch;

/// How long a watch that has failed must be silent to count as working: longer than the pause before its next try, which
/// grows from at most 1.6 s to at most 60 s, and that try's 10 s until a connection stands. Doubled by each failure.
pub const SILENCE: RangeInclusive<Duration> = Duration::from_secs(12)..=Duration::from_secs(80);

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

/// Notes how a watch goes; its errors are logged when they are new.
///
/// A watch that stands again after an error yields nothing until something changes, for hours in a quiet cluster. So
/// silence for longer than the pause before another try is how it says that it works. That a list is begun says nothing,
/// and neither does its end: the watch after it may be what fails.
pub fn noted<K: Send + 'static>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send + 'static,
    resource: String,
    health: Arc<Health>,
    silence: RangeInclusive<Duration>,
) -> impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send {
    let start = (events.boxed(), None::<Duration>, resource, health, silence);
    stream::unfold(start, |(mut events, mut doubt, resource, health, silence)| async move {
        let item = loop {
            let Some(limit) = doubt else { break events.next().await? };
            if let Ok(item) = tokio::time::timeout(limit, events.next()).await {
                break item?;
            }
            health.well(&resource);
            doubt = None;
        };
        match &item {
            Err(error) => {
                health.trouble(&resource, describe(&resource, error));
                doubt = Some(doubt.map_or(*silence.start(), |before| before.saturating_mul(2)).min(*silence.end()));
            }
            Ok(watcher::Event::Init | watcher::Event::InitApply(_) | watcher::Event::InitDone) => {}
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {
                health.well(&resource);
                doubt = None;
            }
        }
        Some((item, (events, doubt, resource, health, silence)))
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::channel::mpsc;
    use watcher::{Error, Event};

    #[tokio::test]
    async fn a_watch_works_again_when_it_is_silent_or_sees_a_change_and_not_while_it_lists() {
        let health = Arc::new(Health::default());
        let (send, events) = mpsc::unbounded();
        let silence = Duration::from_millis(200)..=Duration::from_millis(400);
        let mut watch = Box::pin(noted(events, "secrets".to_owned(), health.clone(), silence));
        let mut readiness = health.readiness();
        let mut yields = async |item: Result<Event<()>, Error>| {
            send.unbounded_send(item).unwrap();
            drop(watch.next().await.unwrap());
            health.readiness().borrow().is_ok()
        };
        assert!(yields(Ok(Event::InitDone)).await);
        assert!(!yields(Err(Error::NoResourceVersion)).await);
        assert!(!yields(Ok(Event::Init)).await && !yields(Ok(Event::InitDone)).await);
        assert!(!yields(Err(Error::NoResourceVersion)).await, "the list went well, the watch did not");
        assert!(yields(Ok(Event::Apply(()))).await);
        assert!(!yields(Err(Error::NoResourceVersion)).await);
        let silent = tokio::spawn(async move { watch.next().await });
        readiness.wait_for(Result::is_ok).await.unwrap();
        silent.abort();
        drop(send);
    }
}
