//! Jobs that share nothing, such as one for each seed, on several threads: neither the number of threads nor the order
//! in which jobs end changes the result of any.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A job reports its progress, and the listener is called without any, about so often.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Cores that this process may use; 1 where nobody says.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What the listener is told of the jobs, by their numbers.
pub(crate) enum JobEvent<Progress, Outcome> {
    /// How far a job is, and how long it has taken so far.
    Progress(usize, Progress, Duration),
    /// A job is done, and how long it took.
    Done(usize, Outcome, Duration),
    /// Nothing happened for a while.
    Silence,
}

/// Runs `count` jobs on up to so many threads. `work` is given a job's number and a function to report its progress to;
/// `listen` runs on this thread.
///
/// # Errors
/// The first of `listen`; no further job is begun then, and running ones are waited for.
pub(crate) fn run<Progress: Send, Outcome: Send, Error>(
    count: usize,
    threads: usize,
    work: impl Fn(usize, &mut dyn FnMut(Progress)) -> Outcome + Sync,
    mut listen: impl FnMut(JobEvent<Progress, Outcome>) -> Result<(), Error>,
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::sync_channel(64);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            let (next, work, sender) = (&next, &work, sender.clone());
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let started = Instant::now();
                    let mut reported: Option<Instant> = None;
                    let outcome = work(number, &mut |progress| {
                        if reported.is_none_or(|reported| reported.elapsed() > PROGRESS_EVERY) {
                            reported = Some(Instant::now());
                            // Progress may be dropped: the next one replaces it.
                            drop(sender.try_send(JobEvent::Progress(number, progress, started.elapsed())));
                        }
                    });
                    if sender.send(JobEvent::Done(number, outcome, started.elapsed())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        // Dropped with this closure, so that no thread waits for a listener that has returned an error.
        let receiver = receiver;
        loop {
            let event = match receiver.recv_timeout(PROGRESS_EVERY) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => JobEvent::Silence,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if let Err(error) = listen(event) {
                next.store(count, Ordering::Relaxed);
                return Err(error);
            }
        }
    })
}

/// Runs `count` jobs without progress of their own on so many threads, by default one for each core. Calls `progress` with jobs done and all of them
/// about five times a second. Returns the outcomes in the order of the jobs.
///
/// # Errors
/// The first that a job returns.
pub(crate) fn outcomes<Outcome: Send>(
    count: usize,
    threads: Option<usize>,
    work: impl Fn(usize) -> Result<Outcome, String> + Sync,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Outcome>, String> {
    let mut outcomes: Vec<Option<Outcome>> = (0..count).map(|_| None).collect();
    let mut done = 0;
    let work = |number: usize, _: &mut dyn FnMut(())| work(number);
    run(count, threads.unwrap_or_else(cores), work, |event: JobEvent<(), Result<Outcome, String>>| {
        if let JobEvent::Done(number, outcome, _) = event {
            outcomes[number] = Some(outcome?);
            done += 1;
        }
        progress(done, count);
        Ok::<(), String>(())
    })?;
    Ok(outcomes.into_iter().map(|outcome| outcome.expect("all jobs are done")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_on_any_number_of_threads() {
        for threads in [1, 3, 50] {
            let mut done = vec![0; 20];
            let listen = |event: JobEvent<(), usize>| {
                if let JobEvent::Done(number, square, _) = event {
                    assert_eq!(square, number * number);
                    done[number] += 1;
                }
                Ok::<(), ()>(())
            };
            assert_eq!(run(20, threads, |number, _| number * number, listen), Ok(()));
            assert_eq!(done, [1; 20]);
        }
    }

    #[test]
    fn an_error_ends_it() {
        let mut heard = 0;
        let listen = |event: JobEvent<(), ()>| {
            heard += u32::from(matches!(event, JobEvent::Done(..)));
            Err("full")
        };
        assert_eq!(run(1_000_000, 1, |_, _| (), listen), Err("full"));
        assert!(heard <= 1);
    }
}
