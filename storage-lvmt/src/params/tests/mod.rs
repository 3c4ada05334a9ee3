//! Parameters from a known tau, from a ceremony and from a file are equal; damage is detected.

mod file;
mod ptau;

use super::{LvmtParams, ParamsError, SetupPhase, SetupProgress, VerifierParams};
use crate::amt::SLOTS;
use ark_bn254::{Fq, Fq2, Fr, G2Affine};
use ark_ec::AffineRepr;
use ark_ff::{BigInteger, PrimeField, Zero};
use std::{ops::ControlFlow, sync::Mutex};

const QUIET: SetupProgress<'_> = &|_, _, _| ControlFlow::Continue(());

fn of_tau(height: u8, tau: u64, with_quotients: bool) -> LvmtParams {
    LvmtParams::of_tau(height, Fr::from(tau), with_quotients, QUIET).unwrap()
}

fn assert_same(a: &LvmtParams, b: &LvmtParams) {
    assert_eq!(a.digest(), b.digest());
    assert_eq!(a.verifier().to_bytes(), b.verifier().to_bytes());
    assert_eq!(a.tables(), b.tables());
    assert_eq!(a.is_insecure(), b.is_insecure());
}

#[test]
fn development_parameters_are_known_as_such_and_never_change() {
    let params = LvmtParams::insecure_dev(4, true, QUIET).unwrap();
    assert!(params.is_insecure() && params.has_quotients());
    assert_eq!(
        params.digest().to_string(),
        "0xfe9899348618f72817825a8a640dc3bc3638a573e943a903d6cc8edc72282d26"
    );
    assert!(!of_tau(4, 5, false).is_insecure() && !of_tau(4, 5, false).has_quotients());
    assert_ne!(params.digest(), LvmtParams::insecure_dev(3, true, QUIET).unwrap().digest());
}

#[test]
fn heights_out_of_range_are_refused() {
    for height in [0, 17, 255] {
        let result = LvmtParams::insecure_dev(height, false, QUIET);
        assert!(matches!(result, Err(ParamsError::Height(h)) if h == height));
    }
    assert!(VerifierParams::new(vec![]).is_none());
    assert!(VerifierParams::new(vec![G2Affine::generator(); 17]).is_none());
}

#[test]
fn progress_counts_up_to_its_total_and_can_stop_the_work() {
    let heard = Mutex::new(Vec::new());
    let listen = |phase, done, total| {
        heard.lock().unwrap().push((phase, done, total));
        ControlFlow::Continue(())
    };
    LvmtParams::insecure_dev(6, true, &listen).unwrap();
    for phase in [SetupPhase::Commitments, SetupPhase::Quotients] {
        let heard = heard.lock().unwrap();
        let steps = heard.iter().filter(|step| step.0 == phase);
        let (most, total) = steps.map(|step| (step.1, step.2)).max().unwrap();
        assert_eq!(most, total, "{phase:?}");
    }
    let stopped = LvmtParams::insecure_dev(6, true, &|_, _, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(ParamsError::Stopped)));
}

#[test]
fn verifier_parameters_come_back_and_strange_points_are_refused() {
    let params = of_tau(5, 1234567, false);
    let bytes = params.verifier().to_bytes();
    assert_eq!(bytes.len(), 1 + 5 * 128);
    let back = VerifierParams::from_bytes(&bytes).unwrap();
    assert_eq!((back.digest(), back.height()), (params.digest(), 5));
    assert_eq!(back.to_bytes(), bytes);

    let refused = |bytes: &[u8], why: &str| {
        assert!(VerifierParams::from_bytes(bytes).is_none(), "{why}");
    };
    refused(&[], "nothing");
    refused(&bytes[..bytes.len() - 1], "cut off");
    refused(&[&bytes[..], &[0]].concat(), "too long");
    refused(&[&[4], &bytes[1..]].concat(), "another height");
    for at in (1..bytes.len()).step_by(32) {
        let mut off = bytes.clone();
        off[at] ^= 1;
        refused(&off, "off the curve");
    }
    let with_first = |point: [u8; 128]| [&bytes[..1], &point, &bytes[129..]].concat();
    refused(&with_first([0; 128]), "infinity");
    refused(&with_first([0xff; 128]), "not canonical");
    let outside = (1u64..)
        .filter_map(|x| {
            G2Affine::get_point_from_x_unchecked(Fq2::new(Fq::from(x), Fq::zero()), true)
        })
        .find(|point| !point.is_in_correct_subgroup_assuming_on_curve())
        .unwrap();
    let mut encoded = [0; 128];
    let coordinates = [outside.x.c0, outside.x.c1, outside.y.c0, outside.y.c1];
    for (to, coordinate) in encoded.chunks_exact_mut(32).zip(coordinates) {
        to.copy_from_slice(&coordinate.into_bigint().to_bytes_le());
    }
    assert!(outside.is_on_curve());
    refused(&with_first(encoded), "outside of the group of prime order");
}

#[test]
#[should_panic(expected = "has_quotients")]
fn quotients_that_are_not_there_are_the_callers_mistake() {
    let _ = of_tau(2, 5, false).quotient_increment(0, 0, SLOTS - 1);
}
