//! What users order of endless bags: more tasks, their end, and that results are saved.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_blobs::Blobs;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BAG_TASKS_MAX, BagId, BagView, BlobId, Event, LINE_BYTES_MAX, Peer, TaskId};
use idlewood_trust::manifest::{Entry, Manifest};

use super::bag_views::find;
use super::done::{Done, NewLines};
use super::lines::Lines;
use super::pin::Pin;
use super::pins::{self, Pins};
use super::shared::{Due, Shared};
use crate::handle::{Refusal, Reply, answer};

/// Most lines of one request, which are one page: the loop reads a page as a whole.
const LINES_TOGETHER: usize = 1_000;
/// While so many tasks of a bag wait to be given to machines, no more are taken: whoever writes them waits. Our choice: as many as one
/// machine can have in hand, sixteen times.
const WAITING_MAX: u64 = 1 << 16;

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct EndlessOrders {
    /// Bags whose new lines are being written.
    keeping: BTreeSet<BagId>,
    /// Who drains a bag, until that is durable.
    draining: BTreeMap<BagId, Vec<Reply<idlewood_api::Bag>>>,
}

/// An endless bag by its name.
fn endless(id: &str, pins: &Pins, peer: &Peer) -> Result<BagView, Refusal> {
    let view = find(peer, pins, id)?;
    if view.endless.is_none() {
        let why = format!("bag {} has an end: this is for bags that were submitted with --endless", view.bag.id);
        return Err(Refusal::Conflict(why));
    }
    Ok(view)
}

/// Why these cannot be lines of tasks.
fn flaw(lines: &[String]) -> Option<String> {
    if lines.len() > LINES_TOGETHER {
        return Some(format!("{} lines at once are too many: send {LINES_TOGETHER} at most", lines.len()));
    }
    let bad = lines.iter().find(|line| line.is_empty() || line.len() > LINE_BYTES_MAX || line.contains('\0'))?;
    let shown: String = bad.chars().take(40).collect();
    Some(format!(
        "a line that is a task has 1 to {LINE_BYTES_MAX} bytes, none of them zero; {shown:?} has {}",
        bad.len()
    ))
}

/// The content of the file that a line stands for.
fn file(line: &str) -> Option<BlobId> {
    Some(serde_json::from_str::<Entry>(line).ok()?.input?.blob)
}

/// Lines that are tasks already have to be those that are: else somebody else adds to the bag, too, and these would be lost. Pages of drained
/// tasks are gone, but for the last one. Blocks.
fn are_repeated(kept: &Lines, bag: BagId, from: u64, lines: &[String]) -> Result<(), Refusal> {
    let same = |(index, line): (u64, &String)| kept.get(TaskId { bag, index }).is_none_or(|kept| kept == *line);
    if (from..).zip(lines).all(same) {
        return Ok(());
    }
    let why = format!("task {from} of bag {bag} is another one already: something else adds tasks to this bag, too");
    Err(Refusal::Conflict(why))
}

/// Checks the files of new tasks, and makes them durable. Blocks.
fn check_files(manifest: &Manifest, lines: &[String], blobs: &Blobs) -> Result<(), Refusal> {
    for line in lines {
        let entry = manifest.entry_of_line(line.clone()).map_err(|error| Refusal::Invalid(error.to_string()))?;
        if let Some(input) = entry.input {
            let hash = blake3::Hash::from_bytes(input.blob.0);
            if blobs.len(hash).is_none() {
                // It may have gone for want of room since.
                return Err(Refusal::Unavailable(format!("{} is not here: upload it, then send it again", input.name)));
            }
            blobs.make_durable(hash).map_err(|error| Refusal::Unavailable(error.to_string()))?;
        }
    }
    Ok(())
}

/// Keeps new lines, durably; returns how many tasks there are then. Blocks.
fn keep_lines(kept: &Lines, bag: BagId, from: u64, lines: Vec<String>) -> Result<u64, Refusal> {
    let tasks = from + lines.len() as u64;
    if lines.is_empty() {
        return Ok(tasks);
    }
    let unavailable = |error| Refusal::Unavailable(format!("the lines could not be kept: {error}"));
    kept.keep(bag, from, lines).map_err(unavailable)?;
    Ok(tasks)
}

impl EndlessOrders {
    /// Adds lines as tasks, from this one on. They are written beside the loop, and whoever sends them is answered then.
    pub(super) fn add_lines(
        &mut self,
        id: &str,
        idlewood_api::LinesRequest { from, mut lines }: idlewood_api::LinesRequest,
        reply: Reply<idlewood_api::Bag>,
        pins: &Pins,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        let view = match endless(id, pins, peer) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let (bag, of_bag) = (view.bag.id, view.endless.as_ref());
        let known = of_bag.and_then(|endless| endless.tasks).unwrap_or(BAG_TASKS_MAX);
        let refusal = if known == BAG_TASKS_MAX {
            Some(Refusal::Conflict(format!("the tasks of bag {bag} are numbers, and no lines")))
        } else if view.closed.is_some() || of_bag.is_some_and(|endless| endless.is_ended) {
            Some(Refusal::Conflict(format!("bag {bag} is closed: it takes no more tasks")))
        } else if let Some(flaw) = flaw(&lines) {
            Some(Refusal::Invalid(flaw))
        } else if from > known {
            Some(Refusal::Conflict(format!("bag {bag} has {known} tasks, and these begin with task {from}")))
        } else if pins.is_unread(bag) {
            Some(Refusal::Unavailable(format!("what bag {bag} is made of cannot be read at the moment: see the log")))
        } else if self.keeping.contains(&bag) {
            Some(Refusal::Unavailable(format!("other lines of bag {bag} are being written: send these once they are")))
        } else if of_bag.is_some_and(|endless| endless.waiting >= WAITING_MAX) {
            let why = format!("{WAITING_MAX} tasks of bag {bag} wait for machines: send more later");
            Some(Refusal::Unavailable(why))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return answer(reply, Err(refusal));
        }
        // Those that are here already are repeated, since their answer was lost.
        let new = lines.split_off(usize::try_from(known - from).unwrap_or(usize::MAX).min(lines.len()));
        let takes_files = pins.takes_files(bag);
        // They stay from before it is checked whether they are here.
        let files = new.iter().filter(|_| takes_files).filter_map(|line| file(line));
        let files: Vec<Pin> = files.map(|file| pins.of_task(bag, file)).collect();
        self.keeping.insert(bag);
        let (kept, blobs, manifest) = (shared.lines.clone(), shared.supplies.blobs.clone(), shared.manifests.get(bag));
        let keep = move || {
            let manifest = if takes_files { pins::manifest(manifest, &blobs, bag) } else { Ok(None) };
            let kept = manifest.and_then(|manifest| {
                are_repeated(&kept, bag, from, &lines)?;
                manifest.map_or(Ok(()), |manifest| check_files(&manifest, &new, &blobs))?;
                keep_lines(&kept, bag, known, new)
            });
            let result = kept.map(|tasks| NewLines { from: known, tasks, files });
            Done::LinesKept { bag, result, reply: Some(reply) }
        };
        let lost = Refusal::Unavailable("the lines could not be kept: send them again".to_owned());
        shared.answers.spawn_blocking(keep, Done::LinesKept { bag, result: Err(lost), reply: None });
    }

    /// New lines are durable, or not.
    pub(super) fn lines_kept(
        &mut self,
        bag: BagId,
        result: Result<NewLines, Refusal>,
        reply: Option<Reply<idlewood_api::Bag>>,
        pins: &mut Pins,
        shared: &mut Shared,
    ) {
        self.keeping.remove(&bag);
        let gone = Refusal::NotFound("the bag was removed meanwhile".to_owned());
        match result {
            Ok(NewLines { from, tasks, files }) => {
                pins.keep_files(bag, from, files);
                shared.events.tell(Event::TasksAdded { bag, tasks });
                shared.due.extend(reply.map(|reply| Due::Bag { bag, was: None, gone, reply }));
            }
            Err(refusal) => reply.into_iter().for_each(|reply| answer(reply, Err(refusal.clone()))),
        }
    }

    /// These results are saved. Whoever says so is answered once that is durable.
    pub(super) fn drain(
        &mut self,
        id: &str,
        tasks: &[(u64, u64)],
        reply: Reply<idlewood_api::Bag>,
        pins: &Pins,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        match endless(id, pins, peer) {
            Ok(view) => {
                let bag = view.bag.id;
                let tasks: IntervalSet =
                    tasks.iter().map(|&(first, count)| first..first.saturating_add(count)).collect();
                self.draining.entry(bag).or_default().push(reply);
                shared.events.tell(Event::Drained { bag, tasks });
            }
            Err(refusal) => answer(reply, Err(refusal)),
        }
    }

    /// Drained results are gone from the disk, and lines of their tasks need not be kept either.
    pub(super) fn drained(&mut self, bag: BagId, pins: &mut Pins, peer: &Peer, shared: &mut Shared) {
        for reply in self.draining.remove(&bag).unwrap_or_default() {
            let gone = Refusal::NotFound("the bag was removed meanwhile".to_owned());
            shared.due.push(Due::Bag { bag, was: None, gone, reply });
        }
        let below = peer.bag(bag).and_then(|view| view.endless).map_or(0, |endless| endless.drained_below);
        pins.drained(bag, below);
        remove(shared.lines.drained(bag, below), shared);
    }

    /// A bag is removed, with its lines.
    pub(super) fn removed(&mut self, bag: BagId, shared: &mut Shared) {
        for reply in self.draining.remove(&bag).unwrap_or_default() {
            answer(reply, Err(Refusal::NotFound("the bag was removed meanwhile".to_owned())));
        }
        remove(shared.lines.removed(bag).into_iter().collect(), shared);
    }
}

/// Removes files or directories beside the loop. One that stays costs its room until the bag is removed.
fn remove(paths: Vec<std::path::PathBuf>, shared: &mut Shared) {
    if paths.is_empty() {
        return;
    }
    let remove = move || {
        for path in paths {
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            if let Err(error) = removed {
                tracing::warn!(%error, path = %path.display(), "lines that nobody needs cannot be removed");
            }
        }
        Done::Discarded
    };
    shared.jobs.spawn_blocking(remove, Done::Discarded);
}

/// After the start: lines that came before a crash are tasks, whose files stay, and those of bags that are gone are removed. Blocks.
pub(super) fn restore(pins: &mut Pins, peer: &Peer, shared: &mut Shared) {
    for (bag, tasks) in shared.lines.tasks() {
        match peer.bag(bag) {
            Some(_) => {
                if pins.takes_files(bag) {
                    restore_files(bag, pins, files(bag, &shared.lines));
                }
                shared.events.tell(Event::TasksAdded { bag, tasks });
            }
            None => remove(shared.lines.removed(bag).into_iter().collect(), shared),
        }
    }
}

/// The files of tasks of a bag, by the first task of each page. Blocks.
pub(super) fn files(bag: BagId, lines: &Lines) -> Vec<(u64, Vec<BlobId>)> {
    let of_page = |(first, page): (u64, Vec<String>)| (first, page.iter().filter_map(|line| file(line)).collect());
    lines.all(bag).into_iter().map(of_page).collect()
}

/// These files of tasks of a bag stay.
pub(super) fn restore_files(bag: BagId, pins: &mut Pins, files: Vec<(u64, Vec<BlobId>)>) {
    for (first, files) in files {
        let files = files.into_iter().map(|file| pins.of_task(bag, file)).collect();
        pins.keep_files(bag, first, files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_no_task_can_have_are_refused() {
        assert_eq!(flaw(&["a".to_owned(), "b c".to_owned()]), None);
        for bad in ["", "a\0b", &"x".repeat(LINE_BYTES_MAX + 1)] {
            assert!(flaw(&["a".to_owned(), bad.to_owned()]).is_some(), "{bad:?}");
        }
        assert!(flaw(&vec!["a".to_owned(); LINES_TOGETHER + 1]).is_some());
    }
}
