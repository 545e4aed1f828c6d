// SPDX-License-Identifier: GPL-2.0

//! The marks of a slot, against a struct.

use crate::logic::mark::Mark;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_mark_changes_no_other(
        reported in any::<bool>(), plain in 0u32..8192, keeping in any::<bool>(), canceled in any::<bool>(),
    ) {
        let mut mark = Mark::default();
        mark.keep(keeping);
        mark.cancel();
        mark = mark.posted(reported, plain);
        if canceled {
            mark.cancel();
        }
        prop_assert_eq!(mark.is_reported(), reported);
        prop_assert_eq!(mark.is_canceled(), canceled);
        prop_assert_eq!(mark.is_keeping(), keeping);
        prop_assert_eq!(mark.plain(), plain);
        mark.keep(!keeping);
        prop_assert_eq!((mark.is_reported(), mark.is_canceled()), (reported, canceled));
        prop_assert_eq!((mark.is_keeping(), mark.plain()), (!keeping, plain));
    }
}

/// Of half of the longest send queue one is not plain: the others fit.
#[test]
fn a_number_that_does_not_fit_becomes_a_lower_one() {
    for plain in [0, 1, 8191, 8192, 8193, 16383, 16384] {
        let kept = Mark::default().posted(false, plain).plain();
        assert!(kept == plain || plain > 8191 && kept < plain);
    }
}
