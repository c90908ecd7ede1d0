//! Whole tasks in a discrete-event simulation: demand-driven scheduler threads as in Figure 1 of the paper.
//!
//! Requests take no time. A machine's next task begins as soon as its processor or port is free, so that both work at the same time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use idlewood_scheduler::shares::{Task, due_s, next_by_deficit};

use super::bandwidth_centric::by_bandwidth;
use super::platform::{Platform, Rates};
use super::policy::{Lane, Policy, Room};
use super::resource::{Job, Resource};

/// What is left out of the measurement at the beginning and at the end (ε of §5.1.1).
const EPSILON: f64 = 0.1;

/// Who gets a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Requester {
    Itself,
    Child(usize),
}

/// What happens at a machine.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// The processor ends a job, unless its version has changed.
    Computed { version: u64 },
    /// So does the port.
    Sent { version: u64 },
    /// A task of a lane that was ahead of its rate is due.
    Due { lane: usize },
}

/// A scheduler thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// Tasks that wait here, by kind of the lane.
    waiting: Vec<u64>,
    /// Tasks on their way here.
    coming: Vec<u64>,
    /// How often each choice was made.
    chosen: Vec<u64>,
    /// First come, first served: requests without an answer, and the kinds of waiting tasks.
    requests: VecDeque<Requester>,
    order: VecDeque<usize>,
    /// When it looks again whether a task is due.
    due_s: Option<f64>,
}

/// A run.
pub(super) struct Simulation<'a> {
    platform: &'a Platform,
    /// By kind.
    tasks: &'a [Task],
    lanes: Vec<Lane>,
    /// The largest bandwidth first.
    children: Vec<Vec<usize>>,
    /// By machine and lane.
    threads: Vec<Vec<Thread>>,
    processors: Vec<Resource>,
    ports: Vec<Resource>,
    /// (time as ordered bits, number of the event, machine, event).
    events: BinaryHeap<Reverse<(u64, u64, usize, Event)>>,
    numbered: u64,
    now_s: f64,
    /// Tasks that the root has not given out, by kind.
    left: Vec<u64>,
    /// When tasks of each kind were done.
    done_s: Vec<Vec<f64>>,
}

/// Tasks/s of each kind, with so many tasks of each, measured as in §5.1.1: until all tasks of one kind are done, without the first and the last tenth
/// of that time. All 0 where the scheduler threads wait for each other before.
pub(super) fn throughputs(platform: &Platform, tasks: &[Task], lanes: Vec<Lane>, counts: &[u64]) -> Vec<f64> {
    Simulation::new(platform, tasks, lanes, counts).run(counts)
}

impl<'a> Simulation<'a> {
    fn new(platform: &'a Platform, tasks: &'a [Task], lanes: Vec<Lane>, counts: &[u64]) -> Self {
        let children = by_bandwidth(platform);
        let thread = |machine: usize, lane: &Lane| {
            let kinds = lane.kinds.len();
            let mut requests = VecDeque::new();
            if matches!(lane.policy, Policy::FirstCome { .. }) {
                requests.push_back(Requester::Itself);
                let room = if let Room::Untyped(room) = lane.room { room } else { 0 };
                // All ask at once; a machine's children in turn.
                for _ in 0..room {
                    requests.extend(children[machine].iter().map(|child| Requester::Child(*child)));
                }
            }
            let choices = kinds * (1 + children[machine].len());
            Thread {
                waiting: vec![0; kinds],
                coming: vec![0; kinds],
                chosen: vec![0; choices],
                requests,
                order: VecDeque::new(),
                due_s: None,
            }
        };
        let machines = platform.machines.len();
        Self {
            threads: (0..machines).map(|machine| lanes.iter().map(|lane| thread(machine, lane)).collect()).collect(),
            platform,
            tasks,
            lanes,
            children,
            processors: vec![Resource::default(); machines],
            ports: vec![Resource::default(); machines],
            events: BinaryHeap::new(),
            numbered: 0,
            now_s: 0.0,
            left: counts.to_vec(),
            done_s: vec![Vec::new(); tasks.len()],
        }
    }

    fn run(mut self, counts: &[u64]) -> Vec<f64> {
        for lane in 0..self.lanes.len() {
            self.dispatch(0, lane);
        }
        while let Some(Reverse((time, _, machine, event))) = self.events.pop() {
            let now_s = f64::from_bits(time);
            let ended = match event {
                Event::Computed { version } => self.processors[machine].end(now_s, version),
                Event::Sent { version } => self.ports[machine].end(now_s, version),
                Event::Due { lane } => {
                    self.now_s = now_s;
                    self.threads[machine][lane].due_s = None;
                    self.dispatch(machine, lane);
                    None
                }
            };
            let Some((job, next)) = ended else { continue };
            self.now_s = now_s;
            self.foretell(machine, job.child.is_some(), next);
            let kind = self.lanes[job.lane].kinds[job.kind];
            match job.child {
                Some(child) => {
                    let thread = &mut self.threads[child][job.lane];
                    thread.coming[job.kind] -= 1;
                    thread.waiting[job.kind] += 1;
                    if self.is_first_come(job.lane) {
                        self.threads[child][job.lane].order.push_back(job.kind);
                    }
                    self.dispatch(child, job.lane);
                }
                None => {
                    self.done_s[kind].push(now_s);
                    if self.done_s[kind].len() as u64 == counts[kind] {
                        return self.measured(now_s);
                    }
                    if self.is_first_come(job.lane) {
                        self.threads[machine][job.lane].requests.push_back(Requester::Itself);
                    }
                }
            }
            self.dispatch(machine, job.lane);
        }
        vec![0.0; self.tasks.len()]
    }

    fn measured(&self, end_s: f64) -> Vec<f64> {
        let (from, to) = (EPSILON * end_s, (1.0 - EPSILON) * end_s);
        let within = |done: &Vec<f64>| done.iter().filter(|at| **at > from && **at <= to).count();
        self.done_s.iter().map(|done| within(done) as f64 / (to - from)).collect()
    }

    fn foretell(&mut self, machine: usize, is_port: bool, end: Option<(f64, u64)>) {
        if let Some((at_s, version)) = end {
            self.push(at_s, machine, if is_port { Event::Sent { version } } else { Event::Computed { version } });
        }
    }

    fn push(&mut self, at_s: f64, machine: usize, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at_s.to_bits(), self.numbered, machine, event)));
    }

    /// Gives out tasks for as long as there is one that someone can take; and so on upward, where that makes room.
    fn dispatch(&mut self, machine: usize, lane: usize) {
        let mut pending = vec![machine];
        while let Some(machine) = pending.pop() {
            let mut has_given = false;
            while let Some((requester, kind)) = self.choose(machine, lane) {
                self.give(machine, lane, requester, kind);
                has_given = true;
            }
            self.wait_for_due(machine, lane);
            if has_given {
                pending.extend(self.platform.machines[machine].parent);
            }
        }
    }

    fn is_first_come(&self, lane: usize) -> bool {
        matches!(self.lanes[lane].policy, Policy::FirstCome { .. })
    }

    fn has(&self, machine: usize, lane: usize, kind: usize) -> bool {
        if machine == 0 {
            self.left[self.lanes[lane].kinds[kind]] > 0
        } else {
            self.threads[machine][lane].waiting[kind] > 0
        }
    }

    /// Whether a request of this requester can be answered now with this kind.
    fn can_take(&self, machine: usize, lane: usize, requester: Requester, kind: usize) -> bool {
        match requester {
            Requester::Itself => !self.processors[machine].is_used_by(lane),
            Requester::Child(child) => !self.ports[machine].is_used_by(lane) && self.has_room(child, lane, kind),
        }
    }

    fn has_room(&self, machine: usize, lane: usize, kind: usize) -> bool {
        let thread = &self.threads[machine][lane];
        match &self.lanes[lane].room {
            Room::Untyped(room) => thread.waiting.iter().chain(&thread.coming).sum::<u64>() < *room,
            Room::Typed(room) => thread.waiting[kind] + thread.coming[kind] < room[machine][kind],
        }
    }

    fn choose(&self, machine: usize, lane: usize) -> Option<(Requester, usize)> {
        let thread = &self.threads[machine][lane];
        let kinds = self.lanes[lane].kinds.len();
        match &self.lanes[lane].policy {
            Policy::FirstCome { weights } => {
                // Children wait for the port in their order; the processor waits for no child.
                let kind = match machine {
                    0 => next_by_deficit(weights, &thread.chosen[..kinds], |kind| self.has(0, lane, kind)),
                    _ => thread.order.front().copied(),
                }?;
                let can_take = |requester: &&Requester| self.can_take(machine, lane, **requester, kind);
                thread.requests.iter().find(can_take).map(|first| (*first, kind))
            }
            Policy::BandwidthCentric => {
                let children = self.children[machine].iter().map(|child| Requester::Child(*child));
                let mut requesters = std::iter::once(Requester::Itself).chain(children);
                let can_take = |requester: &Requester| self.can_take(machine, lane, *requester, 0);
                requesters.find(can_take).filter(|_| self.has(machine, lane, 0)).map(|requester| (requester, 0))
            }
            Policy::Rates { own, received, is_paced } => {
                let rates = self.rates(machine, own, received);
                let can_go = |choice: usize| {
                    let is_due = !is_paced || due_s(rates[choice], thread.chosen[choice]) <= self.now_s;
                    is_due && self.can_go(machine, lane, choice)
                };
                let choice = next_by_deficit(&rates, &thread.chosen, can_go)?;
                Some((self.requester(machine, choice / kinds), choice % kinds))
            }
        }
    }

    /// Rates of all choices of a machine: what it does itself, then what it sends to each child.
    fn rates(&self, machine: usize, own: &Rates, received: &Rates) -> Vec<f64> {
        let mut rates = own[machine].clone();
        self.children[machine].iter().for_each(|child| rates.extend(&received[*child]));
        rates
    }

    fn requester(&self, machine: usize, place: usize) -> Requester {
        if place == 0 { Requester::Itself } else { Requester::Child(self.children[machine][place - 1]) }
    }

    fn can_go(&self, machine: usize, lane: usize, choice: usize) -> bool {
        let kinds = self.lanes[lane].kinds.len();
        let (requester, kind) = (self.requester(machine, choice / kinds), choice % kinds);
        self.has(machine, lane, kind) && self.can_take(machine, lane, requester, kind)
    }

    /// Looks again when the first of the tasks is due that only wait for that.
    fn wait_for_due(&mut self, machine: usize, lane: usize) {
        let Policy::Rates { own, received, is_paced: true } = &self.lanes[lane].policy else { return };
        let thread = &self.threads[machine][lane];
        let rates = self.rates(machine, own, received);
        let waiting = (0..rates.len()).filter(|choice| rates[*choice] > 0.0 && self.can_go(machine, lane, *choice));
        let due_s = waiting.map(|choice| due_s(rates[choice], thread.chosen[choice])).fold(f64::INFINITY, f64::min);
        if due_s.is_finite() && thread.due_s.is_none_or(|pending_s| due_s < pending_s) {
            self.threads[machine][lane].due_s = Some(due_s);
            self.push(due_s, machine, Event::Due { lane });
        }
    }

    fn give(&mut self, machine: usize, lane: usize, requester: Requester, kind: usize) {
        let is_first_come = self.is_first_come(lane);
        let place = match requester {
            Requester::Child(child) if !is_first_come => {
                let number = self.children[machine].iter().position(|of| *of == child).expect("it is a child");
                (1 + number) * self.lanes[lane].kinds.len() + kind
            }
            Requester::Itself | Requester::Child(_) => kind,
        };
        let parent = self.platform.machines[machine].parent;
        let thread = &mut self.threads[machine][lane];
        thread.chosen[place] += 1;
        if is_first_come {
            let place = thread.requests.iter().position(|of| *of == requester).expect("only requests are answered");
            thread.requests.remove(place);
            thread.order.pop_front();
        }
        match parent {
            None => self.left[self.lanes[lane].kinds[kind]] -= 1,
            Some(parent) => {
                thread.waiting[kind] -= 1;
                if is_first_come {
                    self.threads[parent][lane].requests.push_back(Requester::Child(machine));
                }
            }
        }
        let task = self.tasks[self.lanes[lane].kinds[kind]];
        let (left_s, child) = match requester {
            Requester::Itself => (task.mop / self.platform.machines[machine].mflop_s, None),
            Requester::Child(child) => {
                self.threads[child][lane].coming[kind] += 1;
                (task.bytes / (self.platform.machines[child].mb_s * 1e6), Some(child))
            }
        };
        let job = Job { lane, kind, child, left_s };
        let resource = if child.is_some() { &mut self.ports[machine] } else { &mut self.processors[machine] };
        let end = resource.begin(self.now_s, job);
        self.foretell(machine, child.is_some(), end);
    }
}
