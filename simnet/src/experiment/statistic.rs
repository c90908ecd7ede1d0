//! Combining the values of single seeds into those of a row.

/// Student's t for 95 %, by degrees of freedom from 1 on.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// How seeds are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combination {
    /// Arithmetic mean.
    Mean,
    /// Geometric mean, for ratios of paired seeds.
    Geometric,
    /// Sum, for values that must not be averaged away.
    Sum,
    /// The worst.
    Largest,
}

/// The combined value, and its 95 % confidence interval; the latter only for means of at least two.
pub(crate) fn together(how: Combination, values: &[f64]) -> (f64, Option<[f64; 2]>) {
    match how {
        Combination::Mean => mean(values),
        Combination::Geometric if values.iter().all(|value| *value > 0.0) => {
            let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
            let (mean, interval) = mean(&logarithms);
            (mean.exp(), interval.map(|interval| interval.map(f64::exp)))
        }
        // A ratio may be 0, which has no logarithm.
        Combination::Geometric => mean(values),
        Combination::Sum => (values.iter().sum(), None),
        Combination::Largest => (values.iter().copied().fold(f64::NEG_INFINITY, f64::max), None),
    }
}

fn mean(values: &[f64]) -> (f64, Option<[f64; 2]>) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, None);
    }
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (count - 1.0);
    let half = student_t(values.len() - 1) * (variance / count).sqrt();
    (mean, Some([mean - half, mean + half]))
}

/// Student's t for 95 %. Beyond the table it is the normal quantile with the first terms of its expansion in 1/degrees (Abramowitz
/// and Stegun, 26.7.5), right to the fourth digit there.
fn student_t(degrees: usize) -> f64 {
    if let Some(t) = STUDENT_T.get(degrees - 1) {
        return *t;
    }
    const Z: f64 = 1.959_964;
    let degrees = degrees as f64;
    let first = (Z.powi(3) + Z) / 4.0;
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0;
    Z + first / degrees + second / degrees.powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_t_as_tables_have_it() {
        let known =
            [(1, 12.706), (30, 2.042), (31, 2.0395), (40, 2.0211), (60, 2.0003), (120, 1.9799), (1_000_000, 1.96)];
        for (degrees, t) in known {
            assert!((student_t(degrees) - t).abs() < 1e-4, "{degrees}: {}", student_t(degrees));
        }
    }

    #[test]
    fn means_by_hand() {
        let (mean, interval) = together(Combination::Mean, &[1.0, 2.0, 3.0]);
        assert_eq!(mean, 2.0);
        // 4.303 · 1/√3.
        let [low, high] = interval.unwrap();
        assert!((low + 0.48434).abs() < 1e-4 && (high - 4.48434).abs() < 1e-4, "{low} {high}");
        assert_eq!(together(Combination::Mean, &[7.0]), (7.0, None));
        let (mean, interval) = together(Combination::Geometric, &[0.5, 2.0]);
        let [low, high] = interval.unwrap();
        assert!((mean - 1.0).abs() < 1e-12 && (low * high - 1.0).abs() < 1e-9 && low < 1.0);
        assert_eq!(together(Combination::Sum, &[1.0, 0.0, 2.0]), (3.0, None));
        assert_eq!(together(Combination::Largest, &[1.0, 0.0, 2.0]), (2.0, None));
    }
}
