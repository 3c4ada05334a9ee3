//! Bytes that are no value: refused, and without a panic. A value has one encoding: if bytes are
//! accepted, then writing what was read gives these bytes again.

use super::{
    super::{
        containers::{ForkchoiceRequest, decode_envelope, decode_forkchoice, decode_hashes},
        ssz::{SszError, byte_lists},
    },
    RandomNumbers, plain,
};
use alloy_primitives::Bytes;
use retrie_engine::{ApiFork, PayloadEnvelope};

/// Whether these bytes are an envelope.
fn is_envelope(fork: ApiFork, bytes: &[u8]) -> bool {
    let Ok(read) = decode_envelope(fork, Bytes::copy_from_slice(bytes)) else { return false };
    assert!(plain::envelope(&read) == bytes, "{fork:?}: a second encoding of {read:?}");
    true
}

fn is_forkchoice(fork: ApiFork, bytes: &[u8]) -> bool {
    let Ok(ForkchoiceRequest { state, attributes, custody_columns }) =
        decode_forkchoice(fork, Bytes::copy_from_slice(bytes))
    else {
        return false;
    };
    let again = plain::forkchoice(fork, state, attributes.as_ref(), custody_columns);
    assert!(again == bytes, "{fork:?}: a second encoding of {attributes:?}");
    true
}

#[test]
fn cut_and_lengthened_bytes_are_other_values_or_none() {
    let mut numbers = RandomNumbers(11);
    for fork in ApiFork::ALL {
        let bytes = plain::envelope(&numbers.envelope(fork));
        assert!(is_envelope(fork, &bytes));
        // No fixed part is that short.
        for len in (0..500).chain(bytes.len().saturating_sub(300)..bytes.len()) {
            let cut = is_envelope(fork, &bytes[..len]);
            assert!(!cut || len > 500, "{fork:?}: {len} bytes");
        }
        let state = Default::default();
        let attributes = numbers.attributes(fork);
        let bytes = plain::forkchoice(fork, state, Some(&attributes), None);
        for len in 0..bytes.len() {
            let cut = is_forkchoice(fork, &bytes[..len]);
            assert!(!cut || len >= 100, "{fork:?}: {len} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(!is_forkchoice(fork, &longer), "{fork:?}: a trailing byte");
    }
}

#[test]
fn every_shifted_offset_is_refused_or_cuts_elsewhere() {
    let mut numbers = RandomNumbers(12);
    for fork in ApiFork::ALL {
        let bytes = plain::envelope(&numbers.envelope(fork));
        // The first offset is that of the payload; then come those within it.
        for at in (0..bytes.len() - 4).filter(|at| at % if *at < 600 { 4 } else { 97 } == 0) {
            for shift in [-4, 1, i32::MIN] {
                let mut shifted = bytes.clone();
                let place: &mut [u8; 4] = (&mut shifted[at..at + 4]).try_into().unwrap();
                *place = i32::from_le_bytes(*place).wrapping_add(shift).to_le_bytes();
                let is_read = is_envelope(fork, &shifted);
                assert!(!is_read || at > 0, "{fork:?}: the first offset, shifted by {shift}");
            }
        }
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut numbers = RandomNumbers(13);
    for fork in ApiFork::ALL {
        let envelope = plain::envelope(&numbers.envelope(fork));
        let attributes = numbers.attributes(fork);
        let update = plain::forkchoice(fork, Default::default(), Some(&attributes), None);
        for _ in 0..400 {
            for (bytes, is_envelopes) in [(&envelope, true), (&update, false)] {
                let mut changed = bytes.clone();
                for _ in 0..=numbers.below(3) {
                    let at = numbers.below(changed.len());
                    changed[at] = numbers.next() as u8;
                }
                changed.truncate(changed.len() - numbers.below(2) * numbers.below(changed.len()));
                match is_envelopes {
                    true => is_envelope(fork, &changed),
                    false => is_forkchoice(fork, &changed),
                };
            }
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut numbers = RandomNumbers(14);
    for round in 0..3000 {
        let len = numbers.below(700);
        let mut bytes = numbers.bytes(len);
        if round % 2 == 0 {
            // Small numbers look like offsets.
            bytes.iter_mut().for_each(|byte| *byte &= 0x0f);
        }
        for fork in ApiFork::ALL {
            is_envelope(fork, &bytes);
            is_forkchoice(fork, &bytes);
        }
        let _ = decode_hashes(bytes.into());
    }
}

/// The bytes of one fork are not those of another, except between forks with the same shapes.
#[test]
fn an_envelope_of_another_fork_is_refused() {
    let mut numbers = RandomNumbers(15);
    let shape = |fork| match fork {
        ApiFork::Osaka => ApiFork::Prague,
        fork => fork,
    };
    for fork in ApiFork::ALL {
        let bytes = plain::envelope(&numbers.envelope(fork));
        for other in ApiFork::ALL {
            let expected = shape(other) == shape(fork);
            assert_eq!(is_envelope(other, &bytes), expected, "{fork:?} as {other:?}");
        }
    }
}

#[test]
fn limits_hold_and_are_checked_before_memory_is_taken() {
    let many = |count: usize| -> Bytes {
        let start = (4 * count) as u32;
        start.to_le_bytes().repeat(count).into()
    };
    assert_eq!(byte_lists("items", &many(8), 8).unwrap().len(), 8);
    let refused = SszError::TooMany { what: "items", count: 9, max: 8 };
    assert_eq!(byte_lists("items", &many(9), 8), Err(refused));
    // A first offset beyond the end would stand for a billion items.
    let huge = Bytes::from(vec![0xfc, 0xff, 0xff, 0xff]);
    assert!(matches!(byte_lists("items", &huge, usize::MAX), Err(SszError::FirstOffset { .. })));
    for (bytes, name) in [(vec![0; 4], "zero"), (vec![5, 0, 0, 0, 0], "five"), (vec![4; 3], "cut")]
    {
        assert!(byte_lists("items", &bytes.into(), 8).is_err(), "{name}");
    }

    let mut numbers = RandomNumbers(16);
    let refuse = |change: fn(&mut PayloadEnvelope)| {
        let mut envelope = RandomNumbers(17).envelope(ApiFork::Amsterdam);
        change(&mut envelope);
        let bytes = plain::envelope(&envelope);
        decode_envelope(ApiFork::Amsterdam, bytes.into()).unwrap_err()
    };
    let error = refuse(|envelope| envelope.payload.as_v1_mut().extra_data = vec![0; 33].into());
    assert_eq!(error, SszError::TooMany { what: "extra_data", count: 33, max: 32 });
    let error = refuse(|envelope| envelope.requests = Some(vec![Bytes::new(); 257]));
    assert_eq!(error, SszError::TooMany { what: "execution_requests", count: 257, max: 256 });
    let mut attributes = numbers.attributes(ApiFork::Shanghai);
    attributes.withdrawals = Some(vec![Default::default(); 17]);
    let bytes = plain::forkchoice(ApiFork::Shanghai, Default::default(), Some(&attributes), None);
    let error = decode_forkchoice(ApiFork::Shanghai, bytes.into()).unwrap_err();
    assert_eq!(error, SszError::TooMany { what: "withdrawals", count: 17, max: 16 });
}
