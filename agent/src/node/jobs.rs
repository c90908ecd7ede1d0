//! Work beside the loop: each piece ends in one event, also when it panics.

use std::collections::HashMap;

use tokio::task::{AbortHandle, Id, JoinSet};

/// Pieces of work under way, and for each the event that stands for its loss.
#[derive(Debug)]
pub(super) struct Jobs<T> {
    set: JoinSet<T>,
    if_lost: HashMap<Id, T>,
}

impl<T: Send + 'static> Jobs<T> {
    pub(super) fn new() -> Self {
        Self { set: JoinSet::new(), if_lost: HashMap::new() }
    }

    /// Begins a piece of work. It ends with its own event, or with `if_lost` when it panics, or with none when it is
    /// stopped by the handle in time.
    pub(super) fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static, if_lost: T) -> AbortHandle {
        let job = self.set.spawn(work);
        self.if_lost.insert(job.id(), if_lost);
        job
    }

    /// [`Jobs::spawn`] for work that blocks; such a job cannot be stopped once it runs.
    pub(super) fn spawn_blocking(&mut self, work: impl FnOnce() -> T + Send + 'static, if_lost: T) {
        let job = self.set.spawn_blocking(work);
        self.if_lost.insert(job.id(), if_lost);
    }

    /// Waits for the next event, and which job it comes from; `None` when nothing is under way. May be dropped at any
    /// time.
    pub(super) async fn next(&mut self) -> Option<(Id, T)> {
        loop {
            match self.set.join_next_with_id().await? {
                Ok((id, done)) => {
                    self.if_lost.remove(&id);
                    return Some((id, done));
                }
                Err(error) => {
                    let lost = self.if_lost.remove(&error.id());
                    if error.is_cancelled() {
                        continue;
                    }
                    tracing::error!(%error, "a piece of work beside the loop failed");
                    if let Some(lost) = lost {
                        return Some((error.id(), lost));
                    }
                }
            }
        }
    }

    /// Stops all jobs and waits for those that cannot be stopped.
    pub(super) async fn shutdown(mut self) {
        self.set.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_panics_still_has_its_event() {
        let mut jobs = Jobs::new();
        let fine = jobs.spawn(async { "fine" }, "lost");
        assert_eq!(jobs.next().await, Some((fine.id(), "fine")));
        let lost = jobs.spawn(async { panic!("on purpose") }, "lost");
        assert_eq!(jobs.next().await, Some((lost.id(), "lost")));
        jobs.spawn_blocking(|| panic!("on purpose"), "lost too");
        assert_eq!(jobs.next().await.map(|(_, event)| event), Some("lost too"));
        assert_eq!(jobs.next().await, None);
        assert!(jobs.if_lost.is_empty());
    }

    #[tokio::test]
    async fn a_stopped_job_has_no_event() {
        let mut jobs = Jobs::new();
        jobs.spawn(std::future::pending(), "never").abort();
        jobs.spawn(async { "other" }, "lost");
        assert_eq!(jobs.next().await.map(|(_, event)| event), Some("other"));
        assert_eq!(jobs.next().await, None);
        assert!(jobs.if_lost.is_empty());
    }
}
