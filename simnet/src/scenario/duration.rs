//! Durations in scenario files: whole numbers with a unit. In reports they are seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A whole number and its unit, such as 30m.
///
/// # Errors
/// What to write instead.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a whole number and one of ms, s, m, h, d, such as 30m or 4h".to_owned();
    let unit_at = text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?;
    let (count, unit) = text.split_at(unit_at);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60 * 1_000,
        "h" => 3_600 * 1_000,
        "d" => 24 * 3_600 * 1_000,
        _ => return Err(wrong()),
    };
    let count: u64 = count.parse().map_err(|_| wrong())?;
    count.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(wrong)
}

pub(super) fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

pub(super) fn optional_seconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
}

pub(super) fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map_err(serde::de::Error::custom)
}

pub(super) fn optional_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "none" { Ok(None) } else { parse_duration(&text).map(Some).map_err(serde::de::Error::custom) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2d"), Ok(Duration::from_secs(2 * 24 * 3600)));
        for wrong in ["", "4", "h", "4 h", "4x", "-4h", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
