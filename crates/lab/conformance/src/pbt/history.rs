//! Random histories: the root and the number of leaves after each block, then the rows.

use super::{
    JsonNumber, expect,
    model::{ModelBlock, ModelState, TestTree},
};
use crate::format::{CodeMap, TestVerdict, parse};
use alloy_primitives::{Address, B256, U256};
use retrie_state::Account;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// A history.
#[derive(Debug, Deserialize)]
pub(super) struct History {
    blocks: Vec<HistoryBlock>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HistoryBlock {
    accounts: BTreeMap<Address, Option<AccountRecord>>,
    storage: BTreeMap<Address, BTreeMap<U256, U256>>,
    storage_clears: BTreeSet<Address>,
    leaves: u64,
    root: B256,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AccountRecord {
    nonce: JsonNumber,
    balance: U256,
    code_hash: B256,
}

impl HistoryBlock {
    fn changes(&self) -> Result<ModelBlock, String> {
        let record = |(address, record): (&Address, &Option<AccountRecord>)| {
            let account = record.as_ref().map(|record| {
                let AccountRecord { nonce: JsonNumber(nonce), balance, code_hash } = *record;
                let nonce = crate::format::to_u64(nonce, "nonce")?;
                Ok::<_, String>(Account { nonce, balance, code_hash })
            });
            Ok((*address, account.transpose()?))
        };
        let slots = |(address, slots): (&Address, &BTreeMap<U256, U256>)| {
            let slots = slots.iter().map(|(slot, value)| (B256::from(*slot), *value));
            (*address, slots.collect())
        };
        Ok(ModelBlock {
            wiped: self.storage_clears.clone(),
            accounts: self.accounts.iter().map(record).collect::<Result<_, String>>()?,
            slots: self.storage.iter().map(slots).collect(),
        })
    }
}

impl History {
    /// The state after the last block.
    pub(super) fn end(&self, codes: &CodeMap) -> Result<ModelState, String> {
        let mut state = ModelState::default();
        for block in &self.blocks {
            state.apply(&block.changes()?, codes)?;
        }
        Ok(state)
    }
}

/// Runs a history block by block on the backend.
pub(super) fn run(json: &RawValue, codes: &CodeMap) -> TestVerdict {
    let history: History = parse(json)?;
    let (mut state, mut tree) = (ModelState::default(), TestTree::new()?);
    for (number, block) in history.blocks.iter().enumerate() {
        let at = |error: String| format!("block {number}: {error}");
        let delta = state.apply(&block.changes().map_err(at)?, codes).map_err(at)?;
        tree.apply(&delta)?;
        let (leaves, swept) = state.totals(codes).map_err(at)?;
        expect("the number of leaves", leaves, block.leaves).map_err(at)?;
        expect("the root of all leaves", swept, block.root).map_err(at)?;
        expect("the root of the backend", tree.root, block.root).map_err(at)?;
    }
    let (root, rows) = state.load(codes)?;
    expect("the root of a load", root, tree.root)?;
    tree.expect_rows(&rows)
}
