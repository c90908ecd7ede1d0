//! Applications in rounds for people: how far they are, and which of their results `bag get` saves.
//!
//! ```text
//! DIR/merged           what the merge left for all, after the round
//! DIR/processes/3      what process 3 left
//! ```
//!
//! Both are links to the directories of tasks, so that there is one of each file.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use idlewood_api::{Bag, RoundsView};
use idlewood_scheduler::rounds::{Part, Plan};
use idlewood_units::Numbers;

use super::context::BadUsage;
use crate::output;

/// Processes that are named.
const NAMED_MAX: usize = 8;

/// Lines of `bag show`.
pub(super) fn description(bag: &Bag) -> Vec<(&'static str, String)> {
    let Some(view) = &bag.rounds else { return Vec::new() };
    let RoundsView { processes, rounds, complete, mode, converged, .. } = view;
    let end = if *converged { ": it has converged" } else { "" };
    let processes = match processes {
        1 => "1 process".to_owned(),
        _ => format!("{processes} processes"),
    };
    let mut pairs = vec![("rounds", format!("{complete} of {rounds} complete, {processes}, {mode}{end}"))];
    let (least, most) = (view.done.iter().min(), view.done.iter().max());
    if let (Some(least), Some(most)) = (least, most)
        && least < most
    {
        pairs.push(("of a process", format!("from {least} to {most} rounds done")));
    }
    if let Some(booked) = view.slots_booked.filter(|_| !bag.state.is_closed()) {
        let all = view.processes;
        let round = view.done.iter().min().map_or(1, |done| done + 1);
        pairs.push(("at once", format!("round {round} begins when {all} slots can be had: {booked} are booked")));
    }
    if !view.waited_for.is_empty() && !bag.state.is_closed() {
        pairs.push(("waits for", named(&view.waited_for)));
    }
    pairs
}

fn named(processes: &[u64]) -> String {
    let numbers: Vec<String> = processes.iter().take(NAMED_MAX).map(u64::to_string).collect();
    let more = processes.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let noun = if processes.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}{more}", numbers.join(", "))
}

/// The tasks that have the results of a round.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Results {
    merge: Option<u64>,
    /// By process.
    processes: Vec<(u64, u64)>,
}

/// The tasks of a bag that have the results of this round, counted from 1, or else of the last one; `None`: the bag is not in rounds.
///
/// # Errors
/// It has no such round, or none is complete yet.
pub(super) fn results(bag: &Bag, round: Option<u64>) -> Result<Option<Results>, BadUsage> {
    let id = output::short_id(&bag.id);
    let Some(view) = &bag.rounds else {
        let plain = format!("bag {id} is not in rounds: leave out --round");
        return if round.is_some() { Err(BadUsage(plain)) } else { Ok(None) };
    };
    if round.is_some_and(|round| round == 0 || round > view.rounds) {
        return Err(BadUsage(format!("bag {id} has rounds 1 to {}", view.rounds)));
    }
    if round.unwrap_or(view.rounds) <= view.gone {
        let from = view.gone + 1;
        return Err(BadUsage(format!(
            "what rounds before round {from} of bag {id} left was lost with the machine that it was adopted from"
        )));
    }
    let (is_asynchronous, merges) = (view.mode == "async", view.merges);
    let (processes, rounds) = (view.processes, view.rounds);
    let plan = Plan { processes, rounds, rounds_min: 0, merges, is_asynchronous, fill: None, at_once: false };
    let of_process = |(process, &done): (usize, &u64)| {
        // Of a process that is ahead there is more in an asynchronous application alone.
        let last = if is_asynchronous { done } else { view.complete };
        let round = round.unwrap_or(last).checked_sub(1).filter(|&round| round < done)?;
        Some((process as u64, plan.index(Part::Process { round, process: process as u64 })))
    };
    let processes: Vec<(u64, u64)> = view.done.iter().enumerate().filter_map(of_process).collect();
    if processes.is_empty() {
        let which = round.map_or_else(
            || format!("no round of bag {id} is complete"),
            |round| format!("no process of bag {id} has done round {round}"),
        );
        return Err(BadUsage(format!("{which} yet: come back later, or name tasks with --index")));
    }
    let merge = if !merges {
        None
    } else if view.complete == view.rounds && round.is_none_or(|round| round == view.rounds) {
        plan.merge_of_all(view.rounds - 1)
    } else if is_asynchronous {
        // That of the process that is furthest.
        let furthest =
            view.done.iter().copied().enumerate().max_by_key(|&(process, done)| (done, usize::MAX - process));
        let last = |(process, done): (usize, u64)| {
            let round = round.unwrap_or(done.min(view.rounds - 1)).checked_sub(1)?;
            (round + 1 < view.rounds).then(|| plan.index(Part::Merge { round, of: Some(process as u64) }))
        };
        furthest.and_then(last)
    } else {
        round.unwrap_or(view.complete).checked_sub(1).and_then(|round| plan.merge_of_all(round))
    };
    Ok(Some(Results { merge, processes }))
}

impl Results {
    /// Their indices.
    pub(super) fn tasks(&self) -> Numbers {
        let tasks = self.merge.iter().copied().chain(self.processes.iter().map(|(_, index)| *index));
        let tasks: Vec<String> = tasks.map(|index| index.to_string()).collect();
        tasks.join(",").parse().expect("numbers with commas between")
    }

    /// Makes `merged` and `processes` in a directory that has their tasks' outputs. Says where they are.
    ///
    /// # Errors
    /// A link cannot be made, or something else is there that has its name.
    pub(super) fn arrange(&self, out: &Path) -> anyhow::Result<String> {
        if !self.processes.is_empty() {
            fs::create_dir_all(out.join("processes"))?;
        }
        for (process, index) in &self.processes {
            link(&PathBuf::from(format!("../{index}/outputs")), &out.join("processes").join(process.to_string()))?;
        }
        let processes = format!("what each process left is in {}", out.join("processes").display());
        let Some(merge) = self.merge else { return Ok(processes) };
        let merged = out.join("merged");
        link(&PathBuf::from(format!("{merge}/outputs/merged")), &merged)?;
        Ok(format!("{processes}, and what was merged in {}", merged.display()))
    }
}

/// Replaces a link, or makes one.
fn link(to: &Path, at: &Path) -> anyhow::Result<()> {
    let made = match fs::symlink_metadata(at) {
        Ok(there) if there.is_symlink() => fs::remove_file(at).and_then(|()| symlink(to, at)),
        Ok(_) => Err(io::Error::from(ErrorKind::AlreadyExists)),
        Err(_) => symlink(to, at),
    };
    made.with_context(|| format!("cannot make the link {}: name another directory with --out", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_up_to_a_few() {
        assert_eq!(named(&[3]), "process 3");
        assert_eq!(named(&[3, 5]), "processes 3, 5");
        assert_eq!(named(&(0..20).collect::<Vec<_>>()), "processes 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }

    #[test]
    fn a_second_get_replaces_links_and_nothing_else() {
        let out = tempfile::tempdir().expect("a directory");
        let results = |merge| Results { merge: Some(merge), processes: vec![(0, merge - 1)] };
        results(3).arrange(out.path()).expect("there is room");
        results(7).arrange(out.path()).expect("there is room");
        let at = |name: &str| fs::read_link(out.path().join(name)).expect("it is a link");
        assert_eq!((at("merged"), at("processes/0")), ("7/outputs/merged".into(), "../6/outputs".into()));
        fs::remove_file(out.path().join("merged")).expect("ours");
        fs::write(out.path().join("merged"), "mine").expect("ours");
        results(7).arrange(out.path()).expect_err("the user's own file");
        assert_eq!(results(7).tasks(), "6,7".parse().expect("numbers"));
    }
}
