//! A policy and a row for the tests of decisions: the defaults of a document, and a first claim.

use std::{collections::BTreeMap, time::Duration};

use super::{
    backoff::Backoff,
    egress::EgressRules,
    hold::HoldPolicy,
    row::RowFacts,
    settings::{Authentication, DownstreamIdSource, History, Policy, RequestPolicy, TlsPolicy},
};

/// What an empty policy means.
pub fn policy() -> Policy {
    Policy {
        request: RequestPolicy {
            method: "POST",
            headers: BTreeMap::new(),
            secret_headers: Vec::new(),
            authentication: Authentication::None,
            tls: TlsPolicy::default(),
            signing: Vec::new(),
            proxy: None,
            max_body_bytes: 1 << 20,
            key_header: "Idempotency-Key".to_owned(),
            key_structured: false,
            max_key_length: 255,
        },
        connect_timeout: Duration::from_secs(5),
        total_timeout: Duration::from_secs(30),
        receiver_enforces_keys: true,
        key_window: None,
        backoff: Backoff::default(),
        max_attempts: 14,
        max_age: Duration::from_hours(24),
        retry_after_cap: Some(Duration::from_hours(24)),
        classify: Vec::new(),
        status_query: None,
        pre_dispatch: None,
        hold: HoldPolicy { after_failures: 5, base: Duration::from_secs(5), cap: Duration::from_mins(10) },
        max_in_flight: None,
        rate_per_second: None,
        ordering: None,
        egress: EgressRules::default(),
        max_response_bytes: 1 << 16,
        downstream_id: DownstreamIdSource::Pointer("/id".to_owned()),
        history: History::Failures,
    }
}

/// A row that was claimed for the first time.
pub fn row() -> RowFacts {
    RowFacts {
        attempts: 1,
        unknown_attempts: 0,
        waits: 0,
        since_last_send: Duration::ZERO,
        lease_expired: false,
        in_doubt: false,
        answered_5xx: false,
        first_dispatch: true,
        retry_age: Duration::ZERO,
        dispatch_age: Duration::ZERO,
        expired: false,
    }
}
