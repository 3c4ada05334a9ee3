//! The file of live nodes, so that a restart does not depend on boot nodes.
//!
//! A text file: a line `retrie-nodes 1 COUNT CRC32`, then COUNT lines with an `enode://` URL each.
//! The checksum covers everything after the first line, in eight hexadecimal digits.

use super::enode::Enode;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};
use tracing::warn;

/// Name of the file in a datadir.
pub const NODES_FILE: &str = "discovery-nodes";

/// Maximum number of nodes in the file.
pub(super) const MAX_NODES: usize = 512;
/// Maximum bytes that are read: a URL has at most 190.
const MAX_FILE_BYTES: u64 = 128 * 1024;

/// Reads the nodes. No nodes if there is no file; if it is damaged, it is ignored with a warning.
pub(super) fn load(path: &Path) -> Vec<Enode> {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    let fault = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => error.to_string(),
        Ok(_) => match parse(&bytes) {
            Ok(nodes) => return nodes,
            Err(fault) => fault.into(),
        },
    };
    warn!(
        target: "retrie::network",
        "{} is ignored: {fault}. Nodes are looked for from the boot nodes",
        path.display()
    );
    Vec::new()
}

/// Replaces the file atomically.
pub(super) fn save(path: &Path, nodes: &[Enode]) -> io::Result<()> {
    let nodes = &nodes[..nodes.len().min(MAX_NODES)];
    let body: String = nodes.iter().map(|node| format!("{node}\n")).collect();
    let crc = crc32fast::hash(body.as_bytes());
    let aside = path.with_extension("new");
    let mut file = File::create(&aside)?;
    write!(file, "retrie-nodes 1 {} {crc:08x}\n{body}", nodes.len())?;
    file.sync_all()?;
    fs::rename(aside, path)
}

fn parse(bytes: &[u8]) -> Result<Vec<Enode>, &'static str> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err("it has more than 128 KiB");
    }
    let text = str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let (head, body) = text.split_once('\n').ok_or("it has no first line")?;
    let fields: Vec<_> = head.split(' ').collect();
    let ["retrie-nodes", "1", count, crc] = fields[..] else {
        return Err("its first line is not `retrie-nodes 1 COUNT CRC32`");
    };
    if format!("{:08x}", crc32fast::hash(body.as_bytes())) != crc {
        return Err("its checksum is wrong");
    }
    let nodes: Result<Vec<Enode>, _> = body.lines().map(str::parse).collect();
    let nodes = nodes.map_err(|_| "a line does not name a node")?;
    if nodes.len() > MAX_NODES || nodes.len().to_string() != count {
        return Err("the number of nodes differs from the first line");
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::{super::key::NodeKey, *};

    #[test]
    fn nodes_come_back_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NODES_FILE);
        assert!(load(&path).is_empty());
        let node = |port| Enode {
            id: NodeKey::random().id(),
            ip: [1, 2, 3, 4].into(),
            tcp: port,
            udp: port + 1,
        };
        let nodes: Vec<_> = (1..6).map(node).collect();
        save(&path, &nodes).unwrap();
        assert_eq!(load(&path), nodes);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays aside");
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(parse(&bad).is_err(), "byte {at}");
            assert!(parse(&good[..at]).is_err(), "cut at {at}");
        }
        fs::write(&path, &good[..50]).unwrap();
        assert!(load(&path).is_empty());
        assert!(parse(&vec![b'x'; 200_000]).is_err());
        save(&path, &[]).unwrap();
        assert!(load(&path).is_empty());
    }

    #[test]
    fn no_more_than_the_limit_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NODES_FILE);
        let id = NodeKey::random().id();
        let node = |udp| Enode {
            id,
            ip: [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].into(),
            tcp: 65535,
            udp,
        };
        let nodes: Vec<_> = (10_000..11_000).map(node).collect();
        save(&path, &nodes).unwrap();
        assert_eq!(load(&path), nodes[..MAX_NODES]);
    }
}
