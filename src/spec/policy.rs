//! A `DispatchPolicy`'s spec, resolved to a policy that can be used as it is.

use super::{Problem, request};
use crate::{
    api::{self, BackoffKind, ClassifiedVerdict, DispatchPolicySpec, OrderingMode, Receiver},
    domain::{
        backoff::{Backoff, BackoffKind as Kind},
        egress::EgressRules,
        hold::HoldPolicy,
        row::Reason,
        settings::{BodyCondition, Classified, ClassifyRule, DownstreamIdSource, History, OnDead, Policy},
    },
};

/// Resolves a policy. Returns every problem at once.
pub fn resolve(spec: &DispatchPolicySpec, label: &str) -> Result<Policy, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut invalid = |path: &str, message: String| {
        problems.push(Problem::new(format!("{label}: spec.{path}"), "Invalid", message));
    };
    request::check(spec, &mut invalid);
    let kind = match spec.retry.backoff {
        BackoffKind::FullJitter => Kind::FullJitter,
        BackoffKind::EqualJitter => Kind::EqualJitter,
        BackoffKind::Schedule => {
            Kind::Schedule { delays: spec.retry.schedule.iter().map(|delay| delay.0).collect(), jitter_percent: 0 }
        }
    };
    let backoff = Backoff::new(kind, spec.retry.base.0, spec.retry.cap.0)
        .map_err(|error| invalid("retry", error.to_string()))
        .ok();
    let cidrs = |field: &str, texts: &[String], invalid: &mut dyn FnMut(&str, String)| {
        texts
            .iter()
            .enumerate()
            .filter_map(|(index, text)| {
                text.parse::<ipnet::IpNet>()
                    .map_err(|_| {
                        invalid(
                            &format!("egress.{field}[{index}]"),
                            format!("{text:?} is no CIDR: write an address and a prefix length, such as 10.0.0.0/8"),
                        );
                    })
                    .ok()
            })
            .collect::<Vec<_>>()
    };
    let allow = cidrs("allowCidrs", &spec.egress.allow_cidrs, &mut invalid);
    let deny = cidrs("denyCidrs", &spec.egress.deny_cidrs, &mut invalid);
    let downstream_id = match (&spec.response.downstream_id.pointer, &spec.response.downstream_id.header) {
        (_, Some(header)) => DownstreamIdSource::Header(header.to_ascii_lowercase()),
        (Some(pointer), None) => DownstreamIdSource::Pointer(pointer.clone()),
        (None, None) => DownstreamIdSource::Pointer(String::new()),
    };
    match backoff {
        Some(backoff) if problems.is_empty() => Ok(Policy {
            request: request::resolve(spec),
            connect_timeout: spec.timeouts.connect.0,
            total_timeout: spec.timeouts.total.0,
            receiver_enforces_keys: spec.idempotency.receiver == Receiver::Enforced,
            key_window: spec.idempotency.window.map(|window| window.0),
            backoff,
            max_attempts: spec.retry.max_attempts.unsigned_abs(),
            max_age: spec.retry.max_age.0,
            retry_after_cap: spec.retry.retry_after.respect.then_some(spec.retry.retry_after.cap.0),
            classify: spec.classify.iter().map(classify).collect(),
            hold: HoldPolicy {
                after_failures: spec.destination.hold.after_failures.unsigned_abs(),
                base: spec.destination.hold.base.0,
                cap: spec.destination.hold.cap.0,
            },
            max_in_flight: spec.destination.max_in_flight.map(i32::unsigned_abs),
            rate_per_second: spec.destination.rate_per_second.map(i32::unsigned_abs),
            ordering: ordering(spec),
            egress: EgressRules { allow_private: spec.egress.allow_private, allow, deny, ..EgressRules::default() },
            max_response_bytes: usize::try_from(spec.response.max_body_bytes).unwrap_or(0),
            downstream_id,
            history: match spec.history {
                api::History::None => History::None,
                api::History::Failures => History::Failures,
                api::History::All => History::All,
            },
        }),
        _ => Err(problems),
    }
}

/// Whether rows of one entity go one at a time.
pub fn ordering(spec: &DispatchPolicySpec) -> Option<OnDead> {
    match (spec.ordering.mode, spec.ordering.on_dead) {
        (OrderingMode::None, _) => None,
        (OrderingMode::PerEntity, api::OnDead::Block) => Some(OnDead::Block),
        (OrderingMode::PerEntity, api::OnDead::Skip) => Some(OnDead::Skip),
    }
}

fn classify(rule: &api::Classification) -> ClassifyRule {
    ClassifyRule {
        statuses: rule.statuses.iter().filter_map(|text| statuses(text)).collect(),
        body: rule.body.as_ref().map(|body| BodyCondition {
            pointer: body.pointer.clone(),
            exists: body.exists,
            value: body.value.clone(),
        }),
        header: rule.header.as_ref().map(|header| (header.name.to_ascii_lowercase(), header.value.clone())),
        verdict: match rule.verdict {
            ClassifiedVerdict::Succeeded => Classified::Succeeded,
            ClassifiedVerdict::Retry => Classified::Retry,
            ClassifiedVerdict::Wait => Classified::Wait,
            ClassifiedVerdict::Uncertain => Classified::Uncertain,
            ClassifiedVerdict::Dead => Classified::Dead,
        },
        reason: rule.reason.clone().map(Reason::custom),
    }
}

/// `404` or `5xx` as an inclusive range. The schema's pattern admits nothing else.
fn statuses(text: &str) -> Option<(u16, u16)> {
    if let Ok(status) = text.parse::<u16>() {
        return Some((status, status));
    }
    let class = u16::from(text.as_bytes().first()?.checked_sub(b'0')?) * 100;
    Some((class, class + 99))
}
