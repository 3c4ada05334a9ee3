//! A peer that serves a tree.

use super::{
    ServedTreeConfig, TreeSyncError,
    link::{OVERVIEW, PeerGreeting, SPENT, TreeKind, number},
};
use crate::{
    random::SplitMix64,
    trees::{AvlPlusTree, BavlTree, ChunkPlace},
};
use std::{
    io::{self, BufReader, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Interval at which the peer checks the stop flag.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes before the first value of a message of the baseline: key-height, key, length.
const BEFORE_VALUE: usize = 9;

struct ServedTrees {
    bavl: BavlTree,
    /// Chunks of `bavl` in key order.
    chunks: Vec<ChunkPlace>,
    avlplus: AvlPlusTree,
    /// All messages of the baseline, if they are made in advance.
    snapshot: Option<Vec<Vec<u8>>>,
    setting: ServedTreeConfig,
}

/// Builds the tree and serves it on a port of loopback until `stop` is set. Calls `tell` with the
/// port. With `has_snapshot` the messages of the baseline are made once, before the first request.
///
/// # Errors
/// If no port can be opened.
pub fn serve(
    setting: ServedTreeConfig,
    has_snapshot: bool,
    stop: &AtomicBool,
    tell: impl FnOnce(u16),
) -> Result<(), TreeSyncError> {
    let failed = |source| TreeSyncError::Peer { peer: 0, source };
    let (bavl, avlplus) = setting.trees();
    let snapshot = has_snapshot.then(|| avlplus.serialize(setting.chunk));
    let trees = ServedTrees { chunks: bavl.chunk_places(), bavl, avlplus, snapshot, setting };
    let trees = Arc::new(trees);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    tell(listener.local_addr().map_err(failed)?.port());
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let trees = trees.clone();
                // The other side may close the connection.
                thread::spawn(move || drop(converse(&trees, stream)));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Answers the requests of one connection until it is closed.
fn converse(trees: &ServedTrees, stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let greeting = PeerGreeting::read(&mut reader)?;
    let (asked, requests) = mpsc::channel();
    // Requests are received while an answer is being sent.
    thread::spawn(move || {
        while let Ok(what) = number(&mut reader) {
            if asked.send((Instant::now(), what)).is_err() {
                return;
            }
        }
    });
    let mut speaker = ChunkResponder::new(trees, &greeting);
    let mut line_is_free = Instant::now();
    let mut stream = stream;
    for (came, what) in requests {
        let answer = speaker.answer(what);
        let begins = (came + greeting.delay).max(line_is_free);
        let takes = answer.len() as f64 / greeting.speed as f64;
        line_is_free = begins + Duration::from_secs_f64(takes);
        thread::sleep(line_is_free.saturating_duration_since(Instant::now()));
        stream.write_all(&(answer.len() as u32).to_le_bytes())?;
        stream.write_all(&answer)?;
    }
    Ok(())
}

struct ChunkResponder<'a> {
    trees: &'a ServedTrees,
    kind: TreeKind,
    lies: Option<SplitMix64>,
    /// All messages of the baseline, made at the first request of this connection.
    messages: Option<Vec<Vec<u8>>>,
    spent: Duration,
}

impl<'a> ChunkResponder<'a> {
    fn new(trees: &'a ServedTrees, greeting: &PeerGreeting) -> Self {
        let lies = greeting.lies.then(|| SplitMix64::new(greeting.seed));
        Self { trees, kind: greeting.kind, lies, messages: None, spent: Duration::ZERO }
    }

    fn answer(&mut self, what: u32) -> Vec<u8> {
        if what == SPENT {
            return (self.spent.as_nanos() as u64).to_le_bytes().to_vec();
        }
        let start = Instant::now();
        let ServedTrees { bavl, chunks, avlplus, snapshot, setting } = self.trees;
        let mut answer = match (self.kind, what) {
            (TreeKind::Bavl, OVERVIEW) => {
                let skeleton = bavl.skeleton();
                skeleton
                    .iter()
                    .flat_map(|(hash, height)| [&hash[..], &[*height]].concat())
                    .collect()
            }
            (TreeKind::Bavl, chunk) => {
                let place = chunks.get(chunk as usize);
                place.map_or_else(Vec::new, |place| bavl.message(place))
            }
            (TreeKind::AvlPlus, what) => {
                let messages = match snapshot {
                    Some(snapshot) => snapshot,
                    None => self.messages.get_or_insert_with(|| avlplus.serialize(setting.chunk)),
                };
                match what {
                    OVERVIEW => (messages.len() as u32).to_le_bytes().to_vec(),
                    chunk => messages.get(chunk as usize).cloned().unwrap_or_default(),
                }
            }
        };
        self.spent += start.elapsed();
        self.lie(what, &mut answer);
        answer
    }

    /// A liar changes one bit in a random half of its chunks. In the baseline it changes the first
    /// value, so that the message can still be decoded.
    fn lie(&mut self, what: u32, answer: &mut [u8]) {
        let Some(random) = &mut self.lies else { return };
        if random.below(2) == 0 {
            return;
        }
        let range = match self.kind {
            TreeKind::Bavl => 0..answer.len(),
            TreeKind::AvlPlus if what == OVERVIEW => return,
            TreeKind::AvlPlus => BEFORE_VALUE..BEFORE_VALUE + self.trees.setting.bytes,
        };
        let at = range.start + random.below(range.len().max(1) as u64) as usize;
        if let Some(byte) = answer.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
    }
}
