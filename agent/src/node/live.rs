//! Following what running tasks write: this machine asks those that run tasks of its bags, and answers for its own.
//!
//! What is asked is what follows a place in the output of each run. So nobody keeps anything for whoever follows, and whoever stops asking
//! costs nothing more. Who may ask [`Machine::running_for`] says; how much leaves this machine in a second is bounded here, and by the
//! owner's cap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::{JobId, Machine, RunningJob};
use idlewood_net::{LIVE_TASKS_MAX, LiveAsk, LiveError, LivePlace, LiveQuestion, LiveTask, LiveTold, Rate};
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::BagId;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_trust::identity;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::bag_views::find;
use super::done::Done;
use super::execution::Execution;
use super::live_output::{self, Running};
use super::measuring::Measuring;
use super::pins::Pins;
use super::shared::Shared;
use super::tasks::Whereabouts;
use crate::handle::{self, Refusal, answer};

/// Most bytes of running tasks' output that leave this machine in a second. Our choice: more than people read, and a hundredth of a local
/// network.
const BYTES_PER_S: u64 = 1 << 20;
/// Machines that are asked for one answer: those whose output is followed already, then others. Our choice.
const MACHINES_MAX: usize = 64;
/// How long their answers are waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Tasks of which is said where they wait.
const WAITING_MAX: u64 = 16;

/// The bound on what leaves this machine.
pub(super) struct Live(Arc<Rate>);

/// What is asked of one machine.
struct Asked {
    executor: Contact,
    /// Of the tasks asked for those that it has.
    tasks: IntervalSet,
    seen: BTreeMap<u64, LivePlace>,
}

impl Live {
    pub(super) fn new() -> Self {
        let rate = Rate::default();
        rate.set(Some(BYTES_PER_S));
        Self(Arc::new(rate))
    }

    // ---- others ask ----

    /// Answers another machine, beside the loop.
    pub(super) fn question(
        &self,
        LiveQuestion { from, ask, reply }: LiveQuestion,
        machine: &Machine,
        execution: &Execution,
        shared: &mut Shared,
    ) {
        let Some(jobs) = machine.running_for(BagId(ask.bag), from) else {
            tracing::debug!(?from, "asks what tasks write of a bag that is not here, or not its own");
            return tell(reply, LiveTold::default());
        };
        let running = running(jobs, &ask, machine, execution);
        let (rate, net) = (self.0.clone(), shared.net.clone());
        let read = async move {
            let tasks = read(running).await;
            let bytes = tasks.iter().map(|task| task.stdout.len() + task.stderr.len()).sum();
            let waits = rate.book(bytes).zip(net.rates().upload.book(bytes));
            // Whoever loses the way for the answer asks again.
            if let Some((own, owners)) = waits {
                tokio::time::sleep(own.max(owners)).await;
                tell(reply, LiveTold { tasks: Some(tasks) });
            }
            Done::Discarded
        };
        shared.answers.spawn(read, Done::Discarded);
    }

    // ---- the user asks ----

    /// Asks the machines that run tasks of a bag of this one, beside the loop, and answers the user.
    pub(super) fn ask(
        &self,
        handle::LiveQuestion { id, request, reply }: handle::LiveQuestion,
        pins: &Pins,
        machine: &Machine,
        (execution, measuring): (&Execution, &Measuring),
        shared: &mut Shared,
    ) {
        let peer = machine.peer();
        let view = match find(peer, pins, &id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        if request.tasks.len() > LIVE_TASKS_MAX {
            let why = format!("{} ranges of tasks are too many at once: {LIVE_TASKS_MAX} at most", request.tasks.len());
            return answer(reply, Err(Refusal::Invalid(why)));
        }
        let (bag, me) = (view.bag.id, peer.me().peer);
        let chosen = chosen(&request.tasks, view.bag.tasks);
        let whereabouts = Whereabouts::of(peer, &view);
        let executors = executors(peer.placements(bag), &chosen, &whereabouts, &request.seen);
        let followed = followed(&executors, &request.seen);
        let mut own = Vec::new();
        let (mut asked, mut unasked) = (Vec::new(), 0);
        for to in executors {
            if to.executor.peer == me {
                let ask = to.ask(bag, &request.tasks);
                let jobs = machine.running_for(bag, me).unwrap_or_default();
                own.extend(running(jobs, &ask, machine, execution));
            } else if asked.len() < MACHINES_MAX {
                asked.push(to);
            } else {
                unasked += 1;
            }
        }
        if chosen.contains(0)
            && let Some(written) = measuring.written(bag)
        {
            let me = identity::to_libp2p(me).to_string();
            let seen = request.seen.iter().find(|seen| seen.index == 0 && seen.machine == me).map(place);
            // Before any other job.
            let place = place_in(0, run_of(machine, JobId(0)), seen);
            own.push(Running { place, attempt: 0, stands_still: machine.stands_still(), written });
        }
        let net = shared.net.clone();
        let ask_all = async move {
            let mut answers = JoinSet::new();
            for to in asked {
                let (net, ask) = (net.clone(), to.ask(bag, &request.tasks));
                answers.spawn(async move {
                    let told = tokio::time::timeout(ANSWER_WAIT, net.live(&to.executor, ask)).await;
                    let told = told.unwrap_or(Err(LiveError::Unreachable));
                    (to, told)
                });
            }
            let own = read(own).await;
            let mut live = idlewood_api::Live { unasked, ..idlewood_api::Live::default() };
            live.tasks.extend(own.into_iter().map(|task| shown(me, task)));
            while let Some(answered) = answers.join_next().await {
                if let Ok((to, told)) = answered {
                    to.hear(told, &mut live);
                }
            }
            leave_one_each(&mut live.tasks, &followed);
            if !request.tasks.is_empty() {
                live.waiting = waiting(&chosen, &whereabouts, &live);
            }
            answer(reply, Ok(live));
            Done::Discarded
        };
        shared.answers.spawn(ask_all, Done::Discarded);
    }
}

impl Asked {
    fn ask(&self, bag: BagId, tasks: &[(u64, u64)]) -> LiveAsk {
        let seen = self.seen.values().take(LIVE_TASKS_MAX).copied().collect();
        LiveAsk { bag: bag.0, tasks: tasks.to_vec(), seen }
    }

    /// Takes what a machine says of tasks that it has, each once, and no more: it may say anything.
    fn hear(self, told: Result<LiveTold, LiveError>, live: &mut idlewood_api::Live) {
        let machine = self.executor.peer;
        match told {
            Ok(LiveTold { tasks }) => {
                let mut open = self.tasks;
                for task in tasks.unwrap_or_default() {
                    let index = task.place.index;
                    if open.contains(index) && is_in_place(&task.place, self.seen.get(&index)) {
                        open.subtract(&IntervalSet::from(index..index + 1));
                        live.tasks.push(shown(machine, task));
                    }
                }
            }
            Err(error) => live.silent.push(idlewood_api::LiveSilent {
                machine: identity::to_libp2p(machine).to_string(),
                why: error.to_string(),
                tasks: self.tasks.len(),
            }),
        }
    }
}

/// Whether an answer goes on where the question left off, or begins anew with another run.
fn is_in_place(told: &LivePlace, seen: Option<&LivePlace>) -> bool {
    match seen {
        Some(seen) if seen.run == told.run => seen == told,
        Some(_) | None => (told.stdout, told.stderr) == (0, 0),
    }
}

fn tell(reply: oneshot::Sender<LiveTold>, told: LiveTold) {
    if reply.send(told).is_err() {
        tracing::debug!("whoever asked what tasks write is gone");
    }
}

async fn read(running: Vec<Running>) -> Vec<LiveTask> {
    tokio::task::spawn_blocking(move || live_output::read(running)).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "what tasks write could not be read");
        Vec::new()
    })
}

/// Those of the running tasks that are asked for.
fn running(jobs: Vec<RunningJob>, ask: &LiveAsk, machine: &Machine, execution: &Execution) -> Vec<Running> {
    let is_wanted =
        |index: u64| ask.tasks.is_empty() || ask.tasks.iter().any(|&(from, to)| (from..=to).contains(&index));
    let found = jobs.into_iter().filter(|job| is_wanted(job.index)).take(LIVE_TASKS_MAX);
    let found = found.filter_map(|RunningJob { slot, job, index, attempt, stands_still }| {
        let seen = ask.seen.iter().find(|seen| seen.index == index).copied();
        let place = place_in(index, run_of(machine, job), seen);
        Some(Running { place, attempt, stands_still, written: execution.written(slot, job)? })
    });
    found.collect()
}

/// Names a run: no other of this machine has the name, in this life of the agent or another.
fn run_of(machine: &Machine, job: JobId) -> u64 {
    (machine.peer().me().incarnation << 20).wrapping_add(job.0)
}

/// Where the asker goes on in a run.
fn place_in(index: u64, run: u64, seen: Option<LivePlace>) -> LivePlace {
    let anew = LivePlace { index, run, stdout: 0, stderr: 0 };
    seen.filter(|seen| seen.run == run).map_or(anew, |seen| LivePlace { index, run, ..seen })
}

fn place(seen: &idlewood_api::LiveSeen) -> LivePlace {
    LivePlace { index: seen.index, run: seen.run, stdout: seen.stdout, stderr: seen.stderr }
}

/// The tasks of a bag that are asked for.
fn chosen(ranges: &[(u64, u64)], tasks: u64) -> IntervalSet {
    if ranges.is_empty() {
        return IntervalSet::from(0..tasks);
    }
    let within = ranges.iter().map(|&(from, to)| from..to.saturating_add(1).min(tasks));
    within.filter(|range| !range.is_empty()).collect()
}

/// The machines that have some of these tasks, those first whose output is followed.
fn executors(
    placements: Vec<(Contact, IntervalSet)>,
    chosen: &IntervalSet,
    whereabouts: &Whereabouts,
    seen: &[idlewood_api::LiveSeen],
) -> Vec<Asked> {
    let open = chosen.intersection(&whereabouts.in_state(idlewood_api::TaskState::Placed));
    let mut by_machine: BTreeMap<&str, BTreeMap<u64, LivePlace>> = BTreeMap::new();
    for seen in seen {
        by_machine.entry(&seen.machine).or_default().insert(seen.index, place(seen));
    }
    let of = |(executor, ranges): (Contact, IntervalSet)| {
        let tasks = ranges.intersection(&open);
        let name = identity::to_libp2p(executor.peer).to_string();
        let seen = by_machine.get(name.as_str()).cloned().unwrap_or_default();
        (!tasks.is_empty()).then_some(Asked { executor, tasks, seen })
    };
    let mut all: Vec<Asked> = placements.into_iter().filter_map(of).collect();
    all.sort_by_key(|asked| asked.seen.is_empty());
    all
}

/// The machines whose runs are followed, by task, of those that still have the task: what a run has written may be on its way as its result.
fn followed(executors: &[Asked], seen: &[idlewood_api::LiveSeen]) -> BTreeMap<u64, String> {
    let has = |machine: &str, index: u64| {
        let is_it = |asked: &&Asked| identity::to_libp2p(asked.executor.peer).to_string() == machine;
        executors.iter().find(is_it).is_some_and(|asked| asked.tasks.contains(index))
    };
    let still = seen.iter().filter(|seen| has(&seen.machine, seen.index));
    still.map(|seen| (seen.index, seen.machine.clone())).collect()
}

/// Leaves one run of each task, by index: of a task with a copy or replicas the run that is followed.
fn leave_one_each(tasks: &mut Vec<idlewood_api::LiveTask>, followed: &BTreeMap<u64, String>) {
    tasks.sort_by_key(|task| task.index);
    let is_followed =
        |task: &idlewood_api::LiveTask| followed.get(&task.index).is_none_or(|machine| *machine == task.machine);
    tasks.retain(is_followed);
    tasks.dedup_by_key(|task| task.index);
}

fn shown(
    machine: PeerId,
    LiveTask { place, attempt, stands_still, stdout, stderr }: LiveTask,
) -> idlewood_api::LiveTask {
    idlewood_api::LiveTask {
        machine: identity::to_libp2p(machine).to_string(),
        index: place.index,
        run: place.run,
        attempt,
        stands_still,
        stdout_from: place.stdout,
        stdout: hex::encode(stdout),
        stderr_from: place.stderr,
        stderr: hex::encode(stderr),
    }
}

/// Where the first of the chosen tasks are that do not run.
fn waiting(
    chosen: &IntervalSet,
    whereabouts: &Whereabouts,
    live: &idlewood_api::Live,
) -> Vec<idlewood_api::LiveWaiting> {
    let run: IntervalSet = live.tasks.iter().map(|task| task.index..task.index + 1).collect();
    let mut others = chosen.difference(&run);
    let first = others.take_first(WAITING_MAX);
    let state_of =
        |index| idlewood_api::TaskState::ALL.into_iter().find(|&state| whereabouts.in_state(state).contains(index));
    let one = |index| {
        let machine = whereabouts.machine(index).map(|machine| identity::to_libp2p(machine).to_string());
        Some(idlewood_api::LiveWaiting { index, state: state_of(index)?, machine })
    };
    first.indices().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, run: u64, stdout: u64) -> LivePlace {
        LivePlace { index, run, stdout, stderr: 0 }
    }

    fn asked(tasks: std::ops::Range<u64>, seen: &[LivePlace]) -> Asked {
        let executor = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
        Asked { executor, tasks: tasks.into(), seen: seen.iter().map(|seen| (seen.index, *seen)).collect() }
    }

    /// It cannot speak for tasks that others have, nor have a user read anything twice or miss something.
    #[test]
    fn a_machine_is_heard_about_its_own_tasks_and_what_follows_alone() {
        let task =
            |place| LiveTask { place, attempt: 0, stands_still: false, stdout: b"x".to_vec(), stderr: Vec::new() };
        let heard = |places: &[LivePlace]| {
            let mut live = idlewood_api::Live::default();
            let tasks = Some(places.iter().copied().map(task).collect());
            asked(2..5, &[at(2, 7, 10)]).hear(Ok(LiveTold { tasks }), &mut live);
            live.tasks.iter().map(|task| (task.index, task.run, task.stdout_from)).collect::<Vec<_>>()
        };
        assert_eq!(heard(&[at(2, 7, 10), at(3, 1, 0)]), [(2, 7, 10), (3, 1, 0)]);
        assert_eq!(heard(&[at(2, 8, 0)]), [(2, 8, 0)], "another run begins anew");
        assert_eq!(heard(&[at(5, 1, 0), at(u64::MAX, 1, 0)]), [], "others have these");
        assert_eq!(heard(&[at(3, 1, 0), at(3, 2, 0)]), [(3, 1, 0)], "once");
        for place in [at(2, 7, 9), at(2, 7, 11), at(2, 7, 0), at(2, 8, 10), at(3, 1, 1)] {
            assert_eq!(heard(&[place]), [], "{place:?}");
        }
        let mut live = idlewood_api::Live::default();
        asked(2..5, &[]).hear(Err(LiveError::Older), &mut live);
        assert_eq!((live.silent[0].tasks, live.silent[0].why.contains("older")), (3, true));
    }

    /// A copy runs elsewhere, or replicas do: whoever follows one run is not shown now this and now that.
    #[test]
    fn one_run_of_a_task_is_followed_as_long_as_its_machine_has_the_task() {
        let machine = |number: u8| identity::to_libp2p(PeerId([number; 32])).to_string();
        let task = |index, number: u8| {
            let (place, stdout, stderr) = (at(index, u64::from(number), 0), Vec::new(), Vec::new());
            shown(PeerId([number; 32]), LiveTask { place, attempt: 0, stands_still: false, stdout, stderr })
        };
        let left = |followed: &[(u64, u8)]| {
            let followed = followed.iter().map(|&(index, number)| (index, machine(number))).collect();
            let mut tasks = vec![task(3, 2), task(1, 1), task(1, 2)];
            leave_one_each(&mut tasks, &followed);
            tasks.iter().map(|task| (task.index, task.run)).collect::<Vec<_>>()
        };
        assert_eq!(left(&[]), [(1, 1), (3, 2)]);
        assert_eq!(left(&[(1, 2)]), [(1, 2), (3, 2)]);
        assert_eq!(left(&[(3, 1)]), [(1, 1)], "it has ended there, and its result is on its way");
        let seen = |index| idlewood_api::LiveSeen { machine: machine(1), index, run: 1, stdout: 0, stderr: 0 };
        let still = followed(&[asked(2..5, &[])], &[seen(2), seen(9)]);
        assert_eq!(still, BTreeMap::from([(2, machine(1))]), "that machine has the other no more");
    }

    #[test]
    fn whoever_has_read_another_run_begins_anew() {
        assert_eq!(place_in(1, 5, Some(at(1, 5, 30))), at(1, 5, 30));
        assert_eq!(place_in(1, 6, Some(at(1, 5, 30))), at(1, 6, 0));
        assert_eq!(place_in(1, 6, None), at(1, 6, 0));
    }

    #[test]
    fn ranges_choose_tasks_of_the_bag() {
        assert_eq!(chosen(&[], 5), IntervalSet::from(0..5));
        assert_eq!(chosen(&[(0, 0), (3, u64::MAX)], 5), [0..1, 3..5].into_iter().collect());
        assert_eq!(chosen(&[(9, 12), (4, 2)], 5), IntervalSet::new());
    }
}
