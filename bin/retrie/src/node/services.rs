//! The parts of a running node: started one after the other, stopped in reverse.
//!
//! | service | needs | stops |
//! |---|---|---|
//! | metrics | | its port |
//! | engine | | once everything canonical is durable |
//! | log index | engine | gives up the step under way |
//! | threads | | tasks that are left, after 5 s |
//! | pool | engine | with the engine |
//! | warm-up | engine, pool | once the head's state is warm |
//! | dev miner | engine, pool, threads | at once |
//! | JSON-RPC | all of these | takes no more requests, lets those under way end |
//! | gossip | pool, threads | at once |
//! | follower | engine, threads | after the block at hand |
//!
//! Whichever ends by itself ends the node. `GET /health` asks them all.

use eyre::{Context, eyre};
use parking_lot::Mutex;
use retrie_engine::{Engine, Following, LogIndexer, PoolMaintainer, WarmUp};
use retrie_pipeline::Chain;
use retrie_rpc::server::Servers;
use retrie_telemetry::MetricsServer;
use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinHandle,
};

/// How long tasks may take to end that nobody waits for.
const LEFT_OVER: Duration = Duration::from_secs(5);

/// How a service does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It works.
    Works,
    /// It tries, and does not get on, for this reason.
    Failing(String),
    /// It has ended by itself.
    Ended,
}

impl Health {
    const fn of(is_running: bool) -> Self {
        if is_running { Self::Works } else { Self::Ended }
    }
}

/// A part of the node that was started.
pub(super) trait Service: Send {
    /// Its name.
    fn name(&self) -> &'static str;

    /// How it does. Does not wait.
    fn health(&self) -> Health {
        Health::Works
    }

    /// Ends it, and waits for that. What was started before it is still running.
    ///
    /// # Errors
    /// What it has failed with.
    fn stop(self: Box<Self>) -> eyre::Result<()>;
}

/// The services in the order in which they were started. Cheap to clone; clones are the same.
#[derive(Clone, Default)]
pub(super) struct Services(Arc<Mutex<Vec<Box<dyn Service>>>>);

impl Services {
    /// Adds one that was just started.
    pub(super) fn add(&self, service: impl Service + 'static) {
        tracing::debug!("{} started", service.name());
        self.0.lock().push(Box::new(service));
    }

    /// Names of those that do not work.
    pub(super) fn failing(&self) -> Vec<&'static str> {
        let services = self.0.lock();
        let failing = services.iter().filter(|service| match service.health() {
            Health::Works => false,
            Health::Failing(reason) => {
                tracing::debug!("{}: {reason}", service.name());
                true
            }
            Health::Ended => true,
        });
        failing.map(|service| service.name()).collect()
    }

    /// The name of one that has ended by itself, if one has.
    pub(super) fn ended(&self) -> Option<&'static str> {
        let services = self.0.lock();
        let ended = services.iter().find(|service| service.health() == Health::Ended);
        ended.map(|service| service.name())
    }

    /// Ends all of them, the last one first.
    ///
    /// # Errors
    /// The first error that one had; the others are logged.
    pub(super) fn stop(&self) -> eyre::Result<()> {
        let mut first = Ok(());
        while let Some(service) = self.last() {
            let name = service.name();
            tracing::debug!("stopping {name}");
            match service.stop() {
                Ok(()) => {}
                Err(error) if first.is_err() => tracing::error!("{name}: {error:#}"),
                Err(error) => first = Err(error),
            }
        }
        first
    }

    fn last(&self) -> Option<Box<dyn Service>> {
        self.0.lock().pop()
    }
}

impl Service for MetricsServer {
    fn name(&self) -> &'static str {
        "metrics"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        // Its port closes with it.
        drop(self);
        Ok(())
    }
}

/// The engine, and the chain that it makes durable.
pub(super) struct EngineService {
    pub(super) engine: Engine,
    pub(super) chain: Arc<Chain>,
}

impl Service for EngineService {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn health(&self) -> Health {
        match self.engine.handle().trouble() {
            Some(reason) if self.engine.is_running() => Health::Failing(reason),
            _ => Health::of(self.engine.is_running()),
        }
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        let Self { engine, chain } = *self;
        tracing::info!("what is not durable yet is committed");
        engine.stop()?;
        chain.flush()?;
        tracing::info!("stopped at block {}", chain.tip()?);
        Ok(())
    }
}

impl Service for LogIndexer {
    fn name(&self) -> &'static str {
        "log index"
    }

    fn health(&self) -> Health {
        match self.trouble() {
            _ if !self.is_running() => Health::Ended,
            Some(reason) => Health::Failing(reason),
            None => Health::Works,
        }
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        drop(self);
        Ok(())
    }
}

/// The threads of servers, miner and follower.
pub(super) struct Threads(Runtime);

impl Threads {
    pub(super) fn start() -> eyre::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("rpc")
            .build()
            .wrap_err("starting the threads of the servers")?;
        Ok(Self(runtime))
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.handle().clone()
    }
}

impl Service for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        self.0.shutdown_timeout(LEFT_OVER);
        Ok(())
    }
}

impl Service for PoolMaintainer {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn health(&self) -> Health {
        Health::of(self.is_running())
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        // Its thread ends with the chain.
        Ok(())
    }
}

impl Service for WarmUp {
    fn name(&self) -> &'static str {
        "warm-up"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        drop(self);
        Ok(())
    }
}

/// A task that ends only with the node, or by an error.
pub(super) struct TaskService<E> {
    pub(super) name: &'static str,
    pub(super) task: JoinHandle<Result<(), E>>,
    pub(super) threads: Handle,
}

impl<E: Error + Send + Sync + 'static> Service for TaskService<E> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn health(&self) -> Health {
        Health::of(!self.task.is_finished())
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        let Self { name, task, threads } = *self;
        if !task.is_finished() {
            task.abort();
            return Ok(());
        }
        threads.block_on(task).map_err(|_| eyre!("{name} has panicked"))??;
        Ok(())
    }
}

/// JSON-RPC over HTTP, WebSocket and IPC.
pub(super) struct RpcServers {
    pub(super) servers: Servers,
    pub(super) threads: Handle,
}

impl Service for RpcServers {
    fn name(&self) -> &'static str {
        "JSON-RPC"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        self.threads.block_on(self.servers.stop());
        Ok(())
    }
}

/// The thread that fetches blocks from another node.
pub(super) struct FollowService {
    pub(super) following: Following,
    /// What ends it.
    pub(super) stop: Arc<AtomicBool>,
}

impl Service for FollowService {
    fn name(&self) -> &'static str {
        "follower"
    }

    fn health(&self) -> Health {
        match self.following.trouble() {
            _ if self.following.is_finished() => Health::Ended,
            Some(reason) => Health::Failing(reason),
            None => Health::Works,
        }
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.following.join()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Part {
        name: &'static str,
        health: Health,
        stopped: Arc<Mutex<Vec<&'static str>>>,
        fails: bool,
    }

    impl Service for Part {
        fn name(&self) -> &'static str {
            self.name
        }

        fn health(&self) -> Health {
            self.health.clone()
        }

        fn stop(self: Box<Self>) -> eyre::Result<()> {
            self.stopped.lock().push(self.name);
            if self.fails { Err(eyre!("{} has failed", self.name)) } else { Ok(()) }
        }
    }

    #[test]
    fn services_stop_in_reverse_and_say_what_does_not_work() {
        let services = Services::default();
        let stopped = Arc::<Mutex<Vec<&str>>>::default();
        let add = |name, health, fails| {
            services.add(Part { name, health, stopped: stopped.clone(), fails });
        };
        add("first", Health::Works, true);
        add("second", Health::Failing("nobody answers".into()), true);
        assert_eq!((services.failing(), services.ended()), (vec!["second"], None));
        add("third", Health::Ended, false);
        assert_eq!(
            (services.failing(), services.ended()),
            (vec!["second", "third"], Some("third"))
        );
        // One that fails keeps nobody from being stopped.
        assert_eq!(services.stop().unwrap_err().to_string(), "second has failed");
        assert_eq!(*stopped.lock(), ["third", "second", "first"]);
        assert!(services.failing().is_empty() && services.stop().is_ok());
    }
}
