//! Filters: which rows a list or an act is about.

use std::{fmt::Write as _, process::ExitCode, str::FromStr};

use clap::Args;
use uuid::Uuid;

use super::refuse;
use crate::{
    api::Duration,
    domain::destination::Destination,
    store::people::{DestinationFilter, Filter, Moment, Selection},
};

/// What rows must match.
#[derive(Clone, Debug, Args)]
pub struct FilterArgs {
    /// Rows for this destination: an origin such as https://billing.example, or any endpoint of it.
    #[arg(long, value_name = "URL")]
    destination: Option<DestinationArg>,
    /// Rows with this reason, such as unauthorized.
    #[arg(long)]
    reason: Option<String>,
    /// Rows of this tenant.
    #[arg(long, value_name = "UUID")]
    tenant: Option<Uuid>,
    /// Rows of this operation.
    #[arg(long)]
    operation: Option<String>,
    /// Rows that died (or, uncertain ones, were first sent) no longer ago than this: 1h, 7d, or an instant such as 2026-05-01T12:00:00Z.
    #[arg(long, value_name = "WHEN")]
    since: Option<MomentArg>,
    /// Rows that did so longer ago than this, or before this instant.
    #[arg(long, value_name = "WHEN")]
    until: Option<MomentArg>,
    /// Rows at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub limit: Option<i64>,
}

impl FilterArgs {
    /// The filter.
    pub fn filter(&self) -> Filter {
        Filter {
            destination: self.destination.as_ref().map(|destination| destination.0.clone()),
            reason: self.reason.clone(),
            tenant: self.tenant,
            operation: self.operation.clone(),
            since: self.since.as_ref().map(|since| since.moment),
            until: self.until.as_ref().map(|until| until.moment),
        }
    }

    /// The filter as the history keeps it. A destination is its origin there, for what was pasted may hold secrets.
    fn text(&self) -> String {
        let mut text = String::new();
        let mut add = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = write!(text, "{}--{option} {value}", if text.is_empty() { "" } else { " " });
            }
        };
        add("destination", self.destination.as_ref().map(|destination| destination.0.canonical.clone()));
        add("reason", self.reason.clone());
        add("tenant", self.tenant.map(|tenant| tenant.to_string()));
        add("operation", self.operation.clone());
        add("since", self.since.as_ref().map(|since| since.text.clone()));
        add("until", self.until.as_ref().map(|until| until.text.clone()));
        add("limit", self.limit.map(|limit| limit.to_string()));
        text
    }
}

/// Rows by their ids, or by a filter, or all.
#[derive(Clone, Debug, Args)]
pub struct SelectionArgs {
    /// The rows, by id.
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    #[command(flatten)]
    filter: FilterArgs,
    /// All rows of the state that the command is about.
    #[arg(long)]
    all: bool,
}

impl SelectionArgs {
    /// The rows, and the filter as the history keeps it. The error is the exit code, its reason shown.
    pub fn selection(&self) -> Result<(Selection, Option<String>), ExitCode> {
        let (filter, limit) = (self.filter.filter(), self.filter.limit);
        let filtered = filter != Filter::default();
        match (self.ids.is_empty(), filtered, self.all) {
            (false, false, false) if limit.is_none() => Ok((Selection::Ids(self.ids.clone()), None)),
            (false, ..) => Err(refuse("name rows by their ids or by a filter, not both")),
            (true, false, false) => Err(refuse("say which rows: their ids, a filter such as --reason, or --all")),
            (true, ..) => {
                let text = self.filter.text();
                let text = if filtered { text } else { format!("--all {text}").trim_end().to_owned() };
                Ok((Selection::Matching { filter, limit }, Some(text)))
            }
        }
    }

    /// How many rows are named.
    pub fn named(&self) -> usize {
        self.ids.len()
    }
}

/// A destination as it was given.
#[derive(Clone, Debug)]
pub struct DestinationArg(pub DestinationFilter);

impl DestinationArg {
    /// A destination as the table spells it.
    pub fn known(name: String) -> Self {
        Self(DestinationFilter { canonical: name.clone(), given: name })
    }
}

impl FromStr for DestinationArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The bucket of endpoints that are no URL has this name.
        let canonical = if text == "invalid" {
            text.to_owned()
        } else {
            Destination::from_str(text).map_err(|error| error.to_string())?.to_string()
        };
        Ok(Self(DestinationFilter { canonical, given: text.to_owned() }))
    }
}

/// A moment as it was given.
#[derive(Clone, Debug)]
struct MomentArg {
    text: String,
    moment: Moment,
}

impl FromStr for MomentArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let moment = match Duration::from_str(text) {
            Ok(span) => Moment::Ago(span.0),
            Err(_) => Moment::At(instant(text)?),
        };
        Ok(Self { text: text.chars().take(40).collect(), moment })
    }
}

/// An instant as microseconds of the Unix epoch.
pub fn instant(text: &str) -> Result<i64, String> {
    jiff::Timestamp::from_str(text).map(jiff::Timestamp::as_microsecond).map_err(|_| {
        "write a span such as 30m, 1h or 7d, or an instant with its offset such as 2026-05-01T12:00:00Z".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::time;

    use super::*;

    #[test]
    fn moments_are_spans_or_instants() {
        let moment = |text: &str| MomentArg::from_str(text).map(|given| given.moment);
        assert_eq!(moment("1h"), Ok(Moment::Ago(time::Duration::from_secs(3600))));
        assert_eq!(moment("1970-01-01T01:00:01+01:00"), Ok(Moment::At(1_000_000)));
        for refused in ["", "yesterday", "2026-05-01", "2026-05-01T12:00:00", "-1h"] {
            assert!(moment(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_pasted_endpoint_is_its_origin_and_its_secrets_are_not_kept() {
        let DestinationArg(filter) = "HTTPS://bob:s3cret@Hooks.Test:443/T0?token=x".parse().unwrap();
        assert_eq!(filter.canonical, "https://hooks.test");
        let error = DestinationArg::from_str("hooks.test/s3cret").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
