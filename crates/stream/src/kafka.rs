//! [`KafkaSink`]: produces records to partition 0 of a topic.
//!
//! The value of a message is a record, its key the cursor. Brokers acknowledge a batch once all
//! replicas in sync have it; then the position moves. A crash between the two, or an answer that is
//! lost, gives messages twice, with the same cursors. The topic must exist, and allow messages as long
//! as the largest record (`max.message.bytes`).

use crate::{
    SinkError, StreamError, StreamPosition, StreamRecord,
    cursor_file::{CursorFile, StreamCheckpoint},
    service::RecordSink,
};
use rskafka::{
    BackoffConfig,
    chrono::{DateTime, Utc},
    client::{
        ClientBuilder,
        partition::{Compression, PartitionClient, UnknownTopicHandling},
    },
    record::Record,
};
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

/// How long the brokers may take to acknowledge a batch, with the search for the leader.
const LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// How long the library itself tries again.
const RETRIES: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 4_000 });
const CLIENT_ID: &str = "retrie";

/// The sink `kafka://`.
pub(crate) struct KafkaSink {
    runtime: Runtime,
    broker: String,
    topic: String,
    /// `None` until it is connected, and after a failure.
    partition: Option<PartitionClient>,
    cursor: CursorFile,
}

impl KafkaSink {
    /// A sink whose position is in `cursor`, or begins at `start`. It connects later: brokers that are
    /// down do not keep a node from starting.
    pub(crate) fn open(
        broker: &str,
        topic: &str,
        cursor: CursorFile,
        start: StreamPosition,
    ) -> Result<(Self, StreamPosition), StreamError> {
        let position = match cursor.load()? {
            Some(checkpoint) => checkpoint.position,
            None => {
                cursor.save(&StreamCheckpoint { position: start.clone(), length: 0 })?;
                start
            }
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(topic, error.to_string()))?;
        let (broker, topic) = (broker.to_owned(), topic.to_owned());
        Ok((Self { runtime, broker, topic, partition: None, cursor }, position))
    }

    fn produce(&mut self, records: Vec<Record>) -> Result<(), String> {
        let Self { runtime, broker, topic, partition, .. } = self;
        let connected = partition.take();
        let work = async {
            let client = match connected {
                Some(client) => client,
                None => connect(broker, topic).await?,
            };
            client.produce(records, Compression::NoCompression).await?;
            Ok::<_, rskafka::client::error::Error>(client)
        };
        let produced = runtime.block_on(async { timeout(LIMIT, work).await });
        match produced {
            Ok(Ok(client)) => *partition = Some(client),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no answer within {} seconds", LIMIT.as_secs())),
        }
        Ok(())
    }
}

async fn connect(
    broker: &str,
    topic: &str,
) -> Result<PartitionClient, rskafka::client::error::Error> {
    let retries = BackoffConfig { deadline: Some(RETRIES), ..BackoffConfig::default() };
    let client = ClientBuilder::new(vec![broker.to_owned()])
        .client_id(CLIENT_ID)
        .backoff_config(retries)
        .build()
        .await?;
    client.partition_client(topic, 0, UnknownTopicHandling::Error).await
}

impl RecordSink for KafkaSink {
    fn append(&mut self, records: &[StreamRecord]) -> Result<usize, StreamError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        let timestamp: DateTime<Utc> = DateTime::from_timestamp_millis(millis).unwrap_or_default();
        let message = |record: &StreamRecord| Record {
            key: Some(record.cursor.to_string().into_bytes()),
            value: Some(record.json.clone().into_bytes()),
            headers: BTreeMap::new(),
            timestamp,
        };
        let mut bytes = 0;
        let fits = |record: &&StreamRecord| {
            bytes += record.json.len();
            bytes <= BATCH
        };
        let count = records.iter().take_while(fits).count().max(1);
        let messages = records.iter().take(count).map(message).collect();
        self.produce(messages).map_err(|reason| failed(&self.topic, reason))?;
        Ok(count.min(records.len()))
    }

    fn checkpoint(&mut self, position: &StreamPosition) -> Result<(), StreamError> {
        let checkpoint = StreamCheckpoint { position: position.clone(), length: 0 };
        Ok(self.cursor.save(&checkpoint)?)
    }
}

/// Bytes of records in one request, unless one record has more; Kafka's default limit is a little above
/// a mebibyte.
const BATCH: usize = 512 << 10;

fn failed(topic: &str, reason: String) -> SinkError {
    SinkError::Broker { topic: topic.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use std::net::TcpListener;

    /// The error of a sink whose broker is at `address`.
    fn refused(address: String) -> StreamError {
        let dir = tempfile::tempdir().unwrap();
        let cursor = CursorFile::new(dir.path().join("t.cursor"), B256::ZERO);
        let start = StreamPosition::start(1);
        let (mut sink, position) =
            KafkaSink::open(&address, "topic", cursor.clone(), start.clone()).unwrap();
        assert_eq!(position, start);
        let block = retrie_state::BlockRef::new(1, B256::ZERO);
        let kind = crate::RecordKind::Block;
        let cursor_of = crate::StreamCursor { sequence: 1, block, kind };
        let record = StreamRecord { cursor: cursor_of, json: "{}".into() };
        let error = sink.append(&[record]).unwrap_err();
        assert_eq!(cursor.load().unwrap().unwrap().position, start, "it has not moved");
        error
    }

    #[test]
    fn a_broker_that_is_down_is_a_typed_error() {
        // A port without a listener.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = refused(free.to_string());
        assert!(matches!(error, StreamError::Sink(SinkError::Broker { .. })), "{error}");
    }

    #[test]
    fn a_broker_that_does_not_answer_is_one_too() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = refused(silent.local_addr().unwrap().to_string());
        assert!(matches!(error, StreamError::Sink(SinkError::Broker { .. })), "{error}");
    }
}
