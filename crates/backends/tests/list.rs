//! Properties of the list that other crates rely on.

use retrie_backends::{
    ConstructorInput, StorePurpose, all, find, flags, names, proof_formats, trusted_param_flags,
};
use retrie_state::BackendProfile;
use std::collections::BTreeSet;

#[test]
fn every_backend_has_a_name_a_line_a_colour_and_is_made() {
    let mut seen = BTreeSet::new();
    for backend in all() {
        let name = backend.name;
        assert!(seen.insert(name), "{name} is there twice");
        // It is printed on one line beside the flag, in 100 columns.
        let about = backend.about;
        let fits = (1..=50).contains(&about.len()) && !about.contains('\n');
        assert!(fits, "{name}: {about}");
        for colour in backend.colours {
            let digits = colour.strip_prefix('#').unwrap_or_default();
            assert!(digits.len() == 6 && u32::from_str_radix(digits, 16).is_ok(), "{name}");
        }
        // A datadir stores the identity, by which the backend is found again.
        let stored = backend.stored_name();
        assert_eq!(find(stored).unwrap().stored_name(), stored, "{name}");
        for (variant, small) in backend.small_variants() {
            assert_eq!(small.identity().name, stored, "{variant}");
        }
        let mut own = retrie_backends::FlagValues::default();
        for (long, value) in backend.small_flags {
            let flag = backend.flags.iter().find(|flag| flag.long == *long);
            own.set(flag.unwrap_or_else(|| panic!("{name} has no flag {long}")), value).unwrap();
        }
        let making =
            ConstructorInput { flags: &own, purpose: StorePurpose::Temporary, cache: None };
        let made = (backend.make)(&making).unwrap();
        assert_eq!(made.identity().name, stored, "{name}");
        // Flags may size the caches.
        let facts = |profile: BackendProfile| BackendProfile { cache_bytes: 0, ..profile };
        assert_eq!(facts(made.profile()), facts(backend.profile()), "{name}");
        if let Some(long) = backend.shard_flag {
            assert!(backend.flags.iter().any(|flag| flag.long == long), "{name}");
            assert!((backend.small)().extensions().proof_shards.is_some(), "{name}");
        }
    }
    assert_eq!(names().len(), seen.len());
}

#[test]
fn every_backend_with_proofs_has_a_format_and_a_verifier_of_them() {
    for backend in all().filter(|backend| backend.profile().proofs) {
        for (variant, small) in backend.small_variants() {
            let identity = small.identity();
            let format = proof_formats().find(|format| {
                (format.backend, format.version, format.hash)
                    == (identity.name, identity.version, identity.hash)
            });
            let format = format.unwrap_or_else(|| panic!("{variant} has no format of proofs"));
            assert_eq!(format.verifier.fixed().is_some(), identity.params.is_zero(), "{variant}");
            if format.verifier.fixed().is_none() {
                let pins = all().filter(|other| other.stored_name() == identity.name);
                assert!(
                    pins.filter_map(|other| other.trusted_params).count() > 0,
                    "{variant} has no pins"
                );
            }
        }
    }
}

#[test]
fn flags_belong_to_one_family_and_take_their_defaults() {
    for flag in flags() {
        assert!(flag.long.contains('.') && !flag.help.is_empty(), "{}", flag.long);
        let of = |stored: &str| all().any(|b| b.stored_name() == stored && has(b, flag.long));
        let families: BTreeSet<_> =
            all().map(|b| b.stored_name()).filter(|name| of(name)).collect();
        assert_eq!(families.len(), 1, "{} is a flag of {families:?}", flag.long);
    }
    for flag in flags().into_iter().chain(trusted_param_flags()) {
        if let Some(default) = flag.default {
            flag.check(default.as_ref()).unwrap_or_else(|why| panic!("{}: {why}", flag.long));
        }
    }
}

fn has(backend: &retrie_backends::BackendDescriptor, long: &str) -> bool {
    backend.flags.iter().any(|flag| flag.long == long)
}
