//! A processor or port that divides its time evenly among its jobs.

/// What is done for whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) lane: usize,
    pub(super) kind: usize,
    /// The child that it is sent to; none where it is computed.
    pub(super) child: Option<usize>,
    /// Seconds of the resource's whole time that it still needs.
    pub(super) left_s: f64,
}

/// A processor or port.
#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    jobs: Vec<Job>,
    since_s: f64,
    /// Which of the ends that were foretold is the true one.
    version: u64,
}

impl Resource {
    pub(super) fn is_used_by(&self, lane: usize) -> bool {
        self.jobs.iter().any(|job| job.lane == lane)
    }

    /// Begins a job. Returns when the next one ends, with its version, unless something else happens before.
    pub(super) fn begin(&mut self, now_s: f64, job: Job) -> Option<(f64, u64)> {
        self.advance(now_s);
        self.jobs.push(job);
        self.next_end()
    }

    /// Ends the job that is first, if this end was the last one foretold; with when the next one ends.
    pub(super) fn end(&mut self, now_s: f64, version: u64) -> Option<(Job, Option<(f64, u64)>)> {
        if version != self.version {
            return None;
        }
        self.advance(now_s);
        let job = self.jobs.remove(self.first()?);
        Some((job, self.next_end()))
    }

    fn advance(&mut self, now_s: f64) {
        let each = (now_s - self.since_s) / self.jobs.len().max(1) as f64;
        self.jobs.iter_mut().for_each(|job| job.left_s -= each);
        self.since_s = now_s;
    }

    fn first(&self) -> Option<usize> {
        (0..self.jobs.len()).min_by(|one, other| self.jobs[*one].left_s.total_cmp(&self.jobs[*other].left_s))
    }

    fn next_end(&mut self) -> Option<(f64, u64)> {
        self.version += 1;
        let first = &self.jobs[self.first()?];
        Some((self.since_s + first.left_s.max(0.0) * self.jobs.len() as f64, self.version))
    }
}
