//! The owner's policy: whether tasks may run on this machine now, and why not.
//!
//! A state machine without clocks or files: readings, the owner's orders and settings, and the time go in; a
//! [`Judgement`] comes out, with the reason and since when it holds.
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

pub mod hours;

use std::time::Duration;

use idlewood_overlay::Time;

use self::hours::{Days, Hours, LocalTime};

/// The processor counts as free again when others use less than this share of the threshold ...
pub const QUIET_SHARE: f64 = 0.6;
/// ... for this long. Our choice: a compiler that pauses between two files keeps the machine.
pub const QUIET_TIME: Duration = Duration::from_secs(30);
/// No task begins when less than this share of the owner's disk limit is free for results ...
const ROOM_LEAST: f64 = 0.05;
/// ... until so much of it is free again.
pub const ROOM_ENOUGH: f64 = 0.1;

/// What other machines are told where the owner or the owner's programs use the machine.
pub const IN_USE: &str = "in_use";

/// Knowledge of the owner's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// No source works: counts as away.
    Unknown,
    /// The owner is there whatever the idle time: a file says so.
    Present,
    /// Time since the last input.
    Idle(Duration),
}

/// The readings.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When the owner gave input.
    pub input: Input,
    /// Whether the machine has no mains power.
    pub on_battery: bool,
    /// Share of the processors' time, 0 to 1, that others use; `None` while it is not known.
    pub foreign_cpu: Option<f64>,
    /// One of the owner's programs that pause everything, if it runs.
    pub program: Option<String>,
    /// Share of `limits.disk` that is free or can be freed, 0 to 1; 0 also when the disk itself is nearly full.
    pub disk_room: f64,
    /// Time and day where the machine is.
    pub local: LocalTime,
}

/// The owner's orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// All tasks stand still.
    pub pause: Option<Pause>,
    /// Take no new tasks, complete those that run, and end.
    pub finish: bool,
}

/// A pause ordered by the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ends; `None`: when the owner says so.
    pub until: Option<Time>,
}

/// Why tasks do not run as they could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The owner ordered a pause.
    PausedByUser,
    /// It is none of the hours and days at which the owner lends the machine.
    OutsideHours,
    /// There is no mains power.
    OnBattery,
    /// This one of the owner's programs runs.
    Program(String),
    /// A file says that the owner is there.
    OwnerPresent,
    /// The last input is not long ago.
    OwnerActive,
    /// Others use more of the processors than the owner lets them without stopping tasks.
    ForeignCpu,
    /// There is no room for results.
    DiskFull,
    /// The owner ordered the end.
    Finishing,
}

impl Reason {
    /// Its name for programs: the code of the table above.
    pub fn code(&self) -> &'static str {
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

    /// What other machines of the grid are told of it: not what the owner does, nor with which program.
    pub fn code_for_others(&self) -> &'static str {
        match self {
            Self::Program(_) | Self::OwnerPresent | Self::OwnerActive | Self::ForeignCpu => IN_USE,
            reason => reason.code(),
        }
    }

    /// Whether the reason is the owner's presence.
    pub fn is_return(&self) -> bool {
        matches!(self, Self::OwnerPresent | Self::OwnerActive)
    }
}

/// The consequence for tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Why tasks do not run as they could, if they do not.
    pub reason: Option<Reason>,
    /// How much of a processor each task may use; 0: all stand still.
    pub cpu_percent: u32,
    /// Whether tasks may begin.
    pub takes_work: bool,
    /// Since when that is so.
    pub since: Time,
}

impl Judgement {
    /// Whether all tasks stand still.
    pub fn stands_still(&self) -> bool {
        self.cpu_percent == 0
    }
}

/// What the owner has set of when tasks may run, and how much of the processor they may use. The defaults are those that ship.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerSettings {
    /// Time without input before tasks may run.
    pub idle: Duration,
    /// How long the owner is back before unstarted tasks, and begun ones that have a checkpoint, go back to their submitters.
    pub vacate: Duration,
    /// Whether tasks may run on battery.
    pub on_battery: bool,
    /// Share of all processors that others may use while tasks run, 1 to 100; 100: all of it.
    pub foreign_cpu_percent: u32,
    /// Hours at which tasks may run; none: all.
    pub hours: Vec<Hours>,
    /// Days on which tasks may run; none: all.
    pub days: Vec<Days>,
    /// How much of a processor each task may use while the owner is away, 1 to 100.
    pub idle_cpu_percent: u32,
    /// The same while the owner is there, 0 to 100; 0: they stand still.
    pub in_use_cpu_percent: u32,
    /// Most bags that this machine keeps for others.
    pub kept_bags_max: u32,
}

impl Default for OwnerSettings {
    /// What HTCondor and BOINC users know.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(5 * 60),
            vacate: Duration::from_secs(10 * 60),
            on_battery: false,
            foreign_cpu_percent: 25,
            hours: Vec::new(),
            days: Vec::new(),
            idle_cpu_percent: 100,
            in_use_cpu_percent: 0,
            kept_bags_max: 64,
        }
    }
}

/// Judges, and remembers what that takes.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    judgement: Judgement,
    in_use: bool,
    cpu_is_busy: bool,
    quiet_since: Option<Time>,
    disk_is_full: bool,
}

impl Policy {
    /// Nothing is known yet: as if nobody were there.
    pub(crate) fn new(now: Time) -> Self {
        let judgement = Judgement { reason: None, cpu_percent: 100, takes_work: true, since: now };
        Self { judgement, in_use: false, cpu_is_busy: false, quiet_since: None, disk_is_full: false }
    }

    /// The last judgement.
    pub(crate) fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Whether the owner is there, by the last judgement, whatever its reason.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Judges anew. Whether something has changed.
    pub(crate) fn judge(&mut self, now: Time, settings: &OwnerSettings, facts: &Facts, orders: Orders) -> bool {
        self.measure_cpu(now, settings.foreign_cpu_percent, facts.foreign_cpu);
        self.disk_is_full = facts.disk_room < if self.disk_is_full { ROOM_ENOUGH } else { ROOM_LEAST };
        let reason = self.reason(settings, facts, orders);
        let cpu_percent = match &reason {
            None | Some(Reason::Finishing | Reason::DiskFull) => settings.idle_cpu_percent,
            Some(reason) if reason.is_return() => settings.in_use_cpu_percent,
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
            Input::Idle(idle) => idle < settings.idle,
            Input::Unknown => false,
        };
        !is_same | (in_use != std::mem::replace(&mut self.in_use, in_use))
    }

    fn reason(&self, settings: &OwnerSettings, facts: &Facts, orders: Orders) -> Option<Reason> {
        if orders.pause.is_some() {
            return Some(Reason::PausedByUser);
        }
        if !hours::are_open(&settings.hours, &settings.days, facts.local) {
            return Some(Reason::OutsideHours);
        }
        if facts.on_battery && !settings.on_battery {
            return Some(Reason::OnBattery);
        }
        if let Some(name) = &facts.program {
            return Some(Reason::Program(name.clone()));
        }
        match facts.input {
            Input::Present => return Some(Reason::OwnerPresent),
            Input::Idle(idle) if idle < settings.idle => return Some(Reason::OwnerActive),
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

    /// Busy from the first average above the threshold on, until it has been well below for a while.
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
}

#[cfg(test)]
mod tests;
