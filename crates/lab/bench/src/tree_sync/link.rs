//! The protocol between a fetching and a serving peer, little-endian, over TCP:
//!
//! ```text
//! request: greeting  tree u8 | delay, us u32 | bytes per second u64 | lies u8 | seed u64, once
//!          then      number u32: of a chunk, or one of the constants below
//! answer:  one per request, in order: length u32, bytes
//! ```

use std::{
    io::{self, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpStream},
    time::Duration,
};

/// Requests the hashes of all chunks; from the baseline, the number of messages.
pub(super) const OVERVIEW: u32 = u32::MAX;
/// Requests the time that the peer has spent on serialisation, in nanoseconds.
pub(super) const SPENT: u32 = u32::MAX - 1;
/// Largest length of an answer.
const LONGEST: u32 = 1 << 30;
/// Timeout for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kind of tree to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeKind {
    Bavl,
    AvlPlus,
}

/// The behaviour that a fetching peer requests from a serving peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PeerGreeting {
    pub(super) kind: TreeKind,
    /// Simulated delay from a request to the first byte of its answer.
    pub(super) delay: Duration,
    /// Simulated bandwidth in bytes per second.
    pub(super) speed: u64,
    pub(super) lies: bool,
    /// Seed of the lies.
    pub(super) seed: u64,
}

impl PeerGreeting {
    const LEN: usize = 22;

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = (self.kind == TreeKind::AvlPlus).into();
        bytes[1..5].copy_from_slice(&(self.delay.as_micros() as u32).to_le_bytes());
        bytes[5..13].copy_from_slice(&self.speed.to_le_bytes());
        bytes[13] = self.lies.into();
        bytes[14..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// Reads the greeting of a new connection.
    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let kind = if byte(stream)? == 0 { TreeKind::Bavl } else { TreeKind::AvlPlus };
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

/// A connection to a serving peer.
#[derive(Debug)]
pub(super) struct PeerLink {
    /// Number of the peer.
    pub(super) peer: usize,
    /// Number of open requests, so that the simulated line is never idle.
    pub(super) window: usize,
    stream: BufReader<TcpStream>,
}

impl PeerLink {
    /// Connects. Chunks have about `chunk_bytes` bytes.
    pub(super) fn open(
        peer: usize,
        port: u16,
        greeting: &PeerGreeting,
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

    /// Time in nanoseconds that the peer has spent on serialisation.
    pub(super) fn spent(&mut self) -> io::Result<u64> {
        self.ask(SPENT)?;
        let bytes = self.answer()?;
        long(&mut &bytes[..])
    }

    /// Closes the connection.
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
        for (kind, lies) in [(TreeKind::Bavl, true), (TreeKind::AvlPlus, false)] {
            let delay = Duration::from_millis(25);
            let greeting = PeerGreeting { kind, delay, speed: 12_500_000, lies, seed: 7 };
            assert_eq!(PeerGreeting::read(&mut &greeting.write()[..]).unwrap(), greeting);
        }
    }
}
