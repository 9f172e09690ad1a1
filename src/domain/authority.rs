//! What a pre-dispatch check says of a row.

/// Whether a row may still be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// Yes.
    Allowed,
    /// No, and never will be.
    Denied {
        /// Why, in the check's own words; empty where it gave none.
        why: String,
    },
    /// The check gave no clear answer: the row is tried again, counted.
    Unclear {
        /// What is wrong with it, for people.
        detail: String,
    },
    /// The check could not be asked or is down, through no fault of the row's: the row comes back, not counted.
    Unasked {
        /// Why, for people.
        detail: String,
    },
}

impl Authority {
    /// A name for metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied { .. } => "denied",
            Self::Unclear { .. } => "unclear",
            Self::Unasked { .. } => "unasked",
        }
    }
}
