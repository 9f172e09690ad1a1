//! The destinations that a claim visits: which have due rows, from which place on, and what is known of each.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Postgres, Row, Transaction, postgres::PgRow};

use super::{
    super::{StoreError, TableName, destinations},
    position::{Place, Visit},
};
use crate::domain::hold::HoldState;

/// Destinations that one claim visits at most: its time is bounded however many there are.
pub(super) const MAX_VISITED: usize = 100;

/// A destination that was visited.
#[derive(Clone, Debug)]
pub(super) struct Visited {
    /// Its name; `None`: rows without one.
    pub destination: Option<String>,
    /// Whether it has a due row.
    pub due: bool,
    /// A place before which it has no row.
    pub place: Place,
    /// What is recorded, by the policy's number.
    pub states: Vec<HoldState>,
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    /// In order.
    pub visited: Vec<Visited>,
    /// Where the next one goes on; `None`: from the start, for this one came to the end.
    pub next: Option<String>,
}

/// The instant of a place in SQL, from its microseconds.
pub(super) fn place_at(micros: &str) -> String {
    format!("coalesce('epoch'::timestamptz + {micros} * interval '1 microsecond', '-infinity')")
}

/// Visits destinations. `scopes` are the policies', in the order of their numbers.
pub(super) async fn visit(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    scopes: &[&str],
    visit: &Visit<'_>,
) -> Result<Scan, StoreError> {
    let act = "look for due destinations";
    let way = match visit {
        Visit::Search(_) => include_str!("search.sql"),
        Visit::Known { .. } => include_str!("known.sql"),
    };
    let sql = include_str!("visit.sql")
        .replace("{visited}", way.trim_end())
        .replace("{place_at}", &place_at("r.at"))
        .replace("{nameless_at}", &place_at("$2::bigint"))
        .replace("{table}", &table.qualified())
        .replace("{destinations}", &table.destinations());
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(scopes);
    let query = match visit {
        Visit::Search(after) => query
            .bind(Place::START.at)
            .bind(Place::START.id)
            .bind(*after)
            .bind(i64::try_from(MAX_VISITED).unwrap_or(i64::MAX)),
        Visit::Known { places, nameless, .. } => query
            .bind(nameless.at)
            .bind(nameless.id)
            .bind(places.iter().map(|(name, _)| *name).collect::<Vec<_>>())
            .bind(places.iter().map(|(_, place)| place.at).collect::<Vec<_>>())
            .bind(places.iter().map(|(_, place)| place.id).collect::<Vec<_>>()),
    };
    let rows = query.fetch_all(&mut **tx).await.map_err(StoreError::sql(act))?;
    let visited = visited(&rows, scopes).map_err(StoreError::sql(act))?;
    let next = match visit {
        Visit::Known { next, .. } => next.clone(),
        Visit::Search(_) => {
            let named = visited.iter().filter_map(|visited| visited.destination.as_ref());
            let full = named.clone().count() >= MAX_VISITED;
            named.max().filter(|_| full).cloned()
        }
    };
    Ok(Scan { visited, next })
}

/// One entry a destination, from one row for each policy under which something is recorded of it.
fn visited(rows: &[PgRow], scopes: &[&str]) -> Result<Vec<Visited>, sqlx::Error> {
    let mut by_name: BTreeMap<Option<String>, Visited> = BTreeMap::new();
    for row in rows {
        let destination: Option<String> = row.try_get("destination")?;
        let due = row.try_get("due")?;
        let id: Option<i64> = row.try_get("place_id")?;
        let place = Place { at: row.try_get("place_at")?, id: id.unwrap_or(i64::MIN) };
        let visited = by_name.entry(destination.clone()).or_insert_with(|| Visited {
            destination,
            due,
            place,
            states: vec![HoldState::default(); scopes.len()],
        });
        let scope: Option<&str> = row.try_get("scope")?;
        let state = destinations::state(row)?;
        for (policy, _) in scopes.iter().enumerate().filter(|(_, known)| Some(**known) == scope) {
            if let Some(known) = visited.states.get_mut(policy) {
                *known = state;
            }
        }
    }
    Ok(by_name.into_values().collect())
}
