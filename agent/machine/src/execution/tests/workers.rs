//! Model workers, which answer whenever they like, and what a driver keeps for them. They assert what an order may not break: no attempt
//! runs twice at once, no more tasks run than there are slots, a worker that was asked what it has not begun is given nothing, each job is
//! forgotten once, memory is kept to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;

/// Two bags, and how many bytes of memory a task of each may take.
pub(super) const BAGS: [(BagId, u64); 2] = [(BagId([1; 32]), 10), (BagId([2; 32]), 30)];

/// Most memory that a task of this bag may take.
fn memory_bytes(bag: BagId) -> u64 {
    if bag == BAGS[0].0 { BAGS[0].1 } else { BAGS[1].1 }
}

#[derive(Debug, Default)]
struct Worker {
    jobs: VecDeque<(JobId, TaskId, u32)>,
    /// Whether the first one has begun.
    has_begun: bool,
    frozen: bool,
    /// Ends of which nobody has heard.
    ended: VecDeque<(JobId, Option<TaskOutcome>)>,
    is_asked: bool,
}

#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Worker>,
    slots: usize,
    pub(super) stand_still: bool,
    pub(super) memory_max: u64,
    preparing: BTreeMap<JobId, TaskId>,
    keeping: VecDeque<(JobId, TaskId, u32)>,
    /// Jobs that the driver has heard of, and has not forgotten.
    pub(super) known: BTreeSet<JobId>,
    pub(super) examples: BTreeSet<BagId>,
}

impl Workers {
    pub(super) fn new(slots: u32, workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Worker::default()).collect(),
            slots: slots as usize,
            stand_still: false,
            memory_max: u64::MAX,
            preparing: BTreeMap::new(),
            keeping: VecDeque::new(),
            known: BTreeSet::new(),
            examples: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    pub(super) fn is_asked(&self, slot: usize) -> bool {
        self.workers[slot].is_asked
    }

    pub(super) fn carry_out(&mut self, order: WorkOrder) {
        match order {
            WorkOrder::Prepare { job, task, .. } => {
                assert!(self.known.insert(job), "a number is used twice");
                self.preparing.insert(job, task);
            }
            WorkOrder::KeepExample { bag, job } => {
                assert!(self.known.contains(&job) && self.examples.insert(bag));
            }
            WorkOrder::ForgetExample { bag } => assert!(self.examples.remove(&bag)),
            WorkOrder::Give { slot, job, task, attempt } => self.give(slot, job, task, attempt),
            WorkOrder::TakeBack { slot } => {
                assert!(!std::mem::replace(&mut self.workers[slot].is_asked, true), "it is asked already");
            }
            WorkOrder::Stop { slot } => self.kill(slot),
            WorkOrder::Freeze { slot } => self.workers[slot].frozen = true,
            WorkOrder::Thaw { slot } => self.workers[slot].frozen = false,
            WorkOrder::FreezeAll => self.stand_still = true,
            WorkOrder::ThawAll => self.stand_still = false,
            WorkOrder::Forget { job } => {
                assert!(self.known.remove(&job), "{job:?} is forgotten twice");
                self.preparing.remove(&job);
                let has_it = |worker: &Worker| worker.jobs.iter().any(|(other, ..)| *other == job);
                assert!(!self.workers.iter().any(has_it), "a worker has {job:?}");
            }
            WorkOrder::TellNoMemory { wanted_bytes, taken_bytes, .. } => {
                assert!(wanted_bytes.saturating_add(taken_bytes) > self.memory_max);
            }
        }
        (0..self.workers.len()).for_each(|slot| self.begin(slot));
        let running = self.workers.iter().filter(|worker| worker.has_begun && !worker.frozen).count();
        assert!(running <= self.slots, "{running} tasks run");
    }

    fn taken_bytes(&self) -> u64 {
        let most = |worker: &Worker| worker.jobs.iter().map(|(_, task, _)| memory_bytes(task.bag)).max().unwrap_or(0);
        self.workers.iter().map(most).sum()
    }

    fn give(&mut self, slot: usize, job: JobId, task: TaskId, attempt: u32) {
        assert!(!self.workers[slot].is_asked, "worker {slot} is given {job:?} while it is asked for what it has");
        assert!(!self.preparing.contains_key(&job), "{job:?} is not ready");
        if self.known.insert(job) {
            assert!(self.examples.contains(&task.bag), "nothing is known of {task:?}");
        }
        let before = self.taken_bytes();
        self.workers[slot].jobs.push_back((job, task, attempt));
        let after = self.taken_bytes();
        assert!(after <= before.max(self.memory_max), "{after} bytes are taken, {} allowed", self.memory_max);
    }

    fn begin(&mut self, slot: usize) {
        let stand_still = self.stand_still;
        let worker = &self.workers[slot];
        let Some(&(_, task, attempt)) = worker.jobs.front().filter(|_| !worker.has_begun) else { return };
        if stand_still || worker.frozen {
            return;
        }
        let runs_it = |worker: &Worker| {
            let first = worker.jobs.front().filter(|_| worker.has_begun);
            first.is_some_and(|&(_, other, of)| (other, of) == (task, attempt))
        };
        assert!(!self.workers.iter().any(runs_it), "{task:?} runs twice");
        self.workers[slot].has_begun = true;
    }

    /// What a worker has begun ends, whoever hears of it when.
    fn job_ends(&mut self, slot: usize, outcome: Option<TaskOutcome>) {
        let worker = &mut self.workers[slot];
        if !std::mem::replace(&mut worker.has_begun, false) {
            return;
        }
        if let Some((job, task, attempt)) = worker.jobs.pop_front() {
            worker.ended.push_back((job, outcome.clone()));
            if outcome.is_none() {
                self.keeping.push_back((job, task, attempt));
            }
        }
        self.begin(slot);
    }

    fn kill(&mut self, slot: usize) {
        self.job_ends(slot, Some(TaskOutcome::Stopped));
    }

    /// What a worker runs ends by itself.
    pub(super) fn runs_to_its_end(&mut self, slot: usize, is_kept: bool) {
        let worker = &self.workers[slot];
        if let Some(&(_, _, attempt)) = worker.jobs.front()
            && !worker.frozen
            && !self.stand_still
        {
            self.job_ends(slot, is_kept.then(|| finished(attempt)));
        }
    }

    /// The end of what a worker had, of which nobody has heard.
    pub(super) fn hear_of_an_end(&mut self, slot: usize) -> Option<WorkEvent> {
        let (job, outcome) = self.workers[slot].ended.pop_front()?;
        let wall = Some(Duration::from_micros(100));
        Some(WorkEvent::Ended { slot, job, wall, outcome })
    }

    /// An output is kept, once it was heard that its job has ended.
    pub(super) fn keep_one(&mut self) -> Option<WorkEvent> {
        let &(job, task, attempt) = self.keeping.front()?;
        if self.workers.iter().any(|worker| worker.ended.iter().any(|(other, _)| *other == job)) {
            return None;
        }
        self.keeping.pop_front();
        Some(WorkEvent::Over { job, task, outcome: finished(attempt) })
    }

    /// A worker answers what it has not begun, if it was asked.
    pub(super) fn answer(&mut self, slot: usize) -> Option<WorkEvent> {
        let worker = &mut self.workers[slot];
        if !std::mem::replace(&mut worker.is_asked, false) {
            return None;
        }
        let begun = usize::from(worker.has_begun);
        let jobs = worker.jobs.drain(begun..).map(|(job, ..)| job).collect();
        Some(WorkEvent::TakenBack { slot, jobs })
    }

    pub(super) fn prepare_one(&mut self) -> Option<WorkEvent> {
        let (job, task) = self.preparing.pop_first()?;
        Some(WorkEvent::Prepared { job, memory_bytes: memory_bytes(task.bag), is_example: true })
    }

    /// A task cannot be prepared now.
    pub(super) fn cannot_run(&mut self) -> Option<WorkEvent> {
        let (job, task) = self.preparing.pop_first()?;
        Some(WorkEvent::Over { job, task, outcome: TaskOutcome::NotStarted { retry_after: Duration::ZERO } })
    }

    /// A worker does not take what it was given last, and has not begun.
    pub(super) fn refuse(&mut self, slot: usize) -> Option<WorkEvent> {
        let worker = &mut self.workers[slot];
        if worker.is_asked || worker.jobs.len() <= usize::from(worker.has_begun) {
            return None;
        }
        let (job, ..) = worker.jobs.pop_back()?;
        let outcome = Some(TaskOutcome::NotStarted { retry_after: Duration::ZERO });
        Some(WorkEvent::Ended { slot, job, wall: None, outcome })
    }
}
