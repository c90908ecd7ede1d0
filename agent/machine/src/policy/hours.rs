//! Hours and days at which the owner lends the machine, in local time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_PER_DAY: u16 = 24 * 60;

/// What a clock on the wall and a calendar show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Day of the week: 0 is Monday, 6 is Sunday.
    pub weekday: u8,
    /// Minute of the day, 0 to 1439.
    pub minute: u16,
}

/// From a minute of the day to another, which is not part of it and may lie on the next day.
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
            DAYS.iter().position(|name| *name == lower)
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
        match (DAYS[self.first], DAYS[self.last]) {
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
    fn include(self, weekday: u8) -> bool {
        let number = usize::from(weekday);
        if self.first <= self.last {
            (self.first..=self.last).contains(&number)
        } else {
            number >= self.first || number <= self.last
        }
    }
}

/// Whether the machine is lent at this local time. No hours are all hours, no days are all days; hours that go past
/// midnight belong to the day on which they begin.
pub fn are_open(hours: &[Hours], days: &[Days], local: LocalTime) -> bool {
    let LocalTime { weekday: today, minute } = local;
    let yesterday = (today + 6) % 7;
    let is_day = |day| days.is_empty() || days.iter().any(|days| days.include(day));
    if hours.is_empty() {
        return is_day(today);
    }
    hours.iter().any(|hours| {
        if hours.from < hours.to {
            return is_day(today) && (hours.from..hours.to).contains(&minute);
        }
        is_day(today) && minute >= hours.from || is_day(yesterday) && minute < hours.to
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As "fri 9:05".
    fn local(text: &str) -> LocalTime {
        let (day, time) = text.split_once(' ').expect("a day and a time");
        let (hour, minute) = time.split_once(':').expect("a time");
        let number = |text: &str| text.parse::<u16>().expect("a number");
        let weekday = DAYS.iter().position(|name| *name == day).expect("a day") as u8;
        LocalTime { weekday, minute: 60 * number(hour) + number(minute) }
    }

    fn hours(list: &[&str]) -> Vec<Hours> {
        list.iter().map(|text| text.parse().expect("hours")).collect()
    }

    fn days(list: &[&str]) -> Vec<Days> {
        list.iter().map(|text| text.parse().expect("days")).collect()
    }

    #[test]
    fn hours_as_people_write_them_are_understood() {
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

    #[test]
    fn hours_and_days_in_local_time() {
        for (list, on, time, expected) in [
            (&[][..], &[][..], "fri 12:00", true),
            (&["9-17"], &[], "fri 08:59", false),
            (&["9-17"], &[], "fri 09:00", true),
            (&["9-17"], &[], "fri 16:59", true),
            (&["9-17"], &[], "fri 17:00", false),
            (&["0-24"], &[], "fri 23:59", true),
            (&["18-0"], &[], "fri 23:59", true),
            (&["18-0"], &[], "sat 00:00", false),
            (&["9-12", "13-17"], &[], "fri 12:30", false),
            (&["9-12", "13-17"], &[], "fri 13:30", true),
            (&[], &["sat-sun"], "fri 23:59", false),
            (&[], &["sat-sun"], "sat 00:00", true),
            (&[], &["sat-sun"], "sun 23:59", true),
            (&[], &["sat-sun"], "mon 00:00", false),
            (&[], &["sat-mon", "wed"], "mon 00:00", true),
            (&[], &["fri-mon"], "tue 00:00", false),
            // Past midnight: Friday's night goes until Saturday morning.
            (&["22-6"], &["fri"], "fri 05:59", false),
            (&["22-6"], &["fri"], "fri 22:00", true),
            (&["22-6"], &["fri"], "sat 05:59", true),
            (&["22-6"], &["fri"], "sat 06:00", false),
            (&["22-6"], &["fri"], "sat 22:00", false),
            (&["22-6"], &["sun"], "mon 03:00", true),
        ] {
            assert_eq!(are_open(&hours(list), &days(on), local(time)), expected, "{list:?} {on:?} {time}");
        }
    }
}
