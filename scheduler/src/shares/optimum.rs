//! Maximises Σ ω_g·log(Σ of group g) under linear limits: a primal-dual interior-point method (Boyd and Vandenberghe 2004,
//! §11.7) for problems with some hundred variables at most.
//!
//! Ours, and not a library's: a point inside the limits is known, each step has one dense system of equations, and it must not end with an error. It
//! uses the four operations and square roots alone, so that every machine that becomes root finds the same to the last bit. A general
//! solver checks it in tests.

/// Steps at most; some 15 to 30 suffice.
const STEPS_MAX: usize = 200;
/// The largest distance from the best utility, relative to the sum of weights.
const GAP_MAX: f64 = 1e-11;
/// How much of the way to the nearest limit a step goes at most.
const TOWARDS_LIMIT: f64 = 0.99;

/// Σ uses·variable ≤ limit; uses are not negative.
pub(super) struct Row {
    pub(super) uses: Vec<(usize, f64)>,
    pub(super) limit: f64,
}

/// Variables that are not negative, each in one group.
pub(super) struct Problem {
    /// ω of each group.
    pub(super) weights: Vec<f64>,
    pub(super) group_of: Vec<usize>,
    pub(super) rows: Vec<Row>,
}

/// The problem in variables between 0 and 1, and with limits of 1.
struct Scaled {
    /// Which variables these are, and what 1 stands for.
    variables: Vec<(usize, f64)>,
    /// Of each variable.
    groups: Vec<usize>,
    weights: Vec<f64>,
    /// What 1 stands for, relative to the largest of the group.
    gains: Vec<f64>,
    rows: Vec<Vec<f64>>,
}

/// A point inside all limits, with prices.
struct Point {
    x: Vec<f64>,
    /// What is left of each row's limit.
    slack: Vec<f64>,
    /// Price of each row, and of each variable's 0.
    price: Vec<f64>,
    price_of_zero: Vec<f64>,
}

impl Problem {
    /// The best values, all within the limits. Variables that some limit holds to 0 are 0.
    pub(super) fn solve(&self) -> Vec<f64> {
        let mut best = vec![0.0; self.group_of.len()];
        let scaled = self.scaled();
        if scaled.variables.is_empty() {
            return best;
        }
        for ((variable, unit), value) in scaled.variables.iter().zip(scaled.solve()) {
            best[*variable] = unit * value;
        }
        best
    }

    fn scaled(&self) -> Scaled {
        let mut largest = vec![f64::INFINITY; self.group_of.len()];
        for Row { uses, limit } in &self.rows {
            for (variable, share) in uses.iter().filter(|(_, share)| *share > 0.0) {
                largest[*variable] = largest[*variable].min(limit / share);
            }
        }
        let is_free = |unit: &f64| unit.is_finite() && *unit > 0.0;
        let variables: Vec<(usize, f64)> =
            largest.iter().copied().enumerate().filter(|(_, unit)| is_free(unit)).collect();
        let groups: Vec<usize> = variables.iter().map(|(variable, _)| self.group_of[*variable]).collect();
        let mut largest_of_group = vec![0.0_f64; self.weights.len()];
        for ((_, unit), group) in variables.iter().zip(&groups) {
            largest_of_group[*group] = largest_of_group[*group].max(*unit);
        }
        let gains = variables.iter().zip(&groups).map(|((_, unit), group)| unit / largest_of_group[*group]).collect();
        let bounded = self.rows.iter().filter(|row| is_free(&row.limit));
        let rows = bounded.map(|row| {
            let mut dense = vec![0.0; self.group_of.len()];
            row.uses.iter().for_each(|(variable, share)| dense[*variable] += share / row.limit);
            variables.iter().map(|(variable, unit)| dense[*variable] * unit).collect()
        });
        let rows: Vec<Vec<f64>> = rows.filter(|row: &Vec<f64>| row.iter().any(|share| *share > 0.0)).collect();
        let mut counts = vec![false; self.weights.len()];
        groups.iter().for_each(|group| counts[*group] = true);
        let sum: f64 = self.weights.iter().zip(&counts).filter(|(_, counts)| **counts).map(|(weight, _)| weight).sum();
        let weights = self.weights.iter().map(|weight| weight / sum).collect();
        Scaled { variables, groups, weights, gains, rows }
    }
}

impl Scaled {
    fn solve(&self) -> Vec<f64> {
        let (count, rows) = (self.variables.len(), self.rows.len());
        let start = 0.5 / count as f64;
        let mut point = Point {
            x: vec![start; count],
            slack: self.rows.iter().map(|row| 1.0 - row.iter().sum::<f64>() * start).collect(),
            price: vec![0.0; rows],
            price_of_zero: vec![1.0 / start; count],
        };
        point.price = point.slack.iter().map(|slack| slack.recip()).collect();
        for _ in 0..STEPS_MAX {
            let gap = point.gap();
            let mean = gap / (count + rows) as f64;
            let residual = self.residual(&point);
            if gap <= GAP_MAX && residual.iter().all(|residual| residual.abs() <= 1e-9) {
                break;
            }
            // How far the step without centring would go says how much centring is needed.
            let Some(step) = self.step(&point, &residual, 0.0) else { break };
            let foreseen = point.after(&step, point.reach(&step)).gap() / gap;
            let foreseen = foreseen.clamp(0.0, 1.0);
            let centring = (foreseen * foreseen * foreseen).max(1e-3);
            let Some(step) = self.step(&point, &residual, centring * mean) else { break };
            let mut next = point.after(&step, (point.reach(&step) * TOWARDS_LIMIT).min(1.0));
            // Computed anew, so that errors do not add up.
            next.slack = self.rows.iter().map(|row| 1.0 - dot(row, &next.x)).collect();
            if next.slack.iter().any(|slack| *slack <= 0.0) {
                break;
            }
            point = next;
        }
        point.x
    }

    /// Utility's slope with prices, negated: 0 at the best point.
    fn residual(&self, point: &Point) -> Vec<f64> {
        let sums = self.sums(&point.x);
        let mut residual: Vec<f64> = (0..point.x.len())
            .map(|at| -self.weights[self.groups[at]] * self.gains[at] / sums[self.groups[at]] - point.price_of_zero[at])
            .collect();
        for (row, price) in self.rows.iter().zip(&point.price) {
            residual.iter_mut().zip(row).for_each(|(residual, share)| *residual += price * share);
        }
        residual
    }

    fn sums(&self, x: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.weights.len()];
        for ((group, gain), x) in self.groups.iter().zip(&self.gains).zip(x) {
            sums[*group] += gain * x;
        }
        sums
    }

    /// Newton's step towards the point where every slack times its price is `target`; none where rounding has the better of it.
    fn step(&self, point: &Point, residual: &[f64], target: f64) -> Option<Point> {
        let count = point.x.len();
        let sums = self.sums(&point.x);
        let mut matrix = vec![vec![0.0; count]; count];
        let mut right: Vec<f64> = residual.iter().map(|residual| -residual).collect();
        for one in 0..count {
            let group = self.groups[one];
            for other in (0..=one).filter(|other| self.groups[*other] == group) {
                matrix[one][other] =
                    self.weights[group] * (self.gains[one] / sums[group]) * (self.gains[other] / sums[group]);
            }
            matrix[one][one] += point.price_of_zero[one] / point.x[one];
            right[one] += target / point.x[one] - point.price_of_zero[one];
        }
        for ((row, slack), price) in self.rows.iter().zip(&point.slack).zip(&point.price) {
            for one in (0..count).filter(|one| row[*one] > 0.0) {
                for other in 0..=one {
                    matrix[one][other] += row[one] * row[other] * price / slack;
                }
                right[one] -= row[one] * (target / slack - price);
            }
        }
        let x = solve_symmetric(matrix, right)?;
        let slack: Vec<f64> = self.rows.iter().map(|row| -dot(row, &x)).collect();
        let toward = |value: f64, price: f64, change: f64| (target - value * price - price * change) / value;
        let price = (0..slack.len()).map(|at| toward(point.slack[at], point.price[at], slack[at])).collect();
        let price_of_zero = (0..count).map(|at| toward(point.x[at], point.price_of_zero[at], x[at])).collect();
        Some(Point { x, slack, price, price_of_zero })
    }
}

impl Point {
    /// How far the utility may be from the best.
    fn gap(&self) -> f64 {
        dot(&self.slack, &self.price) + dot(&self.x, &self.price_of_zero)
    }

    fn parts(&self) -> [&Vec<f64>; 4] {
        [&self.x, &self.slack, &self.price, &self.price_of_zero]
    }

    /// The share of the step that leads to the first 0.
    fn reach(&self, step: &Self) -> f64 {
        let pairs = self.parts().into_iter().zip(step.parts()).flat_map(|(values, changes)| values.iter().zip(changes));
        pairs
            .filter(|(_, change)| **change < 0.0)
            .map(|(value, change)| -value / change)
            .fold(1.0 / TOWARDS_LIMIT, f64::min)
    }

    fn after(&self, step: &Self, share: f64) -> Self {
        let moved = |values: &[f64], changes: &[f64]| {
            values.iter().zip(changes).map(|(value, change)| value + share * change).collect()
        };
        Self {
            x: moved(&self.x, &step.x),
            slack: moved(&self.slack, &step.slack),
            price: moved(&self.price, &step.price),
            price_of_zero: moved(&self.price_of_zero, &step.price_of_zero),
        }
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Solves a positive definite system, of which the lower half is given (Cholesky).
fn solve_symmetric(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let count = right.len();
    for column in 0..count {
        for row in column..count {
            let (above, below) = matrix.split_at_mut(row);
            let of_column = above.get(column).unwrap_or(&below[0]);
            let sum = below[0][column] - dot(&below[0][..column], &of_column[..column]);
            if row == column {
                if !(sum > 0.0 && sum.is_finite()) {
                    return None;
                }
                below[0][column] = sum.sqrt();
            } else {
                below[0][column] = sum / of_column[column];
            }
        }
    }
    for row in 0..count {
        right[row] = (right[row] - dot(&matrix[row][..row], &right[..row])) / matrix[row][row];
    }
    for row in (0..count).rev() {
        let below: f64 = (row + 1..count).map(|other| matrix[other][row] * right[other]).sum();
        right[row] = (right[row] - below) / matrix[row][row];
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solve(weights: &[f64], group_of: &[usize], rows: &[(&[f64], f64)]) -> Vec<f64> {
        let row =
            |(uses, limit): &(&[f64], f64)| Row { uses: uses.iter().copied().enumerate().collect(), limit: *limit };
        let rows = rows.iter().map(row).collect();
        Problem { weights: weights.to_vec(), group_of: group_of.to_vec(), rows }.solve()
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        let is_near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 1e-8 * (1.0 + expected);
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(is_near),
            "{found:?}, not {expected:?}"
        );
    }

    #[test]
    fn one_limit_is_shared_by_weight() {
        assert_near(&solve(&[1.0, 2.0, 4.0], &[0, 1, 2], &[(&[1.0, 1.0, 1.0], 70.0)]), &[10.0, 20.0, 40.0]);
    }

    /// What one cannot use the others have.
    #[test]
    fn an_own_limit_leaves_the_rest_to_the_other() {
        let rows: [(&[f64], f64); 2] = [(&[1.0, 1.0], 100.0), (&[1.0, 0.0], 5.0)];
        assert_near(&solve(&[1.0, 1.0], &[0, 1], &rows), &[5.0, 95.0]);
    }

    #[test]
    fn what_a_limit_of_nothing_holds_is_nothing() {
        let rows: [(&[f64], f64); 2] = [(&[1.0, 1.0], 8.0), (&[1.0, 0.0], 0.0)];
        assert_near(&solve(&[1.0, 1.0], &[0, 1], &rows), &[0.0, 8.0]);
        assert_near(&solve(&[1.0], &[0], &[(&[1.0], 0.0)]), &[0.0]);
    }

    #[test]
    fn groups_add_up() {
        // Two variables of one group beside one of another, on two machines.
        let rows: [(&[f64], f64); 2] = [(&[1.0, 0.0, 1.0], 1e6), (&[0.0, 1.0, 0.0], 3e-3)];
        let found = solve(&[1.0, 1.0], &[0, 0, 1], &rows);
        assert_near(&[found[0] + found[1], found[2]], &[500_000.001_5, 499_999.998_5]);
    }
}
