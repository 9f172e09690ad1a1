//! How the rows of one claim are shared among destinations, so that a million rows of one never delay another's single row.

use std::collections::HashMap;

/// A destination with due rows, as a claim may take them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name in the table.
    pub destination: String,
    /// Rows at most, by allowance, cap or probe; `None`: no limit of its own.
    pub limit: Option<usize>,
}

/// Rows that one destination may have in a process's hands: all but an eighth of its slots, so that a hanging host never
/// takes all. Rows beyond the slots (`claimBatch` above `concurrency`) only wait, and are not counted.
pub fn most_in_hand(slots: usize, batch: usize) -> usize {
    let shared = slots.saturating_mul(7).div_ceil(8);
    shared + batch.saturating_sub(slots)
}

/// Shares `rows` among the candidates: equally, what one may not take going to the others. Candidates that get none are left
/// out. What is given never exceeds `rows`, a candidate's limit, or `most` less what is in hand of it.
pub fn share(
    candidates: &[Candidate],
    rows: usize,
    most: usize,
    in_hand: &HashMap<String, usize>,
) -> Vec<(String, usize)> {
    let mut open: Vec<(usize, usize)> = candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let held = in_hand.get(&candidate.destination).copied().unwrap_or(0);
            (index, most.saturating_sub(held).min(candidate.limit.unwrap_or(usize::MAX)))
        })
        .filter(|(_, room)| *room > 0)
        .collect();
    // Those with the least room first: what they leave is shared by the rest.
    open.sort_by_key(|&(index, room)| (room, index));
    let mut left = rows;
    let mut shares: Vec<(usize, usize)> = Vec::with_capacity(open.len());
    for (position, &(index, room)) in open.iter().enumerate() {
        let equal = left.div_ceil(open.len() - position);
        let given = equal.min(room).min(left);
        left -= given;
        if given > 0 {
            shares.push((index, given));
        }
    }
    shares.sort_unstable();
    shares.into_iter().filter_map(|(index, given)| Some((candidates.get(index)?.destination.clone(), given))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(name: &str, limit: Option<usize>) -> Candidate {
        Candidate { destination: name.to_owned(), limit }
    }

    fn shares(limits: &[Option<usize>], rows: usize, most: usize, held: &[(usize, usize)]) -> Vec<(String, usize)> {
        let candidates: Vec<_> =
            limits.iter().enumerate().map(|(n, limit)| candidate(&n.to_string(), *limit)).collect();
        let in_hand = held.iter().map(|(n, rows)| (n.to_string(), *rows)).collect();
        share(&candidates, rows, most, &in_hand)
    }

    fn named(expected: &[(usize, usize)]) -> Vec<(String, usize)> {
        expected.iter().map(|(n, rows)| (n.to_string(), *rows)).collect()
    }

    #[test]
    fn rows_are_shared_equally_and_what_one_may_not_take_goes_to_the_others() {
        assert_eq!(shares(&[None], 64, 56, &[]), named(&[(0, 56)]));
        assert_eq!(shares(&[None, None], 64, 56, &[]), named(&[(0, 32), (1, 32)]));
        assert_eq!(shares(&[None, Some(1)], 64, 56, &[]), named(&[(0, 56), (1, 1)]));
        assert_eq!(shares(&[None, None], 10, 9, &[(0, 9)]), named(&[(1, 9)]));
        assert_eq!(shares(&[None, None, None], 2, 56, &[]).len(), 2);
        assert_eq!(shares(&[Some(0)], 64, 56, &[]), named(&[]));
        assert_eq!(shares(&[], 64, 56, &[]), named(&[]));
    }

    #[test]
    fn a_hanging_host_never_has_all_slots() {
        assert_eq!(most_in_hand(64, 64), 56);
        assert_eq!(most_in_hand(10, 10), 9);
        assert_eq!(most_in_hand(1, 1), 1);
        assert_eq!(most_in_hand(5, 50), 50);
    }

    proptest! {
        #[test]
        fn no_bound_is_ever_exceeded(
            limits in prop::collection::vec(prop::option::of(0_usize..100), 0..20),
            rows in 0_usize..200, most in 0_usize..100, held in prop::collection::vec((0_usize..20, 0_usize..100), 0..20),
        ) {
            let given = shares(&limits, rows, most, &held);
            prop_assert!(given.iter().map(|(_, rows)| rows).sum::<usize>() <= rows);
            let in_hand: HashMap<String, usize> = held.iter().map(|(n, rows)| (n.to_string(), *rows)).collect();
            for (name, rows) in &given {
                let limit = limits[name.parse::<usize>().unwrap()];
                prop_assert!(*rows > 0 && limit.is_none_or(|limit| *rows <= limit));
                prop_assert!(rows + in_hand.get(name).unwrap_or(&0) <= most);
            }
        }
    }
}
