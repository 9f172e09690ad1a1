//! A `DispatchPolicy`'s spec, resolved to a policy that can be used as it is.

use super::{Problem, request};
use crate::{
    api::{self, BackoffKind, ClassifiedVerdict, DispatchPolicySpec, OrderingMode, Receiver},
    domain::{
        backoff::{Backoff, BackoffKind as Kind},
        destination::Endpoint,
        egress::EgressRules,
        hold::HoldPolicy,
        row::Reason,
        settings::{
            AnswerCondition, BodyCondition, Classified, ClassifyRule, DownstreamIdSource, FunctionName, History,
            OnDead, Policy, PreDispatch, StatusQuery,
        },
    },
};

/// Resolves a policy. Returns every problem at once.
pub fn resolve(spec: &DispatchPolicySpec, label: &str) -> Result<Policy, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut invalid = |path: &str, message: String| {
        problems.push(Problem::new(format!("{label}: spec.{path}"), "Invalid", message));
    };
    request::check(spec, &mut invalid);
    addresses(spec, &mut invalid);
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
            status_query: spec.status_query.as_ref().map(status_query),
            pre_dispatch: spec.pre_dispatch.as_ref().and_then(pre_dispatch),
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
        when: condition(&rule.statuses, rule.body.as_ref(), rule.header.as_ref()),
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

fn condition(texts: &[String], body: Option<&api::BodyRule>, header: Option<&api::HeaderRule>) -> AnswerCondition {
    AnswerCondition {
        statuses: texts.iter().filter_map(|text| statuses(text)).collect(),
        body: body.map(|body| BodyCondition {
            pointer: body.pointer.clone(),
            exists: body.exists,
            value: body.value.clone(),
        }),
        header: header.map(|header| (header.name.to_ascii_lowercase(), header.value.clone())),
    }
}

fn status_query(query: &api::StatusQuery) -> StatusQuery {
    let conditions = |rules: &[api::AnswerRule]| {
        rules.iter().map(|rule| condition(&rule.statuses, rule.body.as_ref(), rule.header.as_ref())).collect()
    };
    StatusQuery {
        url: query.url.clone(),
        method: match query.method {
            api::QueryMethod::Get => "GET",
            api::QueryMethod::Head => "HEAD",
        },
        done: conditions(&query.done),
        unknown: conditions(&query.unknown),
        pending: conditions(&query.pending),
        settle_delay: query.settle_delay.0,
        timeout: query.timeout.0,
    }
}

/// The schema admits just one of both.
fn pre_dispatch(check: &api::PreDispatch) -> Option<PreDispatch> {
    if let Some(http) = &check.http {
        return Some(PreDispatch::Http { url: http.url.clone(), timeout: http.timeout.0 });
    }
    let folded = check.sql_function.as_ref()?.to_ascii_lowercase();
    let (schema, name) = match folded.split_once('.') {
        Some((schema, name)) => (Some(schema.to_owned()), name.to_owned()),
        None => (None, folded),
    };
    Some(PreDispatch::SqlFunction(FunctionName { schema, name }))
}

/// The addresses that a policy names itself, as endpoints are judged.
fn addresses(spec: &DispatchPolicySpec, invalid: &mut impl FnMut(&str, String)) {
    if let Some(query) = &spec.status_query
        && let Err(error) = Endpoint::for_key(&query.url, "key")
    {
        invalid("statusQuery.url", error.to_string());
    }
    if let Some(http) = spec.pre_dispatch.as_ref().and_then(|check| check.http.as_ref())
        && let Err(error) = Endpoint::parse(&http.url)
    {
        invalid("preDispatch.http.url", error.to_string());
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
