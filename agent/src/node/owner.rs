//! The owner, from the driver's side: what was sensed goes to the policy, and what follows is done at once.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use idlewood_blobs::Blobs;
use idlewood_machine::WorkEvent;
use idlewood_overlay::Time;
use idlewood_scheduler::Event;
use idlewood_sensing::{Reading, Watch, cpu, memory, power, programs};
use idlewood_units::ByteSize;
use idlewood_units::clock::wall_now;
use jiff::Zoned;

use super::driver::{Done, Driver};
use super::pause::PauseFile;
use super::reclaim::{self, Reclaims};
use crate::policy::{Facts, Input, Orders, Policy, Reason};
use crate::settings::{Current, Settings};

/// How often everything but input is looked at: battery, processor, programs, settings.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// A limit of the processor is kept within each such time, by letting tasks run for a part of it.
const THROTTLE_CYCLE: Duration = Duration::from_secs(1);
/// Less room for blobs than this is none, whatever share of all of it that is. Our choice: some tasks' worth of small outputs.
const ROOM_BYTES_MIN: u64 = 1 << 20;
/// How long an agent that finishes waits for submitters to take its last results.
const FINISH_WAIT: Duration = Duration::from_secs(30);

/// What the driver keeps about the owner.
#[derive(Debug)]
pub(super) struct Owner {
    watch: Watch,
    meter: cpu::Meter,
    pub(super) settings: Current,
    policy: Policy,
    pub(super) orders: Orders,
    /// What the peer was told last.
    vacate_after: Duration,
    pause: PauseFile,
    on_battery: bool,
    foreign_cpu: Option<f64>,
    program: Option<String>,
    disk_room: f64,
    /// What tasks get of this machine's memory where the owner says nothing.
    memory_share: ByteSize,
    sampled: Option<Time>,
    /// Whether the peer may give tasks to the workers.
    takes_work: bool,
    /// When tasks under a limit stand still or go on next.
    throttle_at: Option<Instant>,
    rests: bool,
    pub(super) reclaims: Reclaims,
    /// Counts stops, to tell the present one from those before.
    stops: u64,
    /// Since when nothing runs, while the agent finishes.
    finished_at: Option<Time>,
}

impl Owner {
    pub(super) fn new(watch: Watch, settings: Current, pause: PauseFile, now: Time) -> Self {
        let orders = Orders { pause: pause.load(now, wall_now()), finish: false };
        Self {
            watch,
            meter: cpu::Meter::default(),
            vacate_after: settings.get().owner.vacate.0,
            settings,
            policy: Policy::new(now),
            orders,
            pause,
            on_battery: false,
            foreign_cpu: None,
            program: None,
            disk_room: 1.0,
            memory_share: memory::share(Path::new("/proc")),
            sampled: None,
            takes_work: true,
            throttle_at: None,
            rests: false,
            reclaims: Reclaims::default(),
            stops: 0,
            finished_at: None,
        }
    }

    /// Waits for input of the owner. May be dropped at any time.
    pub(super) async fn input(&mut self) {
        self.watch.changed().await;
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// When [`Driver::turn_throttle`] has something to do.
    pub(super) fn throttle_at(&self) -> Option<tokio::time::Instant> {
        self.throttle_at.map(tokio::time::Instant::from_std)
    }

    /// Takes the owner's orders; to be followed by a look.
    pub(super) fn take_orders(&mut self, orders: Orders, now: Time) {
        if orders.pause != self.orders.pause {
            self.pause.save(orders.pause, now, wall_now());
        }
        self.orders = orders;
    }

    /// The less there is to stop, the less often the owner's input is looked for.
    pub(super) fn set_busy(&self, busy: bool) {
        self.watch.set_fast(busy && !self.stands_still());
    }

    /// Most memory for all tasks together now.
    pub(super) fn memory_cap(&self) -> ByteSize {
        self.memory_cap_while(self.policy.is_in_use())
    }

    /// The same while the owner is there or away.
    pub(super) fn memory_cap_while(&self, in_use: bool) -> ByteSize {
        self.settings.get().limits.memory_now(in_use).unwrap_or(self.memory_share)
    }

    pub(super) fn stands_still(&self) -> bool {
        self.policy.judgement().cpu_percent == 0
    }

    pub(super) fn facts(&self) -> (Facts, Option<Reading>) {
        let last = self.watch.last_input();
        let input = match last {
            None => Input::Unknown,
            Some(reading) if reading.holds => Input::Present,
            Some(reading) => Input::Idle(reading.at.elapsed()),
        };
        let facts = Facts {
            input,
            on_battery: self.on_battery,
            foreign_cpu: self.foreign_cpu,
            program: self.program.clone(),
            disk_room: self.disk_room,
            local: Zoned::now(),
        };
        (facts, last)
    }

    /// Looks at everything but input. What cannot be read does not hold tasks up; `idlewood doctor` tells.
    fn sample(&mut self, now: Time, workers: &[u32]) {
        self.sampled = Some(now);
        if self.settings.refresh() {
            tracing::info!(path = %self.settings.path().display(), "the settings have changed");
        }
        self.on_battery = power::on_battery(Path::new(power::POWER_SUPPLY)).unwrap_or(false);
        let proc = Path::new("/proc");
        self.program = programs::running(proc, &self.settings.get().owner.programs).map(str::to_owned);
        if !self.watch.is_file() && self.settings.get().owner.foreign_cpu_percent.get() < 100 {
            let since_start = now.since(Time::ZERO);
            self.foreign_cpu = self.meter.sample(proc, std::process::id(), workers, since_start).unwrap_or(None);
        } else {
            (self.foreign_cpu, self.meter) = (None, cpu::Meter::default());
        }
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
    /// Judges anew whether tasks may run. To be called at least every second, at input and after orders.
    pub(super) fn look_at_owner(&mut self) {
        let now = self.clock.now();
        let owner = &mut self.owner;
        if owner.sampled.is_none_or(|sampled| now.since(sampled) >= SAMPLE_EVERY) {
            let mut workers = self.workers.worker_pids();
            workers.extend(self.measurer.worker_pids());
            owner.sample(now, &workers);
            let Settings { limits, bags, .. } = owner.settings.get();
            bags.clone_into(&mut self.supplies.bags.lock().unwrap_or_else(PoisonError::into_inner));
            self.supplies.blobs.set_quota(limits.disk.0);
            owner.disk_room = disk_room(&self.supplies.blobs);
            self.keep_to_limits();
            self.withdraw_unwanted();
            let vacate_after = self.owner.settings.get().owner.vacate.0;
            if vacate_after != std::mem::replace(&mut self.owner.vacate_after, vacate_after) {
                self.feed(Event::VacatesAfter(vacate_after));
            }
        }
        let owner = &mut self.owner;
        if owner.orders.pause.is_some_and(|pause| pause.until.is_some_and(|until| until <= now)) {
            owner.take_orders(Orders { pause: None, ..owner.orders }, now);
        }
        let (facts, last) = owner.facts();
        if owner.policy.judge(now, owner.settings.get(), &facts, owner.orders) {
            self.follow_judgement(last);
        }
        self.owner.set_busy(self.activity.busy);
    }

    /// What holds of memory and the line, by whether the owner is there.
    fn keep_to_limits(&mut self) {
        let (upload, download) = self.owner.settings.get().limits.rates_now(self.owner.policy.is_in_use());
        self.net.rates().upload.set(upload.map(|rate| rate.0));
        self.net.rates().download.set(download.map(|rate| rate.0));
        self.keep_to_memory();
    }

    /// Carries a new judgement out: workers first.
    fn follow_judgement(&mut self, last: Option<Reading>) {
        let judgement = self.owner.policy.judgement().clone();
        let stands_still = judgement.cpu_percent == 0;
        self.owner.rests = false;
        self.owner.throttle_at = (1..100).contains(&judgement.cpu_percent).then(Instant::now);
        self.owner.stops += 1;
        self.owner.takes_work = judgement.takes_work;
        self.allow_work();
        // A first task that is measured is frozen by the pause alone: the owner who is there may have submitted it.
        if self.owner.orders.pause.is_some() {
            self.measurer.freeze();
        } else {
            self.measurer.thaw();
        }
        if stands_still && judgement.reason.as_ref().is_some_and(|reason| reason.is_return()) {
            self.time_reclaim(last);
        }
        let reason = judgement.reason.as_ref().map_or("none", |reason| reason.code());
        tracing::info!(reason, cpu_percent = judgement.cpu_percent, takes_work = judgement.takes_work, "owner's state");
        self.feed(if judgement.takes_work { Event::OwnerLeft } else { Event::OwnerReturned { stands_still } });
        let finishes = self.owner.orders.finish && !judgement.takes_work && !stands_still;
        if judgement.reason == Some(Reason::DiskFull) || finishes {
            // Tasks that have not begun may begin elsewhere at once: nobody knows when there will be room here.
            self.feed(Event::Vacate);
        }
        self.keep_to_limits();
    }

    /// Tells the machine what the policy and its limits allow: it freezes or thaws all workers.
    ///
    /// What they were given ahead is with them, and stands still too.
    fn allow_work(&mut self) {
        let stands_still = self.owner.stands_still() || self.owner.rests;
        self.feed(WorkEvent::Allowed { stands_still, takes_work: self.owner.takes_work });
    }

    /// Tells the machine how much memory tasks may take.
    pub(super) fn keep_to_memory(&mut self) {
        self.feed(WorkEvent::MemoryMax(self.owner.memory_cap().0));
    }

    /// Measures how long the workers that run tasks take to stop.
    fn time_reclaim(&mut self, last: Option<Reading>) {
        if self.work.is_idle() {
            return;
        }
        let from = last.map_or_else(Instant::now, |last| last.not_before);
        let (stop, workers) = (self.owner.stops, self.workers.worker_pids());
        let watch = move || {
            let took = reclaim::wait_until_stopped(Path::new("/proc"), &workers, from);
            Done::Reclaimed { stop, took }
        };
        self.jobs.spawn_blocking(watch, Done::Discarded);
    }

    /// One whose tasks went on meanwhile says nothing.
    pub(super) fn reclaimed(&mut self, stop: u64, took: Duration) {
        if stop == self.owner.stops {
            tracing::info!(took_ms = took.as_millis(), "the machine is the owner's again");
            self.owner.reclaims.record(took);
        }
    }

    /// Under a limit, lets tasks run or stand still for the next part of the cycle.
    pub(super) fn turn_throttle(&mut self) {
        let percent = self.owner.policy.judgement().cpu_percent;
        if !(1..100).contains(&percent) {
            self.owner.throttle_at = None;
            return;
        }
        let share = THROTTLE_CYCLE * percent / 100;
        self.owner.rests = !self.owner.rests;
        let span = if self.owner.rests { THROTTLE_CYCLE - share } else { share };
        self.owner.throttle_at = Some(Instant::now() + span);
        self.allow_work();
    }

    /// Whether the agent was told to finish and has.
    pub(super) fn has_finished(&mut self) -> bool {
        let is_busy = !self.owner.orders.finish
            || self.machine.is_busy()
            || !self.submitting.is_empty()
            || self.accepting > 0
            || self.packing > 0;
        if is_busy {
            self.owner.finished_at = None;
            return false;
        }
        let now = self.clock.now();
        let since = *self.owner.finished_at.get_or_insert(now);
        let untaken: u64 = self.peer().held().iter().map(|held| held.unacknowledged).sum();
        // What was taken is forgotten on disk too, or it would be sent again after the next start.
        (untaken == 0 && self.commits.is_empty()) || now.since(since) >= FINISH_WAIT
    }
}
