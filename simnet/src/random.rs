//! Named streams of random numbers, and the distributions that simnet draws from.
//!
//! Every use of chance has its own stream, derived from (run seed, purpose, index), so that one more draw in one
//! place changes nothing elsewhere. The logarithm and the exponential function are written out here in additions,
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

/// 32 bytes that belong to (seed, purpose, index) and nothing else.
pub fn digest(seed: u64, purpose: &str, index: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(DOMAIN);
    hasher.update(&seed.to_le_bytes());
    hasher.update(&index.to_le_bytes());
    hasher.update(purpose.as_bytes());
    *hasher.finalize().as_bytes()
}

/// A stream in eight bytes (SplitMix64, Steele and others 2014), for what a million machines have each.
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
fn exp(value: f64) -> f64 {
    debug_assert!(value.abs() < 700.0);
    let exponent = (value / std::f64::consts::LN_2).round();
    let rest = value - exponent * std::f64::consts::LN_2;
    let series = (1..20).rev().fold(1.0, |sum, k| 1.0 + sum * rest / f64::from(k));
    series * f64::from_bits(((exponent as i64 + 1023) as u64) << 52)
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
        let low = (0..20_000).filter(|_| log_uniform(&mut rng, 10.0, 1000.0) < 100.0).count();
        assert!((9_500..10_500).contains(&low), "{low}");
    }
}
