//! The owner's policy: whether tasks may run on this machine now, and why not.
//!
//! A state machine without clocks or files: readings, the owner's orders and settings, and the time go in; a
//! [`Judgement`] comes out, with the reason, since when it holds, and what would change it.
//!
//! | reason | code | tasks |
//! |---|---|---|
//! | paused by the user | `paused_by_user` | stand still |
//! | outside of the owner's hours | `outside_hours` | stand still |
//! | on battery | `on_battery` | stand still |
//! | the owner's program NAME runs | `program_runs` | stand still |
//! | owner is present | `owner_present` | limits of `limits.in_use`: by default they stand still |
//! | owner is using the machine | `owner_active` | the same |
//! | other programs use the processor | `foreign_cpu` | stand still |
//! | no room for results | `disk_full` | those that run go on, none begins |
//! | finishing | `finishing` | those that run go on, none begins |
//! | (none) | | limits of `limits.idle`: by default all they can get |
//!
//! If several reasons hold, the first in this table is reported. Tasks that stand still are frozen at once and keep
//! their memory; unstarted ones go back to their submitters after `owner.vacate`.

pub(crate) mod hours;

use std::time::Duration;

use idlewood_overlay::Time;
use jiff::Zoned;

use crate::settings::{self, Settings};

/// The processor counts as free again when others use less than this share of the threshold ...
const QUIET_SHARE: f64 = 0.6;
/// ... for this long. Our choice: a compiler that pauses between two files keeps the machine.
const QUIET_TIME: Duration = Duration::from_secs(30);
/// No task begins when less than this share of the owner's disk limit is free for results ...
const ROOM_LEAST: f64 = 0.05;
/// ... until so much of it is free again.
const ROOM_ENOUGH: f64 = 0.1;

/// Knowledge of the owner's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// No source works: counts as away.
    Unknown,
    /// The owner is present whatever the idle time: a file says so.
    Present,
    /// Time since the last input.
    Idle(Duration),
}

/// The readings.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) input: Input,
    pub(crate) on_battery: bool,
    /// Share of the processors' time, 0 to 1, that others use; `None` while unknown.
    pub(crate) foreign_cpu: Option<f64>,
    /// One of the owner's programs that pause everything, if it runs.
    pub(crate) program: Option<String>,
    /// Share of `limits.disk` that is free or can be freed, 0 to 1; 0 also when the disk itself is nearly full.
    pub(crate) disk_room: f64,
    pub(crate) local: Zoned,
}

/// The owner's orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) pause: Option<Pause>,
    pub(crate) finish: bool,
}

/// A pause ordered by the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) until: Option<Time>,
}

/// Why tasks do not run without limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// See the table above; likewise below.
    PausedByUser,
    OutsideHours,
    OnBattery,
    Program(String),
    OwnerPresent,
    OwnerActive,
    ForeignCpu,
    DiskFull,
    Finishing,
}

impl Reason {
    /// As a code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::PausedByUser => "paused_by_user",
            Self::OutsideHours => "outside_hours",
            Self::OnBattery => "on_battery",
            Self::Program(_) => "program_runs",
            Self::OwnerPresent => "owner_present",
            Self::OwnerActive => "owner_active",
            Self::ForeignCpu => "foreign_cpu",
            Self::DiskFull => "disk_full",
            Self::Finishing => "finishing",
        }
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::PausedByUser => "paused by the user".to_owned(),
            Self::OutsideHours => "outside of the owner's hours".to_owned(),
            Self::OnBattery => "on battery".to_owned(),
            Self::Program(name) => format!("the owner's program {name} runs"),
            Self::OwnerPresent => "owner is present".to_owned(),
            Self::OwnerActive => "owner is using the machine".to_owned(),
            Self::ForeignCpu => "other programs use the processor".to_owned(),
            Self::DiskFull => "no room on disk for more results".to_owned(),
            Self::Finishing => "finishing".to_owned(),
        }
    }

    /// Whether the reason is the owner's presence.
    pub(crate) fn is_return(&self) -> bool {
        matches!(self, Self::OwnerPresent | Self::OwnerActive)
    }
}

/// The consequence for tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) reason: Option<Reason>,
    /// Share of a processor that each task may use; 0: all stand still.
    pub(crate) cpu_percent: u32,
    /// Whether tasks may begin.
    pub(crate) takes_work: bool,
    pub(crate) since: Time,
}

/// Judges, and remembers what that needs.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    judgement: Judgement,
    in_use: bool,
    cpu_is_busy: bool,
    quiet_since: Option<Time>,
    disk_is_full: bool,
}

impl Policy {
    /// Nothing is known yet: as if the owner were away.
    pub(crate) fn new(now: Time) -> Self {
        let judgement = Judgement { reason: None, cpu_percent: 100, takes_work: true, since: now };
        Self { judgement, in_use: false, cpu_is_busy: false, quiet_since: None, disk_is_full: false }
    }

    /// The last judgement.
    pub(crate) fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Whether the owner is present, by the last judgement, whatever its reason.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Judges anew. True if the judgement has changed.
    pub(crate) fn judge(&mut self, now: Time, settings: &Settings, facts: &Facts, orders: Orders) -> bool {
        self.measure_cpu(now, settings.owner.foreign_cpu_percent.get(), facts.foreign_cpu);
        self.disk_is_full = facts.disk_room < if self.disk_is_full { ROOM_ENOUGH } else { ROOM_LEAST };
        let reason = self.reason(&settings.owner, facts, orders);
        let limits = &settings.limits;
        let cpu_percent = match &reason {
            None | Some(Reason::Finishing | Reason::DiskFull) => limits.idle.cpu_percent.get(),
            Some(reason) if reason.is_return() => limits.in_use.cpu_percent.get(),
            Some(_) => 0,
        };
        let takes_work = cpu_percent > 0 && !orders.finish && !self.disk_is_full;
        let before = &self.judgement;
        let is_same = before.reason == reason && before.cpu_percent == cpu_percent && before.takes_work == takes_work;
        if !is_same {
            self.judgement = Judgement { reason, cpu_percent, takes_work, since: now };
        }
        let in_use = match facts.input {
            Input::Present => true,
            Input::Idle(idle) => idle < settings.owner.idle.0,
            Input::Unknown => false,
        };
        !is_same | (in_use != std::mem::replace(&mut self.in_use, in_use))
    }

    fn reason(&self, owner: &settings::Owner, facts: &Facts, orders: Orders) -> Option<Reason> {
        if orders.pause.is_some() {
            return Some(Reason::PausedByUser);
        }
        if !hours::are_open(&owner.hours, &owner.days, &facts.local) {
            return Some(Reason::OutsideHours);
        }
        if facts.on_battery && !owner.on_battery {
            return Some(Reason::OnBattery);
        }
        if let Some(name) = &facts.program {
            return Some(Reason::Program(name.clone()));
        }
        match facts.input {
            Input::Present => return Some(Reason::OwnerPresent),
            Input::Idle(idle) if idle < owner.idle.0 => return Some(Reason::OwnerActive),
            Input::Idle(_) | Input::Unknown => {}
        }
        if self.cpu_is_busy {
            return Some(Reason::ForeignCpu);
        }
        if self.disk_is_full {
            return Some(Reason::DiskFull);
        }
        orders.finish.then_some(Reason::Finishing)
    }

    /// Busy from the first average above the threshold, until it has been well below for a while.
    fn measure_cpu(&mut self, now: Time, threshold_percent: u32, share: Option<f64>) {
        if threshold_percent >= 100 {
            (self.cpu_is_busy, self.quiet_since) = (false, None);
            return;
        }
        let Some(share) = share else { return };
        let threshold = f64::from(threshold_percent) / 100.0;
        if share > threshold {
            (self.cpu_is_busy, self.quiet_since) = (true, None);
        } else if share > threshold * QUIET_SHARE {
            self.quiet_since = None;
        } else if self.cpu_is_busy && now.since(*self.quiet_since.get_or_insert(now)) >= QUIET_TIME {
            (self.cpu_is_busy, self.quiet_since) = (false, None);
        }
    }

    /// What would change the present state, in words; `None` while tasks run without limits.
    pub(crate) fn what_would_change(
        &self,
        now: Time,
        settings: &Settings,
        facts: &Facts,
        orders: Orders,
    ) -> Option<String> {
        let owner = &settings.owner;
        let text = match self.judgement.reason.as_ref()? {
            Reason::PausedByUser => match orders.pause.and_then(|pause| pause.until) {
                Some(until) => format!("`idlewood resume`, or {} s from now", until.since(now).as_secs()),
                None => "`idlewood resume`".to_owned(),
            },
            Reason::OutsideHours => match hours::next_change(&owner.hours, &owner.days, &facts.local) {
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
                // Unknown for a moment after the start.
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
}

#[cfg(test)]
mod tests;
