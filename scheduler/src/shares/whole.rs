//! Whole tasks in proportion to rates.

/// Divides so many whole tasks in proportion to rates: the parts add up to `tasks`, each differs by less than one from its exact
/// share, and a rate of 0 gets none. What is left after rounding down goes to the largest fractions, the first of equal ones
/// first (Hamilton's method). No task is given out where no rate is positive.
pub fn whole_tasks(tasks: u64, rates: &[f64]) -> Vec<u64> {
    let is_rate = |rate: &f64| rate.is_finite() && *rate > 0.0;
    let largest = rates.iter().copied().filter(is_rate).fold(0.0, f64::max);
    let of = |rate: &f64| if is_rate(rate) { rate / largest } else { 0.0 };
    let sum: f64 = rates.iter().map(of).sum();
    let mut parts = vec![0; rates.len()];
    let (mut fractions, mut left) = (Vec::new(), tasks);
    for (number, rate) in rates.iter().enumerate().filter(|(_, rate)| is_rate(rate)) {
        let exact = tasks as f64 * (of(rate) / sum);
        // Rounding errors of large numbers must not give out more than there is.
        parts[number] = (exact.floor() as u64).min(left);
        left -= parts[number];
        fractions.push((exact - parts[number] as f64, number));
    }
    fractions.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    if !fractions.is_empty() {
        let (each, beyond) = (left / fractions.len() as u64, left % fractions.len() as u64);
        for (place, (_, number)) in fractions.into_iter().enumerate() {
            parts[number] += each + u64::from((place as u64) < beyond);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tasks_follow_the_rates() {
        assert_eq!(whole_tasks(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        assert_eq!(whole_tasks(7, &[0.0, 2.0, 5.0]), [0, 2, 5]);
        assert_eq!(whole_tasks(1, &[0.1, 0.3, 0.2]), [0, 1, 0]);
        assert_eq!(whole_tasks(3, &[0.0, f64::NAN]), [0, 0]);
        assert_eq!(whole_tasks(u64::MAX, &[1.0, 1.0]).iter().sum::<u64>(), u64::MAX);
    }
}
