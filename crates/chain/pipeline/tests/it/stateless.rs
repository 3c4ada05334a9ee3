//! Real blocks on witnesses of other clients, and what a lint says of these.

use retrie_chainspec::parse_chain;
use retrie_pipeline::stateless::{FindingCode, WitnessFinding, WitnessLint, verify_witness};
use retrie_sources::witness::{AnswerList, WitnessAnswer, enclosed_block};
use retrie_state_testkit::{data, sample};
use retrie_storage_mpt::Mpt;
use std::collections::BTreeSet;

/// The position of an entry that nothing needs.
fn unneeded(finding: &WitnessFinding, list: &[FindingCode]) -> Option<usize> {
    finding.entry.filter(|_| list.contains(&finding.code))
}

/// Removes the entries at these positions.
fn without(list: &mut AnswerList, positions: &BTreeSet<usize>) {
    let mut at = 0..;
    list.entries.retain(|_| at.next().is_some_and(|at| !positions.contains(&at)));
}

#[test]
fn a_real_witness_without_what_a_lint_finds_is_canonical() {
    use FindingCode as Code;
    let Some(folder) = data::find("mainnet/witness") else { return };
    let (spec, opener) = (parse_chain("mainnet").unwrap(), Mpt::default());
    let lint = WitnessLint { spec: spec.clone(), opener: &opener };
    for number in sample::of(vec![1u64, 1_150_001, 2_675_000, 21_429_020, 21_429_992], 2) {
        let file = folder.join(format!("{number}.json.gz"));
        let mut answer = WitnessAnswer::load(&file).unwrap();
        let block = enclosed_block(&file, answer.block.as_ref().unwrap()).unwrap();
        let report = lint.check(block.clone(), &answer).unwrap();
        assert!(report.complete, "{number}: {:?}", report.findings);
        let state = [Code::StateUnused, Code::StateUnlinked, Code::StateDuplicate];
        let codes = [Code::CodesUnused, Code::CodesCreated, Code::CodesDuplicate];
        let order = [Code::StateOrder, Code::CodesOrder];
        let found = |kinds: &[Code]| -> BTreeSet<usize> {
            report.findings.iter().filter_map(|one| unneeded(one, kinds)).collect()
        };
        without(&mut answer.state, &found(&state));
        without(&mut answer.codes, &found(&codes));
        let known = [&state[..], &codes, &order].concat();
        for finding in &report.findings {
            assert!(known.contains(&finding.code), "{number}: {finding}");
        }
        for list in [&mut answer.state, &mut answer.codes] {
            list.entries.sort_by(|a, b| a.bytes().cmp(&b.bytes()));
        }
        let report = lint.check(block.clone(), &answer).unwrap();
        assert_eq!((report.findings, report.given), (Vec::new(), report.needed), "{number}");
        let root = block.header.state_root;
        let witness = answer.into_witness(&file).unwrap();
        assert_eq!(verify_witness(&spec, &opener, block, &witness).unwrap().after, root);
    }
}
