//! Which rows an act or a list is about, as conditions in SQL.

use std::time::Duration;

use sqlx::{Postgres, Transaction, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::super::{StoreError, TableName, claim::micros};

/// The rows that an act or a list is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// These rows, whatever their state: those in another state than the act's are refused.
    Ids(Vec<i64>),
    /// All rows of the act's state that match.
    Matching {
        /// What they must match.
        filter: Filter,
        /// Rows at most.
        limit: Option<i64>,
    },
}

/// What rows must match; nothing given matches all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// The endpoint's origin.
    pub destination: Option<DestinationFilter>,
    /// Why the row is where it is.
    pub reason: Option<String>,
    /// Whose effect it is.
    pub tenant: Option<Uuid>,
    /// The operation.
    pub operation: Option<String>,
    /// Not before this moment.
    pub since: Option<Moment>,
    /// Not after this moment.
    pub until: Option<Moment>,
}

/// A destination, as Rust spells it and as the person did: the database reads the second as it reads endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationFilter {
    /// The canonical origin.
    pub canonical: String,
    /// What was given: an origin or a whole endpoint.
    pub given: String,
}

/// A moment, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long ago.
    Ago(Duration),
    /// Microseconds of the Unix epoch.
    At(i64),
}

/// The query type of this module's statements.
pub(super) type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

/// A row's destination in SQL: the column, or the origin of the endpoint of a row from before the column was kept. The one
/// place that says so.
pub(super) fn destination(table: &TableName) -> String {
    format!("coalesce(t.destination, {}(t.endpoint))", table.beside("origin"))
}

/// The conditions of a selection over parameters 1 to 8; `when` is the column that `since` and `until` speak of.
pub(super) fn conditions(table: &TableName, when: &str) -> String {
    format!(
        "($1::bigint[] IS NULL OR t.id = ANY ($1)) \
         AND ($2::text IS NULL OR {destination} IN ($2, {origin}($3))) \
         AND ($4::text IS NULL OR t.reason = $4) \
         AND ($5::uuid IS NULL OR t.tenant_id = $5) \
         AND ($6::text IS NULL OR t.operation = $6) \
         AND ($7::bigint IS NULL OR {when} >= timestamptz 'epoch' + $7 * interval '1 microsecond') \
         AND ($8::bigint IS NULL OR {when} <= timestamptz 'epoch' + $8 * interval '1 microsecond')",
        destination = destination(table),
        origin = table.beside("origin"),
    )
}

/// A selection with its moments read off the database's clock.
pub(super) struct Bound {
    pub ids: Option<Vec<i64>>,
    filter: Filter,
    since_us: Option<i64>,
    until_us: Option<i64>,
    /// The database's clock when the selection was read, in microseconds of the Unix epoch.
    pub now_us: i64,
}

impl Bound {
    /// Reads the clock.
    pub async fn read(tx: &mut Transaction<'static, Postgres>, selection: &Selection) -> Result<Self, StoreError> {
        let now_us: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
            .persistent(false)
            .fetch_one(&mut **tx)
            .await
            .map_err(StoreError::sql("read the database's clock"))?;
        let instant = |moment: Moment| match moment {
            Moment::Ago(span) => now_us.saturating_sub(micros(span)),
            Moment::At(instant) => instant,
        };
        let (ids, filter) = match selection {
            Selection::Ids(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                (Some(ids), Filter::default())
            }
            Selection::Matching { filter, .. } => (None, filter.clone()),
        };
        Ok(Self { ids, since_us: filter.since.map(instant), until_us: filter.until.map(instant), filter, now_us })
    }

    /// Binds parameters 1 to 8, with these ids in the place of the selection's.
    pub fn bind<'q>(&self, query: PgQuery<'q>, ids: Option<&[i64]>) -> PgQuery<'q> {
        let filter = &self.filter;
        query
            .bind(ids.map(<[i64]>::to_vec))
            .bind(filter.destination.as_ref().map(|destination| destination.canonical.clone()))
            .bind(filter.destination.as_ref().map(|destination| destination.given.clone()))
            .bind(filter.reason.clone())
            .bind(filter.tenant)
            .bind(filter.operation.clone())
            .bind(self.since_us)
            .bind(self.until_us)
    }
}
