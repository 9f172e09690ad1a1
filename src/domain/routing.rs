//! Which policy a row goes by: the first route that matches its operation and endpoint, else the relay's own.
//!
//! An endpoint is compared as it is spelled, but for its origin, which is brought to one spelling first (`HTTPS://X.test:443/a`
//! is `https://x.test/a`). The database computes the same in SQL to find rows of one policy; the two agree, and where a row
//! were read in two ways, this module's word is what is sent.

use std::borrow::Cow;

/// Characters of an endpoint that are compared; the database cuts at the same place.
pub const MAX_CHARS: usize = 2048;
/// Characters of an origin, as the table's column keeps it.
const MAX_ORIGIN_CHARS: usize = 300;

/// Routes to policies, which are numbered; 0 is the relay's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// In order; the first match wins.
    pub routes: Vec<Route>,
}

/// Rows that go by a policy of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Operations, one of which the row has; empty: any.
    pub operations: Vec<String>,
    /// Patterns, one of which the endpoint matches; empty: any.
    pub endpoints: Vec<EndpointPattern>,
    /// The policy's number.
    pub policy: usize,
}

impl Routing {
    /// The policy of a row.
    pub fn policy_of(&self, operation: &str, endpoint: &str) -> usize {
        if self.routes.is_empty() {
            return 0;
        }
        let spelled = Spelled::of(endpoint);
        let matching = self.routes.iter().find(|route| {
            (route.operations.is_empty() || route.operations.iter().any(|name| name == operation))
                && (route.endpoints.is_empty()
                    || spelled.as_ref().is_some_and(|spelled| {
                        route.endpoints.iter().any(|pattern| pattern.matches(&spelled.origin, &spelled.path))
                    }))
        });
        matching.map_or(0, |route| route.policy)
    }

    /// The policies that rows of a destination can have, each once. `None`: rows whose destination is not kept.
    pub fn policies_of_destination(&self, destination: Option<&str>) -> Vec<usize> {
        let mut policies = Vec::new();
        let mut note = |policy| {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        };
        for route in &self.routes {
            let fits = |pattern: &&EndpointPattern| {
                destination
                    .is_none_or(|origin| origin.bytes().all(|b| b.is_ascii_graphic()) && glob(&pattern.origin, origin))
            };
            let mut fitting = route.endpoints.iter().filter(fits).peekable();
            if !route.endpoints.is_empty() && fitting.peek().is_none() {
                continue;
            }
            note(route.policy);
            let every_path = route.endpoints.is_empty() || fitting.any(|pattern| pattern.path == "/*");
            if route.operations.is_empty() && every_path && (route.endpoints.is_empty() || destination.is_some()) {
                return policies;
            }
        }
        note(0);
        policies
    }
}

/// A pattern of endpoints: an origin and a path with query, in each of which `*` stands for any run of characters. A star
/// in the origin never reaches into the path, so that `https://*.x.test/*` is not matched by `https://y.test/.x.test/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPattern {
    origin: String,
    path: String,
}

impl EndpointPattern {
    /// Reads a pattern. Its origin is brought to the one spelling, as endpoints' are.
    pub fn parse(text: &str) -> Option<Self> {
        let spelled = Spelled::of(text)?;
        let authority = text.split_once("://").map_or("", |(_, rest)| rest);
        let has_path = authority.find(['/', '?', '#']).is_some_and(|end| authority[end..].starts_with('/'));
        let whole =
            text.chars().count() <= MAX_CHARS && !text.contains('#') && text.bytes().all(|b| b.is_ascii_graphic());
        let names_no_user = !authority.split('/').next().unwrap_or_default().contains('@');
        let names_host = !spelled.origin.ends_with("://");
        (has_path && whole && names_no_user && names_host)
            .then(|| Self { origin: spelled.origin, path: spelled.path.into_owned() })
    }

    /// The pattern of origins.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The pattern of paths with their queries.
    pub fn path(&self) -> &str {
        &self.path
    }

    fn matches(&self, origin: &str, path: &str) -> bool {
        glob(&self.origin, origin) && glob(&self.path, path)
    }
}

/// An endpoint as it is compared.
struct Spelled<'a> {
    origin: String,
    path: Cow<'a, str>,
}

impl<'a> Spelled<'a> {
    /// `None`: the text has no origin of visible ASCII, and no pattern matches it.
    fn of(endpoint: &'a str) -> Option<Self> {
        let end = endpoint.char_indices().nth(MAX_CHARS).map_or(endpoint.len(), |(end, _)| end);
        let endpoint = endpoint.get(..end)?;
        let (scheme, rest) = endpoint.split_once("://")?;
        let default_port = match scheme.to_ascii_lowercase().as_str() {
            "http" => "80",
            "https" => "443",
            _ => return None,
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if !authority.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let host_and_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split_port(host_and_port)?;
        let (host, port) = (host.to_ascii_lowercase(), port.trim_start_matches('0'));
        let mut origin = format!("{}://{}", scheme.to_ascii_lowercase(), host.trim_end_matches('.'));
        if !port.is_empty() && port != default_port {
            origin.push(':');
            origin.push_str(port);
        }
        origin.truncate(MAX_ORIGIN_CHARS);
        let path = rest.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { Cow::Borrowed(path) } else { Cow::Owned(format!("/{path}")) };
        Some(Self { origin, path })
    }
}

/// Host and digits of the port; an address in brackets keeps its colons.
fn split_port(text: &str) -> Option<(&str, &str)> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .filter(|(inner, _)| inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.'));
    let at = match bracketed {
        Some((inner, after)) if after.is_empty() || after.starts_with(':') => inner.len() + 2,
        _ => text.find(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at(at);
    let port = port.strip_prefix(':').unwrap_or(port);
    port.bytes().all(|b| b.is_ascii_digit()).then_some((host, port))
}

/// Whether a pattern, in which `*` stands for any run of characters, is the whole text.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to go on after a mismatch: behind the last star, one character further.
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, t));
                p += 1;
            }
            Some(byte) if Some(byte) == text.get(t) => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after_star, from)) = back else { return false };
                back = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            }
        }
    }
    pattern.get(p..).is_none_or(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests;
