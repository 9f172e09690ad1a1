//! One row with all that is recorded of it.

use sqlx::{AssertSqlSafe, Row as _, postgres::PgRow};

use super::{
    super::{Db, StoreError, TableName},
    STATEMENT_TIMEOUT,
    list::{Row, columns, instant},
    replay::DEAD_WHEN,
};

/// Records of a row that are shown at most, the last ones.
const RECORDS: i64 = 50;

/// A row and its history.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The row; `None` where it is gone and only its history is left.
    pub row: Option<Row>,
    /// What happened to it, the first thing first.
    pub history: Vec<Record>,
    /// Whether earlier records were left out.
    pub cut: bool,
}

/// An attempt, or an act of a person or a producer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    texts: Vec<Option<String>>,
    /// The attempt's number, or attempts before the act.
    pub attempt: Option<i32>,
    /// The answer's status.
    pub http_status: Option<i32>,
    /// How long the attempt took.
    pub duration_ms: Option<i64>,
    /// The row that took this one's place.
    pub next_row_id: Option<i64>,
    /// Whether it was done in spite of a rule.
    pub forced: bool,
}

/// Text columns in the order in which JSON shows them.
const TEXTS: [&str; 10] =
    ["at", "act", "status_before", "outcome", "reason", "error", "worker", "actor", "filter", "note"];

impl Record {
    /// A text column by its name.
    pub fn text(&self, name: &str) -> Option<&str> {
        let place = TEXTS.iter().position(|column| *column == name)?;
        self.texts.get(place)?.as_deref()
    }

    /// All text columns with their names, in order.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        TEXTS.iter().zip(&self.texts).map(|(name, text)| (*name, text.as_deref()))
    }

    fn decode(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            texts: TEXTS.iter().map(|name| row.try_get(*name)).collect::<Result<_, _>>()?,
            attempt: row.try_get("attempt")?,
            http_status: row.try_get("http_status")?,
            duration_ms: row.try_get("duration_ms")?,
            next_row_id: row.try_get("next_row_id")?,
            forced: row.try_get("forced")?,
        })
    }
}

/// Reads a row in any state, its payload where it is asked for, and its history. `None`: nothing is known of it.
pub async fn show(db: &Db, table: &TableName, id: i64, payload: bool) -> Result<Option<Shown>, StoreError> {
    let act = "read the row";
    let row = format!("SELECT {} FROM {} AS t WHERE t.id = $1", columns(table, DEAD_WHEN, payload), table.qualified());
    let history = format!(
        "SELECT {} AS at, act, status_before, outcome, reason, error, worker, actor, filter, note, \
         attempt, http_status, duration_ms, next_row_id, forced \
         FROM {} AS h WHERE row_id = $1 ORDER BY h.at DESC, h.id DESC LIMIT $2",
        instant("h.at"),
        table.history()
    );
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let read = |error| StoreError::sql(act)(error);
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let row = sqlx::query(AssertSqlSafe(row))
            .persistent(false)
            .bind(id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(read)?
            .map(|row| Row::decode(&row))
            .transpose()
            .map_err(read)?;
        let records = sqlx::query(AssertSqlSafe(history))
            .persistent(false)
            .bind(id)
            .bind(RECORDS + 1)
            .fetch_all(&mut *tx)
            .await
            .map_err(read)?;
        tx.commit().await.map_err(read)?;
        let mut history = records.iter().map(Record::decode).collect::<Result<Vec<_>, _>>().map_err(read)?;
        let shown = usize::try_from(RECORDS).unwrap_or(usize::MAX);
        let cut = history.len() > shown;
        history.truncate(shown);
        history.reverse();
        Ok((row.is_some() || !history.is_empty()).then_some(Shown { row, history, cut }))
    })
    .await
}
