//! Packs the `alloc` of a geth-style genesis file into the form kept in `res/`.
//!
//! ```text
//! cargo run -p retrie-chainspec --example pack_alloc -- genesis.json res/NAME.alloc
//! ```

use retrie_chainspec::{
    ChainSpec,
    alloc_codec::{pack_alloc, unpack_alloc},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to), None) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: pack_alloc GENESIS.json OUT.alloc".into());
    };
    let spec = ChainSpec::from_genesis_json(&std::fs::read_to_string(&from)?)?;
    let packed = pack_alloc(&spec.genesis().alloc)?;
    println!("{to}: {} accounts, {} bytes", unpack_alloc(&packed)?.len(), packed.len());
    std::fs::write(to, packed)?;
    Ok(())
}
