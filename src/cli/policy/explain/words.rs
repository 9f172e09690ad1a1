//! A policy in plain words: each function one paragraph of the explanation, a sentence or two a line.

use std::{fmt::Write as _, time::Duration};

use ipnet::IpNet;

use super::Explained;
use crate::{
    api::{BackoffKind, Classification, ClassifiedVerdict},
    domain::{
        egress::EgressRules,
        settings::{Authentication, OnDead, PreDispatch},
    },
};

/// How the wait grows.
pub fn backoff(policy: &Explained<'_>) -> String {
    let retry = &policy.document.spec.retry;
    let how = match retry.backoff {
        BackoffKind::FullJitter => format!(
            "FullJitter: failure n waits a random time up to {} * 2^(n-1), and never above {}",
            span(retry.base.0),
            span(retry.cap.0)
        ),
        BackoffKind::EqualJitter => format!(
            "EqualJitter: failure n waits half of {} * 2^(n-1) and a random time up to the other half, and never above {}",
            span(retry.base.0),
            span(retry.cap.0)
        ),
        BackoffKind::Schedule => {
            "Schedule: failure n waits the n-th time of the list, from its end on the last one; base and cap have no say"
                .to_owned()
        }
    };
    match policy.settings.max_attempts {
        1 => "One attempt, so there is no wait.".to_owned(),
        attempts => format!("{how}. {attempts} attempts have {} between them.", count(attempts - 1, "wait")),
    }
}

/// The span against what bounds it.
pub fn whole(policy: &Explained<'_>) -> Vec<String> {
    let settings = &policy.settings;
    let (max, mean) =
        policy.last().map_or((Duration::ZERO, Duration::ZERO), |last| (last.cumulative_max, last.cumulative_mean));
    let attempts = count(settings.max_attempts, "attempt");
    let total = span(settings.total_timeout);
    let mut lines = vec![format!(
        "{attempts} span at most {}, on average {}; each request may take up to {total} on top (timeouts.total).",
        span(max),
        span(mean)
    )];
    lines.push(match policy.ended_by_age() {
        Some(attempt) => format!(
            "maxAge {} is shorter: on the slowest course the row is exhausted after attempt {attempt} of {}. It is judged after an answer, never before a send.",
            span(settings.max_age),
            settings.max_attempts
        ),
        None => format!("maxAge {} is longer, so the number of attempts decides. Waits that use no attempt end there too.", span(settings.max_age)),
    });
    lines.push(match settings.key_window {
        _ if !settings.receiver_enforces_keys && settings.status_query.is_none() => {
            "idempotency.window has no say: with receiver: None a row whose outcome is unknown is not sent again.".to_owned()
        }
        None => "idempotency.window is not given: the receiver is taken to remember a key for ever. Write down how long it does.".to_owned(),
        Some(window) if window < max.min(settings.max_age) => format!(
            "idempotency.window {} is shorter: past it, a row of which an attempt may have been executed, or was answered 5xx, parks for a person instead of being sent again.",
            span(window)
        ),
        Some(window) => format!("idempotency.window {} is as long as that or longer: every resend finds its key remembered.", span(window)),
    });
    lines.push(match settings.retry_after_cap {
        Some(cap) => format!("Retry-After lengthens a wait to what the receiver says, up to {}; a wait that it asks for by 409 or 429 uses no attempt.", span(cap)),
        None => "Retry-After is not read.".to_owned(),
    });
    lines
}

/// What a request carries, and how it gets there. Secrets are named by what they are for.
pub fn requests(policy: &Explained<'_>) -> Vec<String> {
    let settings = &policy.settings;
    let request = &settings.request;
    let spelling = if request.key_structured { ", in double quotes" } else { "" };
    let mut lines = vec![format!(
        "{} with the key in {}{spelling}. A payload above {} bytes and a key above {} are dead (invalid).",
        request.method, request.key_header, request.max_body_bytes, request.max_key_length
    )];
    let names: Vec<String> = request
        .headers
        .keys()
        .cloned()
        .chain(request.secret_headers.iter().map(|(name, _)| format!("{name} (from a Secret)")))
        .collect();
    if !names.is_empty() {
        lines.push(format!("Headers of its own: {}.", names.join(", ")));
    }
    lines.extend(match &request.authentication {
        Authentication::None => None,
        Authentication::Bearer(_) => Some("It shows a bearer token from a Secret.".to_owned()),
        Authentication::Basic { .. } => Some("It shows a user's name and password from Secrets.".to_owned()),
        Authentication::ClientCredentials(client) => Some(format!(
            "It shows a token that it fetches from {} (OAuth2 client credentials), within half of the request's time.",
            client.token_endpoint.destination()
        )),
    });
    if !request.signing.is_empty() {
        lines.push(format!("It is signed (Standard Webhooks) by {}.", count_of(request.signing.len(), "secret")));
    }
    if request.tls.ca.is_some() {
        lines.push("Over TLS it trusts the authorities of a Secret alone.".to_owned());
    }
    if request.tls.client.is_some() {
        lines.push("Over TLS it shows a client's certificate.".to_owned());
    }
    if let Some(proxy) = &request.proxy {
        lines.push(format!("It goes through the proxy {}.", proxy.destination()));
    }
    lines
}

/// What is asked, and what is waited for, before a request.
pub fn before(policy: &Explained<'_>) -> Vec<String> {
    let settings = &policy.settings;
    let mut lines = Vec::new();
    match &settings.pre_dispatch {
        None => {}
        Some(PreDispatch::SqlFunction(function)) => {
            let schema = function.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
            lines.push(format!("The function {schema}{} is asked whether the row may still be sent: a no is dead (revoked), anything but a clear yes is tried again and uses an attempt.", function.name));
        }
        Some(PreDispatch::Http { timeout, .. }) => lines.push(format!("A service is asked, for up to {}, whether the row may still be sent: a no is dead (revoked), anything but a clear yes is tried again and uses an attempt.", span(*timeout))),
    }
    match settings.ordering {
        None => lines.push("Rows of one entity do not wait for each other.".to_owned()),
        Some(OnDead::Block) => lines.push("Rows of one tenant and entity go one at a time, in the order of their ids; a dead one stops those behind it until a person has dealt with it.".to_owned()),
        Some(OnDead::Skip) => lines.push("Rows of one tenant and entity go one at a time, in the order of their ids; a dead one stops none.".to_owned()),
    }
    lines.push(format!(
        "A row is in a pod's hands for up to {} with all that is asked: leaseDuration must be longer.",
        span(settings.time_in_hand())
    ));
    lines
}

/// What is taken for granted of the receiver.
pub fn duplicates(policy: &Explained<'_>) -> Vec<String> {
    let enforced = policy.settings.receiver_enforces_keys;
    let header = &policy.settings.request.key_header;
    let mut lines = vec![if !enforced && policy.settings.status_query.is_some() {
        "receiver: None. The receiver may do the work of each request, so a row whose outcome is unknown (a timeout, a reset, a 5xx, a pod that died) is sent again only when the receiver says that it does not know it.".to_owned()
    } else if enforced {
        format!(
            "receiver: Enforced. The receiver does the work of one key once, so a request whose outcome is unknown (a timeout, a reset, a pod that died) is sent again with the same {header} and the same bytes."
        )
    } else {
        "receiver: None. The receiver may do the work of each request, so a row whose outcome is unknown (a timeout, a reset, a 5xx, a pod that died) is never sent again by itself: it parks for a person.".to_owned()
    }];
    if let Some(query) = &policy.settings.status_query {
        lines.push(format!(
            "statusQuery asks the receiver first: done ends the row, unknown is believed {} after the last request, and anything else is asked again, later and later, until maxAge; then the row parks for a person. Asking uses no attempt.",
            span(query.settle_delay)
        ));
    }
    if enforced && !policy.receiver_said {
        lines.push("TAKEN FOR GRANTED: the document does not say idempotency.receiver. If the receiver does not deduplicate by that header, each unknown outcome is a second effect. Find out, and write receiver: Enforced or receiver: None.".to_owned());
    }
    lines
}

/// The policy's own rules, then the built-in ones.
pub fn answers(policy: &Explained<'_>) -> Vec<String> {
    let rules = &policy.document.spec.classify;
    let mut lines: Vec<_> =
        rules.iter().enumerate().map(|(place, rule)| format!("{}. {}", place + 1, classify(rule))).collect();
    if !rules.is_empty() {
        lines.push("The first that fits wins; what none fits goes by the built-in table:".to_owned());
    }
    let unknown = if policy.settings.receiver_enforces_keys {
        "408, 425, 5xx and what never reached the receiver are retried."
    } else {
        "408, 425 and what never reached the receiver are retried; a 5xx is unknown here."
    };
    lines.push(format!("2xx succeeded. {unknown} 409 and 429 with Retry-After wait and use no attempt."));
    lines.push("401 and 403 are dead (unauthorized), 3xx too (redirected, never followed), any other 4xx at the first attempt (rejected).".to_owned());
    lines
}

fn classify(rule: &Classification) -> String {
    let mut conditions = Vec::new();
    if !rule.statuses.is_empty() {
        conditions.push(format!("the status is {}", any_of(&rule.statuses)));
    }
    if let Some(body) = &rule.body {
        conditions.push(match (&body.value, body.exists) {
            (Some(value), _) => format!("the body has {value:?} at {}", body.pointer),
            (None, Some(false)) => format!("the body has nothing at {}", body.pointer),
            (None, _) => format!("the body has {}", body.pointer),
        });
    }
    if let Some(header) = &rule.header {
        conditions.push(match &header.value {
            Some(value) => format!("the header {} is {value:?}", header.name),
            None => format!("there is a header {}", header.name),
        });
    }
    let verdict = match rule.verdict {
        ClassifiedVerdict::Succeeded => "succeeded",
        ClassifiedVerdict::Retry => "retried, which uses an attempt",
        ClassifiedVerdict::Wait => "a wait, which uses no attempt",
        ClassifiedVerdict::Uncertain => "unknown",
        ClassifiedVerdict::Dead => "dead",
    };
    let reason = rule.reason.as_ref().map(|reason| format!(", reason {reason}")).unwrap_or_default();
    match conditions.as_slice() {
        [] => format!("Every answer: {verdict}{reason}."),
        conditions => format!("If {}: {verdict}{reason}.", conditions.join(" and ")),
    }
}

/// When a destination gets no rows.
pub fn holds(policy: &Explained<'_>) -> Vec<String> {
    let settings = &policy.settings;
    let hold = &settings.hold;
    let mut lines = vec![format!(
        "{} in a row (5xx, timeouts, refused connections, 401, 403), and a 429 at once, hold a destination for {}, each further hold twice as long up to {}. Its rows wait and use no attempt; then one probe at a time goes out.",
        count(hold.after_failures, "failure"),
        span(hold.base),
        span(hold.cap)
    )];
    match (settings.max_in_flight, settings.rate_per_second) {
        (None, None) => lines.push("No cap in flight and none per second.".to_owned()),
        (in_flight, rate) => {
            let caps: Vec<_> = in_flight
                .map(|most| format!("{} in flight", count(most, "request")))
                .into_iter()
                .chain(rate.map(|most| format!("{} a second", count(most, "request"))))
                .collect();
            lines.push(format!("At most {} to one destination, over all pods.", caps.join(" and ")));
        }
    }
    lines
}

/// Which addresses may be connected to.
pub fn addresses(policy: &Explained<'_>) -> Vec<String> {
    let EgressRules { allow_private, allow, deny, .. } = &policy.settings.egress;
    let private = if *allow_private { "allowed" } else { "refused" };
    let mut lines = vec![format!(
        "Addresses of private networks are {private}. Link-local, metadata, loopback, unspecified and multicast addresses are refused."
    )];
    let listed = |nets: &[IpNet]| any_of(&nets.iter().map(ToString::to_string).collect::<Vec<_>>());
    if !deny.is_empty() {
        lines.push(format!("Refused whatever else is said: {}.", listed(deny)));
    }
    if !allow.is_empty() {
        lines.push(format!(
            "Allowed in spite of the refusals above: {}. The operator's own list stays above it.",
            listed(allow)
        ));
    }
    lines
}

/// A span as people say it: two units at most, fractions below a minute.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |large: u64, unit: &str, small: u64, smaller: &str| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit} {small}{smaller}") }
    };
    match seconds {
        0 if span.is_zero() => "0s".to_owned(),
        0 if span.as_millis() == 0 => "<1ms".to_owned(),
        0 => format!("{}ms", span.as_millis()),
        1..60 => match span.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        60..3_600 => two(seconds / 60, "m", seconds % 60, "s"),
        3_600..172_800 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

fn count_of(number: usize, what: &str) -> String {
    count(u32::try_from(number).unwrap_or(u32::MAX), what)
}

fn count(count: u32, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `a, b or c`.
fn any_of(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A paragraph in lines of a width, each behind the same margin. A word that is longer than a line has one to itself.
pub fn fill(paragraph: &str, margin: &str, width: usize) -> String {
    let mut text = String::new();
    let mut line = String::new();
    let length = |text: &str| text.chars().count();
    for word in paragraph.split_whitespace() {
        if !line.is_empty() && length(margin) + length(&line) + 1 + length(word) > width {
            let _ = writeln!(text, "{margin}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{margin}{line}");
    text
}
