//! Sizes, durations, numbers and variables as people write them, in flags and in spec files alike.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

/// Most tasks of one bag: what a manifest of the largest size holds.
pub const TASKS_MAX: u64 = 1_000_000;

/// A flaw in a value, as one sentence that says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

/// A scalar of a spec file: `memory = "256M"` and `memory = 268435456` both do.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Whole(i64),
    Real(f64),
}

impl fmt::Display for Scalar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::Whole(number) => number.fmt(formatter),
            Self::Real(number) => number.fmt(formatter),
        }
    }
}

/// A number of bytes: `256M`, `2GB`, `1.5GiB`, `65536`. K, M, G and T are powers of 1024, as in Slurm and systemd, with and
/// without a B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError(format!("{text:?} is not a size: write for example 256M, 2GB, 1.5G or 65536"));
        let (number, unit) = number_and_unit(text.trim()).ok_or_else(wrong)?;
        let shift = match unit.trim_start().to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(wrong()),
        };
        let bytes = number * (1_u64 << shift) as f64;
        // Beyond 2^53 a size is a slip of the pen, and no longer exact.
        if (1.0..9.0e15).contains(&bytes) { Ok(Self(bytes as u64)) } else { Err(wrong()) }
    }
}

/// A stretch of time: `90s`, `1h30m`, `1.5h`, `2d`, or seconds without a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError(format!("{text:?} is not a duration: write for example 90s, 15m, 1h30m or 2d"));
        let mut rest = text.trim();
        let mut seconds = 0.0;
        let mut smallest = f64::INFINITY;
        while !rest.is_empty() {
            let (number, after) = number_and_unit(rest).ok_or_else(wrong)?;
            let after = after.trim_start();
            let end = after.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(after.len());
            let scale = match &after[..end] {
                "" if smallest.is_infinite() && after.is_empty() => 1.0,
                "s" | "sec" | "second" | "seconds" => 1.0,
                "m" | "min" | "minute" | "minutes" => 60.0,
                "h" | "hour" | "hours" => 3_600.0,
                "d" | "day" | "days" => 86_400.0,
                _ => return Err(wrong()),
            };
            // "30m1h" and "1h2h" are more likely typing errors than sums.
            if scale >= smallest {
                return Err(wrong());
            }
            smallest = scale;
            seconds += number * scale;
            rest = after[end..].trim_start();
        }
        // The upper bound is a century.
        if seconds <= 0.0 || seconds > 3.2e9 { Err(wrong()) } else { Ok(Self(Duration::from_secs_f64(seconds))) }
    }
}

impl fmt::Display for Span {
    /// As it is parsed: `1h30m`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_secs();
        for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
            if rest >= seconds {
                write!(formatter, "{}{unit}", rest / seconds)?;
                rest %= seconds;
            }
        }
        match (rest, self.0.subsec_nanos()) {
            (0, 0) if !self.0.is_zero() => Ok(()),
            (seconds, 0) => write!(formatter, "{seconds}s"),
            (seconds, nanos) => write!(formatter, "{}s", seconds as f64 + f64::from(nanos) / 1e9),
        }
    }
}

impl fmt::Display for ByteSize {
    /// As it is parsed, in the largest unit without remainder: `10G`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
        match units.iter().find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift)) {
            Some((unit, shift)) => write!(formatter, "{}{unit}", self.0 >> shift),
            None => self.0.fmt(formatter),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Span {
    /// Whole seconds, rounded up.
    pub fn seconds(self) -> u64 {
        self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0)
    }
}

/// A set of numbers as `--array` and `--index` take it: `5`, `0-99`, `0-99:10`, `1,3,7-9`.
///
/// Each number counts once and they come in ascending order, as in Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Numbers(BTreeSet<u64>);

impl FromStr for Numbers {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = |part: &str| {
            ValueError(format!("{part:?} is not a number or range: write for example 5, 0-99, 0-99:10 or 1,3,7-9"))
        };
        let too_many =
            || ValueError(format!("{text:?} has more than the {TASKS_MAX} numbers that one bag may have: split it"));
        let mut numbers = BTreeSet::new();
        let mut total = 0_u64;
        for part in text.split(',').map(str::trim) {
            let number = |digits: &str| {
                let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                if plain { digits.parse::<u64>().map_err(|_| wrong(part)) } else { Err(wrong(part)) }
            };
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, number(step)?),
                None => (part, 1),
            };
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None if part == range => (number(range)?, number(range)?),
                None => return Err(wrong(part)),
            };
            if step == 0 {
                return Err(ValueError(format!("the step of {part:?} is zero: use 1 or more")));
            }
            if last < first {
                return Err(ValueError(format!("the range {part:?} ends before it begins: write {last}-{first}")));
            }
            // Counted before anything is built: `0-99999999999` must cost nothing.
            total = total.saturating_add(((last - first) / step).saturating_add(1));
            if total > TASKS_MAX {
                return Err(too_many());
            }
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            numbers.extend((first..=last).step_by(step));
        }
        Ok(Self(numbers))
    }
}

impl Numbers {
    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().copied()
    }

    /// Whether `number` is one of them.
    pub fn contains(&self, number: u64) -> bool {
        self.0.contains(&number)
    }

    /// How many there are; never 0.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The numbers of a bag's tasks: some, or all from one on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Scalar")]
pub enum Array {
    /// These.
    Some(Numbers),
    /// `5-` or `0-:10`: this one and so on, without an end.
    From {
        /// The first.
        first: u64,
        /// From one to the next.
        step: u64,
    },
}

impl FromStr for Array {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (range, step) = text.trim().split_once(':').unwrap_or((text.trim(), "1"));
        let Some(first) = range.strip_suffix('-').filter(|first| !first.contains([',', '-'])) else {
            return text.parse().map(Self::Some);
        };
        let number =
            |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match (number(first), number(step)) {
            (Some(first), Some(step @ 1..=1_000_000)) if first <= u64::MAX / 2 => Ok(Self::From { first, step }),
            _ => Err(ValueError(format!("{text:?} is no range without an end: write for example 0- or 5-:10"))),
        }
    }
}

impl Array {
    /// The numbers, if they have an end.
    pub fn numbers(&self) -> Option<&Numbers> {
        match self {
            Self::Some(numbers) => Some(numbers),
            Self::From { .. } => None,
        }
    }
}

/// One environment variable, `KEY=VALUE`; or `KEY`, whose value comes from the environment of `submit`, so that a
/// secret does not appear in the list of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub key: String,
    /// Its value, which may be empty.
    pub value: String,
}

impl Variable {
    /// A variable, checked: programs can receive its name and value.
    ///
    /// # Errors
    /// When they cannot, or when the name is one that idlewood sets itself.
    pub fn new(key: &str, value: &str) -> Result<Self, ValueError> {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(ValueError(format!("{key:?} cannot be an environment variable: write KEY=VALUE")));
        }
        if key.starts_with("IDLEWOOD_") {
            return Err(ValueError(format!("{key} is reserved: idlewood sets the IDLEWOOD_* variables itself")));
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl FromStr for Variable {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.split_once('=') {
            Some((key, value)) => Self::new(key, value),
            None => {
                let value = std::env::var(text).map_err(|_| {
                    ValueError(format!("{text:?} has no value, here and in the environment: write {text}=VALUE"))
                })?;
                Self::new(text, &value)
            }
        }
    }
}

macro_rules! from_scalar {
    ($($name:ident),*) => { $(
        impl TryFrom<Scalar> for $name {
            type Error = ValueError;

            fn try_from(scalar: Scalar) -> Result<Self, ValueError> {
                scalar.to_string().parse()
            }
        }
    )* };
}
from_scalar!(ByteSize, Span, Numbers, Array);

/// Splits `12.5M` into the number and what follows it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|character: char| !(character.is_ascii_digit() || character == '.')).unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_shown_parse_to_themselves() {
        for (seconds, text) in
            [(300.0, "5m"), (5400.0, "1h30m"), (172_800.0, "2d"), (90_061.0, "1d1h1m1s"), (1.5, "1.5s")]
        {
            let span = Span(Duration::from_secs_f64(seconds));
            assert_eq!((span.to_string().as_str(), text.parse()), (text, Ok(span)));
        }
        for (bytes, text) in
            [(10 << 30, "10G"), (1 << 20, "1M"), (1536 << 10, "1536K"), (1000, "1000"), (1 << 40, "1T")]
        {
            assert_eq!((ByteSize(bytes).to_string().as_str(), text.parse()), (text, Ok(ByteSize(bytes))));
        }
    }

    fn numbers(text: &str) -> Vec<u64> {
        text.parse::<Numbers>().unwrap().iter().collect()
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(numbers("5"), [5]);
        assert_eq!(numbers("0-3"), [0, 1, 2, 3]);
        assert_eq!(numbers("0-9:4"), [0, 4, 8]);
        assert_eq!(numbers("7-9,1, 3"), [1, 3, 7, 8, 9]);
        assert_eq!(numbers("3,3,2-4"), [2, 3, 4]);
        assert_eq!(numbers("18446744073709551615"), [u64::MAX]);
        assert_eq!(numbers("0-999999").len() as u64, TASKS_MAX);
    }

    #[test]
    fn a_range_may_have_no_end() {
        assert_eq!("0-".parse(), Ok(Array::From { first: 0, step: 1 }));
        assert_eq!("7-:3".parse(), Ok(Array::From { first: 7, step: 3 }));
        assert_eq!("0-3".parse::<Array>().unwrap().numbers().map(Numbers::count), Some(4));
        for text in ["-", "a-", "1,2-", "0-:0", "0-:x", "18446744073709551615-", "1--"] {
            assert!(text.parse::<Array>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn numbers_are_refused() {
        for text in ["", "a", "-1", "1-", "-", "1,,2", "5-3", "0-9:0", "5:2", "1 2", "+5", "0-9:", "0--3", "1e3"] {
            assert!(text.parse::<Numbers>().is_err(), "{text:?} was taken");
        }
        for text in ["0-1000000", "0-18446744073709551615", "0-999999,5"] {
            assert!(text.parse::<Numbers>().unwrap_err().to_string().contains("split it"), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("256M", 256 << 20),
            ("256 MiB", 256 << 20),
            ("1.5g", 3 << 29),
            ("1T", 1 << 40),
            ("12B", 12),
            ("2GB", 2 << 30),
            ("64k", 1 << 16),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text:?}");
        }
        for text in ["", "M", "0", "-1M", "1X", "256Mb/s", "9999999T", "1..5G", "NaN", "inf"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn durations_are_read() {
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("15m", 900),
            ("15min", 900),
            ("1h30m", 5_400),
            ("1h 30m 5s", 5_405),
            ("2d", 172_800),
            ("0.5s", 1),
            ("1.5h", 5_400),
            ("1 hour 30 minutes", 5_400),
        ] {
            assert_eq!(text.parse::<Span>().unwrap().seconds(), seconds, "{text:?}");
        }
        for text in ["", "h", "0", "0s", "-5m", "1h1h", "30m1h", "1h30", "5x", "99999999999d", "1 hr", "1e3"] {
            assert!(text.parse::<Span>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn variables_are_read() {
        assert_eq!("A=b=c".parse(), Variable::new("A", "b=c"));
        assert_eq!("A=".parse::<Variable>().unwrap().value, "");
        for text in ["A", "=b", "IDLEWOOD_TASK_INDEX=3", "A=\0"] {
            assert!(text.parse::<Variable>().is_err(), "{text:?} was taken");
        }
    }
}
