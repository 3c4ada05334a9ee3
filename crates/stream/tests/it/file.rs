//! Streams to files.

use crate::common::{TestIndexer, TestNode, lines, test_chain, wait_until};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_pipeline::testkit::TestRules;
use retrie_state_store::FlatHistory;
use retrie_stream::{
    CursorFileError, RunningStream, StreamError, StreamOptions, StreamStart, StreamTarget,
};
use std::{fs, path::Path};

fn start(node: &TestNode, path: &Path) -> Result<RunningStream, StreamError> {
    let options = StreamOptions { start: StreamStart::Earliest, ..StreamOptions::default() };
    let target = StreamTarget::File(path.into());
    RunningStream::start(node.live().clone(), &target, options, node.dir.path())
}

/// Reads the file from its start.
fn index(path: &Path) -> TestIndexer {
    let mut indexer = TestIndexer::default();
    let text = fs::read_to_string(path).unwrap();
    // A line that is being written is no record yet.
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
        .for_each(|line| indexer.take(line));
    indexer
}

#[test]
fn a_file_over_restarts_kills_and_reorgs_is_one_stream() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let trunk = chain.branch(genesis, 4, 12, 1);
    let branches = [chain.branch(trunk[3], 8, 12, 2), chain.branch(trunk[3], 8, 12, 4)];
    let node = TestNode::new(&chain.spec, FlatHistory::All);
    node.add(&chain.path(genesis, branches[0][7]));
    node.add(&chain.path(trunk[3], branches[1][7]));
    let random = &mut StdRng::seed_from_u64(3);
    let path = node.dir.path().join("out.ndjson");
    let mut before = Vec::new();
    for _ in 0..12 {
        node.set_head(branches[random.random_range(0..2)][random.random_range(0..8)], false);
        // A head behind the head is left where it is.
        let head = node.live().head().hash();
        let stream = start(&node, &path).unwrap();
        assert!(start(&node, &path).is_err(), "one stream at a time");
        wait_until("the stream is at the head", || index(&path).is_at(head));
        assert_eq!(stream.thread().last_error(), None);
        drop(stream);
        let now = lines(&path);
        assert!(now.starts_with(&before), "no line has changed");
        // A kill in the middle of a line.
        if random.random_bool(0.5) {
            let whole = fs::read(&path).unwrap();
            fs::write(&path, [&whole[..], b"{\"cursor\":\"7-"].concat()).unwrap();
        }
        before = now;
    }
    let indexer = index(&path);
    assert!(indexer.undone > 5, "{}", indexer.undone);
}

#[test]
fn a_file_of_another_chain_is_not_gone_on_with() {
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("out");
    let chain = test_chain(TestRules::Cancun);
    let node = TestNode::new(&chain.spec, FlatHistory::All);
    let stream = start(&node, &path).unwrap();
    wait_until("genesis is streamed", || index(&path).blocks.len() == 1);
    drop(stream);
    let other = test_chain(TestRules::Prague);
    let node = TestNode::new(&other.spec, FlatHistory::All);
    let error = start(&node, &path).unwrap_err();
    assert!(
        matches!(error, StreamError::CursorFile(CursorFileError::OtherChain { .. })),
        "{error}"
    );
    fs::write(path.with_added_extension("cursor"), "made up").unwrap();
    let error = start(&node, &path).unwrap_err();
    assert!(matches!(error, StreamError::CursorFile(CursorFileError::Malformed { .. })), "{error}");
}

#[test]
fn a_program_without_a_sink_says_so() {
    let chain = test_chain(TestRules::Cancun);
    let node = TestNode::new(&chain.spec, FlatHistory::All);
    let target: StreamTarget = "kafka://127.0.0.1:1/topic".parse().unwrap();
    let options = StreamOptions::default();
    let started = RunningStream::start(node.live().clone(), &target, options, node.dir.path());
    if cfg!(feature = "kafka") {
        // A broker that is down does not keep the node from starting.
        let stream = started.unwrap();
        assert!(stream.thread().is_running());
    } else {
        let error = started.unwrap_err();
        assert!(error.to_string().contains("feature `kafka`"), "{error}");
    }
}
