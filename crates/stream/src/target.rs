//! [`StreamTarget`]: where a stream goes.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// Where a stream goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamTarget {
    /// `file:PATH`: a file of lines.
    File(PathBuf),
    /// `ws://ADDR:PORT`: a WebSocket server. Each of its clients has a stream of its own.
    WebSocket(SocketAddr),
    /// `kafka://HOST:PORT/TOPIC`: partition 0 of a topic.
    Kafka {
        /// The broker to ask first, which names the others.
        broker: String,
        /// The topic, which must exist.
        topic: String,
    },
}

/// A text names no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no target of a stream: file:PATH, ws://ADDR:PORT, or kafka://HOST:PORT/TOPIC{hint}"
)]
pub struct TargetError {
    /// The text.
    pub text: String,
    hint: &'static str,
}

impl fmt::Display for StreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::WebSocket(address) => write!(f, "ws://{address}"),
            Self::Kafka { broker, topic } => write!(f, "kafka://{broker}/{topic}"),
        }
    }
}

impl FromStr for StreamTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let wrong = |hint| TargetError { text: text.into(), hint };
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let hint = "; the path is empty";
            return if path.is_empty() { Err(wrong(hint)) } else { Ok(Self::File(path.into())) };
        }
        if let Some(address) = text.strip_prefix("ws://") {
            let address = address.strip_suffix('/').unwrap_or(address);
            let address = address.replace("localhost:", "127.0.0.1:");
            let hint = "; ADDR is the address of this machine to listen on";
            return address.parse().map(Self::WebSocket).map_err(|_| wrong(hint));
        }
        if let Some(rest) = text.strip_prefix("kafka://") {
            return kafka(rest).ok_or_else(|| wrong("; letters, digits, `.`, `_`, `-` in TOPIC"));
        }
        Err(wrong(""))
    }
}

fn kafka(rest: &str) -> Option<StreamTarget> {
    let (broker, topic) = rest.split_once('/')?;
    let is_topic = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    // The rules of Kafka; `.` and `..` are no topics.
    let is_valid = (1..=249).contains(&topic.len())
        && topic.bytes().all(is_topic)
        && topic.bytes().any(|byte| byte != b'.');
    let (host, port) = broker.rsplit_once(':')?;
    (is_valid && !host.is_empty() && port.parse::<u16>().is_ok())
        .then(|| StreamTarget::Kafka { broker: broker.into(), topic: topic.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_its_text() {
        for (text, shown) in [
            ("file:out.ndjson", "file:out.ndjson"),
            ("file:///var/out", "file:/var/out"),
            ("ws://127.0.0.1:8600", "ws://127.0.0.1:8600"),
            ("ws://localhost:8600/", "ws://127.0.0.1:8600"),
            ("ws://[::1]:1", "ws://[::1]:1"),
            ("kafka://a:9092/eth.main", "kafka://a:9092/eth.main"),
        ] {
            assert_eq!(text.parse::<StreamTarget>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "file:",
            "out",
            "ws://",
            "ws://host:1",
            "ws://127.0.0.1",
            "kafka://a:9092",
            "kafka://a/t",
            "kafka://a:9092/",
            "kafka://a:9092/..",
            "kafka://:1/t",
            "kafka://a:1/t t",
            "http://127.0.0.1:1",
        ] {
            let refused = wrong.parse::<StreamTarget>().unwrap_err();
            assert_eq!(refused.text, wrong);
        }
    }
}
