//! The owner's limit of memory holds for all that workers are given: what the tasks in all workers may take, frozen ones
//! and those ahead included. A worker runs one task after the other and gives up the memory of one before the next
//! begins, so that of a run only the largest task counts. What is ahead gives way to what the peer has started. When the
//! limit becomes smaller, since the owner is back or has set another, tasks end until the others are within it; they begin
//! again later, here or elsewhere, from their checkpoints.
//!
//! Left out: what a worker takes beside its task, and the one that measures first tasks.

use idlewood_units::ByteSize;

use super::{Given, Run, Runs};
use crate::node::driver::Driver;
use crate::node::task::PrepareError;

impl Run {
    /// Most memory that its worker may take at once: that of the largest of these tasks.
    fn memory_bytes(&self, counts: impl Fn(&Given) -> bool) -> u64 {
        let counted = self.jobs.iter().filter(|given| counts(given));
        counted.map(|given| given.prepared.job.memory_bytes).max().unwrap_or(0)
    }
}

impl Runs {
    /// Most memory that all workers may take at once with one more task in `slot`.
    fn memory_bytes_with(&self, slot: usize, given: &Given, counts: impl Fn(&Given) -> bool) -> u64 {
        let bytes = self.runs.iter().enumerate().map(|(other, run)| {
            let bytes = run.memory_bytes(&counts);
            if other == slot { bytes.max(given.prepared.job.memory_bytes) } else { bytes }
        });
        bytes.fold(0, u64::saturating_add)
    }
}

impl Driver {
    /// Sees to it that a task that the peer has started may take the memory it is allowed to.
    ///
    /// # Errors
    /// When the others that the peer has started leave too little. Then it is tried again, and goes to another machine
    /// after some tries.
    pub(super) fn make_room(&mut self, slot: usize, given: &Given) -> Result<(), PrepareError> {
        let cap = self.memory_cap();
        if self.runs.memory_bytes_with(slot, given, |_| true) <= cap.0 {
            return Ok(());
        }
        self.keep_to_claimed();
        let is_claimed = |given: &Given| self.is_claimed(given);
        // What is not claimed now is being killed.
        if self.runs.memory_bytes_with(slot, given, is_claimed) <= cap.0 {
            return Ok(());
        }
        let taken = self.claimed_bytes().into_iter().fold(0, u64::saturating_add);
        let (wanted, taken) = (ByteSize(given.prepared.job.memory_bytes), ByteSize(taken));
        let name = if self.machine.owner().is_in_use() { "limits.in_use.memory" } else { "limits.memory" };
        let error = anyhow::anyhow!("it may take {wanted} of memory, {name} is {cap}, {taken} are taken");
        Err(PrepareError::Later(error))
    }

    /// Ends tasks until the others are within the owner's limit, those at the last workers first.
    pub(in crate::node) fn keep_to_memory(&mut self) {
        let cap = self.memory_cap();
        if self.claimed_bytes().into_iter().fold(0, u64::saturating_add) <= cap.0 {
            return;
        }
        self.keep_to_claimed();
        let mut kept_bytes = 0_u64;
        for (slot, bytes) in self.claimed_bytes().into_iter().enumerate() {
            match kept_bytes.checked_add(bytes).filter(|sum| *sum <= cap.0) {
                Some(sum) => kept_bytes = sum,
                None => {
                    tracing::info!(slot, %cap, "tasks end: they may take more memory than the owner gives now");
                    self.end_run(slot);
                }
            }
        }
    }

    /// Most memory that each worker may take for what the peer has started.
    fn claimed_bytes(&self) -> Vec<u64> {
        self.runs.runs.iter().map(|run| run.memory_bytes(|given| self.is_claimed(given))).collect()
    }

    /// Gives a worker a task that the peer has not started, where the owner's limit of memory leaves room for it. Whether
    /// it does.
    pub(super) fn append_ahead(&mut self, slot: usize, given: Given) -> bool {
        let cap = self.memory_cap();
        let fits = self.runs.memory_bytes_with(slot, &given, |_| true) <= cap.0;
        if fits {
            self.append(slot, given);
        } else {
            self.runs.not_ahead(given.task);
            self.discard(Some(given.prepared));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::{BagId, TaskId};

    use super::*;
    use crate::node::task::tests::prepared;

    fn given(index: u64, memory_bytes: u64) -> Given {
        let task = TaskId { bag: BagId([1; 32]), index };
        Given { task, attempt: 0, prepared: Box::new(prepared(memory_bytes)), number: index }
    }

    #[test]
    fn of_each_run_the_largest_task_counts_ahead_or_frozen() {
        let mut runs = Runs::new(3);
        runs.runs[0].jobs = [given(0, 40), given(1, 24), given(2, 50)].into();
        runs.runs[1].jobs = [given(3, 10)].into();
        runs.runs[1].frozen = Some(runs.runs[1].jobs[0].task);
        assert_eq!(runs.memory_bytes_with(2, &given(4, 7), |_| true), 50 + 10 + 7);
        assert_eq!(runs.memory_bytes_with(1, &given(4, 7), |_| true), 50 + 10, "it runs after the other");
        assert_eq!(runs.memory_bytes_with(1, &given(4, 12), |_| true), 50 + 12);
        let is_claimed = |given: &Given| given.task.index == 0;
        assert_eq!(runs.memory_bytes_with(2, &given(4, 7), is_claimed), 40 + 7);
        assert_eq!(runs.memory_bytes_with(2, &given(4, u64::MAX), |_| true), u64::MAX);
    }
}
