//! The finding of rows where more is asked of one than its destination and its time: which policy it goes by, and whether
//! it is its turn.

use std::collections::{HashMap, HashSet};

use sqlx::{AssertSqlSafe, Postgres, Row, Transaction, postgres::PgRow};

use super::{
    super::{StoreError, TableName, order, routes},
    Again, ClaimRequest, Open, Place, Waits, Windows,
    take::count,
    visit::place_at,
};

/// Rows of an ordered policy that a claim looks at, even if it takes fewer: blocked ones are put off by so many at once,
/// so that ten thousand rows of one entity before another's row are out of the way after 10,000 / 256 claims, once.
const LOOKED_AT: usize = 256;
/// Due rows of a destination among which a policy's own are looked for, where several policies share the destination:
/// a bound on what one claim reads.
const WINDOW: usize = 5_000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Locked rows that may be taken.
    pub free: Vec<i64>,
    /// Rows that were put off.
    pub waiting: Vec<Waits>,
    /// Up to which place of a destination's due rows a policy has no more rows than were found.
    pub windows: Windows,
    /// When another look may find more.
    pub again: Again,
}

struct Picked {
    id: i64,
    destination: Option<String>,
    policy: usize,
    ordered: bool,
    ours: bool,
}

/// Finds rows of these destinations and policies, at most `rooms` of a destination, and locks them.
pub(super) async fn find(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    request: &ClaimRequest<'_>,
    open: &[&Open],
    rooms: &HashMap<Option<&str>, usize>,
) -> Result<Found, StoreError> {
    let order_of = |policy: usize| request.policies.get(policy).and_then(|policy| policy.ordering);
    let room = |open: &Open| rooms.get(&open.destination.as_deref()).copied().unwrap_or(0);
    let limit = |open: &Open| room(open).min(open.limit.unwrap_or(usize::MAX));
    let looked_at =
        |open: &Open| if order_of(open.policy).is_some() { limit(open).max(LOOKED_AT) } else { limit(open) };
    let (picked, windows) = pick(tx, table, request, open, looked_at, |open| order_of(open.policy).is_some()).await?;
    let mut found = Found { windows, ..Found::default() };
    let met: Vec<_> = picked
        .iter()
        .filter(|row| row.ordered && row.ours)
        .filter_map(|row| Some((row.id, order_of(row.policy)?)))
        .collect();
    if !met.is_empty() {
        found.waiting = order::put_off(tx, table, &met).await?;
    }
    let waiting: HashSet<i64> = found.waiting.iter().map(|row| row.id).collect();
    // Of several policies at one destination, each has its turn.
    let mut by_policy: HashMap<(Option<&str>, usize), Vec<i64>> = HashMap::new();
    for row in picked.iter().filter(|row| row.ours && !waiting.contains(&row.id)) {
        by_policy.entry((row.destination.as_deref(), row.policy)).or_default().push(row.id);
    }
    let mut left = rooms.clone();
    let mut turn = 0;
    loop {
        let before = found.free.len();
        for open in open.iter().filter(|open| turn < limit(open)) {
            let destination = open.destination.as_deref();
            let next = by_policy.get(&(destination, open.policy)).and_then(|ids| ids.get(turn));
            if let (Some(id), Some(left)) = (next, left.get_mut(&destination).filter(|left| **left > 0)) {
                found.free.push(*id);
                *left -= 1;
            }
        }
        if found.free.len() == before {
            break;
        }
        turn += 1;
    }
    // Where as many rows were met as were looked for, others lie behind those that were put off.
    let behind = open.iter().any(|open| {
        let of_it = |row: &&Picked| row.destination == open.destination && row.policy == open.policy;
        let met = picked.iter().filter(of_it).count();
        let put_off = picked.iter().filter(of_it).any(|row| waiting.contains(&row.id));
        put_off && met >= looked_at(open)
    });
    found.again = if behind || !found.windows.is_empty() {
        Again::AtOnce
    } else if picked.iter().any(|row| !row.ours) {
        Again::Soon
    } else {
        Again::Later
    };
    Ok(found)
}

/// Locks rows. Beside them, where others' rows took up all that was read: up to where it was read.
async fn pick(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    request: &ClaimRequest<'_>,
    open: &[&Open],
    looked_at: impl Fn(&Open) -> usize,
    ordered: impl Fn(&Open) -> bool,
) -> Result<(Vec<Picked>, Windows), StoreError> {
    let act = "look for due rows";
    // A row that an old-pattern relay holds (in flight without a token) is not due before its own lease is over.
    let due = "t.status IN ('pending', 'in_flight', 'uncertain') AND t.next_attempt_at <= now() \
               AND (t.status <> 'in_flight' OR t.claim_token IS NOT NULL OR t.locked_until IS NULL OR t.locked_until <= now()) \
               AND ($6::uuid[] IS NULL OR t.tenant_id = ANY ($6))";
    let sql = include_str!("pick.sql")
        .replace("{window}", &WINDOW.to_string())
        .replace("{place_at}", &place_at("s.at"))
        .replace("{behind}", "(t.next_attempt_at, t.id) >= (share.at, share.place_id)")
        .replace("{due}", due)
        .replace("{policy}", &routes::policy(table, request.routing).unwrap_or_else(|| "0".to_owned()))
        .replace("{lock}", &order::try_lock(table))
        .replace("{table}", &table.qualified());
    let rows = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(open.iter().map(|open| open.destination.clone()).collect::<Vec<_>>())
        .bind(open.iter().map(|open| i32::try_from(open.policy).unwrap_or(i32::MAX)).collect::<Vec<_>>())
        .bind(open.iter().map(|open| count(looked_at(open))).collect::<Vec<_>>())
        .bind(open.iter().map(|open| open.alone).collect::<Vec<_>>())
        .bind(open.iter().map(|open| ordered(open)).collect::<Vec<_>>())
        .bind((!request.tenants.is_empty()).then_some(request.tenants))
        .bind(open.iter().map(|open| open.from.at).collect::<Vec<_>>())
        .bind(open.iter().map(|open| open.from.id).collect::<Vec<_>>())
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql(act))?;
    let (mut picked, mut windows) = (Vec::with_capacity(rows.len()), Windows::new());
    for row in &rows {
        let (row, place) = decode(row).map_err(StoreError::sql(act))?;
        match place {
            None => picked.push(row),
            Some(place) => drop(windows.insert((row.destination, row.policy), place)),
        }
    }
    Ok((picked, windows))
}

fn decode(row: &PgRow) -> Result<(Picked, Option<Place>), sqlx::Error> {
    let picked = Picked {
        id: row.try_get("id")?,
        destination: row.try_get("destination")?,
        policy: usize::try_from(row.try_get::<i32, _>("policy")?).unwrap_or(0),
        ordered: row.try_get("ordered")?,
        ours: row.try_get("ours")?,
    };
    let read_to: Option<i64> = row.try_get("read_to")?;
    let place = read_to.map(|at| Place { at: Some(at), id: picked.id });
    Ok((picked, place))
}
