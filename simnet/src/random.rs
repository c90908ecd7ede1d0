//! Named streams of random numbers, and the distributions that simnet draws from.
//!
//! Every use of randomness has its own stream, derived from (run seed, purpose, index), so that one more draw in one
//! place changes nothing elsewhere. Logarithm and exponential function are written out here in additions,
//! multiplications and divisions: those of the platform may differ in the last bit between platforms, and so would
//! every trace.

use std::convert::Infallible;

use rand::rand_core::TryRng;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

/// Domain separator of the streams' seeds.
const DOMAIN: &str = "idlewood simnet random stream v1";

/// The stream for one purpose of one machine (or bag, or 0 where there is only one).
pub fn stream(seed: u64, purpose: &str, index: u64) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(digest(seed, purpose, index))
}

/// 32 bytes determined by (seed, purpose, index).
pub fn digest(seed: u64, purpose: &str, index: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(DOMAIN);
    hasher.update(&seed.to_le_bytes());
    hasher.update(&index.to_le_bytes());
    hasher.update(purpose.as_bytes());
    *hasher.finalize().as_bytes()
}

/// A stream in eight bytes (SplitMix64, Steele and others 2014), one for each of a million machines.
#[derive(Clone, Debug)]
pub struct SmallStream(u64);

impl SmallStream {
    /// The stream for one purpose of one machine.
    pub fn new(seed: u64, purpose: &str, index: u64) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = digest(seed, purpose, index);
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl TryRng for SmallStream {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|word| (word >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Ok(mixed ^ mixed >> 31)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let word = self.try_next_u64()?.to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        Ok(())
    }
}

/// Exponentially distributed with this mean, in whole units, at least 1.
pub fn exponential(rng: &mut impl Rng, mean: u64) -> u64 {
    let uniform: f64 = rng.random();
    ((-ln(1.0 - uniform) * mean as f64).round() as u64).max(1)
}

/// Distributed so that its logarithm is uniform between those of `low` and `high`.
pub fn log_uniform(rng: &mut impl Rng, low: f64, high: f64) -> f64 {
    let uniform: f64 = rng.random();
    (low * exp(uniform * ln(high / low))).clamp(low, high)
}

/// The standard normal quantile (Acklam's approximation, relative error below 1.2e-9), for shares between 0 and 1.
pub fn normal_quantile(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 5] =
        [-5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2, 6.680131188771972e1, -1.328068155288572e1];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] = [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416];
    let polynomial = |coefficients: &[f64], at: f64| coefficients.iter().fold(0.0, |sum, of| sum * at + of);
    let share = share.clamp(1e-12, 1.0 - 1e-12);
    let tail = |share: f64| {
        let at = (-2.0 * ln(share)).sqrt();
        polynomial(&C, at) / (polynomial(&D, at) * at + 1.0)
    };
    const LOW: f64 = 0.02425;
    if share < LOW {
        tail(share)
    } else if share > 1.0 - LOW {
        -tail(1.0 - share)
    } else {
        let (middle, square) = (share - 0.5, (share - 0.5) * (share - 0.5));
        polynomial(&A, square) * middle / (polynomial(&B, square) * square + 1.0)
    }
}

/// Half the distance between the quartiles of a standard normal distribution.
pub const NORMAL_QUARTILE: f64 = 0.674_489_750_196_081_7;

/// Distributed so that its logarithm is normal with these parameters.
pub fn lognormal(rng: &mut impl Rng, mean_of_log: f64, sigma: f64) -> f64 {
    exp(mean_of_log + sigma * normal_quantile(rng.random()))
}

/// Weibull distributed.
pub fn weibull(rng: &mut impl Rng, shape: f64, scale: f64) -> f64 {
    let uniform: f64 = rng.random();
    let exponent = (-ln(1.0 - uniform)).max(1e-12);
    scale * exp(ln(exponent) / shape)
}

/// The value below which a share of an empirical distribution lies: (share, value) pairs in order, from share 0 to 1 and
/// with positive values, and straight lines between the logarithms of values.
pub fn quantile(points: &[(f64, f64)], share: f64) -> f64 {
    let next = points.partition_point(|(at, _)| *at < share).clamp(1, points.len() - 1);
    let ((low, from), (high, to)) = (points[next - 1], points[next]);
    let part = ((share - low) / (high - low)).clamp(0.0, 1.0);
    from * exp(part * ln(to / from))
}

/// True in `percent` of all cases.
pub fn happens(rng: &mut impl Rng, percent: f64) -> bool {
    percent > 0.0 && rng.random::<f64>() * 100.0 < percent
}

/// Natural logarithm of a positive normal number, the same on every platform.
pub(crate) fn ln(value: f64) -> f64 {
    debug_assert!(value.is_normal() && value > 0.0);
    let bits = value.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2·artanh((m − 1)/(m + 1)), whose argument is at most 0.18.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = (0..12).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * ratio * series
}

/// Exponential function for arguments between −700 and 700, the same on every platform.
pub(crate) fn exp(value: f64) -> f64 {
    debug_assert!(value.abs() < 700.0);
    let exponent = (value / std::f64::consts::LN_2).round();
    let rest = value - exponent * std::f64::consts::LN_2;
    let series = (1..20).rev().fold(1.0, |sum, k| 1.0 + sum * rest / f64::from(k));
    series * f64::from_bits(((exponent as i64 + 1023) as u64) << 52)
}

/// One of these values, each as likely.
pub(crate) fn pick<T: Copy>(rng: &mut impl Rng, options: &[T]) -> T {
    options[rng.random_range(0..options.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_logarithm_and_exponential_agree_with_the_platform() {
        for step in 1..2000 {
            let value = f64::from(step) * 0.37 / f64::from(step % 7 + 1);
            assert!((ln(value) - value.ln()).abs() <= 4.0 * f64::EPSILON * value.ln().abs().max(1.0), "ln {value}");
            let value = f64::from(step - 1000) * 0.31;
            assert!((exp(value) / value.exp() - 1.0).abs() < 1e-13, "exp {value}");
        }
    }

    #[test]
    fn streams_differ_by_seed_purpose_and_index() {
        let first = |seed, purpose, index| stream(seed, purpose, index).random::<u64>();
        let all = [first(1, "a", 0), first(2, "a", 0), first(1, "b", 0), first(1, "a", 1)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert_eq!(first(1, "a", 0), first(1, "a", 0));
    }

    #[test]
    fn means_are_what_was_asked_for() {
        let mut rng = stream(1, "test", 0);
        let mean = (0..20_000).map(|_| exponential(&mut rng, 1_000_000) as f64).sum::<f64>() / 20_000.0;
        assert!((mean / 1e6 - 1.0).abs() < 0.03, "{mean}");
        let mut mean = |mut draw: Box<dyn FnMut(&mut ChaCha8Rng) -> f64>| {
            (0..20_000).map(|_| draw(&mut rng)).sum::<f64>() / 20_000.0
        };
        let weibull = mean(Box::new(|rng| weibull(rng, 0.58, 1.76)));
        assert!((weibull / 2.77 - 1.0).abs() < 0.05, "{weibull}");
        let lognormal = mean(Box::new(|rng| lognormal(rng, 1.0, 0.5)));
        assert!((lognormal / 1.125f64.exp() - 1.0).abs() < 0.02, "{lognormal}");
        for (share, value) in [(0.5, 0.0), (0.75, NORMAL_QUARTILE), (0.001, -3.090_232_306), (0.999, 3.090_232_306)] {
            assert!((normal_quantile(share) - value).abs() < 1e-7, "{share}");
        }
        let points = [(0.0, 1.0), (0.5, 2.0), (0.75, 10.0), (1.0, 1000.0)];
        for (share, value) in [(0.0, 1.0), (0.5, 2.0), (0.75, 10.0), (0.875, 100.0), (1.0, 1000.0)] {
            assert!((quantile(&points, share) / value - 1.0).abs() < 1e-12, "{share}");
        }
        let low = (0..20_000).filter(|_| log_uniform(&mut rng, 10.0, 1000.0) < 100.0).count();
        assert!((9_500..10_500).contains(&low), "{low}");
    }
}
