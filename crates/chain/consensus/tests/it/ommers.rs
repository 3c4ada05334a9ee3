//! Ommers: the real ones are valid, and each rule refuses what breaks it.

use crate::common;

use std::{cell::Cell, collections::HashMap, convert::Infallible};

use alloy_primitives::{B256, Bytes, U256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{BlockBody, Header, SealedBlock, SealedHeader},
};
use retrie_consensus::{ConsensusError as E, HeaderProvider, validate_ommers};

#[derive(Default)]
struct CountingHeaders {
    blocks: HashMap<B256, (SealedHeader, Vec<Header>)>,
    reads: Cell<usize>,
}

impl HeaderProvider for CountingHeaders {
    type Error = Infallible;

    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, Infallible> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.blocks.get(&hash).cloned())
    }
}

fn known(blocks: &[SealedBlock]) -> CountingHeaders {
    let blocks = blocks
        .iter()
        .map(|b| (b.hash(), (b.clone_sealed_header(), b.body().ommers.clone())))
        .collect();
    CountingHeaders { blocks, reads: Cell::new(0) }
}

#[test]
fn real_ommers_are_valid() {
    let Some(data) = common::data() else { return };
    let spec = ChainSpec::mainnet();
    let chain = common::early_chain(&data);
    let known = known(&chain);
    let mut checked = 0;
    for block in &chain[7..] {
        known.reads.set(0);
        validate_ommers(&spec, block, &known)
            .unwrap_or_else(|e| panic!("{}", e.in_block(&block.clone_sealed_header())));
        assert_eq!(known.reads.get(), if block.body().ommers.is_empty() { 0 } else { 7 });
        checked += block.body().ommers.len();
    }
    assert!(checked > 300, "only {checked} ommers checked");
}

#[test]
fn every_ommer_rule_is_enforced() {
    let Some(data) = common::data() else { return };
    let spec = ChainSpec::mainnet();
    let chain = common::early_chain(&data);
    let known = known(&chain);
    let at = chain.iter().rposition(|block| block.body().ommers.len() == 1).unwrap();
    let block = &chain[at];
    let ommer = block.body().ommers[0].clone();
    let judge = |block: &SealedBlock, ommers: Vec<Header>| {
        let body = BlockBody { ommers, ..Default::default() };
        let block = SealedBlock::from_sealed_parts(block.clone_sealed_header(), body);
        validate_ommers(&spec, &block, &known)
    };
    assert_eq!(judge(block, vec![ommer.clone()]), Ok(()));
    let error = judge(block, vec![ommer.clone(); 3]);
    assert!(matches!(error, Err(E::TooManyOmmers { got: 3, max: 2 })), "{error:?}");
    let error = judge(block, vec![ommer.clone(); 2]);
    assert!(matches!(error, Err(E::DuplicateOmmer { .. })), "{error:?}");
    // The grandparent is an ancestor.
    let error = judge(block, vec![chain[at - 2].header().clone()]);
    assert!(matches!(error, Err(E::OmmerIsAncestor { .. })), "{error:?}");
    // The next block names it again.
    let error = judge(&chain[at + 1], vec![ommer.clone()]);
    assert!(matches!(error, Err(E::OmmerAlreadyIncluded { .. })), "{error:?}");
    // A sibling has the same parent.
    let sibling = Header { extra_data: Bytes::from_static(b"x"), ..block.header().clone() };
    let error = judge(block, vec![sibling]);
    assert!(matches!(error, Err(E::OmmerWithoutAncestor { .. })), "{error:?}");
    // An invalid header.
    let light = Header { difficulty: ommer.difficulty - U256::from(1), ..ommer.clone() };
    match judge(block, vec![light]) {
        Err(E::InvalidOmmer { error, .. }) => assert!(matches!(*error, E::Difficulty { .. })),
        other => panic!("{other:?}"),
    }
    let lazy = Header { gas_limit: 100, gas_used: 0, ..ommer.clone() };
    match judge(block, vec![lazy]) {
        Err(E::InvalidOmmer { error, .. }) => {
            assert!(matches!(*error, E::GasLimitTooLow { .. }));
        }
        other => panic!("{other:?}"),
    }
    // Without ancestors the check fails, and not because of the block.
    let body = BlockBody { ommers: vec![ommer], ..Default::default() };
    let block = SealedBlock::from_sealed_parts(block.clone_sealed_header(), body);
    let error = validate_ommers(&spec, &block, CountingHeaders::default()).unwrap_err();
    assert!(matches!(error, E::UnknownAncestor { .. }) && error.is_local());
}

#[test]
fn ommers_reach_back_exactly_seven_generations() {
    let Some(data) = common::data() else { return };
    let spec = ChainSpec::mainnet();
    let chain = common::early_chain(&data);
    let known = known(&chain);
    // A second child of `chain[n]`: the real one with other extra data keeps all rules.
    let n = 100;
    let ommer =
        Header { extra_data: Bytes::from_static(b"second"), ..chain[n + 1].header().clone() };
    for generation in 1..=9 {
        let header = chain[n + generation].clone_sealed_header();
        let body = BlockBody { ommers: vec![ommer.clone()], ..Default::default() };
        let block = SealedBlock::from_sealed_parts(header, body);
        let result = validate_ommers(&spec, &block, &known);
        if (2..=7).contains(&generation) {
            assert_eq!(result, Ok(()), "parent {generation} generations back");
        } else {
            assert!(
                matches!(result, Err(E::OmmerWithoutAncestor { .. })),
                "parent {generation} generations back: {result:?}"
            );
        }
    }
}
