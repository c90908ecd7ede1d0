//! What an application in rounds on whole peers is compared with: the truth of a run, and mappings of it by who knows all, or changes
//! nothing.
//!
//! Times are seconds since the application was submitted. A machine that is switched off loses what a task has done; one whose owner is
//! there lets it stand still. Messages, files and other bags take no time here.
//!
//! - *Static*: each process stays on its machine in all rounds, as mapped at the beginning by prediction, or evenly, on the
//!   machines that were up. What is on a machine that never comes back goes to the one that ends it first.
//! - *Clairvoyant*: knows all works and sessions. It is greedy, each process going to the machine that ends it first, in two
//!   orders, the better one. It is no bound.

use idlewood_scheduler::rounds::{Costs, Curve, Mode, Process, Slot, map};

use super::world::Session;

/// The truth of a run. Machines have one slot each.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    /// By machine, in order.
    pub(super) sessions: Vec<Vec<Session>>,
    /// By machine, in Mop/s.
    pub(super) speeds_mops: Vec<f64>,
    /// By round, then by process, in Mop.
    pub(super) work_mops: Vec<Vec<f64>>,
    /// What each process is predicted to be in a round, in Mop.
    pub(super) mean_mops: Vec<f64>,
    /// Whether a process goes on after an interruption where it was.
    pub(super) resumes: bool,
    /// How long a merge takes.
    pub(super) merge_s: f64,
    pub(super) is_asynchronous: bool,
}

impl Truth {
    /// When work ends that is to begin on a machine at this moment; none if it never does.
    fn end_s(&self, machine: usize, work_mops: f64, from_s: f64) -> Option<f64> {
        let sessions = &self.sessions[machine];
        let mut left_s = work_mops / self.speeds_mops[machine];
        for session in &sessions[sessions.partition_point(|session| session.to_s <= from_s)..] {
            let begins_s = session.from_s.max(from_s);
            if begins_s + left_s <= session.to_s {
                return Some(begins_s + left_s);
            }
            if self.resumes {
                left_s -= session.to_s - begins_s;
            }
        }
        None
    }

    /// The machine that ends work first, and when; `free_s` says when each can begin, `from_s` when the work can.
    fn earliest(&self, work_mops: f64, from_s: f64, free_s: &[f64]) -> Option<(f64, usize)> {
        let ends = |machine: usize| Some((self.end_s(machine, work_mops, free_s[machine].max(from_s))?, machine));
        (0..free_s.len()).filter_map(ends).min_by(|(one_s, _), (other_s, _)| one_s.total_cmp(other_s))
    }

    fn is_up(&self, machine: usize) -> bool {
        self.sessions[machine].first().is_some_and(|session| session.from_s <= 0.0)
    }

    /// The machine of each process as predicted for one round on the machines that are up at the beginning, and how long that round
    /// takes; none if no machine is up.
    fn predicted(&self) -> Option<(Vec<usize>, f64)> {
        let machines = 0..self.speeds_mops.len();
        let slot = |machine| Slot { machine, free_s: if self.is_up(machine) { 0.0 } else { f64::INFINITY } };
        let curve =
            |machine: usize, mean_mops: f64| Curve { start_s: 0.0, iteration_s: mean_mops / self.speeds_mops[machine] };
        let curves = machines.clone().map(|it| self.mean_mops.iter().map(|&mops| curve(it, mops)).collect()).collect();
        let costs = Costs { curves, transfer_s: 0.0, merge_s: 0.0 };
        let processes: Vec<Process> =
            (0..self.mean_mops.len()).map(|class| Process { class, iterations: 1, home: None }).collect();
        let slots: Vec<Slot> = machines.map(slot).collect();
        let mapping = map(Mode::Asynchronous, &processes, &slots, &costs)?;
        let mut homes = vec![0; processes.len()];
        mapping.stages.iter().flat_map(|stage| &stage.placements).for_each(|it| homes[it.process] = it.slot);
        Some((homes, mapping.ends_s))
    }

    /// When the application is predicted to end at the beginning: all rounds like the first.
    pub(super) fn predicted_s(&self) -> Option<f64> {
        let rounds = self.work_mops.len() as f64;
        self.predicted().map(|(_, round_s)| rounds * (round_s + self.merge_s))
    }

    /// When the better of the static mappings ends.
    pub(super) fn best_static_s(&self) -> Option<f64> {
        let up: Vec<usize> = (0..self.speeds_mops.len()).filter(|&machine| self.is_up(machine)).collect();
        let evenly = (!up.is_empty()).then(|| (0..self.mean_mops.len()).map(|it| up[it % up.len()]).collect());
        let mappings = self.predicted().map(|(homes, _)| homes).into_iter().chain(evenly);
        mappings.filter_map(|homes: Vec<usize>| self.follow(Some(homes), false)).min_by(f64::total_cmp)
    }

    /// When the clairvoyant ends.
    pub(super) fn clairvoyant_s(&self) -> Option<f64> {
        [false, true].into_iter().filter_map(|longest_first| self.follow(None, longest_first)).min_by(f64::total_cmp)
    }

    /// When all has ended on these homes, or each process where it ends first. Of the processes that can begin the one that can do
    /// so first is next, or the one with the most work left.
    fn follow(&self, homes: Option<Vec<usize>>, longest_first: bool) -> Option<f64> {
        let processes = self.mean_mops.len();
        let mut homes: Vec<Option<usize>> =
            homes.map_or(vec![None; processes], |homes| homes.into_iter().map(Some).collect());
        let mut free_s: Vec<f64> = vec![0.0; self.speeds_mops.len()];
        let mut ready_s: Vec<f64> = vec![0.0; processes];
        let mut done = vec![0; processes];
        let left_mops = |process: usize, done: usize| self.work_mops[done..].iter().map(|of| of[process]).sum::<f64>();
        // In the synchronous mode a round at a time.
        let ends = |it: usize| if self.is_asynchronous { self.work_mops.len() } else { it + 1 };
        for round in 0..if self.is_asynchronous { 1 } else { self.work_mops.len() } {
            loop {
                let open = (0..processes).filter(|&process| done[process] < ends(round));
                let least = |&one: &usize, &other: &usize| {
                    let by_work = left_mops(other, done[other]).total_cmp(&left_mops(one, done[one]));
                    let by_time = ready_s[one].total_cmp(&ready_s[other]);
                    if longest_first { by_work.then(by_time) } else { by_time.then(by_work) }
                };
                let Some(process) = open.min_by(least) else { break };
                let work_mops = self.work_mops[done[process]][process];
                let at_home = homes[process]
                    .and_then(|home| Some((self.end_s(home, work_mops, free_s[home].max(ready_s[process]))?, home)));
                let (end_s, machine) = at_home.or_else(|| self.earliest(work_mops, ready_s[process], &free_s))?;
                free_s[machine] = end_s;
                if homes[process].is_some() {
                    homes[process] = Some(machine);
                }
                done[process] += 1;
                ready_s[process] = end_s + if self.is_asynchronous { self.merge_s } else { 0.0 };
            }
            if !self.is_asynchronous {
                let merged_s = ready_s.iter().copied().fold(0.0, f64::max) + self.merge_s;
                ready_s.fill(merged_s);
            }
        }
        ready_s.into_iter().max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(from_s: f64, to_s: f64) -> Session {
        Session { from_s, to_s }
    }

    /// Two processes of 10 s in two rounds on two machines, the second of which is away from 15 s to 100 s.
    fn truth(is_asynchronous: bool, resumes: bool) -> Truth {
        Truth {
            sessions: vec![vec![session(0.0, f64::INFINITY)], vec![session(0.0, 15.0), session(100.0, f64::INFINITY)]],
            speeds_mops: vec![1.0; 2],
            work_mops: vec![vec![10.0; 2]; 2],
            mean_mops: vec![10.0; 2],
            resumes,
            merge_s: 2.0,
            is_asynchronous,
        }
    }

    #[test]
    fn a_static_mapping_waits_and_a_clairvoyant_does_not() {
        for is_asynchronous in [false, true] {
            let truth = |resumes| truth(is_asynchronous, resumes);
            assert_eq!(truth(false).predicted_s(), Some(24.0));
            // The second round of the second process begins at 12 s, and anew at 100 s, or goes on there.
            assert_eq!(truth(false).best_static_s(), Some(112.0));
            assert_eq!(truth(true).best_static_s(), Some(109.0));
            // Both second rounds on the first machine: from 12 s (10 s, where nobody waits) to 32 s, and merged.
            assert_eq!(truth(false).clairvoyant_s(), Some(34.0));
        }
    }

    #[test]
    fn what_never_comes_back_goes_elsewhere() {
        let mut truth = truth(false, false);
        truth.sessions[1].truncate(1);
        assert_eq!(truth.best_static_s(), Some(34.0));
        truth.sessions = vec![Vec::new(); 2];
        assert_eq!((truth.best_static_s(), truth.clairvoyant_s(), truth.predicted_s()), (None, None, None));
    }
}
