//! How an act goes over its rows: batch by batch, each a transaction of its own.

use sqlx::{AssertSqlSafe, Row};

use super::{
    super::{Db, StoreError, TableName},
    BATCH, STATEMENT_TIMEOUT,
    act::{Done, Refused, Signature, Stopped, Why},
    selection::{Bound, PgQuery, Selection, conditions},
};

/// What an act is in SQL. Parameters from 14 on are its own.
pub(super) struct Kind {
    /// The act's name in the history.
    pub act: &'static str,
    /// The state whose rows it moves.
    pub from: &'static str,
    /// What `since` and `until` speak of.
    pub when: &'static str,
    /// `WHEN .. THEN ..` for each further refusal.
    pub refusal: &'static str,
    /// Whether a row is moved in spite of a rule.
    pub forced: &'static str,
    /// The assignments.
    pub set: &'static str,
}

impl Kind {
    /// The rows of a selection: those named, or those of the act's state that match.
    pub fn conditions(&self, table: &TableName, bound: &Bound) -> String {
        let conditions = conditions(table, self.when);
        if bound.ids.is_some() { conditions } else { format!("t.status = '{}' AND {conditions}", self.from) }
    }

    fn sql(&self, table: &TableName, bound: &Bound) -> String {
        // Named rows are waited for, so that each gets an answer. Of those that merely match, rows that somebody else is
        // moving at this moment are that one's.
        let locking = if bound.ids.is_some() { "" } else { "SKIP LOCKED" };
        include_str!("act.sql")
            .replace("{conditions}", &self.conditions(table, bound))
            .replace("{table}", &table.qualified())
            .replace("{history}", &table.history())
            .replace("{act}", self.act)
            .replace("{from}", self.from)
            .replace("{refusal}", self.refusal)
            .replace("{forced}", self.forced)
            .replace("{set}", self.set)
            .replace("{locking}", locking)
    }
}

/// Where an act stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The database's clock when the act began, in microseconds of the Unix epoch.
    pub began_us: i64,
    /// Rows moved before this batch.
    pub moved: i64,
    /// Rows that the act was about when it began.
    pub total: i64,
}

/// Runs an act to its end. `own` binds the act's own parameters, `progress` is told how many rows of how many are done.
pub(super) async fn run(
    db: &Db,
    table: &TableName,
    kind: &Kind,
    selection: &Selection,
    signature: &Signature,
    own: impl for<'q> Fn(PgQuery<'q>, Place) -> PgQuery<'q>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Done, Stopped> {
    let (bound, total) = survey(db, table, kind, selection, &own).await?;
    let sql = kind.sql(table, &bound);
    let limit = match selection {
        Selection::Ids(_) => i64::MAX,
        Selection::Matching { limit, .. } => limit.unwrap_or(i64::MAX),
    };
    let mut done = Done::default();
    let mut cursor = Cursor { after: i64::MIN, ids: bound.ids.as_deref() };
    progress(0, usize::try_from(total).unwrap_or(0));
    loop {
        let moved = i64::try_from(done.moved.len()).unwrap_or(i64::MAX);
        let size = BATCH.min(limit - moved);
        let Some(ids) = cursor.batch(size) else { break };
        let place = Place { began_us: bound.now_us, moved, total };
        let batch = async {
            let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
            let query = bound.bind(sqlx::query(AssertSqlSafe(sql.clone())).persistent(false), ids);
            let query = query
                .bind(cursor.after)
                .bind(size)
                .bind(signature.actor.clone())
                .bind(signature.filter.clone())
                .bind(signature.note.clone());
            let rows = own(query, place).fetch_all(&mut *tx).await.map_err(StoreError::sql(kind.act))?;
            tx.commit().await.map_err(StoreError::sql(kind.act))?;
            rows.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(StoreError::sql(kind.act))
        };
        let rows = match db.bounded(kind.act, STATEMENT_TIMEOUT, batch).await {
            Ok(rows) => rows,
            Err(source) => return Err(Stopped { done, source }),
        };
        let found = rows.len();
        if let Some(ids) = ids {
            missing(ids, &rows, &mut done);
        }
        cursor.advance(size, found, rows.last().map(|row| row.0));
        for (id, status, refusal) in rows {
            match refusal {
                None => done.moved.push(id),
                Some(why) => done.refused.push(Refused { id, status: Some(status), why: Why::parse(&why) }),
            }
        }
        progress(done.moved.len() + done.refused.len(), usize::try_from(total).unwrap_or(0));
    }
    done.refused.sort_by_key(|refused| refused.id);
    Ok(done)
}

/// Reads the clock and counts what the act is about, so that progress and spread know the whole.
async fn survey(
    db: &Db,
    table: &TableName,
    kind: &Kind,
    selection: &Selection,
    own: &impl for<'q> Fn(PgQuery<'q>, Place) -> PgQuery<'q>,
) -> Result<(Bound, i64), StoreError> {
    let act = "count the rows that would move";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let bound = Bound::read(&mut tx, selection).await?;
        let sql = format!(
            "SELECT count(*) FROM (SELECT FROM {} AS t WHERE {} AND t.status = '{}' AND CASE WHEN false THEN 'no' {} END IS NULL LIMIT $10) AS counted",
            table.qualified(),
            kind.conditions(table, &bound),
            kind.from,
            kind.refusal
        );
        let limit = match selection {
            Selection::Ids(_) => None,
            Selection::Matching { limit, .. } => *limit,
        };
        let query = bound.bind(sqlx::query(AssertSqlSafe(sql)).persistent(false), bound.ids.as_deref());
        let none: Option<String> = None;
        let query = query.bind(i64::MIN).bind(limit).bind(none.clone()).bind(none.clone()).bind(none);
        let place = Place { began_us: bound.now_us, moved: 0, total: 0 };
        let row = own(query, place).fetch_one(&mut *tx).await.map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok((bound, row.try_get(0).map_err(StoreError::sql(act))?))
    })
    .await
}

fn read(row: &sqlx::postgres::PgRow) -> Result<(i64, String, Option<String>), sqlx::Error> {
    Ok((row.try_get("id")?, row.try_get("status")?, row.try_get("refusal")?))
}

fn missing(ids: &[i64], rows: &[(i64, String, Option<String>)], done: &mut Done) {
    for id in ids {
        if rows.binary_search_by_key(id, |row| row.0).is_err() {
            done.refused.push(Refused { id: *id, status: None, why: Why::NoSuchRow });
        }
    }
}

/// Which rows come next: named ones in slices, matching ones by the last id seen.
struct Cursor<'a> {
    after: i64,
    ids: Option<&'a [i64]>,
}

impl<'a> Cursor<'a> {
    /// The next batch: `None` at the end, else the ids that it is about, where rows are named.
    #[expect(clippy::option_option, reason = "whether there is a batch, and whether it names its rows")]
    fn batch(&mut self, size: i64) -> Option<Option<&'a [i64]>> {
        if size <= 0 {
            return None;
        }
        match self.ids {
            None => Some(None),
            Some([]) => None,
            Some(ids) => {
                let (now, later) = ids.split_at(ids.len().min(usize::try_from(size).unwrap_or(usize::MAX)));
                self.ids = Some(later);
                Some(Some(now))
            }
        }
    }

    fn advance(&mut self, size: i64, found: usize, last: Option<i64>) {
        if self.ids.is_none() {
            match last {
                Some(last) if i64::try_from(found).is_ok_and(|found| found >= size) => self.after = last,
                _ => self.ids = Some(&[]),
            }
        }
    }
}
