//! The database, on a thread of its own.
//!
//! | thread | work |
//! |---|---|
//! | `qmdb` | runs one job at a time: hashing, the index, the log |
//! | 2 of Commonware's runtime on tokio, and its blocking ones | files |
//! | 2 of rayon | hashing of large batches |
//!
//! The database cannot leave its runtime, which runs until its root task ends. So that task waits
//! for jobs, and the caller waits for the answer of each job.

use super::entries::EntryBatch;
use commonware_cryptography::{Sha256, sha256::Digest};
use commonware_parallel::Rayon;
use commonware_runtime::{
    BLOB_PAGE_SIZE, Runner as _, Strategizer as _, Supervisor as _,
    buffer::paged::{CacheRef, page_size},
    tokio::{Config, Context, Runner},
};
use commonware_storage::{
    journal::contiguous::fixed::Config as LogConfig,
    merkle::{Location, full::Config as TreeConfig, mmb},
    qmdb::{
        self,
        current::{
            FixedConfig,
            unordered::{fixed, proof::constant::KeyValueProof},
        },
        floor::Proportional,
    },
    translator::EightCap,
};
use std::{
    num::{NonZeroU16, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    pin::Pin,
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
};

/// Why the database or its thread failed.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of the bitmap under one leaf of the tree above it: the width of a hash.
const CHUNK_BYTES: usize = 32;
/// Operations, or nodes, per file. Pruning removes whole files.
pub(super) const ITEMS_PER_FILE: u64 = 250_000;
const ITEMS_PER_BLOB: NonZeroU64 = NonZeroU64::new(ITEMS_PER_FILE).unwrap();
const PAGE_SIZE: NonZeroU16 = page_size(BLOB_PAGE_SIZE);
/// Threads that hash.
const HASH_THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
const BUFFER_BYTES: NonZeroUsize = NonZeroUsize::new(2 << 20).unwrap();
/// Number of keys cached while the index is built.
const INIT_KEYS: Option<NonZeroUsize> = NonZeroUsize::new(1 << 18);

/// The variant that authenticates the current state: a log of operations in a Merkle mountain belt,
/// with a bitmap that says which of them are current.
pub(super) type Database =
    fixed::Db<mmb::Family, Context, Digest, Digest, Sha256, EightCap, CHUNK_BYTES, Rayon>;
pub(super) type DatabaseError = qmdb::Error<mmb::Family>;
pub(super) type LogLocation = Location<mmb::Family>;
pub(super) type ValueProof = KeyValueProof<mmb::Family, Digest, CHUNK_BYTES>;

/// Returns the database, unless the job has failed, which consumes it.
type Job = Box<dyn FnOnce(Database) -> Pin<Box<dyn Future<Output = Option<Database>>>> + Send>;

/// An open database.
pub(super) struct DatabaseThread {
    /// `None` after it was closed.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl DatabaseThread {
    /// Opens the database in `folder`, or creates it, with a page cache of `cache_bytes`.
    pub(super) fn open(folder: PathBuf, cache_bytes: u64) -> Result<Self, Failure> {
        let (jobs, inbox) = mpsc::channel();
        let (opened, answer) = mpsc::channel();
        let serve = move || {
            let config = Config::new().with_storage_directory(folder);
            Runner::new(config).start(|context| async move {
                let config = config_in(&context, cache_bytes);
                match Database::init(context.child("qmdb"), config, None).await {
                    Ok(database) => {
                        let _ = opened.send(Ok(()));
                        run_jobs(database, &inbox).await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
        };
        let thread = thread::Builder::new().name("qmdb".into()).spawn(serve)?;
        let thread = Self { jobs: Some(jobs), thread: Some(thread) };
        answer.recv().map_err(|_| THREAD_ENDED)??;
        Ok(thread)
    }

    /// Runs a job and waits for its result. The database is lost if it fails.
    pub(super) fn run<T, J, F>(&self, job: J) -> Result<T, Failure>
    where
        T: Send + 'static,
        J: FnOnce(Database) -> F + Send + 'static,
        F: Future<Output = Result<(Database, T), DatabaseError>> + 'static,
    {
        let (reply, answer) = mpsc::channel();
        let job: Job = Box::new(move |database| {
            let work = job(database);
            Box::pin(async move {
                let (database, result) = match work.await {
                    Ok((database, result)) => (Some(database), Ok(result)),
                    Err(error) => (None, Err(error)),
                };
                // The caller waits for it.
                let _ = reply.send(result);
                database
            })
        });
        let jobs = self.jobs.as_ref().ok_or(THREAD_ENDED)?;
        jobs.send(job).map_err(|_| THREAD_ENDED)?;
        Ok(answer.recv().map_err(|_| THREAD_ENDED)??)
    }
}

const THREAD_ENDED: &str = "its thread has ended";

impl Drop for DatabaseThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // A panic of the thread has been reported as the failure of its job.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Runs jobs until the sender is dropped or one fails. It blocks this thread between jobs: other
/// threads run the tasks of the runtime.
async fn run_jobs(database: Database, inbox: &Receiver<Job>) {
    let mut open = Some(database);
    while let Some(database) = open.take() {
        let Ok(job) = inbox.recv() else { return };
        open = job(database).await;
    }
}

fn config_in(context: &Context, cache_bytes: u64) -> FixedConfig<EightCap, Rayon> {
    let pages = usize::try_from(cache_bytes / u64::from(BLOB_PAGE_SIZE)).unwrap_or(usize::MAX);
    let page_cache =
        CacheRef::new(PAGE_SIZE, NonZeroUsize::new(pages).unwrap_or(NonZeroUsize::MIN));
    FixedConfig {
        merkle_config: TreeConfig {
            journal_partition: "tree".into(),
            // The journal has its own metadata in "tree-metadata".
            metadata_partition: "nodes-metadata".into(),
            items_per_blob: ITEMS_PER_BLOB,
            write_buffer: BUFFER_BYTES,
            replay_buffer: BUFFER_BYTES,
            strategy: context.strategy(HASH_THREADS),
            page_cache: page_cache.clone(),
        },
        journal_config: LogConfig {
            partition: "log".into(),
            items_per_blob: ITEMS_PER_BLOB,
            page_cache,
            write_buffer: BUFFER_BYTES,
            replay_buffer: BUFFER_BYTES,
        },
        grafted_metadata_partition: "grafted-metadata".into(),
        translator: EightCap,
        init_cache: INIT_KEYS,
        init_buffer: BUFFER_BYTES,
        init_concurrency: (),
    }
}

/// The result of a commit.
pub(super) struct CommitReply {
    /// The value of each key before the commit.
    pub(super) values: Vec<Option<Digest>>,
    /// The root after the commit.
    pub(super) root: Digest,
    /// The log before it is not needed for this state.
    pub(super) boundary: LogLocation,
}

/// Reads the keys of a batch, applies its changes, and syncs the log.
pub(super) async fn commit(
    database: Database,
    batch: EntryBatch,
) -> Result<(Database, CommitReply), DatabaseError> {
    let keys: Vec<_> = batch.keys.iter().collect();
    let (values, staged) = database.new_batch().stage(&keys, &database).await?;
    let merkleized =
        staged.merkleize(batch.slots, Vec::new(), None, &database, &mut Proportional).await?;
    let database = database.apply_batch(merkleized).await?.commit().await?;
    let (root, boundary) = (database.root(), database.sync_boundary());
    Ok((database, CommitReply { values, root, boundary }))
}

/// Removes the files of the log and of the tree that lie before `location`.
pub(super) async fn prune(
    database: Database,
    location: LogLocation,
) -> Result<(Database, ()), DatabaseError> {
    Ok((database.prune(location).await?, ()))
}

/// Syncs all files, so that opening the database needs no recovery.
pub(super) async fn sync(database: Database) -> Result<(Database, ()), DatabaseError> {
    Ok((database.sync().await?, ()))
}

/// The root.
pub(super) async fn root(database: Database) -> Result<(Database, Digest), DatabaseError> {
    let root = database.root();
    Ok((database, root))
}

/// The current value of a key.
pub(super) async fn read(
    database: Database,
    key: Digest,
) -> Result<(Database, Option<Digest>), DatabaseError> {
    let value = database.get(&key).await?;
    Ok((database, value))
}

/// Proves the current value of a key that has one.
pub(super) async fn prove(
    database: Database,
    key: Digest,
) -> Result<(Database, ValueProof), DatabaseError> {
    let proof = database.key_value_proof(key).await?;
    Ok((database, proof))
}
