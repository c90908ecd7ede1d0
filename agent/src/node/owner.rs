//! The owner, from the driver's side: what is sensed and set goes to the machine, which judges, and its orders to the workers.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use idlewood_blobs::Blobs;
use idlewood_machine::policy::{Facts, Input, Judgement, Orders, OwnerSettings, Pause};
use idlewood_machine::{Event, WorkEvent};
use idlewood_overlay::Time;
use idlewood_sensing::{Reading, Watch, cpu, power, programs};
use idlewood_units::ByteSize;
use idlewood_units::clock::wall_now;
use jiff::Zoned;

use super::done::Done;
use super::driver::Driver;
use super::pause::PauseFile;
use super::reclaim::{self, Reclaims};
use crate::reasons::local_time;
use crate::settings::{Current, Settings};

/// How often everything but input is looked at: battery, processor, programs, settings.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Less room for blobs than this is none, whatever share of all of it that is. Our choice: some tasks' worth of small outputs.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// What is sensed of the owner, and what they have set.
#[derive(Debug)]
pub(super) struct Owner {
    watch: Watch,
    meter: cpu::Meter,
    pause: PauseFile,
    on_battery: bool,
    foreign_cpu: Option<f64>,
    program: Option<String>,
    disk_room: f64,
    sampled: Option<Time>,
    pub(super) reclaims: Reclaims,
    /// Counts judgements, to tell the present stop from those before.
    stops: u64,
}

impl Owner {
    pub(super) fn new(watch: Watch, pause: PauseFile) -> Self {
        Self {
            watch,
            meter: cpu::Meter::default(),
            pause,
            on_battery: false,
            foreign_cpu: None,
            program: None,
            disk_room: 1.0,
            sampled: None,
            reclaims: Reclaims::default(),
            stops: 0,
        }
    }

    /// Waits for input of the owner. May be dropped at any time.
    pub(super) async fn input(&mut self) {
        self.watch.changed().await;
    }

    /// The pause that was in force when the agent ended, unless it is over.
    pub(super) fn kept_pause(&self, now: Time) -> Option<Pause> {
        self.pause.load(now, wall_now())
    }

    /// Keeps the pause, or that there is none.
    pub(super) fn keep_pause(&self, pause: Option<Pause>, now: Time) {
        self.pause.save(pause, now, wall_now());
    }

    pub(super) fn facts(&self) -> Facts {
        let input = match self.watch.last_input() {
            None => Input::Unknown,
            Some(reading) if reading.holds => Input::Present,
            Some(reading) => Input::Idle(reading.at.elapsed()),
        };
        Facts {
            input,
            on_battery: self.on_battery,
            foreign_cpu: self.foreign_cpu,
            program: self.program.clone(),
            disk_room: self.disk_room,
            local: local_time(&Zoned::now()),
        }
    }

    /// Looks at everything but input: whether the settings have changed. What cannot be read does not hold tasks up; `idlewood doctor`
    /// tells.
    fn sample(&mut self, settings: &mut Current, now: Time, workers: &[u32]) -> bool {
        self.sampled = Some(now);
        let is_set = settings.refresh();
        if is_set {
            tracing::info!(path = %settings.path().display(), "the settings have changed");
        }
        self.on_battery = power::on_battery(Path::new(power::POWER_SUPPLY)).unwrap_or(false);
        let proc = Path::new("/proc");
        self.program = programs::running(proc, &settings.get().owner.programs).map(str::to_owned);
        if !self.watch.is_file() && settings.get().owner.foreign_cpu_percent.get() < 100 {
            let since_start = now.since(Time::ZERO);
            self.foreign_cpu = self.meter.sample(proc, std::process::id(), workers, since_start).unwrap_or(None);
        } else {
            (self.foreign_cpu, self.meter) = (None, cpu::Meter::default());
        }
        is_set
    }
}

/// Share of the room for blobs that nothing needs: of the quota, or of what the disk has.
fn disk_room(blobs: &Blobs) -> f64 {
    let (kept_bytes, _) = blobs.kept_bytes();
    let limit_bytes = blobs.limit_bytes();
    let room_bytes = blobs.room_bytes().min(limit_bytes.saturating_sub(kept_bytes));
    if room_bytes < ROOM_BYTES_MIN { 0.0 } else { room_bytes as f64 / limit_bytes as f64 }
}

impl Driver {
    /// Tells the machine what is known of the owner. To be called at least every second, and at input.
    pub(super) fn look_at_owner(&mut self) {
        let now = self.shared.clock.now();
        if self.owner.sampled.is_none_or(|sampled| now.since(sampled) >= SAMPLE_EVERY) {
            self.sample_owner(now);
        }
        self.feed(Event::Sensed(self.owner.facts()));
        self.set_watchfulness();
    }

    fn sample_owner(&mut self, now: Time) {
        let mut workers = self.execution.worker_pids();
        workers.extend(self.measuring.worker_pids());
        let owner = &mut self.owner;
        let is_set = owner.sample(&mut self.shared.settings, now, &workers);
        let Settings { limits, bags, .. } = self.shared.settings.get();
        bags.clone_into(&mut self.shared.supplies.bags.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.supplies.blobs.set_quota(limits.disk.0);
        owner.disk_room = disk_room(&self.shared.supplies.blobs);
        self.keep_to_limits();
        self.withdraw_unwanted();
        if is_set {
            self.feed(Event::OwnerSet(OwnerSettings::from(self.shared.settings.get())));
        }
    }

    /// What the owner orders.
    pub(super) fn order(&mut self, orders: Orders) {
        self.look_at_owner();
        self.feed(Event::Ordered(orders));
    }

    /// The less there is to stop, the less often the owner's input is looked for.
    pub(super) fn set_watchfulness(&self) {
        self.owner.watch.set_fast(self.activity.busy && !self.machine.owner().judgement().stands_still());
    }

    /// Most memory for all tasks together now.
    pub(super) fn memory_cap(&self) -> ByteSize {
        self.shared.memory_cap(self.machine.owner().is_in_use())
    }

    /// What holds of memory and the line, by whether the owner is there.
    fn keep_to_limits(&mut self) {
        let (upload, download) = self.shared.settings.get().limits.rates_now(self.machine.owner().is_in_use());
        self.shared.net.rates().upload.set(upload.map(|rate| rate.0));
        self.shared.net.rates().download.set(download.map(|rate| rate.0));
        self.keep_to_memory();
    }

    /// A new judgement holds.
    pub(super) fn judged(&mut self, judgement: &Judgement) {
        let Judgement { reason, cpu_percent, takes_work, .. } = judgement;
        self.owner.stops += 1;
        if judgement.stands_still() && reason.as_ref().is_some_and(|reason| reason.is_return()) {
            self.time_reclaim();
        }
        let reason = reason.as_ref().map_or("none", |reason| reason.code());
        tracing::info!(reason, cpu_percent, takes_work, "owner's state");
        self.set_watchfulness();
        self.keep_to_limits();
    }

    /// The machine hears whether something goes on that has to end before it may.
    pub(super) fn tell_whether_busy(&mut self) {
        let is_busy = self.activity.busy || self.submissions.are_under_way() || self.packing.is_under_way();
        if std::mem::replace(&mut self.was_busy, is_busy) != is_busy {
            self.feed(Event::Busy(is_busy));
        }
    }

    /// Tells the machine how much memory tasks may take.
    fn keep_to_memory(&mut self) {
        self.shared.events.follow_up(WorkEvent::MemoryMax(self.memory_cap().0));
    }

    /// Measures how long the workers that run tasks take to stop.
    fn time_reclaim(&mut self) {
        if self.execution.is_idle() {
            return;
        }
        let from = self.owner.watch.last_input().map_or_else(Instant::now, |last: Reading| last.not_before);
        let (stop, workers) = (self.owner.stops, self.execution.worker_pids());
        let watch = move || {
            let took = reclaim::wait_until_stopped(Path::new("/proc"), &workers, from);
            Done::Reclaimed { stop, took }
        };
        self.shared.jobs.spawn_blocking(watch, Done::Discarded);
    }

    /// Records how long a reclaim took, unless another judgement came meanwhile.
    pub(super) fn reclaimed(&mut self, stop: u64, took: Duration) {
        if stop == self.owner.stops {
            tracing::info!(took_ms = took.as_millis(), "the machine is the owner's again");
            self.owner.reclaims.record(took);
        }
    }
}
