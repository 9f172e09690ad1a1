//! What can go wrong in a reconcile. One enum, each variant a failed act; [`Error::category`] is its bounded name for
//! metrics and logs.

use std::time::Duration;

/// A failed act of the operator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read from the API server.
    #[error("read {what}: {source}")]
    Read {
        /// Kind and name.
        what: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// A write to the API server.
    #[error("write {what}: {source}")]
    Write {
        /// Kind and name.
        what: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// An object of a child's name belongs to somebody else.
    #[error("{kind} {name} exists and is not this relay's: rename or remove it, or rename the relay")]
    NameTaken {
        /// The child's kind.
        kind: String,
        /// The child's name.
        name: String,
    },
    /// An object lacks what the API server gives every object.
    #[error("{what} has no {field}")]
    Incomplete {
        /// Kind and name.
        what: String,
        /// The missing field.
        field: &'static str,
    },
    /// A child could not be written as JSON.
    #[error("serialise {what}: {source}")]
    Serialise {
        /// Kind and name.
        what: String,
        /// What serde said.
        source: serde_json::Error,
    },
    /// The API server did not answer in time.
    #[error("reconcile took longer than {}s", .limit.as_secs())]
    Deadline {
        /// The limit.
        limit: Duration,
    },
}

impl Error {
    /// Names a failed read; made for `map_err`.
    pub fn read(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Read { what, source: Box::new(source) }
    }

    /// Names a failed write; made for `map_err`.
    pub fn write(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Write { what, source: Box::new(source) }
    }

    /// The bounded name.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => api_category(source),
            Self::NameTaken { .. } => "name_taken",
            Self::Incomplete { .. } | Self::Serialise { .. } => "internal",
            Self::Deadline { .. } => "deadline",
        }
    }
}

/// The bounded name of a client's error.
pub fn api_category(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => "forbidden",
            404 => "not_found",
            409 => "conflict",
            422 | 400 => "invalid",
            429 => "throttled",
            500..=599 => "server",
            _ => "api",
        },
        kube::Error::SerdeError(_) => "decode",
        _ => "connection",
    }
}
