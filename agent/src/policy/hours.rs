//! Hours and days at which the owner lends the machine, in local time.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Weekday;
use jiff::{ToSpan as _, Zoned};
use serde::{Deserialize, Serialize};

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];
const MINUTES_PER_DAY: u16 = 24 * 60;

/// From a minute of the day to another, exclusive, which may lie on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    from: u16,
    to: u16,
}

/// A day of the week, or several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Days {
    first: usize,
    last: usize,
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} are no hours: write for example \"22:00-07:00\" or \"12-13:30\"");
        let minute = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':').unwrap_or((text.trim(), "0"));
            let number = |digits: &str| {
                let is_plain = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
                is_plain.then(|| digits.parse::<u16>().ok()).flatten()
            };
            let (hours, minutes) = (number(hours)?, number(minutes)?);
            (minutes < 60 && hours * 60 + minutes <= MINUTES_PER_DAY).then_some(hours * 60 + minutes)
        };
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let (from, to) = (minute(from).ok_or_else(wrong)?, minute(to).ok_or_else(wrong)?);
        if from == to || from == MINUTES_PER_DAY { Err(wrong()) } else { Ok(Self { from, to }) }
    }
}

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let day = |text: &str| {
            let lower = text.trim().to_ascii_lowercase();
            DAYS.iter().position(|(name, _)| *name == lower)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let both = day(first).zip(day(last));
        let (first, last) = both.ok_or_else(|| {
            format!(
                "{text:?} is no day: write mon, tue, wed, thu, fri, sat or sun, or several in a row like \"mon-fri\""
            )
        })?;
        Ok(Self { first, last })
    }
}

impl TryFrom<String> for Hours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Days {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:02}:{:02}-{:02}:{:02}", self.from / 60, self.from % 60, self.to / 60, self.to % 60)
    }
}

impl fmt::Display for Days {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (DAYS[self.first].0, DAYS[self.last].0) {
            (first, last) if first == last => formatter.write_str(first),
            (first, last) => write!(formatter, "{first}-{last}"),
        }
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> Self {
        hours.to_string()
    }
}

impl From<Days> for String {
    fn from(days: Days) -> Self {
        days.to_string()
    }
}

impl Days {
    fn include(self, day: Weekday) -> bool {
        let number = day.to_monday_zero_offset() as usize;
        if self.first <= self.last {
            (self.first..=self.last).contains(&number)
        } else {
            number >= self.first || number <= self.last
        }
    }
}

/// Whether the machine is lent at this local time. No hours mean all hours, no days all days; hours that pass midnight
/// belong to the day on which they begin.
pub(crate) fn are_open(hours: &[Hours], days: &[Days], local: &Zoned) -> bool {
    let minute = local.hour() as u16 * 60 + local.minute() as u16;
    let today = local.weekday();
    let is_day = |day| days.is_empty() || days.iter().any(|days| days.include(day));
    if hours.is_empty() {
        return is_day(today);
    }
    hours.iter().any(|hours| {
        if hours.from < hours.to {
            return is_day(today) && (hours.from..hours.to).contains(&minute);
        }
        is_day(today) && minute >= hours.from || is_day(today.previous()) && minute < hours.to
    })
}

/// When that changes, to the minute, if it does within a week. Accounts for changes of the clocks.
pub(crate) fn next_change(hours: &[Hours], days: &[Days], local: &Zoned) -> Option<Zoned> {
    let now = are_open(hours, days, local);
    let mut time = local.with().second(0).subsec_nanosecond(0).build().ok()?;
    for _ in 0..=8 * i32::from(MINUTES_PER_DAY) {
        time = time.checked_add(1.minute()).ok()?;
        if are_open(hours, days, &time) != now {
            return Some(time);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    /// Central Europe: on 29 March 2026 at 2:00 clocks go to 3:00, on 25 October at 3:00 back to 2:00.
    fn europe() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a time zone")
    }

    fn local(text: &str) -> Zoned {
        let civil: jiff::civil::DateTime = text.parse().expect("a time");
        civil.to_zoned(europe()).expect("it exists")
    }

    fn hours(list: &[&str]) -> Vec<Hours> {
        list.iter().map(|text| text.parse().expect("hours")).collect()
    }

    fn days(list: &[&str]) -> Vec<Days> {
        list.iter().map(|text| text.parse().expect("days")).collect()
    }

    #[test]
    fn common_notations_of_hours_are_understood() {
        for (text, shown) in [
            ("22:00-07:00", "22:00-07:00"),
            ("9-17", "09:00-17:00"),
            ("0:30 - 24:00", "00:30-24:00"),
            ("18-0", "18:00-00:00"),
        ] {
            assert_eq!(text.parse::<Hours>().expect("hours").to_string(), shown);
        }
        for text in ["", "9", "9-9", "25-26", "9:60-10", "9-24:01", "24:00-7", "a-b", "-", "9-10-11", "+9-10", "0-0"] {
            let error = text.parse::<Hours>().expect_err(text);
            assert!(error.contains("22:00-07:00"), "{error}");
        }
        for (text, shown) in [("Mon", "mon"), ("mon-fri", "mon-fri"), ("sat - sun", "sat-sun"), ("fri-mon", "fri-mon")]
        {
            assert_eq!(text.parse::<Days>().expect("days").to_string(), shown);
        }
        for text in ["", "monday", "mon-", "mon,tue"] {
            assert!(text.parse::<Days>().expect_err(text).contains("mon-fri"));
        }
    }

    // 2026-11-20 is a Friday.
    #[test]
    fn hours_and_days_in_local_time() {
        for (list, on, time, expected) in [
            (&[][..], &[][..], "2026-11-20T12:00", true),
            (&["9-17"], &[], "2026-11-20T08:59:59", false),
            (&["9-17"], &[], "2026-11-20T09:00", true),
            (&["9-17"], &[], "2026-11-20T16:59:59", true),
            (&["9-17"], &[], "2026-11-20T17:00", false),
            (&["0-24"], &[], "2026-11-20T23:59:59", true),
            (&["18-0"], &[], "2026-11-20T23:59:59", true),
            (&["18-0"], &[], "2026-11-21T00:00", false),
            (&["9-12", "13-17"], &[], "2026-11-20T12:30", false),
            (&["9-12", "13-17"], &[], "2026-11-20T13:30", true),
            (&[], &["sat-sun"], "2026-11-20T23:59:59", false),
            (&[], &["sat-sun"], "2026-11-21T00:00", true),
            (&[], &["sat-sun"], "2026-11-22T23:59:59", true),
            (&[], &["sat-sun"], "2026-11-23T00:00", false),
            (&[], &["sat-mon", "wed"], "2026-11-23T00:00", true),
            (&[], &["fri-mon"], "2026-11-24T00:00", false),
            // Past midnight: Friday's night goes until Saturday morning.
            (&["22-6"], &["fri"], "2026-11-20T05:59", false),
            (&["22-6"], &["fri"], "2026-11-20T22:00", true),
            (&["22-6"], &["fri"], "2026-11-21T05:59:59", true),
            (&["22-6"], &["fri"], "2026-11-21T06:00", false),
            (&["22-6"], &["fri"], "2026-11-21T22:00", false),
            (&["22-6"], &["sun"], "2026-11-23T03:00", true),
        ] {
            assert_eq!(are_open(&hours(list), &days(on), &local(time)), expected, "{list:?} {on:?} {time}");
        }
    }

    #[test]
    fn the_next_change_is_told() {
        let next = |list: &[&str], on: &[&str], time| {
            next_change(&hours(list), &days(on), &local(time)).map(|next| next.datetime().to_string())
        };
        assert_eq!(next(&["22-6"], &[], "2026-11-20T12:34:56").as_deref(), Some("2026-11-20T22:00:00"));
        assert_eq!(next(&["22-6"], &[], "2026-11-20T23:34:56").as_deref(), Some("2026-11-21T06:00:00"));
        assert_eq!(next(&["22-6"], &["tue"], "2026-11-20T23:34:56").as_deref(), Some("2026-11-24T22:00:00"));
        assert_eq!(next(&["9-17"], &["fri"], "2026-11-20T17:00").as_deref(), Some("2026-11-27T09:00:00"));
        assert_eq!(next(&[], &[], "2026-11-20T17:00"), None);
    }

    #[test]
    fn clocks_that_change_neither_skip_nor_repeat_an_opening_wrongly() {
        let open = |list: &[&str], time: &Zoned| are_open(&hours(list), &[], time);
        // The hour from 2 to 3 does not exist on that day: hours that would begin within it begin at 3.
        let before = local("2026-03-29T01:59");
        let change = next_change(&hours(&["2:30-5"]), &[], &before).expect("it opens");
        assert_eq!(change.datetime().to_string(), "2026-03-29T03:00:00");
        assert_eq!(change.timestamp().as_second() - before.timestamp().as_second(), 60);
        // From 2 to 3 is there twice: open for two hours.
        let start = local("2026-10-25T01:59:00");
        let opens = next_change(&hours(&["2-3"]), &[], &start).expect("it opens");
        let closes = next_change(&hours(&["2-3"]), &[], &opens).expect("it closes");
        assert_eq!(closes.timestamp().as_second() - opens.timestamp().as_second(), 2 * 3600);
        assert!(open(&["2-3"], &opens) && !open(&["2-3"], &closes));
        // The same moment elsewhere is another hour.
        let utc = local("2026-11-20T23:30").with_time_zone(TimeZone::UTC);
        assert!(open(&["22-23"], &utc) && !open(&["22-23"], &local("2026-11-20T23:30")));
    }
}
