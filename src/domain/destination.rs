//! Endpoints and destinations: a row's `endpoint` text becomes a validated [`Endpoint`], or an error that is safe to show.
//!
//! The WHATWG parser of the `url` crate mends what it can (`http:x.test`, tabs, backslashes, spaces in paths). An endpoint
//! is data from a table, so what would have to be mended is refused here first. Nothing in this module resolves names;
//! whether an address may be connected to is decided in `egress`, on the address itself.
//!
//! Userinfo, path and query can hold secrets: no error and no `Debug` output of this module repeats them.

mod error;
mod percent;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use url::{Host, Url};

use super::key::key_hash;

pub use error::EndpointError;

/// Longest endpoint, in bytes, before and after its placeholders are expanded: what common servers accept as a request
/// line.
pub const MAX_ENDPOINT_BYTES: usize = 8 * 1024;

/// Longest host name, in bytes without a trailing dot: RFC 1035's 255 octets less the first length and the root. With
/// `https://` and `:65535` a destination stays within 267 of its column's 300 bytes.
pub const MAX_HOST_BYTES: usize = 253;

/// The placeholder that becomes the row's key, percent-encoded.
const KEY_PLACEHOLDER: &str = "{key}";

/// The placeholder that becomes [`key_hash`] of the row's key.
const KEY_HASH_PLACEHOLDER: &str = "{keyHash}";

/// The two schemes that are sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Clear text.
    Http,
    /// TLS.
    Https,
}

impl Scheme {
    /// The scheme's name in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of a URL that names none.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// An endpoint's origin: what is held, capped, counted and shown. At most 267 bytes as text.
///
/// Equal for all spellings of one origin: lower case, without default port, trailing dot and userinfo. Numeric spellings
/// of an IPv4 address (`0x7f.1`) are the address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    host: String,
    port: u16,
    scheme: Scheme,
    address: Option<IpAddr>,
}

impl Destination {
    /// The scheme.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host as a URL has it: an IPv6 address in brackets, a name in lower-case ASCII without trailing dot.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, the scheme's own where the endpoint named none.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address, where the host is a literal and no resolver will be asked.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn of(url: &Url, scheme: Scheme) -> Result<Self, EndpointError> {
        let (host, address) = match url.host().ok_or(EndpointError::HostMissing)? {
            Host::Ipv4(address) => (address.to_string(), Some(IpAddr::V4(address))),
            Host::Ipv6(address) => (format!("[{address}]"), Some(IpAddr::V6(address))),
            Host::Domain(name) => (host_name(name)?, None),
        };
        match url.port_or_known_default() {
            None | Some(0) => Err(EndpointError::PortInvalid),
            Some(port) => Ok(Self { host, port, scheme, address }),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.host)?;
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

/// Reads the origin of any endpoint, so a person may paste a whole URL where a destination is asked for.
impl FromStr for Destination {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Endpoint::parse(text).map(|endpoint| endpoint.destination)
    }
}

/// A name that a resolver can be asked for, without its trailing dot.
fn host_name(name: &str) -> Result<String, EndpointError> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return Err(EndpointError::HostMissing);
    }
    let has_labels = name.split('.').all(|label| (1..=63).contains(&label.len()));
    // A brace can only have come in percent-encoded, and would read as a placeholder wherever the name is written again.
    if name.len() > MAX_HOST_BYTES || !has_labels || name.contains(['{', '}']) {
        return Err(EndpointError::HostInvalid);
    }
    Ok(name.to_ascii_lowercase())
}

/// Name and password for basic authentication, percent-decoded. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Userinfo {
    /// The user's name; holds no colon. May be empty where a password is given.
    pub name: String,
    /// The password; an endpoint without one has an empty one.
    pub password: String,
}

impl fmt::Debug for Userinfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Userinfo(..)")
    }
}

/// A validated endpoint. `Debug` shows its destination only.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: Url,
    destination: Destination,
    userinfo: Option<Userinfo>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}/..)", self.destination)
    }
}

impl Endpoint {
    /// Parses an endpoint as it stands; placeholders in it are text like any other.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] for what cannot be sent to, or only after guessing.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let scheme = split(text)?.scheme;
        let mut url = Url::parse(text).map_err(parser_error)?;
        let destination = Destination::of(&url, scheme)?;
        let userinfo = userinfo(&url)?;
        url.set_fragment(None);
        url.set_password(None).map_err(|()| EndpointError::Malformed)?;
        url.set_username("").map_err(|()| EndpointError::Malformed)?;
        Ok(Self { url, destination, userinfo })
    }

    /// Parses an endpoint whose path and query may hold `{key}` and `{keyHash}`, for a row of this key.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::parse`] and [`expand_placeholders`].
    pub fn for_key(template: &str, key: &str) -> Result<Self, EndpointError> {
        Self::parse(&expand_placeholders(template, key)?)
    }

    /// The URL to request, without userinfo and fragment. Its path and query may hold secrets.
    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// The origin.
    #[must_use]
    pub const fn destination(&self) -> &Destination {
        &self.destination
    }

    /// What stood before the `@`, for basic authentication.
    #[must_use]
    pub const fn userinfo(&self) -> Option<&Userinfo> {
        self.userinfo.as_ref()
    }
}

/// Replaces `{key}` by the percent-encoded key and `{keyHash}` by [`key_hash`], in path and query. One pass: what a key
/// holds is never expanded again. Other braces are left alone.
///
/// # Errors
///
/// [`EndpointError`] where the template is no URL that can be sent to, has a brace before its path, or would become too
/// long or walk up its path with this key.
pub fn expand_placeholders(template: &str, key: &str) -> Result<String, EndpointError> {
    let parts = split(template)?;
    let mut rest = parts.path_and_query;
    let mut expanded = String::with_capacity(template.len() + key.len());
    expanded.push_str(parts.authority);

    while let Some((before, after)) = rest.split_once('{') {
        expanded.push_str(before);
        let placeholder = rest.get(before.len()..).unwrap_or_default();
        if let Some(after_key) = placeholder.strip_prefix(KEY_PLACEHOLDER) {
            let in_path = !expanded.contains('?');
            if in_path && key.bytes().all(|byte| byte == b'.') {
                return Err(EndpointError::KeyOfDots);
            }
            percent::encode(key, &mut expanded);
            rest = after_key;
        } else if let Some(after_hash) = placeholder.strip_prefix(KEY_HASH_PLACEHOLDER) {
            expanded.push_str(&key_hash(key));
            rest = after_hash;
        } else {
            expanded.push('{');
            rest = after;
        }
        // Checked in the loop: many placeholders and a long key would otherwise grow far beyond the limit.
        check_length(&expanded)?;
    }
    expanded.push_str(rest);
    check_length(&expanded)?;
    Ok(expanded)
}

/// An endpoint cut before its path, on what the URL parser would mend in silence.
struct Split<'a> {
    scheme: Scheme,
    /// Scheme and authority, as far as the path, query, fragment or the end.
    authority: &'a str,
    path_and_query: &'a str,
}

fn split(text: &str) -> Result<Split<'_>, EndpointError> {
    if text.is_empty() {
        return Err(EndpointError::Empty);
    }
    check_length(text)?;
    if let Some(offset) = text.find(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(EndpointError::Space { offset });
    }
    let (scheme, prefix) = scheme(text).ok_or(EndpointError::Scheme)?;
    let before_query = text.split(['?', '#']).next().unwrap_or(text);
    if let Some(offset) = before_query.find('\\') {
        return Err(EndpointError::Backslash { offset });
    }
    let authority_bytes =
        before_query.get(prefix..).and_then(|rest| rest.find('/')).map_or(before_query.len(), |slash| prefix + slash);
    let (authority, path_and_query) = text.split_at_checked(authority_bytes).ok_or(EndpointError::Malformed)?;
    if authority.len() == prefix {
        return Err(EndpointError::HostMissing);
    }
    if authority.contains(['{', '}']) {
        return Err(EndpointError::PlaceholderBeforePath);
    }
    Ok(Split { scheme, authority, path_and_query })
}

/// The scheme, and how many bytes it and `://` take.
fn scheme(text: &str) -> Option<(Scheme, usize)> {
    let (name, _) = text.split_once("://")?;
    [Scheme::Http, Scheme::Https]
        .into_iter()
        .find(|scheme| name.eq_ignore_ascii_case(scheme.as_str()))
        .map(|scheme| (scheme, name.len() + "://".len()))
}

const fn check_length(text: &str) -> Result<(), EndpointError> {
    if text.len() > MAX_ENDPOINT_BYTES {
        return Err(EndpointError::TooLong { bytes: text.len() });
    }
    Ok(())
}

const fn parser_error(error: url::ParseError) -> EndpointError {
    use url::ParseError as E;
    match error {
        E::EmptyHost => EndpointError::HostMissing,
        E::InvalidPort => EndpointError::PortInvalid,
        E::IdnaError | E::InvalidIpv4Address | E::InvalidIpv6Address | E::InvalidDomainCharacter => {
            EndpointError::HostInvalid
        }
        _ => EndpointError::Malformed,
    }
}

fn userinfo(url: &Url) -> Result<Option<Userinfo>, EndpointError> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let decode = |text: &str| {
        percent::decode(text)
            .filter(|decoded| !decoded.contains(char::is_control))
            .ok_or(EndpointError::UserinfoInvalid)
    };
    let name = decode(url.username())?;
    if name.contains(':') {
        return Err(EndpointError::UserinfoInvalid);
    }
    let password = decode(url.password().unwrap_or_default())?;
    Ok(Some(Userinfo { name, password }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin(text: &str) -> String {
        Endpoint::parse(text).unwrap().destination().to_string()
    }

    #[test]
    fn rc_20_spellings_of_one_origin_are_one_destination() {
        for (text, expected) in [
            ("https://x.test/a", "https://x.test"),
            ("HTTPS://X.Test:443/a", "https://x.test"),
            ("https://x.test./a", "https://x.test"),
            ("https://user:pass@x.test/a?b#c", "https://x.test"),
            ("https://x.test", "https://x.test"),
            ("https://x.test?q", "https://x.test"),
            ("https://x.test#f", "https://x.test"),
            ("https://x.test:", "https://x.test"),
            ("https://x.test:00443/", "https://x.test"),
            ("http://x.test:443/", "http://x.test:443"),
            ("http://x.test:80/", "http://x.test"),
            ("http://host:8080", "http://host:8080"),
            ("https://x.test:65535/", "https://x.test:65535"),
            ("http://my_service.ns.svc.cluster.local.:8080/", "http://my_service.ns.svc.cluster.local:8080"),
            ("https://B\u{fc}cher.test/", "https://xn--bcher-kva.test"),
            ("http://[::1]:80", "http://[::1]"),
            ("http://[0:0::0:1]:81", "http://[::1]:81"),
            ("http://2130706433/", "http://127.0.0.1"),
            ("http://0x7f.1/", "http://127.0.0.1"),
            ("http://127.0.0.1./", "http://127.0.0.1"),
            ("http://localhost.", "http://localhost"),
            ("https://x.test//a", "https://x.test"),
            ("https://x.test/a\\b", ""),
        ] {
            if expected.is_empty() {
                assert!(Endpoint::parse(text).is_err(), "{text}");
            } else {
                assert_eq!(origin(text), expected, "{text}");
            }
        }
    }

    #[test]
    fn rc_25_what_cannot_be_requested_is_refused_by_name() {
        use EndpointError as E;
        let long_label = format!("http://{}.test/", "a".repeat(64));
        let long_host = format!("http://{}test/", "abcdefg.".repeat(32));
        let long = format!("http://x.test/{}", "a".repeat(MAX_ENDPOINT_BYTES));
        for (text, expected) in [
            ("", E::Empty),
            ("x.test/hook", E::Scheme),
            ("//x.test/hook", E::Scheme),
            ("/hook", E::Scheme),
            ("ftp://x.test/", E::Scheme),
            ("file:///etc/passwd", E::Scheme),
            ("javascript:alert(1)", E::Scheme),
            ("http:x.test", E::Scheme),
            ("http:/x.test", E::Scheme),
            ("http:\\\\x.test", E::Scheme),
            ("hhttp://x.test/", E::Scheme),
            ("://x.test/", E::Scheme),
            ("http://", E::HostMissing),
            ("https:///x.test", E::HostMissing),
            ("http://?q", E::HostMissing),
            ("http://#f", E::HostMissing),
            ("http://:80/", E::HostMissing),
            ("http://user@/", E::HostMissing),
            ("http://./", E::HostMissing),
            ("http://exa mple.test/", E::Space { offset: 10 }),
            (" http://x.test/", E::Space { offset: 0 }),
            ("http://x.test/\n", E::Space { offset: 14 }),
            ("ht\ttp://x.test/", E::Space { offset: 2 }),
            ("http://x.test/\u{a0}", E::Space { offset: 14 }),
            ("http://x.test/\u{7f}", E::Space { offset: 14 }),
            ("http://x.test\\@y.test/", E::Backslash { offset: 13 }),
            ("http://x.test:99999/", E::PortInvalid),
            ("http://x.test:65536/", E::PortInvalid),
            ("http://x.test:0/", E::PortInvalid),
            ("http://x.test:-1/", E::PortInvalid),
            ("http://x.test:8o/", E::PortInvalid),
            ("http://a..b/", E::HostInvalid),
            ("http://.a/", E::HostInvalid),
            ("http://a../", E::HostInvalid),
            ("http://exa%20mple.test/", E::HostInvalid),
            ("http://a|b/", E::HostInvalid),
            ("http://b\u{fc}%7Bc/", E::HostInvalid),
            ("http://%7Bkey%7D.test/", E::HostInvalid),
            ("http://1.2.3.256/", E::HostInvalid),
            ("http://[::1/", E::HostInvalid),
            ("http://[fe80::1%25eth0]/", E::HostInvalid),
            (&long_label, E::HostInvalid),
            (&long_host, E::HostInvalid),
            (&long, E::TooLong { bytes: long.len() }),
            ("http://{key}.test/", E::PlaceholderBeforePath),
            ("http://a%3Ab:c@x.test/", E::UserinfoInvalid),
            ("http://a:%0a@x.test/", E::UserinfoInvalid),
            ("http://a:%ff@x.test/", E::UserinfoInvalid),
        ] {
            let result = Endpoint::parse(text);
            assert_eq!(result, Err(expected), "{text}");
        }
    }

    #[test]
    fn the_longest_endpoint_is_accepted() {
        let prefix = "http://x.test/";
        let text = format!("{prefix}{}", "a".repeat(MAX_ENDPOINT_BYTES - prefix.len()));
        assert_eq!(Endpoint::parse(&text).unwrap().url().as_str(), text);
    }

    #[test]
    fn literals_show_their_address() {
        for (text, expected) in [
            ("http://0x7f.1/", Some("127.0.0.1")),
            ("http://[::ffff:169.254.169.254]/", Some("::ffff:169.254.169.254")),
            ("http://localhost/", None),
        ] {
            let address = Endpoint::parse(text).unwrap().destination().address();
            assert_eq!(address, expected.map(|a| a.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn userinfo_is_decoded_and_taken_out_of_the_url() {
        let endpoint = Endpoint::parse("https://us%40er:p%3As%2Fs%C3%A5%@x.test/a?b=c#d").unwrap();
        let userinfo = endpoint.userinfo().unwrap();
        assert_eq!((userinfo.name.as_str(), userinfo.password.as_str()), ("us@er", "p:s/så%"));
        assert_eq!(endpoint.url().as_str(), "https://x.test/a?b=c");
        let token = Endpoint::parse("https://token@x.test/").unwrap();
        assert_eq!(token.userinfo().unwrap().password, "");
        assert_eq!(Endpoint::parse("https://@x.test/").unwrap().userinfo(), None);
    }

    #[test]
    fn placeholders_become_the_encoded_key_and_its_hash() {
        let key = "create_invoice:d8815ab6c48310cfdb01562cba43eb649c73dc11";
        let url =
            |template: &str, key: &str| Endpoint::for_key(template, key).map(|endpoint| endpoint.url().to_string());
        assert_eq!(
            url("https://x.test/v1/{key}", key).unwrap(),
            "https://x.test/v1/create_invoice%3Ad8815ab6c48310cfdb01562cba43eb649c73dc11"
        );
        assert_eq!(
            url("https://x.test/{keyHash}?k={key}&h={keyHash}", key).unwrap(),
            "https://x.test/d8815ab6c48310cfdb01562cba43eb649c73dc11\
             ?k=create_invoice%3Ad8815ab6c48310cfdb01562cba43eb649c73dc11\
             &h=d8815ab6c48310cfdb01562cba43eb649c73dc11"
        );
        assert_eq!(
            url("https://x.test?k={key}", "a/b?c#d e%&+").unwrap(),
            "https://x.test/?k=a%2Fb%3Fc%23d%20e%25%26%2B"
        );
        // No second expansion, no other names, no nesting.
        assert_eq!(url("https://x.test/{key}", "{keyHash}").unwrap(), "https://x.test/%7BkeyHash%7D");
        for unchanged in ["{KEY}", "{keyhash}", "{ key}", "{", "{}", "{key"] {
            let template = format!("https://x.test/?{unchanged}");
            let expanded = expand_placeholders(&template, "k");
            assert!(unchanged.contains(' ') || expanded == Ok(template), "{unchanged}");
        }
        assert_eq!(expand_placeholders("https://x.test/{{key}}", "k").unwrap(), "https://x.test/{k}");
    }

    #[test]
    fn a_key_cannot_leave_its_segment_or_grow_without_bound() {
        for dots in [".", "..", "..."] {
            for template in ["https://x.test/a/{key}", "https://x.test/a/.{key}/b", "https://x.test/a/%2e{key}"] {
                assert_eq!(Endpoint::for_key(template, dots), Err(EndpointError::KeyOfDots));
            }
            assert!(Endpoint::for_key("https://x.test/?k={key}", dots).is_ok());
        }
        let many = format!("https://x.test/{}", "{key}".repeat(1_000));
        let refused = Endpoint::for_key(&many, &"å".repeat(100));
        assert!(matches!(refused, Err(EndpointError::TooLong { bytes }) if bytes < 2 * MAX_ENDPOINT_BYTES));
    }

    #[test]
    fn debug_output_shows_the_destination_only() {
        let endpoint = Endpoint::parse("https://us3r:s3cret@x.test/p4th?t0ken").unwrap();
        assert_eq!(format!("{endpoint:?}"), "Endpoint(https://x.test/..)");
        assert_eq!(format!("{:?}", endpoint.userinfo().unwrap()), "Userinfo(..)");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_no_message_repeats_it(
            text in prop_oneof![
                "\\PC{0,60}",
                any::<String>(),
                "(?i:https?)://[^/]{0,20}[/?#@:\\[\\]{}%.0-9a-z\\\\ ]{0,40}",
            ],
            key in "\\PC{0,20}",
        ) {
            for result in [Endpoint::parse(&text), Endpoint::for_key(&text, &key)] {
                match result {
                    Ok(endpoint) => {
                        let shown = endpoint.destination().to_string();
                        prop_assert!(shown.len() <= 267, "{shown}");
                        prop_assert!(endpoint.url().username().is_empty());
                        // A destination reads back as itself.
                        prop_assert_eq!(&shown.parse::<Destination>().unwrap(), endpoint.destination());
                    }
                    Err(error) => {
                        prop_assert!(error.to_string().len() <= 200);
                        prop_assert!(error.category().starts_with("endpoint_"));
                    }
                }
            }
        }

        #[test]
        fn a_broken_endpoint_keeps_its_secrets(
            broken in prop::sample::select(vec!["ftp://", "http//", "http://exa mple", "http://[", ""]),
            tail in prop::sample::select(vec!["", ":99999", " ", "\\", "]"]),
        ) {
            let text = format!("{broken}us3r:s3cret@x.test{tail}/p4th?t0ken");
            if let Err(error) = Endpoint::parse(&text) {
                let shown = format!("{error} {error:?}");
                for secret in ["us3r", "s3cret", "p4th", "t0ken"] {
                    prop_assert!(!shown.contains(secret));
                }
            }
        }

        #[test]
        fn an_expanded_key_decodes_to_itself(key in any::<String>()) {
            // A key of dots alone is refused, see above.
            let key = format!("k{key}");
            let endpoint = Endpoint::for_key("https://x.test/by-key/{key}?a={key}", &key);
            if let Ok(endpoint) = endpoint {
                let segments: Vec<_> = endpoint.url().path_segments().unwrap().collect();
                prop_assert_eq!(segments.len(), 2);
                prop_assert_eq!(percent::decode(segments[1]), Some(key.clone()));
                let query = endpoint.url().query().unwrap();
                prop_assert_eq!(percent::decode(query.strip_prefix("a=").unwrap()), Some(key));
            } else {
                prop_assert!(key.len() > 1_000);
            }
        }
    }
}
