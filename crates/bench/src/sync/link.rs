//! What peers and those who ask them say to each other, little-endian, over TCP:
//!
//! ```text
//! asks:    greeting  tree u8 | delay, us u32 | bytes a second u64 | lies u8 | seed u64, once
//!          requests  number u32: of a chunk, or one of those below
//! answers: one a request, in order: length u32, bytes
//! ```

use std::{
    io::{self, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpStream},
    time::Duration,
};

/// Asks for what chunks hash to, or of the baseline for their number.
pub(super) const OVERVIEW: u32 = u32::MAX;
/// Asks how long the peer has spent on making bytes, in nanoseconds.
pub(super) const SPENT: u32 = u32::MAX - 1;
/// No answer is longer.
const LONGEST: u32 = 1 << 30;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bavl,
    AvlPlus,
}

/// How a peer is to behave towards one who asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Greeting {
    pub(super) kind: Kind,
    /// From a request to the first byte of its answer.
    pub(super) delay: Duration,
    /// Bytes a second of its line.
    pub(super) speed: u64,
    pub(super) lies: bool,
    /// Seed of its lies.
    pub(super) seed: u64,
}

impl Greeting {
    const LEN: usize = 22;

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = (self.kind == Kind::AvlPlus).into();
        bytes[1..5].copy_from_slice(&(self.delay.as_micros() as u32).to_le_bytes());
        bytes[5..13].copy_from_slice(&self.speed.to_le_bytes());
        bytes[13] = self.lies.into();
        bytes[14..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// Reads the greeting of one who has connected.
    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let kind = if byte(stream)? == 0 { Kind::Bavl } else { Kind::AvlPlus };
        let delay = Duration::from_micros(number(stream)?.into());
        let speed = long(stream)?.max(1);
        Ok(Self { kind, delay, speed, lies: byte(stream)? != 0, seed: long(stream)? })
    }
}

fn byte(stream: &mut impl Read) -> io::Result<u8> {
    let mut bytes = [0];
    stream.read_exact(&mut bytes)?;
    Ok(bytes[0])
}

/// Reads a number of 4 bytes.
pub(super) fn number(stream: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn long(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A line to a peer.
#[derive(Debug)]
pub(super) struct Link {
    /// Number of the peer.
    pub(super) peer: usize,
    /// Answers that are on their way at once, so that the line is never idle.
    pub(super) window: usize,
    stream: BufReader<TcpStream>,
}

impl Link {
    /// Connects. Chunks have about so many bytes.
    pub(super) fn open(
        peer: usize,
        port: u16,
        greeting: &Greeting,
        chunk_bytes: u64,
    ) -> io::Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&greeting.write())?;
        let in_flight = greeting.speed as f64 * greeting.delay.as_secs_f64();
        let window = (in_flight / chunk_bytes.max(1) as f64).ceil() as usize + 1;
        Ok(Self { peer, window, stream: BufReader::with_capacity(1 << 16, stream) })
    }

    pub(super) fn ask(&mut self, what: u32) -> io::Result<()> {
        self.stream.get_mut().write_all(&what.to_le_bytes())
    }

    pub(super) fn answer(&mut self) -> io::Result<Vec<u8>> {
        let len = number(&mut self.stream)?;
        if len > LONGEST {
            return Err(io::Error::other(format!("an answer of {len} bytes")));
        }
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Nanoseconds that the peer has spent on making bytes.
    pub(super) fn spent(&mut self) -> io::Result<u64> {
        self.ask(SPENT)?;
        let bytes = self.answer()?;
        long(&mut &bytes[..])
    }

    /// Hangs up.
    pub(super) fn close(&self) {
        // It may be closed already.
        drop(self.stream.get_ref().shutdown(Shutdown::Both));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_read_back() {
        for (kind, lies) in [(Kind::Bavl, true), (Kind::AvlPlus, false)] {
            let delay = Duration::from_millis(25);
            let greeting = Greeting { kind, delay, speed: 12_500_000, lies, seed: 7 };
            assert_eq!(Greeting::read(&mut &greeting.write()[..]).unwrap(), greeting);
        }
    }
}
