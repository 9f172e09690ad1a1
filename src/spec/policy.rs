//! A `DispatchPolicy`'s spec, resolved to a policy that can be used as it is.

use http::{HeaderName, HeaderValue};

use super::Problem;
use crate::{
    api::{self, BackoffKind, ClassifiedVerdict, DispatchPolicySpec, Method, Receiver, SecretKeyRef},
    domain::{
        backoff::{Backoff, BackoffKind as Kind},
        egress::EgressRules,
        hold::HoldPolicy,
        row::Reason,
        settings::{
            Authentication, BodyCondition, Classified, ClassifyRule, DownstreamIdSource, History, Policy,
            RequestPolicy, SecretRef,
        },
    },
};

/// Headers that the request itself sets.
const RESERVED_HEADERS: &[&str] = &[
    "content-type",
    "content-length",
    "host",
    "transfer-encoding",
    "connection",
    "accept-encoding",
    "expect",
    "upgrade",
    "te",
];

/// Resolves a policy. Returns every problem at once.
pub fn resolve(spec: &DispatchPolicySpec, label: &str) -> Result<Policy, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut invalid = |path: &str, message: String| {
        problems.push(Problem::new(format!("{label}: spec.{path}"), "Invalid", message));
    };
    headers(spec, &mut invalid);
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
            request: request(spec),
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

fn headers(spec: &DispatchPolicySpec, invalid: &mut impl FnMut(&str, String)) {
    let key_header = spec.idempotency.header.to_ascii_lowercase();
    let mut name = |path: String, name: &str| {
        let lower = name.to_ascii_lowercase();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            invalid(&path, format!("{name:?} is no header name: use letters, digits and hyphens"));
        } else if RESERVED_HEADERS.contains(&lower.as_str()) {
            invalid(&path, format!("{name} is set by the relay itself: remove it"));
        } else if lower == key_header {
            invalid(
                &path,
                format!("{name} carries the idempotency key (idempotency.header) and cannot be overridden: remove it"),
            );
        } else if lower == "authorization" && spec.request.authentication.is_some() {
            invalid(&path, "request.authentication sets Authorization as well: keep one of them".to_owned());
        }
    };
    for header in spec.request.headers.keys() {
        name(format!("request.headers.{header}"), header);
    }
    for (index, header) in spec.request.secret_headers.iter().enumerate() {
        name(format!("request.secretHeaders[{index}].name"), &header.name);
    }
    if RESERVED_HEADERS.contains(&key_header.as_str()) || key_header == "authorization" {
        invalid(
            "idempotency.header",
            format!("{} has a meaning of its own and cannot carry the key", spec.idempotency.header),
        );
    }
    for (header, value) in &spec.request.headers {
        if HeaderValue::from_str(value).is_err() {
            invalid(
                &format!("request.headers.{header}"),
                "the value holds characters that no header may carry (line breaks, control characters)".to_owned(),
            );
        }
    }
}

fn request(spec: &DispatchPolicySpec) -> RequestPolicy {
    let authentication = match &spec.request.authentication {
        Some(api::Authentication { bearer: Some(bearer), .. }) => Authentication::Bearer(secret(&bearer.secret_ref)),
        Some(api::Authentication { basic: Some(basic), .. }) => Authentication::Basic {
            username: secret(&basic.username_secret_ref),
            password: secret(&basic.password_secret_ref),
        },
        _ => Authentication::None,
    };
    RequestPolicy {
        method: match spec.request.method {
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
        },
        headers: spec.request.headers.clone(),
        secret_headers: spec
            .request
            .secret_headers
            .iter()
            .map(|header| (header.name.clone(), secret(&header.secret_ref)))
            .collect(),
        authentication,
        max_body_bytes: usize::try_from(spec.request.max_body_bytes).unwrap_or(0),
        key_header: spec.idempotency.header.clone(),
        key_structured: spec.idempotency.format == api::KeyFormat::StructuredString,
        max_key_length: spec.idempotency.max_key_length.unsigned_abs() as usize,
    }
}

fn secret(reference: &SecretKeyRef) -> SecretRef {
    SecretRef { name: reference.name.clone(), key: reference.key.clone() }
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
