//! An adaptive binary range coder: a decision of probability p costs about −log2 p bits.
//!
//! The construction is that of LZMA (a 32-bit range, carries resolved late). Ours: probabilities adapt quickly at
//! first, since messages are short, and the end takes no more bytes than needed.
//!
//! The model runs the same code in both directions: it hands each decision to a [`Coder`], which writes it, or
//! overrules it by what it reads.

/// The probability of `false`, and how often it was adapted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    zero: u16,
    seen: u8,
}

const HALF: u16 = 1 << 14;
/// Neither decision ever costs more than about ten bits.
const MARGIN: u16 = 24;
/// After so many decisions a chance adapts at a constant rate, 1/28.
const SEEN_MAX: u8 = 26;

/// How far a chance moves, by how often it was adapted, in units of 2^-16: half the way at first. A table, since divisions
/// would cost more than all the rest.
const RATES: [i32; SEEN_MAX as usize + 1] = {
    let mut rates = [0; SEEN_MAX as usize + 1];
    let mut seen = 0;
    while seen < rates.len() {
        rates[seen] = (1 << 16) / (seen as i32 + 2);
        seen += 1;
    }
    rates
};

impl Default for Chance {
    fn default() -> Self {
        Self { zero: HALF, seen: 0 }
    }
}

impl Chance {
    fn adapt(&mut self, bit: bool) {
        let target = if bit { 0 } else { 1 << 15 };
        let zero = i32::from(self.zero) + (((target - i32::from(self.zero)) * RATES[usize::from(self.seen)]) >> 16);
        self.zero = (zero as u16).clamp(MARGIN, (1 << 15) - MARGIN);
        self.seen = (self.seen + 1).min(SEEN_MAX);
    }
}

/// One direction of coding.
pub(super) trait Coder {
    /// Writes the decision and returns it, or returns the one that was read.
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> bool;

    /// The same for a decision whose outcomes are always equally likely.
    fn even_bit(&mut self, bit: bool) -> bool;
}

/// Writes decisions.
#[derive(Debug)]
pub(super) struct Writer {
    low: u64,
    range: u32,
    /// The byte that a carry may still change, and how many 0xff follow it.
    held: Option<u8>,
    held_full: usize,
    bytes: Vec<u8>,
}

impl Writer {
    /// Appends to `bytes`.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { low: 0, range: u32::MAX, held: None, held_full: 0, bytes }
    }

    fn shift(&mut self) {
        if self.low < 0xff00_0000 || self.low > u64::from(u32::MAX) {
            let carry = (self.low >> 32) as u8;
            if let Some(held) = self.held {
                self.bytes.push(held.wrapping_add(carry));
            }
            self.bytes.extend(std::iter::repeat_n(0xff_u8.wrapping_add(carry), self.held_full));
            self.held_full = 0;
            self.held = Some((self.low >> 24) as u8);
        } else {
            self.held_full += 1;
        }
        self.low = (self.low & 0x00ff_ffff) << 8;
    }

    fn renew(&mut self) {
        while self.range < 1 << 24 {
            self.range <<= 8;
            self.shift();
        }
    }

    /// All bytes; those that the reader assumes are left out.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let start = self.bytes.len();
        // Of the values that all decide the same, the one with the most zeros at its end.
        let top = self.low + u64::from(self.range) - 1;
        let zeros = (0..=32).rev().find(|&zeros| top >> zeros << zeros >= self.low).unwrap_or(0);
        self.low = top >> zeros << zeros;
        for _ in 0..5 {
            self.shift();
        }
        for _ in 0..Reader::ASSUMED_MAX {
            if self.bytes.len() > start && self.bytes.last() == Some(&0) {
                self.bytes.pop();
            }
        }
        self.bytes
    }
}

impl Coder for Writer {
    #[inline]
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> bool {
        let bound = (self.range >> 15) * u32::from(chance.zero);
        if bit {
            self.low += u64::from(bound);
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.adapt(bit);
        self.renew();
        bit
    }

    #[inline]
    fn even_bit(&mut self, bit: bool) -> bool {
        self.range >>= 1;
        if bit {
            self.low += u64::from(self.range);
        }
        self.renew();
        bit
    }
}

/// Reads decisions.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    offset: u32,
    range: u32,
    rest: &'a [u8],
    /// Bytes taken for 0 beyond the end.
    assumed: usize,
}

impl<'a> Reader<'a> {
    /// No writer leaves out more bytes than these.
    const ASSUMED_MAX: usize = 4;

    pub(super) fn new(rest: &'a [u8]) -> Self {
        let mut reader = Self { offset: 0, range: u32::MAX, rest, assumed: 0 };
        for _ in 0..4 {
            reader.shift();
        }
        reader
    }

    fn shift(&mut self) {
        let next = match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => {
                self.assumed += 1;
                0
            }
        };
        self.offset = self.offset << 8 | u32::from(next);
    }

    fn renew(&mut self) {
        while self.range < 1 << 24 {
            self.range <<= 8;
            self.shift();
        }
    }

    /// Whether the bytes have not ended too early: at most so many zeros are assumed behind them.
    pub(super) fn is_sound(&self) -> bool {
        self.assumed <= Self::ASSUMED_MAX
    }

    /// Whether all bytes were read, and no more.
    pub(super) fn is_done(&self) -> bool {
        self.is_sound() && self.rest.is_empty()
    }
}

impl Coder for Reader<'_> {
    fn bit(&mut self, chance: &mut Chance, _: bool) -> bool {
        let bound = (self.range >> 15) * u32::from(chance.zero);
        let bit = self.offset >= bound;
        if bit {
            self.offset -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.adapt(bit);
        self.renew();
        bit
    }

    #[inline]
    fn even_bit(&mut self, _: bool) -> bool {
        self.range >>= 1;
        let bit = self.offset >= self.range;
        if bit {
            self.offset -= self.range;
        }
        self.renew();
        bit
    }
}

/// A number from 0 to 65,535 in decisions: how many bits it has, then those behind the leading one, of which the
/// first few are worth a chance of their own.
#[derive(Clone, Debug)]
pub(super) struct Number {
    lengths: [Chance; 16],
    leading: [Chance; 64],
}

impl Default for Number {
    fn default() -> Self {
        Self { lengths: [Chance::default(); 16], leading: [Chance::default(); 64] }
    }
}

impl Number {
    /// Writes `number`, or reads one.
    pub(super) fn code(&mut self, coder: &mut impl Coder, number: u16) -> u16 {
        // One more has a leading bit always.
        let wanted = u32::from(number) + 1;
        let wanted_bits = 31 - wanted.leading_zeros();
        let mut bits = 0;
        while bits < 16 && coder.bit(&mut self.lengths[bits as usize], bits < wanted_bits) {
            bits += 1;
        }
        let mut found = 1_u32;
        for place in (0..bits).rev() {
            let bit = wanted >> place & 1 == 1;
            // The two bits behind the leading one have chances of their own, for each length.
            let read = if found < 4 {
                coder.bit(&mut self.leading[(bits * 4 + found).min(63) as usize], bit)
            } else {
                coder.even_bit(bit)
            };
            found = found << 1 | u32::from(read);
        }
        (found - 1).min(u32::from(u16::MAX)) as u16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_decisions_are_read_back(
            decisions in prop::collection::vec((0_usize..5, 0_u8..=255), 0..3000), bias in 0_u8..=255,
            numbers in prop::collection::vec(any::<u16>(), 0..20),
        ) {
            let decisions: Vec<_> = decisions.into_iter().map(|(context, random)| (context, random > bias)).collect();
            let mut chances = [Chance::default(); 5];
            let mut number = Number::default();
            let mut writer = Writer::new(vec![7]);
            for (context, bit) in &decisions {
                writer.bit(&mut chances[*context], *bit);
            }
            numbers.iter().for_each(|value| prop_assert_eq_unit(number.code(&mut writer, *value), *value));
            let bytes = writer.finish();
            prop_assert_eq!(bytes[0], 7);
            let mut chances = [Chance::default(); 5];
            let mut number = Number::default();
            let mut reader = Reader::new(&bytes[1..]);
            for (context, bit) in &decisions {
                prop_assert_eq!(reader.bit(&mut chances[*context], false), *bit);
            }
            for value in numbers {
                prop_assert_eq!(number.code(&mut reader, 0), value);
            }
            prop_assert!(reader.is_done());
        }
    }

    fn prop_assert_eq_unit(left: u16, right: u16) {
        assert_eq!(left, right);
    }

    #[test]
    fn probable_decisions_cost_little() {
        let mut writer = Writer::new(Vec::new());
        let mut chance = Chance::default();
        for at in 0..8000 {
            writer.bit(&mut chance, at % 1000 == 0);
        }
        assert!(writer.finish().len() < 40);
        assert_eq!(Writer::new(Vec::new()).finish().len(), 0);
    }
}
