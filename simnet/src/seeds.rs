//! Jobs that share nothing, such as one for each seed, on several threads: the number of threads and the order in which
//! jobs end change nothing of what each comes to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A job says how far it is, and the listener hears that time passes, about so often.
const NEWS_EVERY: Duration = Duration::from_millis(200);

/// What is heard of the jobs, by their numbers.
pub(crate) enum Word<Progress, Outcome> {
    /// How far one is, and how long it has taken so far.
    Progress(usize, Progress, Duration),
    /// One is done, and how long it took.
    Done(usize, Outcome, Duration),
    /// Nothing for a while.
    Silence,
}

/// Runs `count` jobs on up to so many threads. `work` is given a job's number, and what to tell its progress to; `listen`
/// runs on this thread.
///
/// # Errors
/// The first of `listen`; no further job is begun then, and those that run are waited for.
pub(crate) fn run<Progress: Send, Outcome: Send, Error>(
    count: usize,
    threads: usize,
    work: impl Fn(usize, &mut dyn FnMut(Progress)) -> Outcome + Sync,
    mut listen: impl FnMut(Word<Progress, Outcome>) -> Result<(), Error>,
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
                    let mut told: Option<Instant> = None;
                    let outcome = work(number, &mut |progress| {
                        if told.is_none_or(|told| told.elapsed() > NEWS_EVERY) {
                            told = Some(Instant::now());
                            // Progress may be missed: the next one says more.
                            drop(sender.try_send(Word::Progress(number, progress, started.elapsed())));
                        }
                    });
                    if sender.send(Word::Done(number, outcome, started.elapsed())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        // Gone with this closure, so that nobody waits for a listener that has given up.
        let receiver = receiver;
        loop {
            let word = match receiver.recv_timeout(NEWS_EVERY) {
                Ok(word) => word,
                Err(RecvTimeoutError::Timeout) => Word::Silence,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if let Err(error) = listen(word) {
                next.store(count, Ordering::Relaxed);
                return Err(error);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_on_any_number_of_threads() {
        for threads in [1, 3, 50] {
            let mut done = vec![0; 20];
            let listen = |word: Word<(), usize>| {
                if let Word::Done(number, square, _) = word {
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
        let listen = |word: Word<(), ()>| {
            heard += u32::from(matches!(word, Word::Done(..)));
            Err("full")
        };
        assert_eq!(run(1_000_000, 1, |_, _| (), listen), Err("full"));
        assert!(heard <= 1);
    }
}
