use super::*;
use crate::eth::{BlockRange, GetBlockHeaders, PeerId, PooledTransaction};
use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar, TxLegacy};
use alloy_eips::{
    BlockHashOrNumber,
    eip4844::{Blob, Bytes48},
    eip7594::BlobTransactionSidecarEip7594,
};
use alloy_primitives::{Address, Log, LogData, Signature, U256};
use retrie_chainspec::primitives::{Header, TxType};
use std::collections::{BTreeMap, HashMap};

/// A chain in memory.
#[derive(Debug, Default)]
struct TestChain {
    canonical: BTreeMap<u64, B256>,
    headers: HashMap<B256, Header>,
    bodies: HashMap<B256, BlockBody>,
    receipts: HashMap<B256, Vec<BlockReceipt>>,
    lists: HashMap<B256, Bytes>,
    pooled: HashMap<B256, PooledTransaction>,
    /// All 128 cells of each blob, by transaction.
    cells: HashMap<B256, Vec<Vec<Cell>>>,
}

impl TestChain {
    /// A chain of `count` blocks above genesis.
    fn new(count: u64) -> Self {
        let mut made = Self::default();
        let mut parent_hash = B256::ZERO;
        for number in 0..=count {
            parent_hash = made.add(Header { number, parent_hash, ..Header::default() });
            made.canonical.insert(number, parent_hash);
        }
        made
    }

    fn add(&mut self, header: Header) -> B256 {
        let hash = header.hash_slow();
        self.headers.insert(hash, header);
        self.bodies.insert(hash, BlockBody::default());
        self.receipts.insert(hash, Vec::new());
        hash
    }

    fn at(&self, number: u64) -> B256 {
        self.canonical[&number]
    }

    fn ask(self: &Arc<Self>, version: EthVersion, request: EthRequest) -> EthResponse {
        let peer = PeerInfo {
            id: PeerId::ZERO,
            address: "127.0.0.1:1".parse().unwrap(),
            local_address: "127.0.0.1:2".parse().unwrap(),
            version,
            inbound: true,
            trusted: false,
            is_static: false,
            name: String::new(),
            speaks_rchk: false,
            snap: None,
            capabilities: Vec::new(),
            range: BlockRange::default(),
        };
        ChainRequestHandler::new(self.clone()).answer(&peer, request)
    }

    fn numbers(
        self: &Arc<Self>,
        start: impl Into<BlockHashOrNumber>,
        limit: u64,
        skip: u64,
        reverse: bool,
    ) -> Vec<u64> {
        let request = GetBlockHeaders { start: start.into(), limit, skip, reverse };
        match self.ask(EthVersion::Eth69, EthRequest::Headers(request)) {
            EthResponse::Headers(headers) => headers.iter().map(|header| header.number).collect(),
            other => panic!("{other:?}"),
        }
    }
}

impl ChainReader for TestChain {
    fn view(&self) -> Result<Box<dyn ChainView + '_>, ChainError> {
        Ok(Box::new(self))
    }

    fn pooled(&self, hash: &B256) -> Option<PooledTransaction> {
        self.pooled.get(hash).cloned()
    }

    fn blob_cells(&self, hash: &B256, mask: CellMask) -> Option<Vec<Vec<Cell>>> {
        let of_mask = |cells: &Vec<Cell>| mask.indices().map(|index| cells[index]).collect();
        Some(self.cells.get(hash)?.iter().map(of_mask).collect())
    }

    fn blobs_to_extend(&self, hash: &B256) -> usize {
        self.cells.get(hash).map_or(0, Vec::len)
    }
}

impl ChainView for &TestChain {
    fn range(&self) -> Result<BlockRange, ChainError> {
        Ok(BlockRange::default())
    }

    fn canonical_hash(&self, number: u64) -> Result<Option<B256>, ChainError> {
        Ok(self.canonical.get(&number).copied())
    }

    fn header(&self, hash: &B256) -> Result<Option<Header>, ChainError> {
        Ok(self.headers.get(hash).cloned())
    }

    fn body(&self, hash: &B256) -> Result<Option<BlockBody>, ChainError> {
        Ok(self.bodies.get(hash).cloned())
    }

    fn receipts(&self, hash: &B256) -> Result<Option<Vec<BlockReceipt>>, ChainError> {
        Ok(self.receipts.get(hash).cloned())
    }

    fn access_list(&self, hash: &B256) -> Result<Option<Bytes>, ChainError> {
        match self.lists.get(hash) {
            Some(list) if list.is_empty() => Err(ChainError::new("the disk is gone")),
            list => Ok(list.cloned()),
        }
    }
}

/// A receipt with this many bytes of log data.
fn receipt(bytes: usize) -> BlockReceipt {
    let data = LogData::new_unchecked(Vec::new(), vec![7; bytes].into());
    let logs = vec![Log { address: Address::ZERO, data }];
    let receipt = alloy_consensus::Receipt { status: true.into(), cumulative_gas_used: 9, logs };
    BlockReceipt { tx_type: TxType::Eip1559, receipt }
}

fn transaction(bytes: usize) -> PooledTransaction {
    let tx = TxLegacy { input: vec![7; bytes].into(), ..TxLegacy::default() };
    tx.into_signed(Signature::new(U256::from(1), U256::from(1), false)).into()
}

#[test]
fn headers_go_up_and_down_by_number_and_by_hash() {
    let made = Arc::new(TestChain::new(30));
    let at = |number| made.at(number);
    assert_eq!(made.numbers(5, 4, 0, false), [5, 6, 7, 8]);
    assert_eq!(made.numbers(5, 4, 2, false), [5, 8, 11, 14]);
    assert_eq!(made.numbers(5, 4, 0, true), [5, 4, 3, 2]);
    assert_eq!(made.numbers(5, 4, 1, true), [5, 3, 1]);
    assert_eq!(made.numbers(at(5), 4, 0, false), [5, 6, 7, 8]);
    assert_eq!(made.numbers(at(5), 4, 2, false), [5, 8, 11, 14]);
    assert_eq!(made.numbers(at(5), 10, 0, true), [5, 4, 3, 2, 1, 0]);
    assert_eq!(made.numbers(at(5), 4, 1, true), [5, 3, 1]);
    // The ends, and beyond.
    assert_eq!(made.numbers(28, 10, 0, false), [28, 29, 30]);
    assert_eq!(made.numbers(28, 10, 1, false), [28, 30]);
    assert_eq!(made.numbers(31, 10, 0, true), [0_u64; 0]);
    assert_eq!(made.numbers(B256::repeat_byte(1), 10, 0, true), [0_u64; 0]);
    assert_eq!(made.numbers(5, 0, 0, false), [0_u64; 0]);
}

/// Regression in geth: `skip + 1` overflowed to 0, and the first header came again and again.
#[test]
fn skips_that_overflow_end_the_answer() {
    let made = Arc::new(TestChain::new(30));
    for skip in [u64::MAX, u64::MAX - 1, u64::MAX - 5] {
        for reverse in [false, true] {
            assert_eq!(made.numbers(5, 10, skip, reverse), [5], "{skip} {reverse}");
            assert_eq!(made.numbers(made.at(5), 10, skip, reverse), [5], "{skip} {reverse}");
        }
    }
    assert_eq!(made.numbers(u64::MAX, u64::MAX, u64::MAX, false), [0_u64; 0]);
}

#[test]
fn side_blocks_lead_down_and_not_up() {
    let mut made = TestChain::new(30);
    let mut side = vec![made.at(10)];
    for number in 11..=130 {
        let parent_hash = side[side.len() - 1];
        side.push(made.add(Header { number, parent_hash, gas_limit: 1, ..Header::default() }));
    }
    let made = Arc::new(made);
    let tip = side[5];
    assert_eq!(made.numbers(tip, 4, 0, false), [15], "nobody knows its children");
    assert_eq!(made.numbers(tip, 8, 0, true), [15, 14, 13, 12, 11, 10, 9, 8]);
    assert_eq!(made.numbers(tip, 8, 1, true), [15, 13, 11, 9, 7, 5, 3, 1]);
    assert_eq!(made.numbers(tip, 8, 6, true), [15, 8, 1]);
    // 120 blocks off the canonical chain are more than the limit of side steps.
    assert_eq!(made.numbers(side[120], 8, 110, true), [130]);
    assert_eq!(made.numbers(side[120], 3, 40, true), [130, 89, 48]);
    assert_eq!(made.numbers(side[120], 5, 40, true), [130, 89, 48]);
}

#[test]
fn an_answer_has_1024_items_at_most() {
    let made = Arc::new(TestChain::new(1_500));
    assert_eq!(made.numbers(0, u64::MAX, 0, false).len(), 1024);
    assert_eq!(made.numbers(1_500, 2_000, 0, true).len(), 1024);
    let hashes: Vec<B256> = made.canonical.values().copied().collect();
    let items = |version, request| match made.ask(version, request) {
        EthResponse::Bodies(bodies) => bodies.len(),
        EthResponse::Receipts { lists, last_incomplete: false } => lists.len(),
        EthResponse::AccessLists(lists) => lists.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(items(EthVersion::Eth69, EthRequest::Bodies(hashes.clone())), 1024);
    for version in EthVersion::ALL {
        let request = EthRequest::Receipts { first_index: 0, hashes: hashes.clone() };
        assert_eq!(items(version, request), 1024);
    }
    assert_eq!(items(EthVersion::Eth71, EthRequest::AccessLists(hashes)), 1024);
}

#[test]
fn an_answer_ends_with_the_item_that_reaches_2_mib() {
    let mut made = TestChain::new(0);
    let mut hashes = Vec::new();
    for number in 1..=10 {
        let extra_data = vec![1; 300 << 10].into();
        let parent_hash = made.at(number - 1);
        let hash = made.add(Header { number, parent_hash, extra_data, ..Header::default() });
        made.canonical.insert(number, hash);
        let ommers = vec![Header { extra_data: vec![1; 600 << 10].into(), ..Header::default() }];
        made.bodies.insert(hash, BlockBody { ommers, ..BlockBody::default() });
        made.receipts.insert(hash, vec![receipt(300 << 10), receipt(300 << 10)]);
        made.lists.insert(hash, vec![1; 600 << 10].into());
        hashes.push(hash);
    }
    let made = Arc::new(made);
    assert_eq!(made.numbers(1, 10, 0, false), [1, 2, 3, 4, 5, 6, 7]);
    let EthResponse::Bodies(bodies) =
        made.ask(EthVersion::Eth69, EthRequest::Bodies(hashes.clone()))
    else {
        panic!("no bodies")
    };
    assert_eq!(bodies.len(), 4);
    for version in EthVersion::ALL {
        let request = EthRequest::Receipts { first_index: 0, hashes: hashes.clone() };
        let EthResponse::Receipts { last_incomplete, lists } = made.ask(version, request) else {
            panic!("no receipts")
        };
        assert_eq!((lists.len(), last_incomplete), (4, false));
    }
    let EthResponse::AccessLists(lists) =
        made.ask(EthVersion::Eth71, EthRequest::AccessLists(hashes))
    else {
        panic!("no lists")
    };
    assert_eq!(lists.len(), 4);
}

#[test]
fn bodies_and_receipts_end_before_what_is_not_here() {
    let mut made = TestChain::new(5);
    let gone = made.at(3);
    made.bodies.remove(&gone);
    made.receipts.remove(&gone);
    let hashes: Vec<B256> = made.canonical.values().copied().collect();
    let made = Arc::new(made);
    let bodies = made.ask(EthVersion::Eth69, EthRequest::Bodies(hashes.clone()));
    assert!(matches!(bodies, EthResponse::Bodies(bodies) if bodies.len() == 3));
    for version in EthVersion::ALL {
        let request = EthRequest::Receipts { first_index: 0, hashes: hashes.clone() };
        let receipts = made.ask(version, request);
        assert!(matches!(receipts, EthResponse::Receipts { lists, .. } if lists.len() == 3));
    }
}

/// EIP-7975: the peer puts the parts together and gets each receipt once.
#[test]
fn receipts_that_do_not_fit_come_in_parts() {
    const MIB: usize = 1 << 20;
    let mut made = TestChain::new(3);
    let large: Vec<_> = (0..25).map(|_| receipt(MIB)).collect();
    let hashes = [made.at(1), made.at(2), made.at(3)];
    made.receipts.insert(hashes[0], vec![receipt(1)]);
    made.receipts.insert(hashes[1], large.clone());
    made.receipts.insert(hashes[2], vec![receipt(2)]);
    let made = Arc::new(made);
    let ask = |version, first_index, hashes: &[B256]| {
        let request = EthRequest::Receipts { first_index, hashes: hashes.to_vec() };
        match made.ask(version, request) {
            EthResponse::Receipts { last_incomplete, lists } => (last_incomplete, lists),
            other => panic!("{other:?}"),
        }
    };
    for version in [EthVersion::Eth70, EthVersion::Eth71] {
        let (incomplete, lists) = ask(version, 0, &hashes);
        assert!(incomplete);
        assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [1, 9]);
        let mut whole = lists[1].clone();
        let mut asked = 0;
        loop {
            asked += 1;
            let (incomplete, lists) = ask(version, whole.len() as u64, &hashes[1..]);
            whole.extend(lists[0].clone());
            if !incomplete {
                break;
            }
            assert_eq!(lists.len(), 1);
        }
        assert_eq!((asked, whole == large), (2, true));
        // An index beyond the block, and one that does not fit into `usize`.
        for beyond in [25, 26, u64::MAX] {
            let (incomplete, lists) = ask(version, beyond, &hashes[1..]);
            assert!(!incomplete);
            assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1]);
        }
        // Of the first block alone.
        let (_, lists) = ask(version, 1, &[hashes[0], hashes[2]]);
        assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1]);
    }
    // The second block is too long for an answer of eth/69.
    let (incomplete, lists) = ask(EthVersion::Eth69, 0, &hashes);
    assert_eq!((incomplete, lists.len()), (false, 1));
}

#[test]
fn lengths_of_receipts_are_those_on_the_wire() {
    for bytes in [0, 1, 55, 56, 300, 70_000] {
        let BlockReceipt { tx_type, receipt: inner } = receipt(bytes);
        let mut out = Vec::new();
        let fields: [&dyn Encodable; 4] =
            [&(tx_type as u8), &inner.status, &inner.cumulative_gas_used, &inner.logs];
        alloy_rlp::encode_list::<_, dyn Encodable>(&fields, &mut out);
        assert_eq!(receipt_length(&receipt(bytes)), out.len(), "{bytes}");
    }
}

#[test]
fn access_lists_that_are_not_here_have_an_empty_entry() {
    let mut made = TestChain::new(3);
    let list = Bytes::from_static(&[0xc0]);
    made.lists.insert(made.at(1), list.clone());
    made.lists.insert(made.at(2), Bytes::new());
    let hashes = vec![B256::repeat_byte(1), made.at(1), made.at(2), made.at(3)];
    let made = Arc::new(made);
    let answer = made.ask(EthVersion::Eth71, EthRequest::AccessLists(hashes));
    assert_eq!(answer, EthResponse::AccessLists(vec![None, Some(list), None, None]));
}

#[test]
fn pooled_transactions_that_are_not_here_are_left_out() {
    let mut made = TestChain::new(0);
    let all: Vec<_> = (0..8).map(|at| transaction((400 << 10) + at)).collect();
    for tx in &all {
        made.pooled.insert(*tx.tx_hash(), tx.clone());
    }
    let made = Arc::new(made);
    let ask = |hashes| match made.ask(EthVersion::Eth69, EthRequest::PooledTransactions(hashes)) {
        EthResponse::PooledTransactions(transactions) => transactions,
        other => panic!("{other:?}"),
    };
    let unknown = B256::repeat_byte(9);
    assert_eq!(
        ask(vec![unknown, *all[3].tx_hash(), unknown, *all[1].tx_hash()]),
        [all[3].clone(), all[1].clone(),]
    );
    let hashes = all.iter().map(|tx| *tx.tx_hash());
    assert_eq!(ask(hashes.clone().collect()).len(), 6);
    // At most 1,024 hashes are looked up.
    let stuffed = std::iter::repeat_n(unknown, 1024).chain(hashes).collect();
    assert_eq!(ask(stuffed).len(), 0);
}

/// The cells of one index come in the order of the blobs, as go-ethereum sends them.
#[test]
fn cells_of_blobs_come_by_index_and_then_by_blob() {
    let mut made = TestChain::new(0);
    let cell =
        |blob: usize, index: usize| Cell::left_padding_from(&(1000 * blob + index).to_be_bytes());
    let blob = |blob| (0..128).map(move |index| cell(blob, index)).collect::<Vec<_>>();
    let (one, two, unknown) = (B256::repeat_byte(1), B256::repeat_byte(2), B256::repeat_byte(9));
    made.cells.insert(one, vec![blob(0)]);
    made.cells.insert(two, vec![blob(1), blob(2)]);
    for from in 10..40 {
        made.cells.insert(B256::repeat_byte(from), vec![blob(3)]);
    }
    let made = Arc::new(made);
    let ask = |hashes: Vec<B256>, mask| match made
        .ask(EthVersion::Eth72, EthRequest::Cells { hashes, mask })
    {
        EthResponse::Cells { cells, mask: told } if told == mask => cells,
        other => panic!("{other:?}"),
    };
    let mut mask = [0_u8; 16];
    (mask[0], mask[15]) = (0b100, 0b1000_0000);
    let told = ask(vec![unknown, two, one], mask.into());
    let of_two = vec![cell(1, 2), cell(2, 2), cell(1, 127), cell(2, 127)];
    assert!(told == [(two, of_two), (one, vec![cell(0, 2), cell(0, 127)])]);
    assert!(ask(vec![one], CellMask::default()).is_empty());
    // The blob itself costs nothing: 2 MiB end the answer. Other cells have to be computed.
    let all: Vec<B256> = (10..40).map(B256::repeat_byte).collect();
    assert_eq!(ask(all.clone(), CellMask::BLOB).len(), 16);
    assert_eq!(ask(all.clone(), [1_u8; 16].into()).len(), 16);
    // Peers together get no more computed than 256 at once, and 20 a second.
    let handler = ChainRequestHandler::new(made.clone());
    let computed = (0..20).map(|_| match handler.cells(&all, [1_u8; 16].into()) {
        EthResponse::Cells { cells, .. } => cells.len(),
        other => panic!("{other:?}"),
    });
    let computed: usize = computed.sum();
    assert!((256..300).contains(&computed), "{computed} of 320");
    assert_eq!(ask(all, [1_u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].into()).len(), 30);
}

#[test]
fn blobs_are_left_out_of_transactions_from_eth_72_on() {
    let mut made = TestChain::new(0);
    let sidecar = BlobTransactionSidecarEip7594 {
        blobs: vec![Blob::repeat_byte(1)],
        commitments: vec![Bytes48::repeat_byte(2)],
        cell_proofs: vec![Bytes48::repeat_byte(3); 128],
    };
    let with_blobs = |sidecar: BlobTransactionSidecarEip7594| -> PooledTransaction {
        let tx = TxEip4844 { blob_versioned_hashes: vec![B256::ZERO], ..TxEip4844::default() };
        let signature = Signature::new(U256::ONE, U256::ONE, false);
        let sidecar = BlobTransactionSidecarVariant::Eip7594(sidecar);
        TxEip4844WithSidecar { tx, sidecar }.into_signed(signature).into()
    };
    let whole = with_blobs(sidecar.clone());
    let elided = with_blobs(BlobTransactionSidecarEip7594 { blobs: Vec::new(), ..sidecar });
    let hash = *whole.tx_hash();
    made.pooled.insert(hash, whole.clone());
    let made = Arc::new(made);
    for (version, expected) in [(EthVersion::Eth71, whole), (EthVersion::Eth72, elided)] {
        let told = made.ask(version, EthRequest::PooledTransactions(vec![hash]));
        assert!(told == EthResponse::PooledTransactions(vec![expected]), "{version}");
    }
}
