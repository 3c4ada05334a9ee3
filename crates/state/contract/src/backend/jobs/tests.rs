//! Sharing, cancelling, waiting, failing.

use super::*;
use crate::StoreError;
use std::{
    sync::{atomic::AtomicUsize, mpsc},
    time::Instant,
};

fn id(n: u8) -> B256 {
    B256::repeat_byte(n)
}

/// A job that counts its runs and returns their number.
fn counting(n: u8, runs: &Arc<AtomicUsize>) -> BackgroundJob {
    let runs = runs.clone();
    BackgroundJob::new(id(n), "counting", move |_| {
        Ok(Arc::new(runs.fetch_add(1, Ordering::SeqCst) + 1))
    })
}

fn output(jobs: &JobRunner, handle: &JobHandle) -> usize {
    *jobs.wait(handle).unwrap().downcast::<usize>().unwrap()
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn jobs_of_one_identity_run_once_while_somebody_holds_them() {
    let (jobs, runs) = (JobRunner::new(None), Arc::default());
    let first = jobs.start(counting(1, &runs));
    let second = jobs.start(counting(1, &runs));
    let other = jobs.start(counting(2, &runs));
    assert_eq!(first.id(), second.id());
    assert_eq!(output(&jobs, &first), output(&jobs, &second));
    output(&jobs, &other);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    drop(first);
    let third = jobs.start(counting(1, &runs));
    output(&jobs, &third);
    assert_eq!(runs.load(Ordering::SeqCst), 2, "the second handle kept it");
    drop((second, third));
    let again = jobs.start(counting(1, &runs));
    output(&jobs, &again);
    assert_eq!(runs.load(Ordering::SeqCst), 3, "all handles were dropped, so it runs again");
}

#[test]
fn the_last_handle_dropped_cancels_a_running_job_at_its_next_pause_point() {
    let jobs = JobRunner::new(None);
    let (started, start) = mpsc::channel();
    let (ended, end) = mpsc::channel();
    let handle = jobs.start(BackgroundJob::new(id(1), "endless", move |context| {
        started.send(()).unwrap();
        loop {
            std::thread::sleep(Duration::from_millis(1));
            if let Err(error) = context.pause_point() {
                ended.send(error.to_string()).unwrap();
                return Err(error);
            }
        }
    }));
    let other = handle.clone();
    start.recv().unwrap();
    drop(handle);
    assert!(end.recv_timeout(Duration::from_millis(30)).is_err(), "one handle is left");
    drop(other);
    let error = end.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(error.contains("endless") && error.contains("cancelled"), "{error}");
}

#[test]
fn a_job_dropped_before_its_turn_never_runs_and_one_that_is_due_overtakes_the_queue() {
    let (jobs, runs) = (JobRunner::new(None), Arc::default());
    let busy: Vec<_> = (0..THREADS).map(|n| busy(&jobs, 10 + n as u8)).collect();
    let queued = jobs.start(counting(2, &runs));
    let due = jobs.start(counting(3, &runs));
    drop(queued);
    assert_eq!(output(&jobs, &due), 1, "in place, as the workers are busy");
    for (handle, release) in busy {
        release.send(()).unwrap();
        jobs.wait(&handle).unwrap();
    }
    drop(jobs);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// A job that a worker has taken, and that runs until the sender releases it.
fn busy(jobs: &JobRunner, n: u8) -> (JobHandle, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel::<()>();
    let (started, start) = mpsc::channel();
    let released = Mutex::new(released);
    let handle = jobs.start(BackgroundJob::new(id(n), "busy", move |_| {
        let _ = started.send(());
        let _ = released.lock().recv();
        Ok(Arc::new(()))
    }));
    start.recv().unwrap();
    (handle, release)
}

#[test]
fn long_jobs_do_not_hold_up_a_short_one_and_threads_come_only_as_they_are_needed() {
    let (jobs, runs) = (JobRunner::new(None), Arc::default());
    let threads = || jobs.workers.lock().threads.len();
    for n in 0..5 {
        let one = jobs.start(counting(n, &runs));
        jobs.wait_idle();
        assert!(one.output().is_some());
    }
    assert_eq!(threads(), 1, "one after the other needs one");
    let long: Vec<_> = (0..THREADS - 1).map(|n| busy(&jobs, 10 + n as u8)).collect();
    let short = jobs.start(counting(20, &runs));
    eventually("the short job", || short.output().is_some());
    assert_eq!(threads(), THREADS);
    for (_, release) in long {
        release.send(()).unwrap();
    }
    jobs.wait_idle();
    let many: Vec<_> = (30..60).map(|n| jobs.start(counting(n, &runs))).collect();
    jobs.wait_idle();
    assert!(many.iter().all(|handle| handle.output().is_some()));
    assert_eq!(threads(), THREADS);
}

#[test]
fn all_who_wait_get_the_one_output() {
    let (jobs, runs) = (JobRunner::new(None), Arc::new(AtomicUsize::new(0)));
    jobs.set_delay(Duration::from_millis(5));
    let counter = runs.clone();
    let handle = jobs.start(BackgroundJob::new(id(1), "slow", move |context| {
        context.pause_point()?;
        Ok(Arc::new(counter.fetch_add(1, Ordering::SeqCst)))
    }));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(output(&jobs, &handle), 0));
        }
    });
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_failed_job_is_tried_again_by_each_who_needs_it_until_it_works() {
    let (jobs, runs) = (JobRunner::new(None), Arc::new(AtomicUsize::new(0)));
    let counter = runs.clone();
    let handle = jobs.start(BackgroundJob::new(id(1), "flaky", move |_| {
        if counter.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err(StoreError::new("writing", "no space").into());
        }
        Ok(Arc::new(7usize))
    }));
    eventually("the run in the background", || runs.load(Ordering::SeqCst) == 1);
    for _ in 0..2 {
        let error = jobs.wait(&handle).map(drop).unwrap_err();
        let is_flaky = matches!(&error, StateError::Job { job, .. } if job == "flaky");
        assert!(is_flaky && error.to_string().contains("no space"), "{error}");
    }
    assert_eq!(output(&jobs, &handle), 7);
    assert_eq!(output(&jobs, &handle), 7);
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

#[test]
fn a_job_that_panics_fails_and_leaves_the_worker_alive() {
    let (jobs, runs) = (JobRunner::new(None), Arc::new(AtomicUsize::new(0)));
    let counter = runs.clone();
    let handle = jobs.start(BackgroundJob::new(id(1), "careless", move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        panic!("index out of bounds")
    }));
    eventually("the run in the background", || runs.load(Ordering::SeqCst) == 1);
    let error = jobs.wait(&handle).map(drop).unwrap_err().to_string();
    assert!(error.contains("careless") && error.contains("index out of bounds"), "{error}");
    jobs.wait_idle();
    let (done, is_done) = mpsc::channel();
    let _next = jobs.start(BackgroundJob::new(id(2), "next", move |_| {
        done.send(std::thread::current().name().map(str::to_owned)).unwrap();
        Ok(Arc::new(()))
    }));
    let thread = is_done.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(thread.as_deref(), Some("state-job-0"));
}

#[test]
fn dropping_the_runner_ends_its_threads_even_if_handles_are_left() {
    let jobs = JobRunner::new(None);
    let alive = Arc::new(());
    let held = alive.clone();
    let (started, start) = mpsc::channel();
    let handle = jobs.start(BackgroundJob::new(id(1), "endless", move |context| {
        let _held = &held;
        let _ = started.send(());
        loop {
            std::thread::sleep(Duration::from_millis(1));
            context.pause_point()?;
        }
    }));
    start.recv().unwrap();
    drop(jobs);
    drop(handle);
    assert_eq!(Arc::strong_count(&alive), 1, "the thread and the job are gone");
}
