//! The server that a node reports to: `NAME:SECRET@HOST:PORT`.

use std::{fmt, str::FromStr};

/// Longest name of a node, in bytes.
const MAX_NAME: usize = 128;
/// The port of a server without one.
const DEFAULT_PORT: u16 = 80;

/// An ethstats server, and how this node logs in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StatsTarget {
    name: String,
    secret: String,
    host: String,
}

impl fmt::Debug for StatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("StatsTarget")
            .field("name", &self.name)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// The value is no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; it must be like NAME:SECRET@HOST:PORT")]
pub(crate) struct StatsTargetError(&'static str);

impl StatsTarget {
    /// The name of this node on the server's page.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The secret that the server knows.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Host and port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The URL of the server's WebSocket.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}/api", self.host)
    }
}

impl FromStr for StatsTarget {
    type Err = StatsTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |what| Err(StatsTargetError(what));
        // A secret may contain an @, a host may not.
        let Some((node, host)) = text.rsplit_once('@') else { return fail("there is no @") };
        let (name, secret) = node.split_once(':').unwrap_or((node, ""));
        if name.is_empty() || name.len() > MAX_NAME {
            return fail("the name of the node must have 1 to 128 bytes");
        }
        if host.contains("://") {
            return fail("the host has no scheme: it is reached over ws://, without TLS");
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(is_plain) {
            return fail("the host is none");
        }
        // A colon within brackets belongs to an IPv6 address.
        let host = match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => host.into(),
            Some(_) => return fail("the port is none"),
            None => format!("{host}:{DEFAULT_PORT}"),
        };
        Ok(Self { name: name.into(), secret: secret.into(), host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_geth_writes_them() {
        for (text, name, secret, host) in [
            ("mine:s3cret@stats.example:3000", "mine", "s3cret", "stats.example:3000"),
            ("mine:a:b@c@10.0.0.1:3000", "mine", "a:b@c", "10.0.0.1:3000"),
            ("mine@stats.example", "mine", "", "stats.example:80"),
            ("mine:x@[::1]:3000", "mine", "x", "[::1]:3000"),
            ("mine:x@[::1]", "mine", "x", "[::1]:80"),
        ] {
            let target: StatsTarget = text.parse().unwrap();
            assert_eq!((target.name(), target.secret(), target.host()), (name, secret, host));
            assert!(!format!("{target:?}").contains("s3cret"));
        }
        for bad in [
            "",
            "mine",
            "mine:secret",
            ":secret@host:1",
            "mine:secret@",
            "mine:secret@:3000",
            "mine:secret@host:port",
            "mine:secret@host:99999",
            "mine:secret@ws://host:1",
            "mine:secret@ho st:1",
            "mine:secret@host/path:1",
        ] {
            assert!(bad.parse::<StatsTarget>().is_err(), "{bad}");
        }
        assert!(format!("{}:s@host:1", "n".repeat(129)).parse::<StatsTarget>().is_err());
    }
}
