//! Matrix games by the simplex method (Dantzig 1951): the best mixture of columns against the worst row.
//!
//! Ours, and not a library's: a game has at most some dozens of rows and columns, a point to begin at is known, every machine that becomes
//! root must find the same mixture to the last bit, and no input may make it cycle, panic or fail. Bland's rule (1977) excludes
//! cycles.

/// Steps at most: only rounding errors could need as many.
const STEPS_MAX: usize = 10_000;
/// What is below this is 0, where the largest gain of the game is 1.
const ZERO: f64 = 1e-12;

/// What both sides of a game play.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mixtures {
    /// Share of each column; they add up to 1.
    pub(super) columns: Vec<f64>,
    /// Share of each row; they add up to 1, and no column gains more against them than the game is worth.
    pub(super) rows: Vec<f64>,
}

/// The mixture of columns whose smallest gain over all rows is the largest, and the mixture of rows that proves it; `gains` are at least 0, by column and
/// row. None where some row gains nothing from any column, or there is no column.
pub(super) fn solve(gains: &[Vec<f64>]) -> Option<Mixtures> {
    let rows = gains.first()?.len();
    let best = |row: usize| gains.iter().map(|column| column[row]).fold(0.0, f64::max);
    let largest = (0..rows).map(best).fold(0.0, f64::max);
    if (0..rows).any(|row| best(row) <= ZERO * largest) {
        return None;
    }
    // max Σz with Σ_row gain·z ≤ 1 for each column: z are the rows' shares and the prices of the limits the columns', both times 1/value.
    // Variables: z, then one slack for each column; the last entry of a line is its right side.
    let width = rows + gains.len() + 1;
    let mut lines: Vec<Vec<f64>> = Vec::with_capacity(gains.len());
    for (number, column) in gains.iter().enumerate() {
        let mut line = vec![0.0; width];
        line.iter_mut().zip(column).for_each(|(entry, gain)| *entry = gain / largest);
        line[rows + number] = 1.0;
        line[width - 1] = 1.0;
        lines.push(line);
    }
    let mut costs = vec![0.0; width];
    costs[..rows].fill(-1.0);
    let mut basis: Vec<usize> = (rows..width - 1).collect();
    for _ in 0..STEPS_MAX {
        let Some(entering) = costs[..width - 1].iter().position(|cost| *cost < -ZERO) else { break };
        let mut leaving: Option<(f64, usize, usize)> = None;
        for (place, line) in lines.iter().enumerate().filter(|(_, line)| line[entering] > ZERO) {
            let candidate = (line[width - 1] / line[entering], basis[place], place);
            if leaving.is_none_or(|least| (candidate.0, candidate.1) < (least.0, least.1)) {
                leaving = Some(candidate);
            }
        }
        // Every row gains from some column, so that something always leaves but for rounding.
        let Some((_, _, place)) = leaving else { break };
        let pivot = lines[place][entering];
        lines[place].iter_mut().for_each(|entry| *entry /= pivot);
        let line = lines[place].clone();
        let others = lines.iter_mut().enumerate().filter(|(other, _)| *other != place).map(|(_, other)| other);
        for other in others.chain([&mut costs]) {
            let factor = other[entering];
            other.iter_mut().zip(&line).for_each(|(entry, of_pivot)| *entry -= factor * of_pivot);
        }
        basis[place] = entering;
    }
    let mut of_rows = vec![0.0; rows];
    for (variable, line) in basis.iter().zip(&lines).filter(|(variable, _)| **variable < rows) {
        of_rows[*variable] = line[width - 1];
    }
    Some(Mixtures { columns: normalised(&costs[rows..width - 1])?, rows: normalised(&of_rows)? })
}

/// Shares that add up to 1; none where there is nothing to share.
fn normalised(shares: &[f64]) -> Option<Vec<f64>> {
    let sum: f64 = shares.iter().map(|share| share.max(0.0)).sum();
    (sum > 0.0).then(|| shares.iter().map(|share| share.max(0.0) / sum).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_games() {
        // Each column serves one row: the worse one is played more.
        let mixtures = solve(&[vec![3.0, 0.0], vec![0.0, 1.0]]).unwrap();
        for (found, expected) in mixtures.columns.iter().chain(&mixtures.rows).zip([0.25, 0.75, 0.25, 0.75]) {
            assert!((found - expected).abs() < 1e-12, "{mixtures:?}");
        }
        // A column that is best for all is played alone.
        assert_eq!(solve(&[vec![1.0, 1.0], vec![2.0, 3.0]]).unwrap().columns, [0.0, 1.0]);
        assert_eq!(solve(&[]), None);
        assert_eq!(solve(&[vec![1.0, 0.0]]), None);
    }

    proptest! {
        /// Neither side can do better: what the columns gain at least is what the rows allow at most.
        #[test]
        fn both_mixtures_prove_each_other(
            gains in (1..9_usize, 1..33_usize).prop_flat_map(|(rows, columns)| {
                let gain = prop_oneof![1 => Just(0.0), 1 => Just(1.0), 4 => (-6.0..6.0_f64).prop_map(f64::exp)];
                prop::collection::vec(prop::collection::vec(gain, rows), columns)
            })
        ) {
            let Some(Mixtures { columns, rows }) = solve(&gains) else {
                let is_bare = |row: usize| gains.iter().all(|column| column[row] == 0.0);
                prop_assert!((0..gains[0].len()).any(is_bare));
                return Ok(());
            };
            prop_assert!(columns.iter().chain(&rows).all(|share| *share >= 0.0));
            let gained = |row: usize| columns.iter().zip(&gains).map(|(share, column)| share * column[row]).sum::<f64>();
            let allowed = |column: &Vec<f64>| rows.iter().zip(column).map(|(share, gain)| share * gain).sum::<f64>();
            let least = (0..rows.len()).map(gained).fold(f64::INFINITY, f64::min);
            let most = gains.iter().map(allowed).fold(0.0, f64::max);
            prop_assert!((least - most).abs() <= 1e-9 * most, "{least} and {most}");
        }
    }
}
