//! Adds cases to a file, and checks each one.

use super::{
    chain::TestChain,
    format::{ExpectedVerdict, VectorCase, VectorFile, VectorQuestion, VectorTrust},
};
use alloy_primitives::{B256, Bytes};
use retrie_backends::proof_formats;
use retrie_light_client::{KeyForm, StateKey, StateValue, StateVerifier};
use serde_json::Value as Json;
use std::collections::BTreeMap;

pub(crate) struct VectorMaker {
    pub(crate) file: VectorFile,
    verifier: StateVerifier,
}

pub(crate) fn encoded(keys: &[StateKey]) -> Vec<Bytes> {
    keys.iter().map(|key| key.encode().to_vec().into()).collect()
}

impl VectorMaker {
    /// `pinned`: as [`VectorFile::pinned`].
    pub(crate) fn new(about: &str, pinned: Vec<Bytes>) -> Self {
        Self::of(VectorFile { about: about.into(), pinned, ..VectorFile::default() })
    }

    /// For proofs under roots of stores with hashed keys.
    pub(crate) fn hashed(about: &str, pinned: Vec<Bytes>) -> Self {
        let keys = Some(KeyForm::Hashed.name().to_owned());
        Self::of(VectorFile { about: about.into(), pinned, keys, ..VectorFile::default() })
    }

    fn of(file: VectorFile) -> Self {
        let verifier = file.verifier();
        Self { file, verifier }
    }

    /// A case with a valid proof of `truth`.
    pub(crate) fn valid(
        &mut self,
        name: &str,
        trusted: VectorTrust,
        keys: Option<&[StateKey]>,
        question: VectorQuestion,
        truth: Vec<Option<StateValue>>,
    ) {
        self.shows(name, trusted, keys, question, ExpectedVerdict::Values(truth));
    }

    /// A case with this verdict.
    pub(crate) fn shows(
        &mut self,
        name: &str,
        trusted: VectorTrust,
        keys: Option<&[StateKey]>,
        question: VectorQuestion,
        expect: ExpectedVerdict,
    ) {
        let case = VectorCase {
            name: name.into(),
            trusted: Some(trusted),
            keys: keys.map(encoded),
            question: Some(question),
            expect,
            ..VectorCase::default()
        };
        assert_eq!(case.run(&self.verifier), case.expect, "{name}");
        self.add(case);
    }

    /// The proof of `keys` in the state of a block.
    pub(crate) fn proof(&mut self, name: &str, chain: &TestChain, number: u64, keys: &[StateKey]) {
        let proof = chain.prove(number, keys);
        let trusted = VectorTrust::Root(proof.root);
        let truth = chain.truth(number, keys);
        self.valid(name, trusted, Some(keys), VectorQuestion::proof(&proof), truth);
    }

    /// A case that must be refused; with the error `class`, if it is known in advance.
    pub(crate) fn forged(&mut self, of: &str, how: &str, class: Option<&str>, change: VectorCase) {
        let name = format!("{of}: {how}");
        let mut case = VectorCase { name, of: Some(of.into()), ..change };
        let ExpectedVerdict::Error(got) = self.file.resolve(&case).run(&self.verifier) else {
            panic!("{} is accepted", case.name)
        };
        assert!(class.is_none_or(|class| class == got), "{}: {got}", case.name);
        case.expect = ExpectedVerdict::Error(got);
        self.add(case);
    }

    /// A case that must either be refused, or show `truth`.
    pub(crate) fn true_or_forged(
        &mut self,
        of: &str,
        how: &str,
        change: VectorCase,
        truth: ExpectedVerdict,
    ) {
        let case = VectorCase { of: Some(of.into()), ..change.clone() };
        match self.file.resolve(&case).run(&self.verifier) {
            ExpectedVerdict::Error(class) => self.forged(of, how, Some(&class), change),
            shown => {
                assert_eq!(shown, truth, "{of}: {how}");
                self.add(VectorCase {
                    name: format!("{of}: {how}, which is true"),
                    expect: shown,
                    ..case
                });
            }
        }
    }

    pub(crate) fn forged_bytes(
        &mut self,
        of: &str,
        how: &str,
        class: Option<&str>,
        edit: (usize, usize, Bytes),
    ) {
        self.forged(of, how, class, VectorCase { edit: Some(vec![edit]), ..VectorCase::default() });
    }

    /// Writes the one-byte varint at `at` in two bytes, which is not canonical.
    pub(crate) fn longer_number(&mut self, of: &str, bytes: &[u8], at: usize) {
        assert!(bytes[at] < 0x80, "{of}: no number of one byte at {at}");
        let edit = (at, 1, Bytes::from([bytes[at] | 0x80, 0]));
        self.forged_bytes(of, "a number in a longer form", Some("malformed"), edit);
    }

    pub(crate) fn forged_field(&mut self, of: &str, field: &str, class: &str, value: Json) {
        self.forged_field_as(of, &format!("another {field}"), field, class, value);
    }

    pub(crate) fn forged_field_as(
        &mut self,
        of: &str,
        how: &str,
        field: &str,
        class: &str,
        value: Json,
    ) {
        let with = Some(BTreeMap::from([(field.to_owned(), value)]));
        self.forged(of, how, Some(class), VectorCase { with, ..VectorCase::default() });
    }

    /// Forgeries that apply to any proof of `keys`, at least two, in the state of a block.
    pub(crate) fn anyhow_forged(
        &mut self,
        of: &str,
        chain: &TestChain,
        number: u64,
        keys: &[StateKey],
        flips: usize,
    ) {
        let proof = chain.prove(number, keys);
        let (len, other) = (proof.bytes.len(), B256::repeat_byte(0x5a));
        // The head bit by bit, the rest in steps.
        let bits = (0..flips).map(|n| n * 3 % 61).chain((0..flips).map(|n| n * len * 8 / flips));
        for bit in bits.collect::<std::collections::BTreeSet<_>>() {
            let byte = proof.bytes[bit / 8] ^ 1 << (bit % 8);
            let edit = (bit / 8, 1, Bytes::from([byte]));
            self.forged_bytes(of, &format!("bit {bit} flipped"), None, edit);
        }
        for kept in [0, 1, 2, len / 4, len / 2, len - 33, len - 32, len - 1] {
            let edit = (kept, len - kept, Bytes::new());
            self.forged_bytes(of, &format!("cut to {kept} bytes"), None, edit);
        }
        for (at, gone) in [(1, 1), (len / 3, 32), (len / 2, 1), (len - 64, 32)] {
            let part = Bytes::copy_from_slice(&proof.bytes[at..at + gone]);
            let how = format!("{gone} bytes at {at} dropped");
            self.forged_bytes(of, &how, None, (at, gone, Bytes::new()));
            let how = format!("{gone} bytes at {at} doubled");
            self.forged_bytes(of, &how, None, (at, 0, part));
            if proof.bytes[at..at + gone].iter().any(|byte| *byte > 0) {
                let how = format!("{gone} bytes at {at} zeroed");
                self.forged_bytes(of, &how, None, (at, gone, vec![0; gone].into()));
            }
        }
        for (how, more) in
            [("a zero", vec![0]), ("an empty string", vec![0x80]), ("a hash", vec![7; 32])]
        {
            let how = format!("{how} more at the end");
            self.forged_bytes(of, &how, Some("malformed"), (len, 0, more.into()));
        }

        let keys_of =
            |keys: &[StateKey]| VectorCase { keys: Some(encoded(keys)), ..VectorCase::default() };
        self.forged(of, "the first key not asked for", None, keys_of(&keys[1..]));
        self.forged(of, "the last key not asked for", None, keys_of(&keys[..keys.len() - 1]));
        let mut more = keys.to_vec();
        more.push(StateKey::Account(keys[0].address().create(99)));
        self.forged(of, "a key more", None, keys_of(&more));
        *more.first_mut().unwrap() = more.pop().unwrap();
        self.forged(of, "another key", None, keys_of(&more));

        let trusted =
            |root| VectorCase { trusted: Some(VectorTrust::Root(root)), ..VectorCase::default() };
        self.forged(of, "another root trusted", Some("root"), trusted(other));
        self.forged_field(of, "root", "root", other.to_string().into());
        let with = Some(BTreeMap::from([("root".to_owned(), other.to_string().into())]));
        let both = VectorCase { with, ..trusted(other) };
        self.forged(of, "another root, trusted and named", Some("root"), both);

        // The proof of an older block for this one, and of a later block.
        for (how, at) in [("before", number - 1), ("after", number + 1)] {
            let replayed = chain.prove(at, keys);
            assert_ne!(replayed.root, proof.root);
            let edit = (0, len, replayed.bytes);
            self.forged_bytes(of, &format!("the proof of the block {how}"), Some("root"), edit);
        }

        self.forged_field(of, "backend", "kind", "raw".into());
        self.forged_field(of, "version", "kind", 2.into());
        let has = |hash: &str| {
            proof_formats().any(|of| (of.backend, of.hash.name()) == (&*proof.backend, hash))
        };
        let hash = ["blake3", "blake2b-256"].into_iter().find(|hash| !has(hash)).unwrap();
        self.forged_field(of, "hash", "kind", hash.into());
        self.forged_field(of, "params", "kind", other.to_string().into());
    }

    /// Adds a case that has its verdict; its name must be new.
    pub(crate) fn add(&mut self, case: VectorCase) {
        assert!(self.file.cases.iter().all(|other| other.name != case.name), "{}", case.name);
        self.file.cases.push(case);
    }
}
