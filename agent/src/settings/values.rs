//! Values of settings as people write them: `50%`, `2MB/s`, `yes`, one text where a list may be.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use idlewood_trust::manifest::OUTPUT_BYTES_MAX;
use idlewood_units::{ByteSize, Span};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize as _, Deserializer, Serialize};

/// Smallest bandwidth cap: with less, a piece of a blob would take longer than a request may.
const RATE_LEAST: ByteSize = ByteSize(64 << 10);

/// A whole number within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Within<const LEAST: u32, const MOST: u32>(pub(super) u32);

impl<const LEAST: u32, const MOST: u32> Within<LEAST, MOST> {
    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    fn parse(digits: &str, text: &str) -> Result<Self, String> {
        let within = digits.trim().parse().ok().filter(|number| (LEAST..=MOST).contains(number));
        within.map(Self).ok_or_else(|| format!("{text} is not allowed: write a whole number from {LEAST} to {MOST}"))
    }
}

/// A text, a number or a truth value, as text.
struct Scalar;

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("one value, not a list or a table")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_bool<E>(self, truth: bool) -> Result<String, E> {
        Ok(truth.to_string())
    }
}

/// A list of texts, or one text with commas between its parts.
struct Texts<T>(PhantomData<T>);

impl<'de, T: TryFrom<String, Error: fmt::Display>> Visitor<'de> for Texts<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text, or a list of texts")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| T::try_from(part.to_owned()).map_err(E::custom)).collect()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(text) = texts.next_element::<String>()? {
            list.push(T::try_from(text).map_err(A::Error::custom)?);
        }
        Ok(list)
    }
}

/// `["22:00-07:00", "12-13"]`, or `22:00-07:00, 12-13` as one text.
pub(super) fn list<'de, D: Deserializer<'de>, T: TryFrom<String, Error: fmt::Display>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_any(Texts(PhantomData))
}

pub(super) fn whole<'de, D: Deserializer<'de>, const LEAST: u32, const MOST: u32>(
    deserializer: D,
) -> Result<Within<LEAST, MOST>, D::Error> {
    let text = deserializer.deserialize_any(Scalar)?;
    Within::parse(&text, &text).map_err(D::Error::custom)
}

/// `50%`, or 50.
pub(super) fn percent<'de, D: Deserializer<'de>, const LEAST: u32, const MOST: u32>(
    deserializer: D,
) -> Result<Within<LEAST, MOST>, D::Error> {
    let text = deserializer.deserialize_any(Scalar)?;
    let digits = text.trim().strip_suffix('%').unwrap_or(&text);
    Within::parse(digits, &text).map_err(D::Error::custom)
}

/// `true`, or what else people say.
pub(super) fn yes_or_no<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text = deserializer.deserialize_any(Scalar)?;
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(D::Error::custom(format!("{text:?} is not allowed: write true or false"))),
    }
}

/// `2MB/s`, or `2M`.
pub(super) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    let text = deserializer.deserialize_any(Scalar)?;
    let size = text.trim().strip_suffix("/s").unwrap_or(&text);
    let rate: ByteSize = size.parse().map_err(D::Error::custom)?;
    if rate >= RATE_LEAST {
        return Ok(Some(rate));
    }
    Err(D::Error::custom(format!("{rate} is not allowed: write {RATE_LEAST} or more, bytes per second")))
}

pub(super) fn checkpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    let most = ByteSize(OUTPUT_BYTES_MAX);
    if size <= most {
        return Ok(size);
    }
    Err(D::Error::custom(format!("{size} is not allowed: write {most} or less")))
}

pub(super) fn output<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    let (least, most) = (ByteSize(4096), ByteSize(OUTPUT_BYTES_MAX));
    if (least..=most).contains(&size) {
        return Ok(size);
    }
    Err(D::Error::custom(format!("{size} is not allowed: write {least} to {most}, for example \"16M\"")))
}

pub(super) fn task_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    if (Duration::from_secs(1)..=Duration::from_secs(3650 * 86_400)).contains(&span.0) {
        return Ok(span);
    }
    Err(D::Error::custom(format!("{span} is not allowed: write a duration from 1s to 3650d, for example \"7d\"")))
}

pub(super) fn up_to_a_day<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    if (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&span.0) {
        return Ok(span);
    }
    Err(D::Error::custom(format!("{span} is not allowed: write a duration from 1s to 1d, for example \"5m\"")))
}
