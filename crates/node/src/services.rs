//! The services of a running node: started in order, stopped in reverse.
//!
//! | service | needs | stops |
//! |---|---|---|
//! | metrics | | its port |
//! | referee join | | at the last durable block, if it is near |
//! | engine | | once everything canonical is durable |
//! | history pruner | engine | after the step under way |
//! | indexer | engine | gives up the step under way |
//! | threads | | tasks that are left, after 5 s |
//! | pool | engine | with the engine |
//! | warm-up | engine, pool | once the head's state is warm |
//! | dev miner | engine, pool, threads | at once |
//! | ethstats | engine, pool, threads | at once |
//! | stream | engine | after a last checkpoint |
//! | JSON-RPC | all of these | takes no more requests, lets those under way end |
//! | gossip | pool, threads | at once |
//! | follower | engine, threads | after the block at hand |
//!
//! A service that ends by itself ends the node. `GET /health` shows the health of all of them.

use eyre::{Context, eyre};
use parking_lot::Mutex;
use retrie_engine::{BackgroundThread, Engine, FollowerHandle, NodeWarmUp, PoolMaintainer};
use retrie_pipeline::ChainStore;
use retrie_rpc::server::RunningServers;
use retrie_stream::RunningStream;
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

/// How long detached tasks may take to end.
const LEFT_OVER: Duration = Duration::from_secs(5);

/// Health of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceHealth {
    /// It works.
    Works,
    /// It retries without progress, for this reason.
    Failing(String),
    /// It has ended by itself.
    Ended,
}

impl ServiceHealth {
    const fn of(is_running: bool) -> Self {
        if is_running { Self::Works } else { Self::Ended }
    }
}

/// A running part of the node.
pub(super) trait NodeService: Send {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Its health. Does not block.
    fn health(&self) -> ServiceHealth {
        ServiceHealth::Works
    }

    /// Stops it and waits for its end. The services started before it still run.
    ///
    /// # Errors
    /// The error that it failed with.
    fn stop(self: Box<Self>) -> eyre::Result<()>;
}

/// The services in the order of their start. Cheap to clone; clones share one list.
#[derive(Clone, Default)]
pub(super) struct ServiceList(Arc<Mutex<Vec<Box<dyn NodeService>>>>);

impl ServiceList {
    /// Adds a service that has just started.
    pub(super) fn add(&self, service: impl NodeService + 'static) {
        tracing::debug!("{} started", service.name());
        self.0.lock().push(Box::new(service));
    }

    /// Names of the services that do not work.
    pub(super) fn failing(&self) -> Vec<&'static str> {
        let services = self.0.lock();
        let failing = services.iter().filter(|service| match service.health() {
            ServiceHealth::Works => false,
            ServiceHealth::Failing(reason) => {
                tracing::debug!("{}: {reason}", service.name());
                true
            }
            ServiceHealth::Ended => true,
        });
        failing.map(|service| service.name()).collect()
    }

    /// The name of a service that has ended by itself, if any.
    pub(super) fn ended(&self) -> Option<&'static str> {
        let services = self.0.lock();
        let ended = services.iter().find(|service| service.health() == ServiceHealth::Ended);
        ended.map(|service| service.name())
    }

    /// Stops all services, the last one first.
    ///
    /// # Errors
    /// The first error; the others are logged.
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

    fn last(&self) -> Option<Box<dyn NodeService>> {
        self.0.lock().pop()
    }
}

impl NodeService for MetricsServer {
    fn name(&self) -> &'static str {
        "metrics"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        // Dropping the server closes its port.
        drop(self);
        Ok(())
    }
}

/// The engine, and the chain that it persists.
pub(super) struct EngineService {
    pub(super) engine: Engine,
    pub(super) chain: Arc<ChainStore>,
}

impl NodeService for EngineService {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn health(&self) -> ServiceHealth {
        match self.engine.handle().last_error() {
            Some(reason) if self.engine.is_running() => ServiceHealth::Failing(reason),
            _ => ServiceHealth::of(self.engine.is_running()),
        }
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        let Self { engine, chain } = *self;
        tracing::info!("committing what is not durable yet");
        engine.stop()?;
        chain.flush()?;
        tracing::info!("stopped at block {}", chain.tip()?);
        Ok(())
    }
}

impl NodeService for BackgroundThread {
    fn name(&self) -> &'static str {
        self.work()
    }

    fn health(&self) -> ServiceHealth {
        match self.last_error() {
            _ if !self.is_running() => ServiceHealth::Ended,
            Some(reason) => ServiceHealth::Failing(reason),
            None => ServiceHealth::Works,
        }
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        drop(self);
        Ok(())
    }
}

/// The threads of the servers, the dev miner and the follower.
pub(super) struct ServerThreads(Runtime);

impl ServerThreads {
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

impl NodeService for ServerThreads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        self.0.shutdown_timeout(LEFT_OVER);
        Ok(())
    }
}

impl NodeService for PoolMaintainer {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn health(&self) -> ServiceHealth {
        ServiceHealth::of(self.is_running())
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        // Its thread ends with the chain.
        Ok(())
    }
}

impl NodeService for NodeWarmUp {
    fn name(&self) -> &'static str {
        "warm-up"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        drop(self);
        Ok(())
    }
}

/// A task that ends only with the node, or with an error.
pub(super) struct TaskService<E> {
    pub(super) name: &'static str,
    pub(super) task: JoinHandle<Result<(), E>>,
    pub(super) threads: Handle,
}

impl<E: Error + Send + Sync + 'static> NodeService for TaskService<E> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn health(&self) -> ServiceHealth {
        ServiceHealth::of(!self.task.is_finished())
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

/// A stream to indexers. The log says what it waits for; the node works without it.
pub(super) struct StreamService(pub(super) RunningStream);

impl NodeService for StreamService {
    fn name(&self) -> &'static str {
        self.0.thread().work()
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        drop(self);
        Ok(())
    }
}

/// JSON-RPC over HTTP, WebSocket and IPC.
pub(super) struct RpcServers {
    pub(super) servers: RunningServers,
    pub(super) threads: Handle,
}

impl NodeService for RpcServers {
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
    pub(super) following: FollowerHandle,
    /// Setting it stops the thread.
    pub(super) stop: Arc<AtomicBool>,
}

impl NodeService for FollowService {
    fn name(&self) -> &'static str {
        "follower"
    }

    fn health(&self) -> ServiceHealth {
        match self.following.last_error() {
            _ if self.following.is_finished() => ServiceHealth::Ended,
            Some(reason) => ServiceHealth::Failing(reason),
            None => ServiceHealth::Works,
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

    struct TestService {
        name: &'static str,
        health: ServiceHealth,
        stopped: Arc<Mutex<Vec<&'static str>>>,
        fails: bool,
    }

    impl NodeService for TestService {
        fn name(&self) -> &'static str {
            self.name
        }

        fn health(&self) -> ServiceHealth {
            self.health.clone()
        }

        fn stop(self: Box<Self>) -> eyre::Result<()> {
            self.stopped.lock().push(self.name);
            if self.fails { Err(eyre!("{} has failed", self.name)) } else { Ok(()) }
        }
    }

    #[test]
    fn services_stop_in_reverse_and_say_what_does_not_work() {
        let services = ServiceList::default();
        let stopped = Arc::<Mutex<Vec<&str>>>::default();
        let add = |name, health, fails| {
            services.add(TestService { name, health, stopped: stopped.clone(), fails });
        };
        add("first", ServiceHealth::Works, true);
        add("second", ServiceHealth::Failing("nobody answers".into()), true);
        assert_eq!((services.failing(), services.ended()), (vec!["second"], None));
        add("third", ServiceHealth::Ended, false);
        assert_eq!(
            (services.failing(), services.ended()),
            (vec!["second", "third"], Some("third"))
        );
        // The others are still stopped after one fails.
        assert_eq!(services.stop().unwrap_err().to_string(), "second has failed");
        assert_eq!(*stopped.lock(), ["third", "second", "first"]);
        assert!(services.failing().is_empty() && services.stop().is_ok());
    }
}
