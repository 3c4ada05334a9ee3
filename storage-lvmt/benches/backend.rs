//! `cargo bench -p retrie-storage-lvmt`: the real height, with development parameters, which take
//! half a minute to make.

use retrie_storage_lvmt::{Lvmt, LvmtParams, ProofShard};
use std::{ops::ControlFlow, sync::Arc};

const HEIGHT: u8 = 16;

fn lvmt(shard: ProofShard) -> Arc<Lvmt> {
    let quiet = |_, _, _| ControlFlow::Continue(());
    let proofs = shard != ProofShard::None;
    let params = LvmtParams::insecure_dev(HEIGHT, proofs, &quiet).expect("parameters can be made");
    Arc::new(Lvmt::new(Arc::new(params), shard).expect("the parameters have what the shard needs"))
}

retrie_state_testkit::backend_bench!(
    "lvmt" => lvmt(ProofShard::None),
    "lvmt@all" => lvmt(ProofShard::All),
);
