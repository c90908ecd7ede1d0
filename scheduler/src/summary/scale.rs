//! The scale that encoded cells are rounded down to: small numbers as they are, larger ones with a few leading bits.
//!
//! A *code* is the number of a value on the scale. With b bits after the leading one, values below 2^(b+1) are their
//! own code; from there on each octave has 2^b codes, so that rounding down takes off less than 2^-b of a value. A
//! quarter of a value on the scale lies on the scale, but for the remainder of a small one.

/// Bits after the leading one, in the summary of a subtree of this height (0: a leaf).
///
/// Every router on the way rounds once and takes off less than 2^-b of a cell (twice while it waits for the report of a
/// child to which it has sent tasks). Heights only grow on the way from a leaf to the root, so less than the sum of 2^-b
/// over the heights up to the root's is lost in all, whatever the shape of the tree: 7/128 + 20/256 = 13.3 % up to 26, the
/// height of a tree of a million, and less than 20 % up to 94. For a taller tree somebody would have to find position keys
/// that agree with one other key in 1, 2, … and so many bits, which is beyond anybody's means. docs/adr/0004 has the loss
/// that was measured.
pub(super) fn bits(height: u8) -> u32 {
    match height {
        0..7 => 7,
        7..27 => 8,
        27.. => 10,
    }
}

/// Bits behind the leading one of a wait in seconds: within an eighth.
pub(super) const WAIT_BITS: u32 = 3;

/// The height up to which less than 20 % is lost.
#[cfg(test)]
pub(super) const HEIGHT_SURE: u8 = 94;

/// The code of the largest value on the scale that is at most `value` (at most 2^60).
#[inline]
pub(super) fn code(value: u64, bits: u32) -> u16 {
    let exponent = 63 - (value | 1).leading_zeros();
    let shift = exponent.saturating_sub(bits);
    ((shift << bits) + (value >> shift) as u32) as u16
}

/// The value of a code; the inverse of [`code`].
#[inline]
pub(super) fn value(code: u16, bits: u32) -> u64 {
    let code = u32::from(code);
    let shift = (code >> bits).saturating_sub(1);
    u64::from(code - (shift << bits)) << shift
}

/// The code of a quarter of the value.
#[inline]
fn quarter(code_of_whole: u16, bits: u32) -> u16 {
    let code = u32::from(code_of_whole);
    // Small numbers are their own codes; of the octave above them the quarters are small; two octaves are 2·2^b codes.
    let quarter = if code >= 3 << bits {
        code - (2 << bits)
    } else if code >= 2 << bits {
        (code - (1 << bits)) >> 1
    } else {
        code >> 2
    };
    quarter as u16
}

/// The code of half the value.
#[inline]
fn half(code_of_whole: u16, bits: u32) -> u16 {
    let code = u32::from(code_of_whole);
    // An octave is 2^b codes.
    let half = if code >= 2 << bits { code - (1 << bits) } else { code >> 1 };
    half as u16
}

/// The code of the part of a value that fits when tasks are 2^`task_steps` times as large: half of it, or a quarter.
#[inline]
pub(super) fn part(code_of_whole: u16, bits: u32, task_steps: u32) -> u16 {
    if task_steps == 1 { half(code_of_whole, bits) } else { quarter(code_of_whole, bits) }
}

/// A wait as summaries have it: in whole seconds, rounded down to the scale, at most a year.
pub fn wait_s(wait_s: f64) -> u64 {
    // The cast saturates, and makes 0 of NaN.
    value(code((wait_s as u64).min(366 * 86_400), WAIT_BITS), WAIT_BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::summary::CELL_MAX;

    proptest! {
        #[test]
        fn rounds_down_by_less_than_a_step(number in 0..=CELL_MAX, shift in 0_u32..60, bits in 4_u32..=10) {
            for number in [number, number >> shift] {
                let rounded = value(code(number, bits), bits);
                prop_assert!(rounded <= number);
                prop_assert!(number - rounded <= number >> bits);
                prop_assert!(number >= 2 << bits || rounded == number);
                prop_assert_eq!(code(rounded, bits), code(number, bits));
                prop_assert_eq!(quarter(code(number, bits), bits), code(rounded >> 2, bits));
                prop_assert_eq!(quarter(code(number, bits), bits), code(number >> 2, bits));
                prop_assert_eq!(half(code(number, bits), bits), code(rounded >> 1, bits));
                prop_assert_eq!(half(code(number, bits), bits), code(number >> 1, bits));
            }
        }
    }

    #[test]
    fn less_than_a_fifth_is_lost_up_to_height_94() {
        let lost = |height: u8| (0..=height).map(|height| 0.5_f64.powi(bits(height) as i32)).sum::<f64>();
        assert!(lost(26) < 0.134);
        assert!(lost(HEIGHT_SURE) < 0.2 && lost(HEIGHT_SURE + 1) >= 0.2);
    }

    #[test]
    fn codes_are_dense_and_in_order() {
        for bits in 4..=10 {
            for number in 0..code(CELL_MAX, bits) {
                assert_eq!(code(value(number, bits), bits), number);
                assert!(value(number, bits) < value(number + 1, bits));
            }
            assert_eq!(value(code(CELL_MAX, bits), bits), CELL_MAX);
        }
    }
}
