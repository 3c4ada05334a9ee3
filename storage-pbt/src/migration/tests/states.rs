//! States whose files are written and checked.

use super::*;
use crate::{
    hash::sweep,
    key::HEADER_ZONE,
    leaf::{CodeFacts, account_leaves},
};

fn accepted(state: &StateFixture) {
    let root = state.state_root();
    for layout in SnapshotLayout::ALL {
        let files = state.files(layout);
        let mut checked = files.check(root).unwrap_or_else(|error| panic!("{layout}: {error}"));
        let entries = checked.entries().unwrap();
        let entries: BTreeMap<_, _> =
            entries.map(|entry| entry.unwrap()).map(|(key, value)| (key.into(), value)).collect();
        let codes = checked.codes().unwrap().map(|code| code.unwrap());
        let codes = codes.map(|(hash, code)| (hash, code.into())).collect();
        assert_eq!(StateFixture { entries, codes }, *state, "{layout}");
        assert_eq!(checked.codes, state.codes.len() as u64);
        assert_eq!(checked.accounts + checked.slots, state.entries.len() as u64);
    }
}

#[test]
fn files_of_all_kinds_of_accounts_give_the_state_back() {
    accepted(&small_state());
}

#[test]
fn files_of_a_code_of_more_than_one_group_give_it_back() {
    let mut state = small_state();
    state.account(9, 1, 1, &code(9, true)).account(10, 1, 1, &[0; 31 * 256 + 1]);
    accepted(&state);
}

#[test]
fn leaves_make_the_tree_of_the_same_accounts() {
    let state = small_state();
    let leaves = state.leaves();
    let subtree = sweep(
        TreeHash::Blake3,
        leaves.iter().map(|(key, value)| (key, TreeHash::Blake3.leaf(key.as_ref(), value))),
    );
    let totals = state.export().unwrap().leaves.totals;
    assert_eq!(totals.root, subtree.unwrap().hash(TreeHash::Blake3, 0));
    assert_eq!(totals.leaves, leaves.len() as u64);
    assert_eq!(totals.headers, 6);
    for (key, value) in &state.entries {
        let BackendKey::Account(account) = key else { continue };
        let path = account_path(TreeHash::Blake3, account);
        let header: Vec<_> = leaves
            .iter()
            .filter(|(key, _)| key.zone() == HEADER_ZONE && key.path() == path && key.sub() < 3)
            .map(|(key, value)| (key.sub(), *value))
            .collect();
        let account = Account::decode(value).unwrap();
        let code = state.codes.get(&account.code_hash).cloned().unwrap_or_default();
        assert_eq!(header, account_leaves(&account, &CodeFacts::of(&code).unwrap()).unwrap());
    }
}

#[test]
fn an_empty_account_is_in_the_layout_rlp_alone() {
    let mut state = small_state();
    state.account(11, 0, 0, &[]);
    let files = state.files(SnapshotLayout::Rlp);
    files.check(state.state_root()).unwrap();
    for layout in [SnapshotLayout::Counts, SnapshotLayout::Tagged] {
        let mut export = state.export().unwrap();
        let written = with_context(|context| export.leaves.write(context, layout, Vec::new()));
        assert_eq!(fault(written), "EmptyAccount", "{layout}");
    }
}

#[test]
fn states_that_no_file_can_hold_are_refused() {
    let refused = |state: &StateFixture| fault(state.export());
    let mut state = small_state();
    let account = Account { balance: U256::from(1) << 128, ..Account::default() };
    state.entries.insert(StateKey::Account(address(12)).into(), account.encode());
    assert_eq!(refused(&state), "Balance");

    let mut state = small_state();
    let lost = state.codes.keys().next().copied().unwrap();
    state.codes.remove(&lost);
    assert_eq!(refused(&state), "MissingCode");
    state.codes.insert(lost, Bytes::from_static(&[1]));
    assert_eq!(refused(&state), "CodeHash");

    let state = small_state();
    let entries = state.entries.iter().map(|(key, value)| {
        let key = retrie_state::KeyForm::Hashed.key(&key.plain().unwrap());
        (key, value.clone())
    });
    let hashed = StateFixture { entries: entries.collect(), ..state };
    assert_eq!(refused(&hashed), "HashedKeys");

    let mut state = small_state();
    let key = StateKey::Account(address(1)).into();
    state.entries.insert(key, Bytes::from_static(&[0xff; 3]));
    assert_eq!(refused(&state), "State");

    for (slot, n) in [(U256::ZERO, 50), (U256::MAX, 0)] {
        let mut state = small_state();
        state.slot(n, slot, 1);
        let mut export = state.export().unwrap();
        let written = with_context(|context| export.write_preimages(context, Vec::new()));
        assert_eq!(fault(written), "SlotsWithoutAccount");
    }
}

#[test]
fn a_failing_source_or_sorter_or_a_stop_is_passed_on() {
    let failed = || StateError::corrupt("test", "failed");
    let mut entries = std::iter::once(Err(failed()));
    let error = with_context(|context| {
        StateExport::new(context, &mut entries, &mut |_| Ok(None)).map(|_| ())
    });
    assert_eq!(fault(error), "State");

    let state = small_state();
    let mut entries = (0..5000_u64).map(|n| {
        let address = Address::left_padding_from(&n.to_be_bytes());
        let account = Account { nonce: 1, ..Account::default() };
        Ok((StateKey::Account(address).into(), account.encode()))
    });
    let mut watch = |_| false;
    let mut context =
        MigrationContext { hash: TreeHash::Blake3, sorters: &sorter, watch: &mut watch };
    let stopped = StateExport::new(&mut context, &mut entries, &mut |_| Ok(None));
    assert_eq!(fault(stopped), "Stopped");

    struct ShortReader(Vec<u8>);
    impl std::io::Read for ShortReader {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            let count = bytes.len().min(self.0.len());
            let rest = self.0.split_off(count);
            bytes[..count].copy_from_slice(&std::mem::replace(&mut self.0, rest));
            Ok(count)
        }
    }
    for layout in SnapshotLayout::ALL {
        let snapshot = state.files(layout).snapshot;
        let half = ShortReader(snapshot[..snapshot.len() / 2].to_vec());
        assert_eq!(fault(SnapshotReader::new(layout, half).finish()), "Io");
    }
}
