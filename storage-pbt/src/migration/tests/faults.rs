//! Faults, each by its name.

use super::*;
use crate::{
    hash::sweep,
    key::{CODE_ZONE, HEADER_ZONE, STORAGE_ZONE, Stem, group_path},
};
use SnapshotLayout::{Counts, Rlp, Tagged};

/// The snapshot of these leaves in the layout `rlp`, with their root. Keys need not be canonical.
fn snapshot_of(leaves: &[(Vec<u8>, B256)]) -> Vec<u8> {
    let hash = TreeHash::Blake3;
    let tree = sweep(hash, leaves.iter().map(|(key, value)| (key, hash.leaf(key, value))));
    let root = tree.map_or(B256::ZERO, |tree| tree.hash(hash, 0));
    let mut out = [&root[..], &(leaves.len() as u64).to_be_bytes()].concat();
    for (key, value) in leaves {
        let string = |bytes: &[u8]| alloy_rlp::encode(bytes);
        let value = value.as_slice();
        let zeros = value.iter().take_while(|byte| **byte == 0).count();
        let payload = [string(key), string(&value[zeros..])].concat();
        alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut out);
        out.extend(payload);
    }
    out
}

/// Keys and values.
type RawLeaves = Vec<(Vec<u8>, B256)>;

fn raw(leaves: BTreeMap<TreeKey, B256>) -> RawLeaves {
    leaves.into_iter().map(|(key, value)| (key.as_ref().to_vec(), value)).collect()
}

/// Changes leaves.
type LeafChange = Box<dyn FnOnce(&mut BTreeMap<TreeKey, B256>)>;

/// What the check says of a state's files once its leaves are changed and its root fits again.
fn changed(state: &StateFixture, change: impl FnOnce(&mut BTreeMap<TreeKey, B256>)) -> String {
    let mut leaves = state.leaves();
    change(&mut leaves);
    let snapshot = snapshot_of(&raw(leaves));
    fault(MadeFilePair { snapshot, ..state.files(Rlp) }.check(state.state_root()))
}

fn header(n: u8, sub: u8) -> TreeKey {
    let path = account_path(TreeHash::Blake3, &address(n).into());
    TreeKey::new(&Stem::short(HEADER_ZONE, &path), sub)
}

fn chunk(code: &[u8], number: u8) -> TreeKey {
    let path = group_path(TreeHash::Blake3, &keccak256(code), &B256::ZERO);
    TreeKey::new(&Stem::short(CODE_ZONE, &path), number)
}

fn set(key: TreeKey, at: usize, byte: u8) -> impl FnOnce(&mut BTreeMap<TreeKey, B256>) {
    move |leaves| leaves.entry(key).or_default()[at] = byte
}

fn gone(key: TreeKey) -> impl FnOnce(&mut BTreeMap<TreeKey, B256>) {
    move |leaves| assert!(leaves.remove(&key).is_some())
}

#[test]
fn leaves_that_no_state_has_are_refused_even_if_their_root_fits() {
    let state = small_state();
    let one = B256::with_last_byte(1);
    let says = |expected: &str, change: LeafChange| {
        assert_eq!(changed(&state, change), expected);
    };
    says("Version", Box::new(set(header(1, 0), 0, 1)));
    says("ReservedBytes", Box::new(set(header(1, 0), 2, 1)));
    says("CodeSize", Box::new(set(header(1, 0), 7, 1)));
    says("CodeSize", Box::new(set(header(5, 0), 7, 24)));
    says("CodeSizes", Box::new(set(header(2, 0), 7, 1)));
    says("CodeTooLong", Box::new(set(header(4, 0), 4, 1)));
    says("CodeHash", Box::new(set(header(4, 0), 7, 125)));
    says("StateRoot", Box::new(set(header(1, 0), 31, 1)));
    says("StateRoot", Box::new(set(header(5, 2), 22, 9)));
    says("BadDelegation", Box::new(set(header(5, 2), 31, 1)));
    says("BadDelegation", Box::new(set(header(5, 2), 2, 1)));
    says("TwoCodeLeaves", Box::new(set(header(5, 1), 0, 1)));
    says("NoCodeLeaf", Box::new(gone(header(1, 1))));
    says("NoCodeLeaf", Box::new(gone(header(5, 2))));
    says(
        "NoAccount",
        Box::new(|leaves| {
            gone(header(5, 0))(leaves);
            gone(header(5, 2))(leaves);
        }),
    );
    says("SurplusSlot", Box::new(gone(header(2, 64))));
    says("MissingPreimage", Box::new(set(header(1, 65), 31, 1)));
    says("SubIndex", Box::new(set(header(1, 3), 31, 1)));
    says("SubIndex", Box::new(set(header(1, 200), 31, 1)));

    let code = code(7, false);
    says("CodeHash", Box::new(gone(chunk(&code, 1))));
    says("CodeHash", Box::new(set(chunk(&code, 0), 5, 1)));
    says("WrongChunk", Box::new(set(chunk(&code, 2), 0, 3)));
    says("WrongChunk", Box::new(set(chunk(&code, 4), 31, 1)));
    says("WrongChunk", Box::new(set(chunk(&code, 3), 0, 1)));
    says("SurplusChunk", Box::new(set(chunk(&code, 5), 31, 1)));
    says("UnreferencedCode", Box::new(set(chunk(&[1], 0), 31, 1)));
    says("UnreferencedCode", Box::new(set(chunk(&super::code(7, true), 0), 31, 1)));

    says(
        "SurplusSlot",
        Box::new(|leaves| {
            let (first, _) = leaves.iter().find(|(key, _)| key.zone() == STORAGE_ZONE).unwrap();
            gone(*first)(leaves);
        }),
    );
    says(
        "SurplusSlot",
        Box::new(|leaves| {
            leaves.pop_last().unwrap();
        }),
    );
    says("StateRoot", Box::new(|leaves| leaves.last_entry().unwrap().get_mut()[31] ^= 0x80));
    says(
        "MissingPreimage",
        Box::new(move |leaves| {
            let group = Stem::storage(&B256::ZERO, &B256::ZERO);
            leaves.insert(TreeKey::new(&group, 0), one);
        }),
    );
}

#[test]
fn a_delegation_that_is_kept_as_code_is_refused() {
    let state = small_state();
    let indicator = [&[0xef, 0x01, 0x00][..], &address(1)[..]].concat();
    let as_code = |leaves: &mut BTreeMap<TreeKey, B256>| {
        gone(header(5, 2))(leaves);
        leaves.insert(header(5, 1), keccak256(&indicator));
        leaves.insert(chunk(&indicator, 0), crate::leaf::chunks(&indicator)[0]);
    };
    assert_eq!(changed(&state, as_code), "IndicatorAsCode");
    // One account has it as delegation, another one as code.
    let mut both = small_state();
    both.account(7, 1, 1, &indicator);
    assert_eq!(changed(&both, as_code), "IndicatorAsCode");
}

#[test]
fn records_of_the_layout_rlp_that_are_not_canonical_are_refused() {
    let state = small_state();
    let files = state.files(Rlp);
    let leaves = raw(state.leaves());
    let says = |expected: &str, snapshot: Vec<u8>| {
        let files = MadeFilePair { snapshot, ..files.clone() };
        assert_eq!(fault(files.check(state.state_root())), expected);
    };
    let with = |change: &dyn Fn(&mut RawLeaves)| {
        let mut leaves = leaves.clone();
        change(&mut leaves);
        snapshot_of(&leaves)
    };
    let one = B256::with_last_byte(1);
    says("ReservedZone", with(&|leaves| leaves.insert(20, (vec![2; 34], one))));
    says("KeyLength", with(&|leaves| leaves[5].0 = vec![]));
    says("KeyLength", with(&|leaves| leaves[5].0 = leaves[5].0[..33].to_vec()));
    says("KeyLength", with(&|leaves| leaves[5].0.push(0)));
    says("KeyLength", with(&|leaves| leaves.last_mut().unwrap().0.truncate(34)));
    says("ZeroValue", with(&|leaves| leaves[5].1 = B256::ZERO));
    says("Duplicate", with(&|leaves| leaves.insert(5, leaves[5].clone())));
    says("Order", with(&|leaves| leaves.swap(5, 6)));
    says("PbtRoot", [&[1; 32], &files.snapshot[32..]].concat());
    let count = |n: u64| [&files.snapshot[..32], &n.to_be_bytes(), &files.snapshot[40..]].concat();
    let right = leaves.len() as u64;
    says("LeafCount", count(right + 1));
    says("LeafCount", count(u64::MAX));
    says("TrailingBytes", count(right - 1));
    says("TrailingBytes", [&files.snapshot[..], &[0]].concat());
    says("Truncated", files.snapshot[..files.snapshot.len() - 1].to_vec());
    says("Truncated", files.snapshot[..39].to_vec());
    says("Truncated", Vec::new());

    // One record after the front: what stands for a leaf.
    let record = |bytes: &[u8]| [&[0; 32][..], &1_u64.to_be_bytes(), bytes].concat();
    let key = [&[0xa2, 0][..], &[1; 33]].concat();
    let list = |payload: &[u8]| record(&[&[0xc0 + payload.len() as u8], payload].concat());
    says("NotRlp", record(&key));
    says("NotRlp", list(&key));
    says("NotRlp", list(&[&key[..], &[1, 1]].concat()));
    says("NotRlp", list(&[&key[..], &[0x81, 1]].concat()));
    says("NotRlp", list(&[&key[..], &[0x82, 1]].concat()));
    says("NotRlp", list(&[&key[..], &[0xc0]].concat()));
    says("NotRlp", list(&[&[0xb8, 34, 0][..], &[1; 33], &[1]].concat()));
    says("NotRlp", record(&[&[0xf8, 36][..], &key, &[1]].concat()));
    says("NotRlp", record(&[0xf8, 0xff]));
    says("NotRlp", record(&[0xf9, 0, 36]));
    let key = [&[0xa2, 0][..], &[1; 32], &[0]].concat();
    says("LeadingZero", list(&[&key[..], &[0x82, 0, 1]].concat()));
    says("ZeroValue", list(&[&key[..], &[0]].concat()));
    says("ZeroValue", list(&[&key[..], &[0x82, 0, 0]].concat()));
    let long = [&[0xf8, 35 + 34][..], &key, &[0xa1], &[1; 33]].concat();
    says("NumberTooLong", record(&long));
}

#[test]
fn records_of_typed_layouts_that_are_not_canonical_are_refused() {
    let says = |expected: &str, layout: SnapshotLayout, parts: &[&[u8]]| {
        let bytes = parts.concat();
        let found = fault(SnapshotReader::new(layout, &bytes[..]).finish());
        assert_eq!(found, expected, "{layout} {bytes:02x?}");
    };
    let (root, one, none) = (&[7; 32][..], &1_u64.to_be_bytes()[..], &[0; 8][..]);
    let (path, next) = (&[5; 32][..], &[6; 32][..]);
    let end = &[&[7][..], root].concat()[..];
    // A header is: path, nonce, balance, [kind], code, slots.
    let plain: &[u8] = &[1, 3, 0, 0];
    let ok = [&[0][..], path, plain, end].concat();
    SnapshotReader::new(Tagged, &ok[..]).finish().unwrap();
    let front = &[root, one][..].concat()[..];
    let says_header = |expected: &str, nonce_and_balance: &[u8], kind: u8, rest: &[u8]| {
        says(expected, Tagged, &[&[kind], path, nonce_and_balance, rest, end]);
        says(expected, Counts, &[front, path, nonce_and_balance, &[kind], rest, none, none]);
    };
    says_header("LeadingZero", &[1, 0, 0], 0, &[0]);
    says_header("LeadingZero", &[2, 0, 1, 0], 0, &[0]);
    says_header("LeadingZero", &[0, 1, 0], 0, &[0]);
    says_header("NumberTooLong", &[9, 1, 1, 1, 1, 1, 1, 1, 1, 1], 0, &[0]);
    says_header("NumberTooLong", &[&[0, 17][..], &[1; 17]].concat(), 0, &[0]);
    says_header("EmptyAccount", &[0, 0], 0, &[0]);
    says_header("CodeSize", &[1, 1, 0], 1, &[&[9; 32][..], &[0], &[0]].concat());
    says_header("CodeSize", &[1, 1, 0], 1, &[&keccak256([])[..], &[1, 1], &[0]].concat());
    says_header("NumberTooLong", &[1, 1, 0], 1, &[&[9; 32][..], &[5, 1, 1, 1, 1, 1, 0]].concat());
    says_header("SubIndex", &[1, 1, 0], 0, &[1, 64, 1, 1]);
    says_header("SubIndex", &[1, 1, 0], 0, &[1, 255, 1, 1]);
    says_header("ZeroValue", &[1, 1, 0], 0, &[1, 3, 0]);
    says_header("LeadingZero", &[1, 1, 0], 0, &[1, 3, 1, 0]);
    says_header("NumberTooLong", &[1, 1, 0], 0, &[&[1, 3, 33][..], &[1; 33]].concat());
    says_header("Order", &[1, 1, 0], 0, &[2, 4, 1, 1, 3, 1, 1]);
    says_header("Duplicate", &[1, 1, 0], 0, &[2, 4, 1, 1, 4, 1, 1]);
    says("UnknownTag", Counts, &[front, path, &[1, 3, 0, 3, 0], none, none]);
    says("UnknownTag", Tagged, &[&[8], path, plain, end]);
    says("Order", Tagged, &[&[0], next, plain, &[0], path, plain, end]);
    says("Duplicate", Tagged, &[&[0], path, plain, &[0], path, plain, end]);

    // A group is: path, leaves - 1, leaves.
    let group: &[u8] = &[1, 4, 1, 1, 5, 1, 1];
    let single: &[u8] = &[0, 4, 1, 1];
    let (rest, more) = (&[0, 4, 1, 1][..], &[0, 5, 1, 1][..]);
    says("Duplicate", Tagged, &[&[3], path, rest, &[3], path, more, end]);
    says("Duplicate", Counts, &[root, none, &2_u64.to_be_bytes(), path, rest, path, more, none]);
    says("Order", Tagged, &[&[3], next, rest, &[3], path, rest, end]);
    says("ZeroValue", Tagged, &[&[3], path, &[0, 4, 0], end]);
    says("Order", Tagged, &[&[3], path, &[1, 5, 1, 1, 4, 1, 1], end]);
    says("TagOrder", Tagged, &[&[3], path, rest, &[0], path, plain, end]);
    says("TagOrder", Tagged, &[&[4], path, &[6], path, group, &[3], path, rest, end]);
    says("TagOrder", Tagged, &[&[4], path, &[6], path, group, &[1], path, rest, end]);
    says("TagOrder", Tagged, &[&[5], path, &[4, 1, 1], end]);
    says("TagOrder", Tagged, &[&[3], path, rest, &[6], path, group, end]);
    says("EmptyStorage", Tagged, &[&[4], path, end]);
    says("EmptyStorage", Tagged, &[&[4], path, &[4], next, &[6], path, group, end]);
    says("EmptyStorage", Counts, &[root, none, none, one, path, &[0]]);
    says("GroupForm", Tagged, &[&[4], path, &[6], path, single, end]);
    let storage = [&[4][..], path, &[6], path, group].concat();
    SnapshotReader::new(Tagged, &[&storage[..], end].concat()[..]).finish().unwrap();
    says("Duplicate", Tagged, &[&storage, &[4], path, &[6], next, group, end]);
    says("Order", Tagged, &[&[4], next, &[6], path, group, &storage, end]);
    says("Duplicate", Tagged, &[&storage, &[6], path, &[1, 6, 1, 1, 7, 1, 1], end]);
    says("Order", Tagged, &[&[4], path, &[6], next, group, &[6], path, group, end]);
    let count = |groups: &[u8]| [root, none, none, one, path, groups, path, group].concat();
    SnapshotReader::new(Counts, &count(&[1, 1])[..]).finish().unwrap();
    says("LeadingZero", Counts, &[&count(&[2, 0, 1])]);
    says("Truncated", Counts, &[&count(&[1, 2])]);
    says("NumberTooLong", Counts, &[&count(&[9, 1, 1, 1, 1, 1, 1, 1, 1, 1])]);
    says("TrailingBytes", Counts, &[&count(&[1, 1]), &[0]]);
    says("TrailingBytes", Tagged, &[&ok, &[0]]);
    says("Truncated", Tagged, &[&ok[..ok.len() - 1]]);
    says("Truncated", Tagged, &[&ok[..ok.len() - 33]]);
    says("Truncated", Counts, &[root, none, none]);
}

#[test]
fn preimages_that_are_not_those_of_the_state_are_refused() {
    let state = small_state();
    let files = state.files(Tagged);
    let says = |expected: &str, preimages: Vec<u8>| {
        let files = MadeFilePair { preimages, ..files.clone() };
        assert_eq!(fault(files.check(state.state_root())), expected);
    };
    let mut accounts: Vec<(Address, Vec<B256>)> = Vec::new();
    let mut reader = PreimageReader::new(&files.preimages[..]);
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Preimage::Account(address) => accounts.push((address, Vec::new())),
            Preimage::Slot(slot) => accounts.last_mut().unwrap().1.push(slot),
        }
    }
    type Accounts = Vec<(Address, Vec<B256>)>;
    let with = |change: &dyn Fn(&mut Accounts)| {
        let mut accounts = accounts.clone();
        change(&mut accounts);
        let mut writer = PreimageWriter::new(Vec::new());
        for (address, slots) in &accounts {
            writer.account(address, slots.len() as u32).unwrap();
            slots.iter().for_each(|slot| writer.slot(slot).unwrap());
        }
        writer.finish().unwrap().1
    };
    let sort = |accounts: &mut Accounts| {
        accounts.sort_by_key(|(address, _)| keccak256(address));
        accounts.iter_mut().for_each(|(_, slots)| slots.sort_by_key(|slot| keccak256(slot)));
    };
    let contract = accounts.iter().position(|(address, _)| *address == super::address(2)).unwrap();
    assert_eq!(with(&|_| {}), files.preimages);
    says("Truncated", [&files.preimages[..], &[0]].concat());
    says("Truncated", files.preimages[..files.preimages.len() - 1].to_vec());
    says("Duplicate", with(&|accounts| accounts.insert(1, accounts[1].clone())));
    says("Order", with(&|accounts| accounts.swap(0, 1)));
    says(
        "Duplicate",
        with(&|accounts| {
            let slots = &mut accounts[contract].1;
            slots.insert(1, slots[1]);
        }),
    );
    says("Order", with(&|accounts| accounts[contract].1.swap(0, 1)));
    says(
        "MissingPreimage",
        with(&|accounts| {
            accounts.remove(contract);
        }),
    );
    says("MissingPreimage", with(&|accounts| accounts.clear()));
    for at in 0..accounts[contract].1.len() {
        says(
            "MissingPreimage",
            with(&|accounts| {
                accounts[contract].1.remove(at);
            }),
        );
    }
    for n in 30..40 {
        says(
            "SurplusAccount",
            with(&|accounts| {
                accounts.push((super::address(n), Vec::new()));
                sort(accounts);
            }),
        );
        says(
            "SurplusSlot",
            with(&|accounts| {
                accounts[contract].1.push(B256::repeat_byte(n));
                sort(accounts);
            }),
        );
    }
    says(
        "SurplusSlot",
        with(&|accounts| {
            accounts[contract].1.push(B256::with_last_byte(9));
            sort(accounts);
        }),
    );
}

#[test]
fn files_of_another_block_are_refused() {
    let (state, mut other) = (small_state(), small_state());
    other.account(1, 4, 1, &[]);
    for layout in SnapshotLayout::ALL {
        let files = other.files(layout);
        files.check(other.state_root()).unwrap();
        assert_eq!(fault(files.check(state.state_root())), "StateRoot");
        for wrong in SnapshotLayout::ALL.into_iter().filter(|wrong| *wrong != layout) {
            let read = SnapshotReader::new(wrong, &files.snapshot[..]).finish();
            assert!(read.is_err(), "{layout} is not {wrong}");
        }
    }
}

/// No byte of the files can be changed, dropped, or added.
#[test]
fn every_changed_byte_is_refused() {
    let state = small_state();
    let root = state.state_root();
    for layout in SnapshotLayout::ALL {
        let files = state.files(layout);
        for at in 0..files.snapshot.len() + files.preimages.len() {
            let changed = |change: &dyn Fn(&mut Vec<u8>, usize)| {
                let mut files = files.clone();
                match at.checked_sub(files.snapshot.len()) {
                    None => change(&mut files.snapshot, at),
                    Some(at) => change(&mut files.preimages, at),
                }
                assert!(files.check(root).is_err(), "{layout}, byte {at}");
            };
            // A fixed choice of the bits, another one at each byte.
            changed(&|bytes, at| bytes[at] ^= 1 << (at % 8));
            if layout == Tagged || at % 5 == 0 {
                changed(&|bytes, at| bytes.truncate(at));
                changed(&|bytes, at| {
                    bytes.remove(at);
                });
                changed(&|bytes, at| bytes.insert(at, 0x5b));
            }
        }
    }
}
