//! When the machine is lent next, by the owner's hours and days, where clocks change.

use idlewood_machine::policy::hours::{Days, Hours, LocalTime, are_open};
use jiff::{ToSpan as _, Zoned};

const MINUTES_PER_DAY: i32 = 24 * 60;

/// What the owner's hours and days are compared with.
pub(crate) fn local_time(local: &Zoned) -> LocalTime {
    let weekday = local.weekday().to_monday_zero_offset() as u8;
    LocalTime { weekday, minute: local.hour() as u16 * 60 + local.minute() as u16 }
}

/// When that changes, to the minute, if it does within a week. A change of the clocks is part of the answer.
pub(super) fn next_change(hours: &[Hours], days: &[Days], local: &Zoned) -> Option<Zoned> {
    let now = are_open(hours, days, local_time(local));
    let mut time = local.with().second(0).subsec_nanosecond(0).build().ok()?;
    for _ in 0..=8 * MINUTES_PER_DAY {
        time = time.checked_add(1.minute()).ok()?;
        if are_open(hours, days, local_time(&time)) != now {
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
    fn local_time_is_that_of_the_zone() {
        let shown = |time| {
            let LocalTime { weekday, minute } = local_time(&local(time));
            (weekday, minute)
        };
        assert_eq!(shown("2026-11-20T12:34:56"), (4, 12 * 60 + 34));
        assert_eq!(shown("2026-11-22T23:59:59"), (6, 24 * 60 - 1));
        assert_eq!(shown("2026-11-23T00:00"), (0, 0));
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
        let open = |list: &[&str], time: &Zoned| are_open(&hours(list), &[], local_time(time));
        // The hour from 2 to 3 does not exist on that day: what would begin within it begins at 3.
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
