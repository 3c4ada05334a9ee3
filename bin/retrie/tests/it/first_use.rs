//! After its start a node creates nothing lazily that a block, payload or blob would wait for.

use crate::node::NodeProcess;
use alloy_primitives::hex;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How much longer the first call may take than the second, with a margin for a busy machine. KZG's
/// trusted setup alone takes two seconds to load.
const RATIO: u32 = 20;
const NOISE: Duration = Duration::from_millis(700);
/// Nodes that are tried. At least one of them must be free of noise for each kind of call.
const TRIES: usize = 3;

/// Each precompile, with an input that makes it compute: address and input.
fn precompiles() -> Vec<(u16, String)> {
    let word = |value: u64| format!("{value:064x}");
    let words = |values: &[u64]| values.iter().map(|value| word(*value)).collect::<String>();
    let zeros = |bytes: usize| "00".repeat(bytes);
    // The generator of G2 of BN254.
    let g2 = "198e9393920d483a7260bfb731fb5d25f1aa493335a9e71297e485b7aef312c2\
              1800deef121f1e76426a00665e5c4479674322d4f75edadd46debd5cd992f6ed\
              090689d0585ff075ec9e99ad690c3395bc4b313370b38ef355acdadcd122975b\
              12c85ea5db8c6deb4aab71808dcb408fe3d1e7690c43d37b4ce6cc0166fa7daa";
    let signed = "456e9aea5e197a1f1af7a3e85a3212fa4049a3ba34c2289b4c860fc0b0c64ef3\
                  000000000000000000000000000000000000000000000000000000000000001c\
                  9242685bf161793cc25603c231bc2f568eb630ea16aa137d2664ac8038825608\
                  4f8ae3bd7535248d0bd448298cc2e2071e56992d0774dc340c368ae950852ada";
    // The polynomial zero: its commitment and every proof are the point at infinity.
    let infinity = format!("c0{}", zeros(47));
    let hash = "010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014";
    let point = format!("{hash}{}{}{infinity}{infinity}", word(7), word(0));
    vec![
        (0x01, signed.into()),
        (0x02, word(1)),
        (0x03, word(1)),
        (0x04, word(1)),
        (0x05, words(&[32, 32, 32, 3, 65_537, 1_000_003])),
        (0x06, words(&[1, 2, 1, 2])),
        (0x07, words(&[1, 2, 7])),
        (0x08, format!("{}{g2}", words(&[1, 2]))),
        (0x09, format!("0000000c{}01", zeros(208))),
        (0x0a, point),
        (0x0b, zeros(256)),
        (0x0c, zeros(160)),
        (0x0d, zeros(512)),
        (0x0e, zeros(288)),
        (0x0f, zeros(384)),
        (0x10, zeros(64)),
        (0x11, zeros(128)),
        (0x100, zeros(160)),
    ]
}

/// A call made twice to a node: a name, a method and its parameters.
fn requests(accounts: &Value) -> Vec<(String, &'static str, Value)> {
    let call = |(address, input): (u16, String)| {
        let to = format!("{address:#042x}");
        let call = json!({ "to": to, "data": format!("0x{input}"), "gas": "0x1000000" });
        (format!("precompile {address:#x}"), "eth_call", json!([call, "latest"]))
    };
    let [from, to] = [&accounts[0], &accounts[1]];
    let blob =
        json!({ "from": from, "to": to, "blobs": [format!("0x{}", hex::encode([0; 131_072]))] });
    let payment = json!({ "from": from, "to": to, "value": "0x1" });
    let mut all: Vec<_> = precompiles().into_iter().map(call).collect();
    all.push(("blob".into(), "eth_fillTransaction", json!([blob])));
    // The transaction is in a payload and mined before the response.
    all.push(("transaction".into(), "eth_sendTransaction", json!([payment])));
    all
}

/// The first block with a point evaluation once took 3.7 s, and so did the first blob transaction:
/// both loaded KZG's trusted setup.
#[test]
fn the_first_of_everything_takes_no_longer_than_the_second() {
    let mut slow = Vec::new();
    for _ in 0..TRIES {
        let folder = TempDir::new().unwrap();
        let node = NodeProcess::start(&folder.path().join("data"), "--dev");
        node.wait_for_log("warm: ");
        let timed = |method: &str, params: &Value| {
            let start = Instant::now();
            let answer = node.call(method, params);
            assert!(!answer.is_null(), "{method}");
            start.elapsed()
        };
        slow.clear();
        for (name, method, params) in requests(&node.call("eth_accounts", &json!([]))) {
            let (first, second) = (timed(method, &params), timed(method, &params));
            if first > second * RATIO + NOISE {
                slow.push(format!("{name}: {first:?}, then {second:?}"));
            }
        }
        if slow.is_empty() {
            return;
        }
    }
    panic!("{slow:?}");
}
