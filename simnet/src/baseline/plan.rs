//! The order of bags at the smallest maximum stretch, on one machine that is as fast as all together.

/// A bag with work that has not begun (or, with preemption, is not finished).
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// Number of the bag.
    pub(super) bag: usize,
    /// r, in seconds.
    pub(super) release_s: f64,
    /// Its size, by which its time is divided.
    pub(super) size: f64,
    /// Remaining work, in Mop.
    pub(super) remaining_mops: f64,
}

/// Sorts the jobs by their deadlines at the smallest maximum stretch, and returns that. `ahead_mops` is done before any
/// of them: running tasks that cannot be preempted.
///
/// From a feasible stretch, earliest deadline first gives an order; the largest stretch in it is feasible, too, and
/// not larger. Where it is no smaller, the bag that has it and all that is ahead of it are due by that time in any
/// order, so that no smaller one is feasible.
pub(super) fn order(jobs: &mut [Job], now_s: f64, speed_mops: f64, ahead_mops: f64) -> f64 {
    let largest = |jobs: &[Job]| {
        let mut end_s = now_s + ahead_mops / speed_mops;
        let stretches = jobs.iter().map(|job| {
            end_s += job.remaining_mops / speed_mops;
            (end_s - job.release_s) / job.size
        });
        stretches.fold(0.0, f64::max)
    };
    let mut stretch = largest(jobs);
    loop {
        by_deadline(jobs, stretch);
        let smaller = largest(jobs);
        // Rounding may let it rise by a hair, never fall for ever.
        if smaller >= stretch * (1.0 - 1e-12) {
            return smaller;
        }
        stretch = smaller;
    }
}

/// Sorts the jobs by their deadlines at a stretch.
pub(super) fn by_deadline(jobs: &mut [Job], stretch: f64) {
    let deadline = |job: &Job| job.release_s + stretch * job.size;
    jobs.sort_by(|one, other| deadline(one).total_cmp(&deadline(other)).then(one.bag.cmp(&other.bag)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The smallest maximum over all orders. On one machine no idling and no preemption helps once all are released.
    fn best_of_all_orders(jobs: &mut Vec<Job>, from: usize, now_s: f64, speed_mops: f64) -> f64 {
        if from == jobs.len() {
            let mut work = 0.0;
            let mut worst: f64 = 0.0;
            for job in jobs.iter() {
                work += job.remaining_mops;
                worst = worst.max((now_s + work / speed_mops - job.release_s) / job.size);
            }
            return worst;
        }
        let mut best = f64::INFINITY;
        for choice in from..jobs.len() {
            jobs.swap(from, choice);
            best = best.min(best_of_all_orders(jobs, from + 1, now_s, speed_mops));
            jobs.swap(from, choice);
        }
        best
    }

    proptest! {
        #[test]
        fn no_order_has_a_smaller_maximum(
            list in prop::collection::vec((0.0..100.0_f64, 1.0..1e4_f64, 1.0..1e4_f64), 1..7), speed_mops in 1.0..50.0_f64,
        ) {
            let job = |(bag, &(release_s, size, remaining_mops))| Job { bag, release_s, size, remaining_mops };
            let mut jobs: Vec<Job> = list.iter().enumerate().map(job).collect();
            let best = best_of_all_orders(&mut jobs.clone(), 0, 100.0, speed_mops);
            let found = order(&mut jobs, 100.0, speed_mops, 0.0);
            prop_assert!((found / best - 1.0).abs() < 1e-9, "{} against {}", found, best);
        }
    }

    #[test]
    fn running_work_delays_all_jobs() {
        let mut jobs =
            [(0, 400.0), (1, 100.0)].map(|(bag, size)| Job { bag, release_s: 0.0, size, remaining_mops: size });
        // 100 + 100 Mop at 10 Mop/s for the small one, then 400.
        assert_eq!(order(&mut jobs, 0.0, 10.0, 100.0), 0.2);
        assert_eq!(jobs.map(|job| job.bag), [1, 0]);
    }
}
