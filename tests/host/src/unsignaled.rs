// SPDX-License-Identifier: GPL-2.0

//! A send queue never fills up with requests that make no completion, though drivers refuse some.

use crate::logic::unsignaled::Unsignaled;
use proptest::prelude::*;

proptest! {
    /// Chains are posted of which a driver takes the first few. A queue takes back the count of the
    /// others, as `Chain::post` does.
    #[test]
    fn leaves_half_a_queue(
        depth in 1u32..20,
        chains in prop::collection::vec((prop::collection::vec(any::<bool>(), 1..8), 0usize..8), 1..60),
    ) {
        let mut count = Unsignaled::default();
        let mut silent = 0;
        for (chain, taken) in chains {
            let before = count;
            let signaled: Vec<bool> = chain
                .iter()
                .map(|&signaled| signaled | count.next(signaled, depth))
                .collect();
            if taken < chain.len() {
                count = before;
                for &signaled in &signaled[..taken] {
                    count.next(signaled, depth);
                }
            }
            for &signaled in signaled.iter().take(taken) {
                silent = if signaled { 0 } else { silent + 1 };
                prop_assert!(silent < (depth / 2).max(1), "{silent} in a queue of {depth}");
            }
        }
    }
}
