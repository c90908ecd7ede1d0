//! The scale that encoded cells are rounded down to: small numbers as they are, larger ones with a few leading bits.
//!
//! A *code* is the number of a value on the scale. With b bits after the leading one, values below 2^(b+1) are their
//! own code; from there on each octave has 2^b codes, so that rounding down takes off less than 2^-b of a value. A
//! quarter of a value on the scale lies on the scale, but for the remainder of a small one.

/// Bits after the leading one, in the summary of so many leaves.
///
/// Every router on the way rounds once, so what is lost adds up: less than 2^-b for each level. Up to 16 leaves there
/// may be 15 levels, but more than seven are rare: so less than 6 %, and 20 % only after 44 levels, which is twice the
/// height of a tree of a million. docs/adr/0004 has what is lost in fact.
pub(super) fn bits(leaves: u64) -> u32 {
    if leaves <= 16 { 7 } else { 8 }
}

/// The code of the largest value on the scale that is at most `value` (at most 2^60).
pub(super) fn code(value: u64, bits: u32) -> u16 {
    let exponent = 63 - (value | 1).leading_zeros();
    let shift = exponent.saturating_sub(bits);
    ((shift << bits) + (value >> shift) as u32) as u16
}

/// The value of a code; the inverse of [`code`].
pub(super) fn value(code: u16, bits: u32) -> u64 {
    let code = u32::from(code);
    let shift = (code >> bits).saturating_sub(1);
    u64::from(code - (shift << bits)) << shift
}

/// The code of a quarter of the value.
pub(super) fn quarter(code_of_whole: u16, bits: u32) -> u16 {
    // Above this both are beyond the small numbers, and two octaves are 2·2^b codes.
    if u32::from(code_of_whole) >= 4 << bits {
        return code_of_whole - (2 << bits);
    }
    code(value(code_of_whole, bits) >> 2, bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::summary::CELL_MAX;

    proptest! {
        #[test]
        fn rounds_down_by_less_than_a_step(number in 0..=CELL_MAX, shift in 0_u32..60, bits in 4_u32..9) {
            for number in [number, number >> shift] {
                let rounded = value(code(number, bits), bits);
                prop_assert!(rounded <= number);
                prop_assert!(number - rounded <= number >> bits);
                prop_assert!(number >= 2 << bits || rounded == number);
                prop_assert_eq!(code(rounded, bits), code(number, bits));
                prop_assert_eq!(quarter(code(number, bits), bits), code(rounded >> 2, bits));
                prop_assert_eq!(quarter(code(number, bits), bits), code(number >> 2, bits));
            }
        }
    }

    #[test]
    fn codes_are_dense_and_in_order() {
        for bits in 4..9 {
            for number in 0..code(CELL_MAX, bits) {
                assert_eq!(code(value(number, bits), bits), number);
                assert!(value(number, bits) < value(number + 1, bits));
            }
            assert_eq!(value(code(CELL_MAX, bits), bits), CELL_MAX);
        }
    }
}
