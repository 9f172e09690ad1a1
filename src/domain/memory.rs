//! How a relay's memory for payloads is shared between small ones, which come with their claim, and large ones, which are
//! loaded when their turn comes. Each has a part of its own, so that neither waits behind the other.

/// Largest payload that comes with its claim, in bytes.
pub const SMALL_PAYLOAD_BYTES: u64 = 128 * 1024;

/// The part of the budget that payloads of claims may take: an eighth.
fn claims_part(budget: u64) -> u64 {
    budget / 8
}

/// The part of the budget that large payloads share.
pub fn large_part(budget: u64) -> u64 {
    budget - claims_part(budget)
}

/// Largest payload that comes with a claim, where so many rows may be in hand at once.
pub fn small_payload(budget: u64, rows: usize) -> u64 {
    let rows = u64::try_from(rows).unwrap_or(u64::MAX).max(1);
    (claims_part(budget) / rows).min(SMALL_PAYLOAD_BYTES)
}

/// The smallest budget under which a payload of this size can be loaded.
pub fn least_budget(largest_payload: u64) -> u64 {
    // The eighth that is kept for claims, rounded up, and a byte for what its own rounding may take.
    largest_payload.saturating_add(largest_payload.div_ceil(7)).saturating_add(1)
}

/// Large rows that may wait for memory in one process's hands: an eighth of its slots, so that they never keep the others'
/// rows out. More are put off.
pub fn waiting_room(slots: usize) -> usize {
    (slots / 8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_defaults_give_small_payloads_their_full_size() {
        assert_eq!(small_payload(128 << 20, 128), SMALL_PAYLOAD_BYTES);
        assert_eq!(large_part(128 << 20), 112 << 20);
        assert_eq!(small_payload(1 << 20, 4096 + 10_000), 9);
        assert_eq!((waiting_room(1), waiting_room(64)), (1, 8));
    }

    proptest! {
        #[test]
        fn both_parts_never_exceed_the_budget(budget in 1_u64..1 << 40, rows in 0_usize..20_000) {
            let claims = small_payload(budget, rows) * rows.max(1) as u64;
            prop_assert!(claims + large_part(budget) <= budget);
        }

        #[test]
        fn a_payload_fits_into_its_least_budget_and_not_into_much_less(payload in 1_u64..1 << 40) {
            let least = least_budget(payload);
            prop_assert!(large_part(least) >= payload);
            prop_assert!(large_part(least - 3) < payload);
        }
    }
}
