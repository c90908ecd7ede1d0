//! The owner, from the loop's side: what is sensed and set goes to the machine, which judges, and its orders to the workers.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use idlewood_blobs::Blobs;
use idlewood_machine::policy::{Facts, Input, Judgement, Orders, OwnerSettings, Pause};
use idlewood_machine::{Event, Machine, WorkEvent};
use idlewood_overlay::Time;
use idlewood_sensing::{Reading, Watch, cpu, power, programs};
use idlewood_units::clock::{Clock, wall_now};
use jiff::Zoned;

use super::authorise;
use super::done::Done;
use super::execution::Execution;
use super::measuring::Measuring;
use super::pause::PauseFile;
use super::processor::Looks;
use super::reclaim::{self, Reclaims};
use super::shared::{Due, Shared};
use crate::handle::OwnerOrder;
use crate::reasons::local_time;
use crate::settings::Settings;

/// How often everything but input is looked at: battery, processor, programs, settings.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Less room for blobs than this is none, whatever share of all of it that is. Our choice: some tasks' worth of small outputs.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Whether, and since when, this machine has tasks.
#[derive(Clone, Copy, Debug)]
struct Activity {
    /// Whether a place has a task.
    busy: bool,
    since: Time,
}

/// What is sensed of the owner, and what follows their return.
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
    reclaims: Reclaims,
    /// Counts judgements, to tell the present stop from those before.
    stops: u64,
    activity: Activity,
    /// Whether the machine was told that something goes on.
    was_busy: bool,
    /// How long workers compute and wait for a processor; `None`: this machine was given its speed, and does not learn it.
    turns: Option<Looks>,
}

impl Owner {
    /// `sees_speed`: whether the machine is told what shows how fast it is.
    pub(super) fn new(watch: Watch, pause: PauseFile, sees_speed: bool, now: Time) -> Self {
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
            activity: Activity { busy: false, since: now },
            was_busy: false,
            turns: sees_speed.then(Looks::start),
        }
    }

    /// Waits for input of the owner. May be dropped at any time.
    pub(super) async fn input(&mut self) {
        self.watch.changed().await;
    }

    /// Orders the pause that was in force when the agent ended, unless it is over.
    pub(super) fn tell_kept_pause(&self, shared: &mut Shared) {
        if let Some(pause) = self.pause.load(shared.clock.now(), wall_now()) {
            shared.events.tell(Event::Ordered(Orders { pause: Some(pause), finish: false }));
        }
    }

    /// Keeps the pause, or that there is none.
    pub(super) fn keep_pause(&self, pause: Option<Pause>, now: Time) {
        self.pause.save(pause, now, wall_now());
    }

    /// How long it took to give the machine back.
    pub(super) fn reclaims(&self) -> &Reclaims {
        &self.reclaims
    }

    /// Since when the machine has tasks, or has none.
    pub(super) fn active_since(&self) -> Time {
        self.activity.since
    }

    /// Whether a place has a task.
    pub(super) fn is_active(&self) -> bool {
        self.activity.busy
    }

    /// What is known of the owner now.
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

    /// Tells the machine what is known of the owner. To be called at least every second, and at input.
    pub(super) fn look(
        &mut self,
        execution: &Execution,
        measuring: &Measuring,
        machine: &Machine,
        shared: &mut Shared,
    ) {
        let now = shared.clock.now();
        if self.sampled.is_none_or(|sampled| now.since(sampled) >= SAMPLE_EVERY) {
            self.sampled = Some(now);
            let workers = [execution.worker_pids(), measuring.worker_pids()].concat();
            let is_set = self.sample(now, &workers, shared);
            keep_to_limits(machine, shared);
            authorise::withdraw_unwanted(&execution.manifests(), machine.peer(), shared);
            if is_set {
                shared.events.tell(Event::OwnerSet(OwnerSettings::from(shared.settings.get())));
            }
        }
        shared.events.tell(Event::Sensed(self.facts()));
    }

    /// Looks at everything but input: whether the settings have changed. What cannot be read does not hold tasks up; `idlewood doctor`
    /// tells.
    fn sample(&mut self, now: Time, workers: &[u32], shared: &mut Shared) -> bool {
        let is_set = shared.settings.refresh();
        if is_set {
            tracing::info!(path = %shared.settings.path().display(), "the settings have changed");
        }
        let Settings { limits, bags, owner, .. } = shared.settings.get();
        self.on_battery = power::on_battery(Path::new(power::POWER_SUPPLY)).unwrap_or(false);
        let proc = Path::new("/proc");
        self.program = programs::running(proc, &owner.programs).map(str::to_owned);
        if !self.watch.is_file() && owner.foreign_cpu_percent.get() < 100 {
            let since_start = now.since(Time::ZERO);
            self.foreign_cpu = self.meter.sample(proc, std::process::id(), workers, since_start).unwrap_or(None);
        } else {
            (self.foreign_cpu, self.meter) = (None, cpu::Meter::default());
        }
        if let Some(turns) = &mut self.turns {
            let (ran, waited) = turns.since_last(proc, workers, shared.config.slots);
            shared.events.tell(Event::Computed { ran, waited });
        }
        bags.clone_into(&mut shared.supplies.bags.lock().unwrap_or_else(PoisonError::into_inner));
        shared.supplies.blobs.set_quota(limits.disk.0);
        self.disk_room = disk_room(&shared.supplies.blobs);
        is_set
    }

    /// What the owner orders, which is answered when the machine has heard it.
    pub(super) fn order(&mut self, order: OwnerOrder, machine: &Machine, shared: &mut Shared) {
        let given = machine.owner().orders();
        let (orders, reply) = match order {
            OwnerOrder::Pause(for_, reply) => {
                let pause = Pause { until: for_.map(|for_| shared.clock.now() + for_) };
                (Orders { pause: Some(pause), ..given }, reply)
            }
            OwnerOrder::Resume(reply) => (Orders::default(), reply),
            OwnerOrder::Finish(reply) => (Orders { finish: true, ..given }, reply),
            // The loop ends for these, and the machine hears of its end.
            OwnerOrder::Restart(reply) | OwnerOrder::LeaveGrid(reply) => (given, reply),
        };
        shared.events.tell(Event::Ordered(orders));
        shared.due.push(Due::Status(reply));
    }

    /// A new judgement holds.
    pub(super) fn judged(
        &mut self,
        judgement: &Judgement,
        execution: &Execution,
        machine: &Machine,
        shared: &mut Shared,
    ) {
        let Judgement { reason, cpu_percent, takes_work, .. } = judgement;
        self.stops += 1;
        if judgement.stands_still() && reason.as_ref().is_some_and(|reason| reason.is_return()) {
            self.time_reclaim(execution, shared);
        }
        let reason = reason.as_ref().map_or("none", |reason| reason.code());
        tracing::info!(reason, cpu_percent, takes_work, "owner's state");
        keep_to_limits(machine, shared);
    }

    /// Notes since when the machine has tasks, or has none. The owner's return must be noticed at once from the first on; the less
    /// there is to stop, the less often the owner's input is looked for. To be called after each event of the machine's.
    pub(super) fn note_busy(&mut self, machine: &Machine, clock: &Clock) {
        let busy = machine.is_busy();
        if busy != std::mem::replace(&mut self.activity.busy, busy) {
            self.activity.since = clock.now();
        }
        self.watch.set_fast(busy && !machine.owner().judgement().stands_still());
    }

    /// The machine hears whether something goes on that has to end before it may.
    pub(super) fn tell_whether_busy(&mut self, is_busy: bool, shared: &mut Shared) {
        if std::mem::replace(&mut self.was_busy, is_busy) != is_busy {
            shared.events.tell(Event::Busy(is_busy));
        }
    }

    /// Measures how long the workers that run tasks take to stop.
    fn time_reclaim(&self, execution: &Execution, shared: &mut Shared) {
        if execution.is_idle() {
            return;
        }
        let from = self.watch.last_input().map_or_else(Instant::now, |last: Reading| last.not_before);
        let (stop, workers) = (self.stops, execution.worker_pids());
        let watch = move || {
            let took = reclaim::wait_until_stopped(Path::new("/proc"), &workers, from);
            Done::Reclaimed { stop, took }
        };
        shared.jobs.spawn_blocking(watch, Done::Discarded);
    }

    /// Records how long a reclaim took, unless another judgement came meanwhile.
    pub(super) fn reclaimed(&mut self, stop: u64, took: Duration) {
        if stop == self.stops {
            tracing::info!(took_ms = took.as_millis(), "the machine is the owner's again");
            self.reclaims.record(took);
        }
    }
}

/// What holds of memory and the line, by whether the owner is there.
fn keep_to_limits(machine: &Machine, shared: &mut Shared) {
    let in_use = machine.owner().is_in_use();
    let (upload, download) = shared.settings.get().limits.rates_now(in_use);
    shared.net.rates().upload.set(upload.map(|rate| rate.0));
    shared.net.rates().download.set(download.map(|rate| rate.0));
    shared.events.follow_up(WorkEvent::MemoryMax(shared.memory_cap(in_use).0));
}

/// Share of the room for blobs that nothing needs: of the quota, or of what the disk has.
fn disk_room(blobs: &Blobs) -> f64 {
    let (kept_bytes, _) = blobs.kept_bytes();
    let limit_bytes = blobs.limit_bytes();
    let room_bytes = blobs.room_bytes().min(limit_bytes.saturating_sub(kept_bytes));
    if room_bytes < ROOM_BYTES_MIN { 0.0 } else { room_bytes as f64 / limit_bytes as f64 }
}
