//! Why tasks do not run on this machine as they could, and what would change it, in words for its owner.
//!
//! What holds is judged by `idlewood_machine`'s policy; the table of reasons is there.

mod opening;

use std::time::Duration;

use idlewood_machine::policy::{Facts, IN_USE, Input, Judgement, Orders, QUIET_SHARE, QUIET_TIME, ROOM_ENOUGH, Reason};
use idlewood_overlay::Time;
use jiff::{SignedDuration, Zoned};

use crate::settings::Settings;

pub(crate) use opening::local_time;

/// The reason for people.
pub(crate) fn text(reason: &Reason) -> String {
    match reason {
        Reason::PausedByUser => "paused by the user".to_owned(),
        Reason::OutsideHours => "outside of the owner's hours".to_owned(),
        Reason::OnBattery => "on battery".to_owned(),
        Reason::Program(name) => format!("the owner's program {name} runs"),
        Reason::OwnerPresent => "owner is present".to_owned(),
        Reason::OwnerActive => "owner is using the machine".to_owned(),
        Reason::ForeignCpu => "other programs use the processor".to_owned(),
        Reason::DiskFull => "no room on disk for more results".to_owned(),
        Reason::Finishing => "finishing".to_owned(),
    }
}

/// The reason of another machine, by the code that it told.
pub(crate) fn text_of_code(code: &str) -> String {
    let told = [Reason::PausedByUser, Reason::OutsideHours, Reason::OnBattery, Reason::DiskFull, Reason::Finishing];
    match told.iter().find(|reason| reason.code() == code) {
        Some(reason) => text(reason),
        None if code == IN_USE => "in use by its owner".to_owned(),
        None => code.replace('_', " "),
    }
}

/// What would change this judgement; `None` while tasks run without limits. `local` is the time where the machine is.
pub(crate) fn what_would_change(
    judgement: &Judgement,
    now: Time,
    local: &Zoned,
    settings: &Settings,
    facts: &Facts,
    orders: Orders,
) -> Option<String> {
    let owner = &settings.owner;
    let text = match judgement.reason.as_ref()? {
        Reason::PausedByUser => match orders.pause.and_then(|pause| pause.until) {
            Some(until) => format!("{} local time, or `idlewood resume`", clock(local, until.since(now))),
            None => "`idlewood resume`".to_owned(),
        },
        Reason::OutsideHours => match opening::next_change(&owner.hours, &owner.days, local) {
            Some(opens) => format!("{} local time (owner.hours, owner.days)", opens.strftime("%a %H:%M")),
            None => "other owner.hours or owner.days".to_owned(),
        },
        Reason::OnBattery => "mains power (or owner.on_battery = true)".to_owned(),
        Reason::Program(name) => format!("{name} ends (owner.programs)"),
        Reason::OwnerPresent => "the owner leaves".to_owned(),
        Reason::OwnerActive => {
            let idle = if let Input::Idle(idle) = facts.input { idle } else { Duration::ZERO };
            let left = owner.idle.0.saturating_sub(idle).as_secs_f64().ceil();
            format!("{left} s more without input (owner.idle = {})", owner.idle)
        }
        Reason::ForeignCpu => {
            // Not known for a moment after the start.
            let used = facts.foreign_cpu.map_or_else(String::new, |share| format!(", now {:.0} %", share * 100.0));
            let threshold = f64::from(owner.foreign_cpu_percent.get()) * QUIET_SHARE;
            let seconds = QUIET_TIME.as_secs();
            format!("others use at most {threshold:.0} % for {seconds} s{used} (owner.foreign_cpu_percent)")
        }
        Reason::DiskFull => {
            let percent = ROOM_ENOUGH * 100.0;
            format!(
                "submitters take results, `idlewood bag rm` removes bags, or the disk or limits.disk (now {}) has \
                 {percent:.0} % of room",
                settings.limits.disk
            )
        }
        Reason::Finishing => "`idlewood resume`; the agent ends when its running tasks have".to_owned(),
    };
    Some(text)
}

/// In how long a time a judgement ends by itself; `None` where something has to happen first.
pub(crate) fn ends_in(
    judgement: &Judgement,
    now: Time,
    local: &Zoned,
    settings: &Settings,
    orders: Orders,
) -> Option<Duration> {
    match judgement.reason.as_ref()? {
        Reason::PausedByUser => Some(orders.pause?.until?.since(now)),
        Reason::OutsideHours => {
            let opens = opening::next_change(&settings.owner.hours, &settings.owner.days, local)?;
            opens.timestamp().duration_since(local.timestamp()).try_into().ok()
        }
        _ => None,
    }
}

/// What the clock shows in so long a time: with the day where that is another one, with seconds where they matter.
fn clock(local: &Zoned, later: Duration) -> String {
    let at = SignedDuration::try_from(later).ok().and_then(|later| local.checked_add(later).ok());
    let Some(at) = at else { return "in more years than a clock shows".to_owned() };
    let shown = if at.date() != local.date() {
        "%a %H:%M"
    } else if later < MINUTES {
        "%H:%M:%S"
    } else {
        "%H:%M"
    };
    at.strftime(shown).to_string()
}

/// Seconds are told of times sooner than this.
const MINUTES: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use idlewood_machine::policy::Pause;
    use idlewood_units::Span;

    use super::*;

    #[test]
    fn what_would_change_it_is_told_for_every_reason() {
        let noon: jiff::civil::DateTime = "2026-11-20T12:00".parse().expect("a time");
        let noon = noon.to_zoned(jiff::tz::TimeZone::UTC).expect("it exists");
        let quiet = || Facts {
            input: Input::Idle(Duration::from_secs(3600)),
            on_battery: false,
            foreign_cpu: Some(0.0),
            program: None,
            disk_room: 1.0,
            local: local_time(&noon),
        };
        let orders = |pause| Orders { pause, finish: false };
        let (none, paused) = (orders(None), orders(Some(Pause { until: None })));
        let now = Time::ZERO + Duration::from_secs(7);
        let until = orders(Some(Pause { until: Some(Time::ZERO + Duration::from_secs(60)) }));
        let mut settings = Settings::default();
        settings.owner.hours = vec!["22-7".parse().expect("hours")];
        settings.owner.idle = Span(Duration::from_secs(300));
        let active = Facts { input: Input::Idle(Duration::from_millis(59_500)), ..quiet() };
        let busy = Facts { foreign_cpu: Some(0.5), ..quiet() };
        for (reason, facts, orders, wanted) in [
            (None, quiet(), none, None),
            (Some(Reason::PausedByUser), quiet(), paused, Some("`idlewood resume`")),
            (Some(Reason::PausedByUser), quiet(), until, Some("12:00:53 local time, or `idlewood resume`")),
            (Some(Reason::OutsideHours), quiet(), none, Some("Fri 22:00 local time (owner.hours, owner.days)")),
            (Some(Reason::OnBattery), quiet(), none, Some("mains power (or owner.on_battery = true)")),
            (Some(Reason::Program("obs".to_owned())), quiet(), none, Some("obs ends (owner.programs)")),
            (Some(Reason::OwnerPresent), quiet(), none, Some("the owner leaves")),
            (Some(Reason::OwnerActive), active, none, Some("241 s more without input (owner.idle = 5m)")),
            (
                Some(Reason::ForeignCpu),
                busy,
                none,
                Some("others use at most 15 % for 30 s, now 50 % (owner.foreign_cpu_percent)"),
            ),
            (
                Some(Reason::Finishing),
                quiet(),
                none,
                Some("`idlewood resume`; the agent ends when its running tasks have"),
            ),
        ] {
            let judgement = Judgement { reason, cpu_percent: 0, takes_work: false, since: now };
            let change = what_would_change(&judgement, now, &noon, &settings, &facts, orders);
            assert_eq!(change.as_deref(), wanted);
            let ends_in = ends_in(&judgement, now, &noon, &settings, orders);
            let of_itself = match &judgement.reason {
                Some(Reason::OutsideHours) => Some(10 * 3600),
                Some(Reason::PausedByUser) if orders == until => Some(53),
                _ => None,
            };
            assert_eq!(ends_in, of_itself.map(Duration::from_secs), "{judgement:?}");
        }
    }
}
