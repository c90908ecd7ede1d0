//! Whole tasks by rates: how many a machine has in hand, which one is next, and when.

/// Tasks in hand beyond those that are needed while the longest one goes on, and tasks that a kind may be ahead of its rate.
const SPARE: u64 = 2;
/// Tasks in hand relative to those that the rate says for that while.
const AMPLE: f64 = 1.2;

/// How many tasks of an application a machine has in hand at most, underway ones too, if it passes on so many tasks/s and the
/// longest task or transfer there takes so many seconds: 2 + ⌈1.2·x·τ⌉. A number of tasks that is the same everywhere would starve long ones.
pub fn quota(tasks_s: f64, longest_s: f64) -> u64 {
    SPARE.saturating_add((AMPLE * tasks_s * longest_s).ceil().max(0.0) as u64)
}

/// Which of several kinds is next, if `served` counts what each has had: that with the smallest (served + 1)/rate of those that `can_go`, the first
/// of equal ones. A kind without a rate is never next.
pub fn next_by_deficit(rates: &[f64], served: &[u64], can_go: impl Fn(usize) -> bool) -> Option<usize> {
    let due = |kind: usize| (served[kind] as f64 + 1.0) / rates[kind];
    let kinds = (0..rates.len()).filter(|kind| rates[*kind] > 0.0 && can_go(*kind));
    kinds.min_by(|one, other| due(*one).total_cmp(&due(*other)))
}

/// From when on the next task of a kind may begin, in seconds since its rate holds, if `served` were begun: a kind is never ahead of its rate by more than
/// two tasks. Else what is idle for a moment takes tasks that others need, again and again.
pub fn due_s(tasks_s: f64, served: u64) -> f64 {
    served.saturating_sub(SPARE) as f64 / tasks_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_lasts_for_the_longest_task() {
        assert_eq!(quota(0.5, 100.0), 62);
        assert_eq!(quota(1e-9, 1.0), 3);
        assert_eq!(quota(0.0, 1.0), 2);
    }

    #[test]
    fn no_kind_is_ahead_of_its_rate_by_more_than_two() {
        assert_eq!((due_s(0.5, 0), due_s(0.5, 2), due_s(0.5, 3), due_s(0.5, 12)), (0.0, 0.0, 2.0, 20.0));
    }

    #[test]
    fn the_next_one_is_furthest_behind_its_rate() {
        let rates = [1.0, 2.0, 0.0];
        let mut served = [0; 3];
        let mut order = Vec::new();
        while order.len() < 6 {
            let next = next_by_deficit(&rates, &served, |_| true).unwrap();
            served[next] += 1;
            order.push(next);
        }
        assert_eq!(order, [1, 0, 1, 1, 0, 1]);
        assert_eq!(next_by_deficit(&rates, &served, |kind| kind == 2), None);
        assert_eq!(next_by_deficit(&rates, &[9, 0, 0], |kind| kind == 0), Some(0));
    }
}
