//! Churn: when machines come and go, and when their owners use them.
//!
//! A machine is up for a session, then crashes (power cut: everything not durable is lost) or, in a share of cases,
//! leaves announced; it is down for a while and comes back. Every machine comes back, also one that submitted a bag.
//! Times are drawn, or follow a trace of real machines; while it is up, its owner may come and go, too. Times follow
//! one another: the calendar drawn for a machine does not depend on other events.
//!
//! Drawn sessions of desktops follow `docs/design/defaults.md`: the share of time that a machine is up is drawn
//! first, sessions are Weibull, absences lognormal with the mean that gives that share, and shorter by day than by
//! night. The first session of a machine that is drawn down at first begins in its middle, so that a simulation starts
//! with about as many machines as it continues with. A trace is replayed from a moment drawn from the seed, the same
//! for all machines, so that machines that went down together do so here. A machine that the trace does not cover then
//! is where its own part of the trace, repeated over and over, would have it. If there are more machines than in the
//! trace, each further set of them has a moment of its own. The calendar of a machine begins when it is switched on,
//! and stands still during its farewell.
//!
//! Owners come and go as drawn, or are present while the processor of a real machine was busy: that day is repeated
//! from a moment drawn from the seed, the same for as many machines as there were, and another for each further set of
//! them. Left out: weekends, machines that never return, drawn owners who follow the day.

use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::policy::hours::LocalTime;
use idlewood_machine::policy::{Facts, Input};
use idlewood_overlay::Time;
use rand::RngExt;

use crate::availability::{Availability, Machine};
use crate::processor_load::ProcessorLoad;
use crate::random::{SmallStream, exp, exponential, happens, ln, lognormal, quantile, weibull};
use crate::scenario::{Owners, Scenario, Sessions, loaded};

const HOUR_S: f64 = 3600.0;
/// Absence of a machine that its trace never brings back.
const FOR_GOOD: Duration = Duration::from_secs(1 << 36);
/// Quartiles of the share of time that a desktop is up, and our ends of that distribution.
const DESKTOP_SHARE_UP: [(f64, f64); 5] = [(0.0, 0.04), (0.25, 0.18), (0.5, 0.35), (0.75, 0.51), (1.0, 0.97)];
/// Sessions of desktops: shape, and scale in hours.
const DESKTOP_SESSION: (f64, f64) = (0.58, 1.76);
/// Their mean, in hours: scale · Γ(1 + 1/shape).
const DESKTOP_SESSION_MEAN_H: f64 = 2.770_5;
/// Spread of the absences of desktops, of the logarithm.
const DESKTOP_ABSENCE_SIGMA: f64 = 1.70;
/// Amplitude of absences over a day, either way.
const DAY_CYCLE: f64 = 0.25;
/// Sessions and absences of servers, in hours: median and mean (lognormal).
const SERVER_SESSION_H: (f64, f64) = (280.0, 1780.0);
const SERVER_ABSENCE_H: (f64, f64) = (1.0, 4.5);

/// The churn of one machine.
#[derive(Clone, Debug)]
pub struct Churn {
    sessions: Sessions,
    session: Option<Duration>,
    downtime: Duration,
    leave_percent: f64,
    /// Share of time that it is up, for desktops.
    share_up: f64,
    /// All machines of a trace, and the index of this one.
    trace: Option<(Arc<Availability>, usize)>,
    absence: Duration,
    /// Time passed in its calendar, in seconds.
    now_s: f64,
    rng: SmallStream,
}

impl Churn {
    /// The churn of machine number `host`.
    pub fn new(scenario: &Scenario, host: u32) -> Self {
        let mut rng = SmallStream::new(scenario.seed, "churn", u64::from(host));
        let is_steady = host < scenario.steady();
        let (sessions, session) =
            if is_steady { (Sessions::Exponential, None) } else { (scenario.sessions, scenario.churn) };
        let share_up = match sessions {
            Sessions::Desktops => quantile(&DESKTOP_SHARE_UP, rng.random()),
            Sessions::Exponential | Sessions::Servers | Sessions::Trace => 1.0,
        };
        let machine = |trace: &Arc<Availability>| (Arc::clone(trace), host as usize % trace.machines().len());
        let mut churn = Self {
            sessions,
            session,
            downtime: scenario.downtime,
            leave_percent: scenario.leave_percent,
            share_up,
            trace: scenario.inputs.sessions.as_ref().map(machine),
            absence: Duration::ZERO,
            now_s: 0.0,
            rng,
        };
        if sessions == Sessions::Trace {
            churn.now_s = churn.moment_s(scenario.seed, host);
        }
        churn.absence = churn.begin();
        churn
    }

    /// How long the machine stays down at the beginning, before its first session.
    pub fn absence(&self) -> Duration {
        self.absence
    }

    fn begin(&mut self) -> Duration {
        match self.sessions {
            Sessions::Exponential | Sessions::Servers => Duration::ZERO,
            Sessions::Desktops => {
                if self.rng.random::<f64>() < self.share_up {
                    return Duration::ZERO;
                }
                let part: f64 = self.rng.random();
                let absence = self.downtime().mul_f64(part);
                self.now_s = absence.as_secs_f64();
                absence
            }
            Sessions::Trace => {
                let now = Duration::from_secs_f64(self.now_s);
                let is_up = self.machine().is_some_and(|machine| machine.is_up(machine.first() + now));
                if is_up { Duration::ZERO } else { self.downtime() }
            }
        }
    }

    /// How long the session that begins now lasts; `None`: to the end of the simulation.
    pub fn session(&mut self) -> Option<Duration> {
        let session = match self.sessions {
            Sessions::Exponential => draw(&mut self.rng, self.session?),
            Sessions::Desktops => hours(weibull(&mut self.rng, DESKTOP_SESSION.0, DESKTOP_SESSION.1)),
            Sessions::Servers => hours(lognormal_of(&mut self.rng, SERVER_SESSION_H)),
            Sessions::Trace => self.until(false)?,
        };
        self.now_s += session.as_secs_f64();
        Some(session)
    }

    /// Whether the session that ends now ends with a farewell.
    pub fn leaves(&mut self) -> bool {
        happens(&mut self.rng, self.leave_percent)
    }

    /// How long the machine that goes down now stays down.
    pub fn downtime(&mut self) -> Duration {
        let downtime = match self.sessions {
            Sessions::Exponential => draw(&mut self.rng, self.downtime),
            Sessions::Desktops => {
                let mean_h = DESKTOP_SESSION_MEAN_H * (1.0 - self.share_up) / self.share_up;
                let mean_of_log = ln(mean_h) - DESKTOP_ABSENCE_SIGMA * DESKTOP_ABSENCE_SIGMA / 2.0;
                hours(lognormal(&mut self.rng, mean_of_log, DESKTOP_ABSENCE_SIGMA) * self.day())
            }
            Sessions::Servers => hours(lognormal_of(&mut self.rng, SERVER_ABSENCE_H)),
            Sessions::Trace => self.until(true).unwrap_or(FOR_GOOD),
        };
        self.now_s += downtime.as_secs_f64();
        downtime
    }

    /// Share of time that the machine is up in the long run.
    pub fn share_up(&self) -> f64 {
        let share = |up: f64, down: f64| up / (up + down);
        match self.sessions {
            Sessions::Exponential => {
                self.session.map_or(1.0, |session| share(session.as_secs_f64(), self.downtime.as_secs_f64()))
            }
            Sessions::Desktops => self.share_up,
            Sessions::Servers => share(SERVER_SESSION_H.1, SERVER_ABSENCE_H.1),
            Sessions::Trace => self.machine().map_or(1.0, Machine::share_up),
        }
    }

    /// How much longer absences are now than the daily average: most at noon of a day that begins in the evening (a
    /// triangle, which is the same on every platform).
    fn day(&self) -> f64 {
        let part = (self.now_s / (24.0 * HOUR_S)).fract();
        1.0 + DAY_CYCLE * (1.0 - 4.0 * (part - 0.5).abs())
    }

    fn machine(&self) -> Option<&Machine> {
        self.trace.as_ref().map(|(trace, machine)| &trace.machines()[*machine])
    }

    /// Position of the machine in its part of the trace at the start, in whole seconds.
    fn moment_s(&self, seed: u64, host: u32) -> f64 {
        let Some((trace, of)) = &self.trace else { return 0.0 };
        let (first, last) = trace.calendar();
        let copy = host as usize / trace.machines().len();
        let moment_s = SmallStream::new(seed, "trace", copy as u64).random_range(first.as_secs()..=last.as_secs());
        let machine = &trace.machines()[*of];
        let ahead_s = i128::from(moment_s) - i128::from(machine.first().as_secs());
        ahead_s.rem_euclid(i128::from(machine.span().as_secs())) as f64
    }

    /// Time until the machine comes up or goes down next in the trace; the trace begins anew when it is over, and a
    /// machine that is up at both ends stays up. `None`: never.
    fn until(&self, up: bool) -> Option<Duration> {
        let machine = self.machine()?;
        let (first, last) = (machine.first(), machine.first() + machine.span());
        let within = Duration::from_secs_f64(self.now_s % machine.span().as_secs_f64());
        let is_up_first = machine.is_up(first);
        let is_end = |at: Duration| !up && at == last && is_up_first;
        let change = |after: Duration| {
            machine.changes(after, last).find(|(at, comes_up)| *comes_up == up && !is_end(*at)).map(|(at, _)| at)
        };
        if let Some(at) = change(first + within) {
            return Some(at - first - within);
        }
        let rest = machine.span() - within;
        if up && is_up_first {
            return Some(rest);
        }
        change(first).map(|at| rest + (at - first))
    }
}

/// The owner of one machine, who uses it now and then while it is up. Drawn owners are away at the beginning of every
/// session.
#[derive(Clone, Debug)]
pub struct Owner {
    session: Option<Duration>,
    away: Duration,
    /// For how much of that they still count as there.
    idle: Duration,
    trace: Option<Busy>,
    rng: SmallStream,
}

/// An owner who is present while a real machine was busy.
#[derive(Clone, Debug)]
struct Busy {
    load: Arc<ProcessorLoad>,
    machine: u32,
    percent: u8,
    /// Time of that day at the start.
    moment: Duration,
}

impl Busy {
    /// Time from `now` until the owner comes or goes.
    fn until(&self, here: bool, now: Time) -> Option<Duration> {
        self.load.until(self.machine, self.percent, here, self.moment + now.since(Time::ZERO))
    }
}

impl Owner {
    /// The owner of machine number `host`.
    pub fn new(scenario: &Scenario, host: u32) -> Self {
        let load = (scenario.owners == Owners::Load).then(|| loaded(&scenario.inputs.owners));
        let trace = load.map(|load| {
            let mut rng = SmallStream::new(scenario.seed, "owners", u64::from(host / load.machines()));
            let moment = load.span().mul_f64(rng.random());
            Busy { load: Arc::clone(load), machine: host, percent: scenario.owner_percent, moment }
        });
        let rng = SmallStream::new(scenario.seed, "owner", u64::from(host));
        let (session, away, idle) = (scenario.owner_session, scenario.owner_away, scenario.owner_idle);
        Self { session, away, idle, trace, rng }
    }

    /// How long the owner stays away from `now` on; `None`: for good.
    pub fn away(&mut self, now: Time) -> Option<Duration> {
        match &self.trace {
            Some(trace) => trace.until(true, now),
            None => self.session.map(|_| draw(&mut self.rng, self.away)),
        }
    }

    /// How long the owner who comes at `now` stays; `None`: for good.
    pub fn session(&mut self, now: Time) -> Option<Duration> {
        match &self.trace {
            Some(trace) => trace.until(false, now),
            None => self.session.map(|session| draw(&mut self.rng, session)),
        }
    }

    /// Share of time that the owner is away, and counts as such.
    pub fn share_away(&self) -> f64 {
        if let Some(trace) = &self.trace {
            return 1.0 - trace.load.share_after(trace.machine, trace.percent, self.idle);
        }
        let away_s = self.away.as_secs_f64();
        // Of an exponential absence what is longer than that.
        let longer = exp(-(self.idle.as_secs_f64() / away_s).min(600.0));
        self.session.map_or(1.0, |session| away_s * longer / (away_s + session.as_secs_f64()))
    }
}

/// What a machine senses when its owner comes, who gives input until they leave, or has just given the last.
pub(crate) fn sensed(here: bool) -> Facts {
    Facts {
        input: if here { Input::Present } else { Input::Idle(Duration::ZERO) },
        on_battery: false,
        foreign_cpu: None,
        program: None,
        disk_room: 1.0,
        local: LocalTime { weekday: 0, minute: 0 },
    }
}

fn hours(hours: f64) -> Duration {
    // At least a second: a machine takes longer to start.
    Duration::from_secs_f64((hours * HOUR_S).clamp(1.0, 1e9))
}

/// Lognormal with this median and this mean.
fn lognormal_of(rng: &mut SmallStream, (median, mean): (f64, f64)) -> f64 {
    lognormal(rng, ln(median), (2.0 * ln(mean / median)).sqrt())
}

fn draw(rng: &mut SmallStream, mean: Duration) -> Duration {
    Duration::from_micros(exponential(rng, u64::try_from(mean.as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(duration: Option<Duration>) -> f64 {
        duration.map_or(f64::NAN, |duration| duration.as_secs_f64())
    }

    #[test]
    fn desktops_are_up_for_the_share_of_time_that_was_drawn_first() {
        let scenario = Scenario { sessions: Sessions::Desktops, ..Scenario::default() };
        let (mut shares, mut up_s) = (Vec::new(), Vec::new());
        for host in 0..400 {
            let mut churn = Churn::new(&scenario, host);
            shares.push(churn.share_up());
            if host < 20 {
                let (mut up, mut down) = (0.0, 0.0);
                for _ in 0..5_000 {
                    let session = seconds(churn.session());
                    up_s.push(session);
                    up += session;
                    down += churn.downtime().as_secs_f64();
                }
                let share = up / (up + down);
                assert!((share / churn.share_up() - 1.0).abs() < 0.2, "{share} instead of {}", churn.share_up());
            }
        }
        shares.sort_by(f64::total_cmp);
        for (place, share) in [(100, 0.18), (200, 0.35), (300, 0.51)] {
            assert!((shares[place] - share).abs() < 0.05, "quartile {place}: {}", shares[place]);
        }
        let mean_h = up_s.iter().sum::<f64>() / up_s.len() as f64 / HOUR_S;
        assert!((mean_h / DESKTOP_SESSION_MEAN_H - 1.0).abs() < 0.03, "{mean_h}");
        let absent = (0..400).filter(|&host| Churn::new(&scenario, host).absence() > Duration::ZERO).count();
        assert!((220..300).contains(&absent), "{absent} of 400 are down at the beginning");
    }

    #[test]
    fn steady_machines_never_go_down() {
        let scenario = Scenario { sessions: Sessions::Desktops, nodes: 30, steady_percent: 5.0, ..Scenario::default() };
        let stays = |host| {
            let mut churn = Churn::new(&scenario, host);
            churn.absence() == Duration::ZERO && churn.session().is_none() && churn.share_up() == 1.0
        };
        assert_eq!((0..30).filter(|&host| stays(host)).collect::<Vec<_>>(), [0, 1]);
    }

    fn of_trace(data: &str, seed: u64) -> Scenario {
        let trace = Availability::parse(&format!(r#"{{"gap_seconds": 10, "data": {data}}}"#)).unwrap();
        let mut scenario = Scenario { seed, sessions: Sessions::Trace, ..Scenario::default() };
        scenario.inputs.sessions = Some(Arc::new(trace));
        scenario
    }

    /// Whether it is up in each of so many seconds.
    fn seconds_up(churn: &mut Churn, count: usize) -> Vec<bool> {
        let mut seconds = vec![false; churn.absence().as_secs() as usize];
        while seconds.len() < count {
            let up = churn.session().map_or(count, |session| session.as_secs() as usize);
            seconds.extend(std::iter::repeat_n(true, up));
            if seconds.len() < count {
                seconds.extend(std::iter::repeat_n(false, churn.downtime().as_secs() as usize));
            }
        }
        seconds.truncate(count);
        seconds
    }

    #[test]
    fn traces_are_replayed_from_a_moment_of_them_and_again() {
        for (data, share) in
            [("[0, 1, 1, 0, 1]", 0.6), ("[1, 0, 1, 0]", 0.5), ("[1, 1, 1, 0, 1, 1]", 5.0 / 6.0), ("[1, 1]", 1.0)]
        {
            let mut ups = 0;
            for seed in 0..200 {
                let scenario = of_trace(data, seed);
                let mut churn = Churn::new(&scenario, 0);
                assert!((churn.share_up() - share).abs() < 1e-9);
                let began = churn.moment_s(seed, 0) as u64;
                let seconds = seconds_up(&mut churn, 200);
                let trace = scenario.inputs.sessions.unwrap();
                let machine = &trace.machines()[0];
                let expected = |at: u64| machine.is_up(Duration::from_secs((began + at) % machine.span().as_secs()));
                let expected: Vec<bool> = (0..200).map(expected).collect();
                assert_eq!(seconds, expected, "{data} from {began} on");
                ups += u32::from(seconds[0]);
            }
            assert!((f64::from(ups) / 200.0 - share).abs() < 0.1, "{ups} of 200 runs begin with {data} up");
        }
    }

    #[test]
    fn machines_of_a_trace_go_down_together_but_not_those_that_follow_it_again() {
        let together = |seed| {
            let scenario = of_trace("[2, 2, 0, 2, 0, 0, 2]", seed);
            let mut seconds = (0..4).map(|host| seconds_up(&mut Churn::new(&scenario, host), 300));
            let [one, two, three, four] = [(); 4].map(|()| seconds.next().unwrap());
            assert_eq!((&one, &three), (&two, &four));
            one == three
        };
        assert!((0..20).filter(|&seed| together(seed)).count() < 5);
    }

    #[test]
    fn owners_come_and_go_as_often_as_they_should() {
        let hour = Duration::from_secs(3600);
        let owned = Scenario { owner_idle: Duration::ZERO, ..Scenario::default() };
        let mut owner = Owner::new(&Scenario { owner_session: Some(hour), owner_away: hour * 3, ..owned }, 1);
        let (here, away): (f64, f64) = (0..4_000)
            .map(|_| (seconds(owner.session(Time::ZERO)), seconds(owner.away(Time::ZERO))))
            .fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        assert!((away / (here + away) - owner.share_away()).abs() < 0.02 && owner.share_away() == 0.75);
        assert_eq!(Owner::new(&Scenario::default(), 1).away(Time::ZERO), None);
    }

    /// The agent takes the owner for gone when there was no input for a while.
    #[test]
    fn the_share_away_counts_no_time_in_which_the_owner_still_counts_as_present() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let owner_idle = minutes(5);
        let (owner_session, owner_away) = (Some(minutes(10)), minutes(20));
        let mut owner = Owner::new(&Scenario { owner_session, owner_away, owner_idle, ..Scenario::default() }, 1);
        let (mut for_tasks, mut all) = (0.0, 0.0);
        for _ in 0..20_000 {
            let (here, away) = (seconds(owner.session(Time::ZERO)), seconds(owner.away(Time::ZERO)));
            for_tasks += (away - owner_idle.as_secs_f64()).max(0.0);
            all += here + away;
        }
        assert!((owner.share_away() - for_tasks / all).abs() < 0.01, "{} {}", owner.share_away(), for_tasks / all);
        let mut scenario = Scenario { owners: Owners::Load, owner_percent: 49, owner_idle, ..Scenario::default() };
        scenario.inputs.owners = Some(Arc::new(ProcessorLoad::parse("0 90 10 10 80\n1 10 90 10 10\n").unwrap()));
        assert_eq!([0, 1].map(|host| Owner::new(&scenario, host).share_away()), [0.25, 0.5]);
        scenario.owner_idle = minutes(7);
        assert_eq!(Owner::new(&scenario, 1).share_away(), 0.4);
    }

    /// All from one moment of that day on, repeatedly.
    #[test]
    fn owners_are_there_while_real_machines_were_busy() {
        let load = ProcessorLoad::parse("0 90 10 10 80\n1 90 90 0 0\n2 0 0 0 0\n3 50 50 50 50\n").unwrap();
        let whole_day = 4 * 300;
        let mut in_step = 0;
        let seconds_here = |owner: &mut Owner| {
            let (mut here, mut now) = (Vec::new(), Time::ZERO);
            while here.len() < whole_day {
                let comes = now + owner.away(now).unwrap();
                now = comes + owner.session(comes).unwrap();
                here.resize(comes.since(Time::ZERO).as_secs() as usize, false);
                here.resize(now.since(Time::ZERO).as_secs() as usize, true);
            }
            here.truncate(whole_day);
            here
        };
        for seed in 0..20 {
            let mut scenario = Scenario { seed, owners: Owners::Load, owner_percent: 49, ..Scenario::default() };
            scenario.owner_idle = Duration::ZERO;
            scenario.inputs.owners = Some(Arc::new(load.clone()));
            let mut owners: Vec<Owner> = (0..5).map(|host| Owner::new(&scenario, host)).collect();
            assert_eq!(owners.iter().map(Owner::share_away).collect::<Vec<_>>(), [0.5, 0.5, 1.0, 0.0, 0.5]);
            assert_eq!((owners[2].away(Time::ZERO), owners[3].session(Time::ZERO)), (None, None));
            assert_eq!(owners[3].away(Time::ZERO), Some(Duration::ZERO));
            let [first, second, fifth] = [0, 1, 4].map(|host| seconds_here(&mut owners[host]));
            in_step += usize::from(first == fifth);
            let both = first.iter().zip(&second).filter(|(first, second)| **first && **second).count();
            assert!(both.abs_diff(300) <= 4, "{both}");
        }
        assert!(in_step < 3, "further machines are not those of the file once more");
    }
}
