//! Leader election by a `Lease`, so that one operator writes at a time.
//!
//! After client-go: every write is a replace of the version that was read, so two candidates can never both take a lease;
//! a foreign lease counts as over when *we* have seen no renewal for its duration, so clocks of nodes need not agree; and
//! who cannot renew for [`RENEW_DEADLINE`] has lost the lease by its own clock, before another one may take it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// A lease that is not renewed for this long may be taken by another one.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Who could not renew for this long stops working. 5 s below the duration, for what is on its way to the API server.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two renewals, and between two looks at a lease that another one holds.
const RETRY: Duration = Duration::from_secs(2);
/// One call to the API server. Three of them fit the deadline.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// A candidate for a lease.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// What was last seen of a foreign lease, and when by our clock.
    seen: Option<(String, Instant)>,
}

/// What may be done with a lease.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ours,
    Free,
    Held,
}

impl Election {
    /// A candidate of this identity, which no other candidate may have.
    pub fn new(client: Client, namespace: &str, name: String, identity: String) -> Self {
        Self { api: Api::namespaced(client, namespace), name, identity, seen: None }
    }

    /// Waits until the lease is ours; `false`: told to stop before that.
    pub async fn win(&mut self, stop: &CancellationToken) -> bool {
        loop {
            match self.attempt().await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => tracing::warn!(lease = self.name, %error, "take the lease"),
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Renews the lease and returns when it is lost.
    pub async fn hold(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < RENEW_DEADLINE {
            tokio::time::sleep(RETRY).await;
            match self.attempt().await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => return,
                Err(error) => tracing::warn!(lease = self.name, %error, "renew the lease"),
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait for its end. At best: it ends by itself.
    pub async fn release(&mut self) {
        let released = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            if self.judge(&lease, Instant::now()) == Verdict::Ours {
                lease.spec = Some(LeaseSpec { holder_identity: None, lease_duration_seconds: Some(1), ..spec(&lease) });
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if let Ok(Err(error)) = timeout(CALL_TIMEOUT, released).await {
            tracing::warn!(lease = self.name, %error, "release the lease");
        }
    }

    /// One look at the lease, and one write if it may be taken or is ours. `true`: it is ours now.
    async fn attempt(&mut self) -> Result<bool, String> {
        let call = self.try_once();
        match timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(ours)) => Ok(ours),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer from the API server within {}s", CALL_TIMEOUT.as_secs())),
        }
    }

    async fn try_once(&mut self) -> kube::Result<bool> {
        let params = PostParams::default();
        let written = match self.api.get_opt(&self.name).await? {
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(self.claimed(None)) };
                self.api.create(&params, &lease).await
            }
            Some(mut lease) => {
                if self.judge(&lease, Instant::now()) == Verdict::Held {
                    return Ok(false);
                }
                lease.spec = Some(self.claimed(Some(&lease)));
                self.api.replace(&self.name, &params, &lease).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            // Another candidate was faster.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn claimed(&self, before: Option<&Lease>) -> LeaseSpec {
        let before = before.map(spec).unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(&self.identity);
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if ours { before.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!ours)),
            ..LeaseSpec::default()
        }
    }

    /// What may be done with the lease, by what was seen of it so far.
    fn judge(&mut self, lease: &Lease, now: Instant) -> Verdict {
        let spec = spec(lease);
        let Some(holder) = spec.holder_identity.filter(|holder| !holder.is_empty()) else { return Verdict::Free };
        if holder == self.identity {
            return Verdict::Ours;
        }
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let duration =
            Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0));
        match &self.seen {
            Some((seen, at)) if *seen == version => {
                if now.saturating_duration_since(*at) > duration {
                    Verdict::Free
                } else {
                    Verdict::Held
                }
            }
            _ => {
                self.seen = Some((version, now));
                Verdict::Held
            }
        }
    }
}

fn spec(lease: &Lease) -> LeaseSpec {
    lease.spec.clone().unwrap_or_default()
}
