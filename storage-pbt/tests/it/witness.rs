//! Block witnesses of accounts with codes, which the kit leaves out.

use crate::{
    common::{HASH, StateModel, TestTree, codes},
    model::steps,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{
    Account, AnyCache, KeyForm, StateChange, StateError, StateKey, WitnessMaker, WitnessRequest,
};
use retrie_storage_pbt::leaf::CodeFacts;

/// Whether an account loses a code that has chunks.
fn loses_code(model: &StateModel, change: &StateChange) -> bool {
    let code = |value: &Option<retrie_state::StateValue>| {
        value.as_ref().and_then(|value| Account::decode(value)).map(|account| account.code_hash)
    };
    let (before, after) = (code(&change.previous), code(&change.next));
    let has_chunks = before
        .and_then(|before| model.codes.get(&before))
        .is_some_and(|code| CodeFacts::of(code).is_some_and(|facts| facts.delegation.is_none()));
    matches!(change.key, StateKey::Account(_)) && has_chunks && before != after
}

#[test]
fn a_witness_of_new_codes_gives_the_root_and_one_of_lost_codes_is_refused() {
    let mut rng = StdRng::seed_from_u64(41);
    let mut model = StateModel::with_codes(codes(&mut rng));
    let mut tree = TestTree::new();
    let (mut made, mut with_codes) = (0, 0);
    for block in 0..60 {
        let count = if block == 0 { 200 } else { rng.random_range(1..5) };
        let steps = steps(&mut rng, &model, count, 100);
        let delta = model.apply(steps);
        let plain = KeyForm::Plain.delta(&delta);
        let request = WitnessRequest { number: block, reads: &[], listed: &[], delta: &plain };
        let (before, cache) = (tree.root, AnyCache::new(tree.state.clone()));
        let witness = tree.backend.make_witness(&tree.view, &cache, request);
        tree.apply(&delta);
        let is_lost = delta.changes().iter().any(|change| loses_code(&model, change));
        match witness {
            Ok(witness) => {
                assert!(!is_lost, "block {block}");
                let opened = tree.backend.open_witness(before, &witness).unwrap();
                assert_eq!(opened.apply(block, &plain).unwrap(), tree.root, "{HASH:?}, {block}");
                made += 1;
                with_codes += usize::from(!delta.codes().is_empty());
            }
            // A code beside another one that is not at hand has none either.
            Err(StateError::NoWitness { .. }) => assert!(is_lost || !delta.codes().is_empty()),
            Err(error) => panic!("block {block}: {error}"),
        }
    }
    assert!(made > 20 && with_codes > 3, "{made} witnesses, {with_codes} with codes");
}
