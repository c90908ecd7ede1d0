//! Lines that are tasks of endless bags, as they were written into a pipe (docs/adr/0049).
//!
//! On the submitter's machine they are durable before anybody hears that they came: each request of the control API becomes a *page*,
//! `lines/<bag>/<first task>`, a JSON list. A page goes when all of its tasks are drained, and all go with the bag. They leave with the requests
//! for their tasks, straight to the machines that run them. On such a machine they are in memory: after a restart a task without its line does
//! not start, goes back, and comes again with it.
//!
//! A line is text of a pipe, or a file of a watched directory (`Source::Files`), whose content is a blob that [`super::pins`] keeps and lends.
//!
//! Left out: lines in receipts. What a machine signs of a task's input says nothing of its line.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idlewood_scheduler::{BagId, Message, Request, TaskId};
use tempfile::NamedTempFile;

/// Lines of one bag of another machine that are kept: twice as many as tasks of it can be here.
const OF_OTHERS_MAX: usize = 8192;
/// Bags of others whose lines are kept.
const OTHERS_MAX: usize = 64;
/// Bytes of lines of all bags of others. Our choice: as much as four bags have whose lines are the longest.
const OTHERS_BYTES_MAX: usize = 64 << 20;

/// The lines of one bag that was submitted here, in pages.
#[derive(Debug, Default)]
struct Own {
    /// First task and number of tasks of each page.
    pages: BTreeMap<u64, u64>,
    /// The page that was read last.
    last: Option<(u64, Vec<String>)>,
}

/// The lines of tasks of a bag of another machine.
#[derive(Debug, Default)]
struct Others {
    lines: BTreeMap<u64, String>,
    /// As they came.
    order: VecDeque<u64>,
    /// Of all lines.
    bytes: usize,
}

#[derive(Debug, Default)]
struct Inner {
    own: BTreeMap<BagId, Own>,
    others: VecDeque<(BagId, Others)>,
}

/// All lines at hand. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    directory: Arc<Path>,
    inner: Arc<Mutex<Inner>>,
}

impl Lines {
    /// Those on this disk. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(super) fn open(state_dir: &Path) -> io::Result<Self> {
        let directory = state_dir.join("lines");
        let mut inner = Inner::default();
        let entries = |path: &Path| match fs::read_dir(path) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        for entry in entries(&directory)? {
            let name = entry.file_name();
            let bag = hex::decode(name.as_encoded_bytes()).ok().and_then(|bytes| bytes.try_into().ok()).map(BagId);
            let Some(bag) = bag else { continue };
            let mut own = Own::default();
            for page in entries(&entry.path())? {
                let first = page.file_name().to_str().and_then(|name| name.parse().ok());
                if let Some(first) = first
                    && let Some(lines) = read(&page.path())
                {
                    own.pages.insert(first, lines.len() as u64);
                }
            }
            inner.own.insert(bag, own);
        }
        Ok(Self { directory: directory.into(), inner: Arc::new(Mutex::new(inner)) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self, bag: BagId, first: u64) -> PathBuf {
        self.directory.join(hex::encode(bag.0)).join(first.to_string())
    }

    /// How many tasks the lines of each bag of this machine make.
    pub(super) fn tasks(&self) -> Vec<(BagId, u64)> {
        let end = |own: &Own| own.pages.last_key_value().map_or(0, |(first, count)| first + count);
        self.inner().own.iter().map(|(&bag, own)| (bag, end(own))).collect()
    }

    /// Keeps lines of a bag of this machine, durably. Blocks.
    ///
    /// # Errors
    /// When they cannot be written: none is kept.
    pub(super) fn keep(&self, bag: BagId, first: u64, lines: Vec<String>) -> io::Result<()> {
        let path = self.page(bag, first);
        let directory = path.parent().unwrap_or(&self.directory);
        fs::create_dir_all(directory)?;
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(&lines)?)?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        for directory in [directory, &self.directory] {
            File::open(directory)?.sync_all()?;
        }
        self.inner().own.entry(bag).or_default().pages.insert(first, lines.len() as u64);
        Ok(())
    }

    /// The line of a task, if it is at hand. Reads a page, which may block for a moment.
    pub(super) fn get(&self, task: TaskId) -> Option<String> {
        let mut inner = self.inner();
        if let Some((_, others)) = inner.others.iter().find(|(bag, _)| *bag == task.bag) {
            return others.lines.get(&task.index).cloned();
        }
        let own = inner.own.get_mut(&task.bag)?;
        let (&first, _) = own.pages.range(..=task.index).next_back()?;
        if own.last.as_ref().is_none_or(|(last, _)| *last != first) {
            own.last = Some((first, read(&self.page(task.bag, first))?));
        }
        let (_, lines) = own.last.as_ref()?;
        lines.get(usize::try_from(task.index - first).ok()?).cloned()
    }

    /// All lines of a bag of this machine that are still here, by task. Blocks.
    pub(super) fn all(&self, bag: BagId) -> Vec<(u64, Vec<String>)> {
        let pages: Vec<u64> =
            self.inner().own.get(&bag).map(|own| own.pages.keys().copied().collect()).unwrap_or_default();
        pages.into_iter().filter_map(|first| Some((first, read(&self.page(bag, first))?))).collect()
    }

    /// A request of this machine leaves: the lines of its tasks go along.
    pub(super) fn attach(&self, message: &mut Message) {
        let Message::Request { request, .. } = message else { return };
        if !request.bag.is_endless() || !self.inner().own.contains_key(&request.bag.id) {
            return;
        }
        let bag = request.bag.id;
        let line = |index| Some((index, self.get(TaskId { bag, index })?.into_boxed_str()));
        request.lines = request.ranges.indices().filter_map(line).collect();
    }

    /// A request came from the submitter of its bag: its lines stay here.
    pub(super) fn detach(&self, request: &mut Request) {
        let lines = std::mem::take(&mut request.lines);
        if !lines.is_empty() {
            self.keep_of_other(request.bag.id, lines);
        }
    }

    fn keep_of_other(&self, bag: BagId, lines: impl IntoIterator<Item = (u64, Box<str>)>) {
        let mut inner = self.inner();
        if inner.own.contains_key(&bag) {
            return;
        }
        let place = inner.others.iter().position(|(other, _)| *other == bag);
        let (_, mut others) =
            place.and_then(|place| inner.others.remove(place)).unwrap_or_else(|| (bag, Others::default()));
        for (index, line) in lines {
            others.bytes += line.len();
            match others.lines.insert(index, line.into()) {
                Some(before) => others.bytes -= before.len(),
                None => others.order.push_back(index),
            }
        }
        while others.order.len() > OF_OTHERS_MAX {
            let oldest = others.order.pop_front().and_then(|oldest| others.lines.remove(&oldest));
            others.bytes -= oldest.map_or(0, |line| line.len());
        }
        // The bag that lines came of last stays longest.
        inner.others.push_back((bag, others));
        let is_too_much = |others: &VecDeque<(BagId, Others)>| {
            let bytes: usize = others.iter().map(|(_, others)| others.bytes).sum();
            others.len() > OTHERS_MAX || bytes > OTHERS_BYTES_MAX && others.len() > 1
        };
        while is_too_much(&inner.others) {
            inner.others.pop_front();
        }
    }

    /// All tasks of a bag below this one are drained: pages of such tasks alone go. Returns what to remove from the disk.
    pub(super) fn drained(&self, bag: BagId, below: u64) -> Vec<PathBuf> {
        let mut inner = self.inner();
        let Some(own) = inner.own.get_mut(&bag) else { return Vec::new() };
        // The last one stays: by it the number of tasks is known.
        let last = own.pages.last_key_value().map(|(first, _)| *first);
        let is_gone = |first: u64, count: u64| first + count <= below && Some(first) != last;
        let gone: Vec<u64> =
            own.pages.iter().filter(|(first, count)| is_gone(**first, **count)).map(|(first, _)| *first).collect();
        for first in &gone {
            own.pages.remove(first);
        }
        gone.into_iter().map(|first| self.page(bag, first)).collect()
    }

    /// A bag of this machine is gone, with all of its lines. Returns what to remove from the disk.
    pub(super) fn removed(&self, bag: BagId) -> Option<PathBuf> {
        self.inner().own.remove(&bag)?;
        Some(self.directory.join(hex::encode(bag.0)))
    }
}

/// A page; `None` where it cannot be read.
fn read(path: &Path) -> Option<Vec<String>> {
    let lines = fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    let lines = lines.inspect_err(|error| {
        tracing::warn!(%error, path = %path.display(), "lines of an endless bag cannot be read, and their tasks not run");
    });
    lines.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag(number: u8) -> BagId {
        BagId([number; 32])
    }

    fn texts(range: std::ops::Range<u64>) -> Vec<String> {
        range.map(|number| format!("line {number}")).collect()
    }

    #[test]
    fn lines_of_others_have_a_bound_in_bytes_and_the_latest_stay() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lines = Lines::open(dir.path()).expect("an empty directory");
        let (tasks, long) = (2048, "x".repeat(idlewood_scheduler::LINE_BYTES_MAX));
        let bags = u8::try_from(OTHERS_BYTES_MAX / (tasks * long.len()) + 2).expect("few bags");
        for number in 1..=bags {
            let of = |index| (index as u64, long.clone().into_boxed_str());
            lines.keep_of_other(bag(number), (0..tasks).map(of));
        }
        let bytes: usize = lines.inner().others.iter().map(|(_, others)| others.bytes).sum();
        assert!(bytes <= OTHERS_BYTES_MAX, "{bytes}");
        let has = |number| lines.get(TaskId { bag: bag(number), index: 7 }).is_some();
        assert!(has(bags) && !has(1));
    }

    #[test]
    fn lines_outlive_a_restart_and_go_when_they_are_drained() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lines = Lines::open(dir.path()).expect("an empty directory");
        lines.keep(bag(1), 0, texts(0..3)).expect("there is room");
        lines.keep(bag(1), 3, texts(3..10)).expect("there is room");
        lines.keep(bag(1), 10, texts(10..11)).expect("there is room");
        let again = Lines::open(dir.path()).expect("it is there");
        assert_eq!(again.tasks(), [(bag(1), 11)]);
        let get = |index| again.get(TaskId { bag: bag(1), index });
        assert_eq!([0, 2, 3, 9, 10].map(get), [0, 2, 3, 9, 10].map(|number| Some(format!("line {number}"))));
        assert_eq!(get(11), None);
        let gone = again.drained(bag(1), 9);
        assert_eq!(gone, [again.page(bag(1), 0)], "the second page has a task that is not drained");
        // The last page stays, so that the number of tasks is known.
        assert_eq!(again.drained(bag(1), 11), [again.page(bag(1), 3)]);
        assert_eq!(again.tasks(), [(bag(1), 11)]);
        assert!(again.removed(bag(1)).is_some());
        assert_eq!(again.tasks(), []);
    }
}
