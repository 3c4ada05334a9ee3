//! The test-kit for `prefix`: as it is, in other layouts, and where old states are forgotten.

use retrie_state::AnyBackend;
use retrie_state_testkit::TestScale;
use retrie_storage_prefix::prefix::{Prefix, PrefixLayout, RowOrder};
use std::sync::Arc;

fn prefix(order: RowOrder, padded: bool, keep: Option<u64>) -> Arc<dyn AnyBackend> {
    Arc::new(Prefix::new(PrefixLayout { order, padded }, keep))
}

mod all_kept {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || prefix(RowOrder::Path, false, None),
        TestScale::default().of_variant()
    );
}

mod few_kept {
    use super::*;
    retrie_state_testkit::backend_tests!(|| prefix(RowOrder::Path, false, Some(3)));
}

mod in_another_order_and_padded {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || prefix(RowOrder::Hash, true, Some(8)),
        TestScale::default().of_variant()
    );
}
