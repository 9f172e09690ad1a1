//! Where the claims of one relay go on.
//!
//! Entries of rows that have passed stay in the claim's index for as long as somebody's old snapshot may need them, and a
//! search from the start reads them all. So a relay that claims again and again remembers, for each destination, before
//! which place no row was left, and looks from there. What came to lie before the place all the same (a row of a late
//! commit, one that another relay's failed claim gave back) and destinations that are new are found by a search from the
//! start, which is made at most once an interval and takes at most a tenth of the time.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use super::visit::Scan;

/// Destinations whose places are remembered at most: a bound on memory. With more, every search is from the start.
const MAX_REMEMBERED: usize = 10_000;
/// Searches from the start take at most one part of so many of a relay's time.
const SEARCHES: u32 = 10;

/// A place in the order in which a destination's rows are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Microseconds of the Unix epoch; `None`: the start.
    pub at: Option<i64>,
    /// Among rows of one instant.
    pub id: i64,
}

impl Place {
    /// Before every row.
    pub const START: Self = Self { at: None, id: i64::MIN };
}

/// Rows of a destination (`None`: rows without one) that go by a policy, by its number.
pub(super) type Windows = HashMap<(Option<String>, usize), Place>;

/// When to claim again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Again {
    /// There is nothing more to claim for now.
    #[default]
    Later,
    /// In a moment: somebody else was looking at the rows.
    Soon,
    /// There may be more rows to claim.
    AtOnce,
}

/// What was learned at a cost, and for how long it is made use of.
#[derive(Debug)]
struct Memory<T> {
    since: Instant,
    cost: Duration,
    what: T,
}

impl<T: Default> Memory<T> {
    fn new(now: Instant) -> Self {
        Self { since: now, cost: Duration::ZERO, what: T::default() }
    }

    fn is_over(&self, interval: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= interval.max(self.cost * SEARCHES)
    }
}

/// Where the claims of one relay go on.
#[derive(Debug)]
pub struct Position {
    interval: Duration,
    /// The destination after which the round goes on; empty: a round begins.
    after: String,
    /// The best that this round's claims said.
    again: Again,
    /// Places by destination as far as this round has come, if it searches from the start.
    searched: Option<Memory<BTreeMap<Option<String>, Place>>>,
    /// Places of all destinations.
    known: Option<Memory<BTreeMap<Option<String>, Place>>>,
    /// Places among rows of several policies, before which a policy has no row.
    windows: Memory<Windows>,
    /// Whether a search from the start ran out of time.
    slow: bool,
}

/// What the next claim is to visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Visit<'a> {
    /// Destinations behind this one, whatever they are.
    Search(&'a str),
    /// These, and then the ones behind the given one if there are more.
    Known { places: Vec<(&'a str, Place)>, nameless: Place, next: Option<String> },
}

impl Position {
    /// The start. `interval` is the shortest time between two searches from the start, unless a claim found nothing.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            after: String::new(),
            again: Again::Later,
            searched: None,
            known: None,
            windows: Memory::new(Instant::now()),
            slow: false,
        }
    }

    /// Decides how a round goes, if one begins.
    pub(super) fn begin(&mut self, now: Instant) {
        if !self.after.is_empty() {
            return;
        }
        let search = self.known.as_ref().is_none_or(|known| known.is_over(self.interval, now));
        self.searched = search.then(|| Memory::new(now));
        self.again = Again::Later;
        if self.windows.is_over(self.interval, now) {
            self.windows = Memory::new(now);
        }
    }

    /// What to visit, at most `most` destinations.
    pub(super) fn visit(&self, most: usize) -> Visit<'_> {
        let Some(known) = self.known.as_ref().filter(|_| self.searched.is_none()) else {
            return Visit::Search(&self.after);
        };
        let places = &known.what;
        let mut behind = places
            .iter()
            .filter_map(|(name, place)| Some((name.as_deref()?, *place)))
            .skip_while(|(name, _)| *name <= self.after.as_str());
        let now: Vec<(&str, Place)> = behind.by_ref().take(most).collect();
        let next = behind.next().and(now.last()).map(|(name, _)| (*name).to_owned());
        let nameless = places.get(&None).copied().unwrap_or(Place::START);
        Visit::Known { places: now, nameless, next }
    }

    /// Where to look for the rows that go by a policy, where they lie among others'.
    pub(super) fn windows(&self) -> &Windows {
        &self.windows.what
    }

    /// Whether to have more patience with a claim than usual.
    pub(super) fn is_slow(&self) -> bool {
        self.slow
    }

    /// Goes on after a claim that was committed, which said when to claim `again`. `searched` is the time that its search
    /// took, `all` that of the whole claim. Returns when to claim again.
    pub(super) fn advance(
        &mut self,
        scan: &Scan,
        windows: Windows,
        again: Again,
        searched: Duration,
        all: Duration,
    ) -> Again {
        let places = scan.visited.iter().map(|visited| (visited.destination.clone(), visited.place));
        match (&mut self.searched, &mut self.known) {
            (Some(round), _) => {
                round.cost += searched;
                round.what.extend(places);
            }
            (None, Some(known)) => known.what.extend(places),
            (None, None) => {}
        }
        if !windows.is_empty() {
            self.windows.cost += all;
            self.windows.what.extend(windows);
        }
        self.again = self.again.max(again);
        if let Some(next) = &scan.next {
            self.after.clone_from(next);
            return Again::AtOnce;
        }
        self.after.clear();
        if let Some(round) = self.searched.take() {
            self.slow = false;
            self.known = Some(round).filter(|round| round.what.len() <= MAX_REMEMBERED);
        }
        self.again
    }

    /// A search from the start ran out of time: what is known has to do for longer.
    pub(super) fn ran_out_of_time(&mut self, now: Instant, took: Duration) {
        if self.searched.take().is_some() {
            self.slow = true;
            if let Some(known) = &mut self.known {
                known.since = now;
                known.cost = took;
            }
        }
        self.after.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::visit::Visited, *};

    const INTERVAL: Duration = Duration::from_secs(1);

    fn place(at: i64) -> Place {
        Place { at: Some(at), id: 7 }
    }

    fn scan(visited: &[(&str, i64)], next: Option<&str>) -> Scan {
        let visited = visited
            .iter()
            .map(|(name, at)| Visited {
                destination: Some((*name).to_owned()),
                due: true,
                place: place(*at),
                states: Vec::new(),
            })
            .collect();
        Scan { visited, next: next.map(str::to_owned) }
    }

    fn advance(position: &mut Position, scan: &Scan, again: Again, took: Duration) -> Again {
        position.advance(scan, Windows::new(), again, took, took)
    }

    fn known<'a>(places: &[(&'a str, i64)], next: Option<&str>) -> Visit<'a> {
        let places = places.iter().map(|(name, at)| (*name, place(*at))).collect();
        Visit::Known { places, nameless: Place::START, next: next.map(str::to_owned) }
    }

    #[test]
    fn a_round_searches_from_the_start_and_the_next_ones_go_on_from_what_it_found() {
        let start = Instant::now();
        let mut position = Position::new(INTERVAL);
        position.begin(start);
        assert_eq!(position.visit(2), Visit::Search(""));
        let again = advance(&mut position, &scan(&[("a", 1), ("b", 2)], Some("b")), Again::Later, Duration::ZERO);
        assert_eq!(again, Again::AtOnce, "the round has not ended");
        // Time does not change how a round goes on.
        position.begin(start + INTERVAL * 2);
        assert_eq!(position.visit(2), Visit::Search("b"));
        let again = advance(&mut position, &scan(&[("c", 3)], None), Again::Later, Duration::ZERO);
        assert_eq!(again, Again::Later);

        position.begin(start + INTERVAL / 2);
        assert_eq!(position.visit(2), known(&[("a", 1), ("b", 2)], Some("b")));
        let again = advance(&mut position, &scan(&[("a", 5), ("b", 2)], Some("b")), Again::AtOnce, Duration::ZERO);
        assert_eq!(again, Again::AtOnce);
        position.begin(start + INTERVAL * 2);
        assert_eq!(position.visit(2), known(&[("c", 3)], None), "a round over known ones goes on as well");
        let again = advance(&mut position, &scan(&[("c", 3)], None), Again::Later, Duration::ZERO);
        assert_eq!(again, Again::AtOnce, "another claim of the round left rows");
        position.begin(start + INTERVAL * 2);
        assert_eq!(position.visit(2), Visit::Search(""));
    }

    #[test]
    fn an_empty_rest_of_a_round_is_known_to_be_its_end() {
        let start = Instant::now();
        let mut position = Position::new(INTERVAL);
        position.begin(start);
        advance(&mut position, &scan(&[("a", 1), ("b", 2)], None), Again::Later, Duration::ZERO);
        position.begin(start);
        assert_eq!(position.visit(2), known(&[("a", 1), ("b", 2)], None));
    }

    #[test]
    fn searches_take_a_tenth_of_the_time_and_one_that_runs_out_of_time_is_put_off() {
        let start = Instant::now();
        let mut position = Position::new(INTERVAL);
        position.begin(start);
        advance(&mut position, &scan(&[("a", 1)], None), Again::Later, INTERVAL);
        position.begin(start + INTERVAL * 9);
        assert_eq!(position.visit(2), known(&[("a", 1)], None));
        position.begin(start + INTERVAL * 10);
        assert_eq!(position.visit(2), Visit::Search(""));
        assert!(!position.is_slow());
        position.ran_out_of_time(start + INTERVAL * 20, INTERVAL * 10);
        assert!(position.is_slow());
        position.begin(start + INTERVAL * 119);
        assert_eq!(position.visit(2), known(&[("a", 1)], None));
        // A claim at known places that runs out of time says nothing about searches.
        position.ran_out_of_time(start + INTERVAL * 119, INTERVAL);
        position.begin(start + INTERVAL * 120);
        assert_eq!(position.visit(2), Visit::Search(""));
        advance(&mut position, &scan(&[("a", 1)], None), Again::Later, INTERVAL);
        assert!(!position.is_slow());
    }

    #[test]
    fn a_search_that_runs_out_of_time_at_first_is_made_again_with_more_patience() {
        let mut position = Position::new(INTERVAL);
        position.begin(Instant::now());
        position.ran_out_of_time(Instant::now(), INTERVAL);
        assert!(position.is_slow());
        position.begin(Instant::now());
        assert_eq!(position.visit(2), Visit::Search(""));
    }

    #[test]
    fn more_destinations_than_are_remembered_are_searched_each_time() {
        let start = Instant::now();
        let mut position = Position::new(INTERVAL);
        let names: Vec<String> = (0..=MAX_REMEMBERED).map(|number| format!("{number:06}")).collect();
        let visited: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        position.begin(start);
        advance(&mut position, &scan(&visited, None), Again::Later, Duration::ZERO);
        position.begin(start);
        assert_eq!(position.visit(2), Visit::Search(""));
    }

    #[test]
    fn places_among_rows_of_several_policies_are_kept_for_ten_times_what_they_cost() {
        let start = Instant::now();
        let mut position = Position::new(INTERVAL);
        let key = (Some("a".to_owned()), 1);
        position.begin(start);
        let windows = Windows::from([(key.clone(), place(9))]);
        position.advance(&scan(&[("a", 1)], None), windows, Again::AtOnce, Duration::ZERO, INTERVAL);
        position.begin(start + INTERVAL * 9);
        assert_eq!(position.windows().get(&key), Some(&place(9)));
        position.begin(start + INTERVAL * 11);
        assert_eq!(position.windows().get(&key), None);
    }
}
