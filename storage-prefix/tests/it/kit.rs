//! The test-kit for `prefix`: as it is, in other layouts, and where old states are forgotten.

use retrie_state::AnyBackend;
use retrie_storage_prefix::prefix::{Layout, Order, Prefix};
use std::sync::Arc;

fn prefix(order: Order, padded: bool, keep: Option<u64>) -> Arc<dyn AnyBackend> {
    Arc::new(Prefix::new(Layout { order, padded }, keep))
}

mod all_kept {
    use super::*;
    retrie_state::backend_tests!(|| prefix(Order::Path, false, None));
}

mod few_kept {
    use super::*;
    retrie_state::backend_tests!(|| prefix(Order::Path, false, Some(3)));
}

mod in_another_order_and_padded {
    use super::*;
    retrie_state::backend_tests!(|| prefix(Order::Hash, true, Some(8)));
}
