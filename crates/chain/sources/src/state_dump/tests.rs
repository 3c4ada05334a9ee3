use std::path::PathBuf;

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::{Block, Header};

use super::*;
use crate::SourceError;

struct DumpFolder(tempfile::TempDir);

impl DumpFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("file");
        std::fs::write(&path, content).unwrap();
        path
    }

    fn read(&self, lines: &str) -> Result<Vec<DumpedAccount>, SourceError> {
        StateDump::open(self.file(lines))?.collect()
    }
}

const ROOT: &str =
    r#"{"root":"0x1111111111111111111111111111111111111111111111111111111111111111"}"#;
const ADDRESS: &str = "0x00000000000000000000000000000000000000aa";

fn slot(n: u64) -> B256 {
    U256::from(n).into()
}

#[test]
fn what_is_written_is_read_back_plain_and_gzipped() {
    let folder = DumpFolder::new();
    let code = Bytes::from_static(&[0x60, 0x01]);
    for name in ["dump.jsonl", "dump.jsonl.gz"] {
        let path = folder.0.path().join(name);
        let mut writer = StateDumpWriter::create(&path, B256::repeat_byte(7)).unwrap();
        writer
            .account(&DumpedName::Address(Address::repeat_byte(1)), 3, U256::MAX, &Bytes::new())
            .unwrap();
        writer
            .account(&DumpedName::Address(Address::repeat_byte(2)), u64::MAX, U256::ZERO, &code)
            .unwrap();
        writer.slot(&slot(1), U256::MAX).unwrap();
        writer.slot(&B256::repeat_byte(0xff), U256::from(2)).unwrap();
        writer
            .account(&DumpedName::Address(Address::repeat_byte(3)), 0, U256::from(1), &Bytes::new())
            .unwrap();
        assert!(!path.exists(), "a dump has its name when it is whole");
        writer.finish().unwrap();
        let mut dump = StateDump::open(&path).unwrap();
        assert_eq!(dump.root(), B256::repeat_byte(7));
        let accounts: Vec<_> = dump.by_ref().map(Result::unwrap).collect();
        let plain =
            DumpedAccount { address: Address::repeat_byte(1), nonce: 3, ..Default::default() };
        assert_eq!(accounts[0], DumpedAccount { balance: U256::MAX, ..plain });
        let contract = DumpedAccount {
            address: Address::repeat_byte(2),
            nonce: u64::MAX,
            balance: U256::ZERO,
            code: code.clone(),
            storage: vec![(slot(1), U256::MAX), (B256::repeat_byte(0xff), U256::from(2))],
        };
        assert_eq!(accounts[1], contract);
        assert_eq!((accounts.len(), accounts[2].balance), (3, U256::from(1)));
    }
    let gzipped = std::fs::read(folder.0.path().join("dump.jsonl.gz")).unwrap();
    let cut = folder.file(&gzipped[..gzipped.len() - 9]);
    let error = StateDump::open(cut).unwrap().find_map(Result::err).unwrap();
    assert!(error.to_string().contains("line"), "{error}");
}

/// A line as geth 1.17 writes it, and one as reth documents it.
#[test]
fn lines_of_geth_and_reth_are_understood() {
    let folder = DumpFolder::new();
    let geth = r#"{"balance":"1000000000000000000000","nonce":1,"root":"0x821e2556a290c86405f8160a2d662042a431ba456b9db265c79bb837c04be5f0","codeHash":"0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470","storage":{"0x0000000000000000000000000000000000000000000000000000000000000000":"01"},"address":"0x00000000000000000000000000000000000000aa","key":"0x01"}"#;
    let reth = r#"{"balance":"0x10","nonce":"0x2","code":"0x00","storage":{"0x0000000000000000000000000000000000000000000000000000000000000009":"0x0000000000000000000000000000000000000000000000000000000000000a0b","0x8":"0x0"},"address":"0x00000000000000000000000000000000000000bb"}"#;
    let expected = alloy_trie::root::storage_root_unhashed([(B256::ZERO, U256::from(1))]);
    let geth = geth.replace(
        "0x821e2556a290c86405f8160a2d662042a431ba456b9db265c79bb837c04be5f0",
        &expected.to_string(),
    );
    let accounts = folder.read(&format!("{ROOT}\n{geth}\n\n{reth}")).unwrap();
    assert_eq!(accounts[0].address, ADDRESS.parse::<Address>().unwrap());
    assert_eq!(accounts[0].balance, U256::from(10).pow(U256::from(21)));
    assert_eq!(
        (accounts[0].nonce, &accounts[0].storage[..]),
        (1, &[(B256::ZERO, U256::from(1))][..])
    );
    assert_eq!((accounts[1].nonce, accounts[1].balance), (2, U256::from(16)));
    assert_eq!(accounts[1].storage, [(slot(9), U256::from(0x0a0b))], "a zero is absent");
    assert_eq!(accounts[1].code[..], [0]);
}

/// Accounts and slots without preimages have their hashes, and are refused.
#[test]
fn dumps_say_which_keys_are_hashed() {
    let folder = DumpFolder::new();
    let path = folder.0.path().join("dump.jsonl");
    let hash = B256::repeat_byte;
    let of = |name: DumpedName, plain: &[B256], hashed: &[B256]| {
        let mut writer = StateDumpWriter::create(&path, hash(7)).unwrap();
        writer.account(&name, 1, U256::ZERO, &Bytes::new()).unwrap();
        plain.iter().for_each(|slot| writer.slot(slot, U256::from(1)).unwrap());
        hashed.iter().for_each(|slot| writer.hashed_slot(slot, U256::from(2)).unwrap());
        writer.finish().unwrap();
        let line = std::fs::read_to_string(&path).unwrap().lines().nth(1).unwrap().to_owned();
        let error = StateDump::open(&path).unwrap().find_map(Result::err).unwrap().to_string();
        (serde_json::from_str::<serde_json::Value>(&line).unwrap(), error)
    };
    let (unknown, address) = (DumpedName::Hash(hash(9)), Address::repeat_byte(3));
    let (line, error) = of(unknown, &[], &[hash(1), hash(2)]);
    assert_eq!((&line["key"], &line["address"]), (&serde_json::json!(hash(9)), &().into()));
    assert_eq!(line["storageByHash"].as_object().unwrap().len(), 2);
    assert!(error.contains("has no `address`"), "{error}");
    let (line, error) = of(DumpedName::Address(address), &[slot(1)], &[hash(1)]);
    assert_eq!(line["address"], format!("{address:#x}"));
    assert_eq!(line["storage"][slot(1).to_string()], slot(1).to_string());
    assert_eq!(line["storageByHash"][hash(1).to_string()], slot(2).to_string());
    assert!(error.contains("line 2: slots of which only the hashes are known"), "{error}");
}

#[test]
fn every_wrong_line_is_named_with_the_reason() {
    let folder = DumpFolder::new();
    let account = |more: &str| format!("{ROOT}\n{{\"address\":\"{ADDRESS}\"{more}}}");
    let root_of_one = r#","balance":"1","root":"0x821e2556a290c86405f8160a2d662042a431ba456b9db265c79bb837c04be5f0""#;
    let code_hash = format!(r#","balance":"1","codeHash":"{}""#, B256::repeat_byte(1));
    for (lines, expected) in [
        (String::new(), "line 1: a state dump begins with"),
        ("{}".into(), "line 1: a state dump begins with"),
        (format!("{ROOT}\n{ROOT}"), "line 2: an account without `address`"),
        (r#"{"root":"d7f8","accounts":{}}"#.into(), "line 1: "),
        (
            r#"{"root":"1111111111111111111111111111111111111111111111111111111111111111","accounts":{}}"#.into(),
            "geth dump --iterative",
        ),
        (account(""), "line 2: an account without `balance`"),
        (account(r#","balance":"1","nonce":18446744073709551616"#), "line 2: "),
        (account(r#","balance":"-1""#), "line 2: invalid value: string \"-1\""),
        (account(r#","balance":1.5"#), "line 2: invalid type"),
        (account(r#","balance":"12zz""#), "line 2: invalid value"),
        (account(r#","balance":"1","storage":{"0xzz":"01"}"#), "at most 32 bytes in hex"),
        (account(r#","balance":"1","storage":{"0x1":""}"#), "at most 32 bytes in hex"),
        (account(r#","balance":"1","storage":7"#), "an object of slots"),
        (account(r#","balance":"1""#) + "garbage", "line 2: trailing characters, at column"),
        (account(r#","balance":"1"#), "line 2: EOF while parsing a string, at column"),
        (format!("{ROOT}\n\n{{\"balance\":\"1\",\"key\":\"0xabcd\"}}"), "line 3: the account with the hashed address 0xabcd has no `address`"),
        (account(root_of_one), "--cache.preimages"),
        (account(&code_hash), "--nocode"),
        (account(&format!(r#"{code_hash},"code":"0x00""#)), "codeHash of the code"),
    ] {
        let error = folder.read(&lines).unwrap_err().to_string();
        assert!(error.contains(expected), "{lines}: {error}");
    }
    let mut dump = StateDump::open(folder.file(format!("{ROOT}\n{{}}\n{{}}"))).unwrap();
    assert!(dump.next().unwrap().is_err() && dump.next().is_none());
}

#[test]
fn headers_are_read_from_binary_hex_and_blocks() {
    let folder = DumpFolder::new();
    let header = |number| Header { number, ..Header::default() };
    let block = Block { header: header(7), ..Block::default() };
    let mut bytes = Vec::new();
    header(5).encode(&mut bytes);
    header(6).encode(&mut bytes);
    block.encode(&mut bytes);
    let expected =
        [HeaderItem::Header(header(5)), HeaderItem::Header(header(6)), HeaderItem::Block(block)];
    let text = hex::encode(&bytes);
    let (first, second) = text.split_at(alloy_rlp::encode(header(5)).len() * 2);
    for content in [
        bytes.clone(),
        text.clone().into_bytes(),
        format!("0x{text}\n").into_bytes(),
        format!("0x{first}\n0x{second}").into_bytes(),
    ] {
        assert_eq!(read_headers(folder.file(&content)).unwrap(), expected);
    }
    for (content, reason) in [
        (&b""[..], "contains no block"),
        (b"0xzz", "nor hex of it"),
        (b"0x01", "nor hex of it"),
        (&bytes[..bytes.len() - 1], "block index 2"),
        (&[0xc1, 0x80], "the header is not valid RLP"),
    ] {
        let error = read_headers(folder.file(content)).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
