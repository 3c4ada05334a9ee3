//! A WebSocket connection that counts its bytes as they are read and splits long frames.

use super::budget::{HeldBytes, PATIENCE};
use parking_lot::Mutex;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Longest frame that passes unchanged. A multiple of 4, the length of a mask.
pub(super) const FRAGMENT: usize = 64 << 10;
/// Bytes of a frame's header with an 8-byte length and a mask.
const LONGEST_HEAD: usize = 14;
/// Bit in the first byte of the last frame of a message.
const FIN: u8 = 0x80;
/// Bit in the first byte of a control frame.
const CONTROL: u8 = 0x08;
/// Longest payload of a control frame (RFC 6455, 5.5).
const LONGEST_CONTROL: u64 = 125;
/// Bit in the second byte of a masked frame; the other bits are the length or one of the next two
/// values.
const MASKED: u8 = 0x80;
const LENGTH_IN_2: u8 = 126;
const LENGTH_IN_8: u8 = 127;
/// How often a connection without room checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Longest time from a message's first frame to the start of its last one. Control frames between
/// them do not extend it, though they show that the client is there.
const MESSAGE_TIME: Duration = Duration::from_secs(60);

/// When the client was last heard; `None` while the server does not read, because it has enough
/// requests in progress or no room.
pub(super) type LastHeard = Arc<Mutex<Option<Instant>>>;

/// A connection that reads only bytes for which there is room. The reader of a message takes over
/// its held bytes; control frames, which are short, are released once they were read.
#[derive(Debug)]
pub(super) struct CountedStream<S> {
    inner: S,
    held: Arc<Mutex<HeldBytes>>,
    heard: LastHeard,
    /// Since when there is no room, and the timer for the next check.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    frames: FrameSplitter,
}

impl<S> CountedStream<S> {
    /// Reads from `inner`; `held` counts the bytes, and `most` is the longest frame.
    pub(super) const fn new(
        inner: S,
        held: Arc<Mutex<HeldBytes>>,
        heard: LastHeard,
        most: u64,
    ) -> Self {
        Self { inner, held, heard, waiting: None, frames: FrameSplitter::new(most) }
    }

    /// The inner connection, for bytes that are not kept.
    pub(super) const fn inner(&mut self) -> &mut S {
        &mut self.inner
    }
}

/// Whether a read failed because there was no room for too long.
pub(super) fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::QuotaExceeded
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { inner, held, heard, waiting, frames } = &mut *self;
        frames.check_time()?;
        let wanted = buffer.remaining();
        while !held.lock().try_grow(wanted) {
            let now = Instant::now();
            let (since, again) = waiting.get_or_insert_with(|| (now, Box::pin(sleep(LOOK_AGAIN))));
            // A client that has sent nothing is not disconnected.
            if frames.is_within_message() && now.duration_since(*since) >= PATIENCE {
                return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
            }
            *heard.lock() = None;
            ready!(again.as_mut().poll(context));
            again.as_mut().reset(now + LOOK_AGAIN);
        }
        if waiting.take().is_some() {
            *heard.lock() = Some(Instant::now());
        }
        let before = buffer.filled().len();
        let read = frames.poll_read(inner, context, buffer);
        let came = buffer.filled().len() - before;
        held.lock().shrink(wanted - came + std::mem::take(&mut frames.control));
        read
    }
}

/// Splits long frames (RFC 6455, 5.2) into fragments.
///
/// A frame longer than [`FRAGMENT`] has an 8-byte length, and so has each fragment. The header of
/// the first fragment is the frame's header with another length and without `FIN`. Each further
/// fragment gets a new header with the same mask, which fits because the mask repeats every 4
/// bytes. Frames longer than `most` pass unchanged, for the library to reject.
#[derive(Debug)]
struct FrameSplitter {
    most: u64,
    /// The incomplete header of the next frame.
    head: [u8; LONGEST_HEAD],
    head_len: usize,
    /// Remaining bytes of the current frame or fragment.
    left: u64,
    /// Remaining bytes of the frame after the current fragment.
    later: u64,
    /// Whether the frame that is being split is the last one of its message.
    is_last: bool,
    mask: [u8; 4],
    /// Whether the present frame is a control frame.
    is_control: bool,
    /// Bytes of control frames since the last query.
    control: usize,
    /// Whether a message is open: its last frame has not started.
    is_open: bool,
    /// Since when the message is open.
    since: Option<Instant>,
}

impl FrameSplitter {
    const fn new(most: u64) -> Self {
        Self {
            most,
            head: [0; LONGEST_HEAD],
            head_len: 0,
            left: 0,
            later: 0,
            is_last: false,
            mask: [0; 4],
            is_control: false,
            control: 0,
            is_open: false,
            since: None,
        }
    }

    /// Whether a frame or a message is incomplete.
    const fn is_within_message(&self) -> bool {
        self.left > 0 || self.later > 0 || self.head_len > 0 || self.is_open
    }

    /// Fails if a message takes too long. Called before each read, so time in which the server does
    /// not read is not counted against the client.
    fn check_time(&mut self) -> io::Result<()> {
        if self.is_open {
            let since = self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > MESSAGE_TIME {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn poll_read(
        &mut self,
        inner: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 && self.later > 0 {
            let head = self.next_head();
            buffer.put_slice(&head);
            return Poll::Ready(Ok(()));
        }
        // Reads at most to the next header within a split frame.
        let most = if self.later > 0 { self.left } else { u64::MAX };
        let held_back = self.head_len;
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.remaining());
        let space = buffer.initialize_unfilled_to(most);
        space[..held_back].copy_from_slice(&self.head[..held_back]);
        let mut fresh = ReadBuf::new(&mut space[held_back..]);
        ready!(Pin::new(inner).poll_read(context, &mut fresh))?;
        let fresh = fresh.filled().len();
        let came = &mut space[..held_back + fresh];
        self.head_len = 0;
        let given = if fresh == 0 { came.len() } else { self.follow(came) };
        buffer.advance(given);
        if given == 0 && fresh > 0 {
            // The rest of the header is not there yet.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Walks through the frames in the new bytes, and turns the start of a long frame into its
    /// first fragment. Returns the number of complete bytes; an incomplete header at the end is
    /// kept.
    fn follow(&mut self, came: &mut [u8]) -> usize {
        let mut at = 0;
        while at < came.len() {
            if self.left > 0 {
                let passed = self.left.min((came.len() - at) as u64);
                self.left -= passed;
                at += passed as usize;
                if self.is_control {
                    self.control += passed as usize;
                }
                continue;
            }
            let rest = &mut came[at..];
            let Some((head_len, payload)) = head_of(rest) else {
                self.head[..rest.len()].copy_from_slice(rest);
                self.head_len = rest.len();
                return at;
            };
            self.left = payload;
            // A control frame that is too long ends the connection; until then its bytes count.
            self.is_control = rest[0] & CONTROL != 0 && payload <= LONGEST_CONTROL;
            if self.is_control {
                self.control += head_len;
            } else if rest[0] & FIN == 0 {
                self.is_open = true;
            } else {
                (self.is_open, self.since) = (false, None);
            }
            if payload > FRAGMENT as u64 && payload <= self.most && head_len == LONGEST_HEAD {
                self.is_last = rest[0] & FIN != 0;
                self.mask.copy_from_slice(&rest[10..14]);
                rest[0] &= !FIN;
                rest[2..10].copy_from_slice(&(FRAGMENT as u64).to_be_bytes());
                (self.left, self.later) = (FRAGMENT as u64, payload - FRAGMENT as u64);
            }
            at += head_len;
        }
        at
    }

    /// The header of the next fragment.
    fn next_head(&mut self) -> [u8; LONGEST_HEAD] {
        self.left = self.later.min(FRAGMENT as u64);
        self.later -= self.left;
        let is_end = self.is_last && self.later == 0;
        let mut head = [0; LONGEST_HEAD];
        head[0] = if is_end { FIN } else { 0 };
        // The long form of the length is valid for short lengths too.
        head[1] = MASKED | LENGTH_IN_8;
        head[2..10].copy_from_slice(&self.left.to_be_bytes());
        head[10..].copy_from_slice(&self.mask);
        head
    }
}

/// Length of a frame's header, and of its payload; `None` if the header is incomplete.
fn head_of(frame: &[u8]) -> Option<(usize, u64)> {
    let second = *frame.get(1)?;
    let (length_end, payload) = match second & !MASKED {
        LENGTH_IN_2 => (4, u16::from_be_bytes(frame.get(2..4)?.try_into().ok()?).into()),
        LENGTH_IN_8 => (10, u64::from_be_bytes(frame.get(2..10)?.try_into().ok()?)),
        length => (2, length.into()),
    };
    let head = length_end + if second & MASKED != 0 { 4 } else { 0 };
    (frame.len() >= head).then_some((head, payload))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::budget::{BufferBudget, OWN},
        *,
    };
    use std::io::Cursor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const MASK: [u8; 4] = [1, 2, 3, 4];

    /// A masked frame; the caller masks the payload.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..126 => frame.push(MASKED | short as u8),
            middle @ 126..65_536 => {
                frame.push(MASKED | LENGTH_IN_2);
                frame.extend((middle as u16).to_be_bytes());
            }
            long => {
                frame.push(MASKED | LENGTH_IN_8);
                frame.extend((long as u64).to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(payload);
        frame
    }

    fn heard() -> LastHeard {
        Arc::new(Mutex::new(Some(Instant::now())))
    }

    /// The output for a stream that arrives in pieces of this size.
    async fn read(stream: &[u8], piece: usize, most: u64) -> Vec<u8> {
        read_and_count(stream, piece, most).await.0
    }

    /// As [`read`], with the number of bytes that are held at the end.
    async fn read_and_count(stream: &[u8], piece: usize, most: u64) -> (Vec<u8>, usize) {
        struct PieceReader<'a>(Cursor<&'a [u8]>, usize);
        impl AsyncRead for PieceReader<'_> {
            fn poll_read(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let piece = self.1.min(buffer.remaining());
                let mut part = ReadBuf::new(buffer.initialize_unfilled_to(piece));
                ready!(Pin::new(&mut self.0).poll_read(context, &mut part))?;
                let came = part.filled().len();
                buffer.advance(came);
                Poll::Ready(Ok(()))
            }
        }
        let held = BufferBudget::unlimited().open().hold();
        let (pieces, held) = (PieceReader(Cursor::new(stream), piece), Arc::new(Mutex::new(held)));
        let mut counted = CountedStream::new(pieces, held.clone(), heard(), most);
        let mut out = Vec::new();
        // As the library reads: with room for a frame's header.
        let mut space = vec![0; 1 << 14];
        loop {
            let came = counted.read(&mut space).await.unwrap();
            if came == 0 {
                let held = held.lock().bytes();
                return (out, held);
            }
            out.extend(&space[..came]);
        }
    }

    /// First byte and payload of each frame.
    fn frames(mut stream: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut frames = Vec::new();
        while !stream.is_empty() {
            let (head, payload) = head_of(stream).unwrap();
            assert_eq!(stream[head - 4..head], MASK);
            let end = head + payload as usize;
            frames.push((stream[0], stream[head..end].to_vec()));
            stream = &stream[end..];
        }
        frames
    }

    #[tokio::test]
    async fn long_frames_come_in_fragments_and_others_as_they_are() {
        let payload: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let (ping, short) = (frame(0x89, b"ping"), frame(0x81, &payload[..300]));
        let whole = frame(0x82, &payload[..FRAGMENT]);
        let (long, part) = (frame(0x81, &payload), frame(0x01, &payload[..70_000]));
        let end = frame(0x80, &payload[..FRAGMENT + 1]);
        let stream = [&short[..], &ping, &whole, &long, &ping, &part, &ping, &end, &short].concat();
        for piece in [1, 3, 13, 14, 1000, 1 << 14] {
            let found = frames(&read(&stream, piece, 1 << 20).await);
            let firsts: Vec<u8> = found.iter().map(|(first, _)| *first).collect();
            let expected = [0x81, 0x89, 0x82, 0x01, 0, 0, 0x80, 0x89, 0x01, 0, 0x89, 0, 0x80, 0x81];
            assert_eq!(firsts, expected, "pieces of {piece}");
            let joined = |range: std::ops::Range<usize>| -> Vec<u8> {
                found[range].iter().flat_map(|(_, payload)| payload.clone()).collect()
            };
            assert_eq!(joined(3..7), payload, "pieces of {piece}");
            assert_eq!(joined(8..10), payload[..70_000]);
            assert_eq!(joined(11..13), payload[..FRAGMENT + 1]);
            assert!(found.iter().all(|(_, payload)| payload.len() <= FRAGMENT));
        }
        // A frame that is too long passes unchanged; the library rejects it by its header.
        assert_eq!(read(&long, 1000, 100_000).await, long);
        // A stream that ends within a header passes unchanged.
        assert_eq!(read(&long[..5], 1, 1 << 20).await, long[..5]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_for_which_there_is_no_room() {
        let buffered = BufferBudget::new(1000);
        let large = buffered.open().take(OWN + 1000).await.unwrap();
        let stream = vec![0x20; 100_000];
        let held = Arc::new(Mutex::new(buffered.open().hold()));
        let mut counted = CountedStream::new(Cursor::new(stream), held.clone(), heard(), 1 << 20);
        let mut space = vec![0; 1 << 14];
        let mut came = 0;
        let start = Instant::now();
        let error = loop {
            match counted.read(&mut space).await {
                Ok(more) => came += more,
                Err(error) => break error,
            }
        };
        assert!(is_busy(&error) && start.elapsed() >= PATIENCE, "{error}");
        assert_eq!(came, OWN, "its own");
        drop(large);
        assert!(counted.read(&mut space[..500]).await.unwrap() > 0, "others have let go");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_sent_nothing_waits_for_room_without_end() {
        let buffered = BufferBudget::new(1000);
        let others = buffered.open().take(OWN + 1000).await.unwrap();
        let tab = buffered.open();
        let _answers = tab.clone().take(OWN).await.unwrap();
        let (held, heard, stream) =
            (Arc::new(Mutex::new(tab.hold())), heard(), frame(0x81, b"here"));
        let mut counted =
            CountedStream::new(Cursor::new(stream.clone()), held, heard.clone(), 1 << 20);
        let mut space = [0; 100];
        let waited = tokio::time::timeout(10 * PATIENCE, counted.read(&mut space)).await;
        assert!(waited.is_err(), "{waited:?}");
        assert_eq!(*heard.lock(), None, "nobody listens");
        drop(others);
        assert_eq!(counted.read(&mut space).await.unwrap(), stream.len());
        assert_eq!(*heard.lock(), Some(Instant::now()));
    }

    #[tokio::test]
    async fn control_frames_hold_nothing_in_whatever_form_their_length_is() {
        let long_forms = [
            &[0x89, MASKED | LENGTH_IN_2, 0, 4][..],
            &[0x8a, MASKED | LENGTH_IN_8, 0, 0, 0, 0, 0, 0, 0, 4],
        ];
        let long_forms = long_forms.map(|head| [head, &MASK, b"ping"].concat()).concat();
        let stream = [frame(0x89, b"ping"), long_forms, frame(0x8a, b"")].concat();
        let part = frame(0x01, b"[1,");
        let whole = [&stream[..], &part, &stream].concat();
        for piece in [1, 3, 13, 1000] {
            assert_eq!(read_and_count(&stream, piece, 1 << 20).await, (stream.clone(), 0));
            assert_eq!(read_and_count(&whole, piece, 1 << 20).await, (whole.clone(), part.len()));
        }
        // Frames that are too long for control frames.
        let too_long = frame(0x89, &[0; 126]);
        assert_eq!(read_and_count(&too_long, 13, 1 << 20).await.1, too_long.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_end_is_given_up_whatever_comes_between_its_frames() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let held = BufferBudget::unlimited().open().hold();
        let held = Arc::new(Mutex::new(held));
        let mut counted = CountedStream::new(server, held, heard(), 1 << 20);
        let reading = tokio::spawn(async move {
            let mut space = [0; 100];
            loop {
                match counted.read(&mut space).await {
                    Ok(0) => panic!("the client is there"),
                    Ok(_) => {}
                    Err(error) => return error.kind(),
                }
            }
        });
        let (part, end, pong) = (frame(0x01, b"["), frame(0x80, b"]"), frame(0x8a, b""));
        // One message after the other, each within the limit.
        client.write_all(&part).await.unwrap();
        for _ in 0..3 {
            sleep(MESSAGE_TIME - LOOK_AGAIN).await;
            client.write_all(&[&end[..], &part].concat()).await.unwrap();
        }
        let start = Instant::now();
        while !reading.is_finished() {
            assert!(start.elapsed() < 2 * MESSAGE_TIME, "it is never given up");
            client.write_all(&pong).await.unwrap();
            sleep(MESSAGE_TIME / 6).await;
        }
        assert!(start.elapsed() > MESSAGE_TIME, "{:?}", start.elapsed());
        assert_eq!(reading.await.unwrap(), io::ErrorKind::TimedOut);
    }
}
