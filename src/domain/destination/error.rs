//! Why an endpoint cannot be sent to, in words that may be shown and stored.

use super::{MAX_ENDPOINT_BYTES, MAX_HOST_BYTES};

/// Why an endpoint cannot be sent to. Messages hold positions and limits, never a part of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Nothing to send to.
    #[error("the endpoint is empty: give an http:// or https:// URL")]
    Empty,
    /// More than [`MAX_ENDPOINT_BYTES`].
    #[error("the endpoint has {bytes} bytes: at most {MAX_ENDPOINT_BYTES} are allowed")]
    TooLong {
        /// Bytes of the endpoint, after expansion if that made it too long.
        bytes: usize,
    },
    /// White space or a control character, which other parsers would drop or encode.
    #[error("the endpoint holds white space or a control character at byte {offset}: percent-encode or remove it")]
    Space {
        /// Where it stands, in bytes from 0.
        offset: usize,
    },
    /// A backslash before the query: some parsers read it as a slash, others as a part of the host.
    #[error("the endpoint holds a backslash at byte {offset}: use a slash, or %5C")]
    Backslash {
        /// Where it stands, in bytes from 0.
        offset: usize,
    },
    /// No scheme, or one that is not sent to.
    #[error("the endpoint's scheme is missing or not sent to: begin with http:// or https://")]
    Scheme,
    /// Nothing between `//` and the path.
    #[error("the endpoint has no host: write one after http:// or https://")]
    HostMissing,
    /// A host that is neither a name nor an address.
    #[error(
        "the endpoint's host is not valid: use a host name of at most {MAX_HOST_BYTES} bytes, an IPv4 or an [IPv6] address"
    )]
    HostInvalid,
    /// Not a number from 1 to 65535.
    #[error("the endpoint's port is not valid: use 1 to 65535, or none for the scheme's own")]
    PortInvalid,
    /// Userinfo that RFC 7617 cannot carry.
    #[error(
        "the endpoint's userinfo is not valid: percent-encoded UTF-8 without control characters, and no colon in the name"
    )]
    UserinfoInvalid,
    /// A brace in the authority: data may not choose the host.
    #[error("the endpoint has a brace before its path: placeholders may stand in path and query only")]
    PlaceholderBeforePath,
    /// A key of dots alone would walk up the path.
    #[error("a key of dots alone cannot stand in the endpoint's path: use {{keyHash}} instead of {{key}}")]
    KeyOfDots,
    /// Anything else the URL parser refuses.
    #[error("the endpoint is not a valid URL")]
    Malformed,
}

impl EndpointError {
    /// A bounded name for metrics, events and `reason` details.
    #[must_use]
    pub const fn category(self) -> &'static str {
        match self {
            Self::Empty => "endpoint_empty",
            Self::TooLong { .. } => "endpoint_too_long",
            Self::Space { .. } => "endpoint_space",
            Self::Backslash { .. } => "endpoint_backslash",
            Self::Scheme => "endpoint_scheme",
            Self::HostMissing => "endpoint_host_missing",
            Self::HostInvalid => "endpoint_host_invalid",
            Self::PortInvalid => "endpoint_port_invalid",
            Self::UserinfoInvalid => "endpoint_userinfo_invalid",
            Self::PlaceholderBeforePath => "endpoint_placeholder",
            Self::KeyOfDots => "endpoint_key_of_dots",
            Self::Malformed => "endpoint_malformed",
        }
    }
}
