//! What happened to each task and each machine, a line for each: for whoever wants to follow one of them by hand.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use idlewood_overlay::Time;

use super::world::{Item, News};
use crate::event_queue::HostIndex;
use crate::host::Ending;
use crate::record::Record;

const HEADING: &str = "at_s,what,machine,bag,task";

/// The history of a run as CSV, in the order in which it happened.
pub(super) struct History {
    path: PathBuf,
    out: BufWriter<File>,
    /// Why the first line that is missing could not be written; none is after that.
    failure: Option<io::Error>,
}

impl History {
    /// Begins with the heading, in place of an earlier history.
    ///
    /// # Errors
    /// A sentence: the file is something else, or cannot be written.
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
        if path.is_file() {
            let mut first = Vec::new();
            let length = HEADING.len() as u64 + 1;
            BufReader::new(File::open(path).map_err(failed)?.take(length))
                .read_until(b'\n', &mut first)
                .map_err(failed)?;
            if !first.is_empty() && first != format!("{HEADING}\n").as_bytes() {
                return Err(format!("{} is there, and no history: choose another name", path.display()));
            }
        }
        let out = BufWriter::new(File::create(path).map_err(failed)?);
        let mut history = Self { path: path.to_owned(), out, failure: None };
        history.write(&format!("{HEADING}\n"));
        Ok(history)
    }

    fn write(&mut self, line: &str) {
        if self.failure.is_none() {
            self.failure = self.out.write_all(line.as_bytes()).err();
        }
    }

    /// Whether a line is missing.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Something happens on a machine, to a bag by its number, or to a task of it.
    pub(super) fn note(&mut self, at: Time, what: &str, host: HostIndex, bag: Option<usize>, task: Option<u64>) {
        let text = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let (bag, task) = (text(bag.map(|bag| bag as u64)), text(task));
        self.write(&format!("{:.6},{what},{host},{bag},{task}\n", at.as_secs_f64()));
    }

    /// A machine tells this; the record does not know of it yet.
    pub(super) fn hear(&mut self, item: &Item, record: &Record) {
        let Item { at, host, news } = *item;
        let (what, task) = match news {
            News::Down { .. } => return self.note(at, "down", host, None, None),
            News::Owner { here } => {
                return self.note(at, if here { "owner_returned" } else { "owner_left" }, host, None, None);
            }
            News::Accepted(bag) => return self.note(at, "accepted", host, Some(record.number(bag)), None),
            News::Closed(bag) => return self.note(at, "closed", host, Some(record.number(bag)), None),
            News::Started(task) => ("started", task),
            News::Frozen(task) => ("frozen", task),
            News::Thawed(task) => ("thawed", task),
            News::Stopped(task) => ("stopped", task),
            News::Ended { task, ending: Ending::Success } => ("succeeded", task),
            News::Ended { task, ending: Ending::Failure } => ("failed", task),
            News::Ended { task, ending: Ending::Crash } => ("crashed", task),
            // Others journal what they have run themselves.
            News::Journalled { task, .. } if !record.is_submitter(task.bag, host) => return,
            News::Journalled { task, has_output: false, .. } => ("journalled_without_output", task),
            News::Journalled { task, success: true, .. } => ("delivered", task),
            News::Journalled { task, success: false, .. } => ("given_up", task),
        };
        self.note(at, what, host, Some(record.number(task.bag)), Some(task.index));
    }

    /// The end.
    ///
    /// # Errors
    /// A sentence: why a line is missing.
    pub(super) fn finish(mut self) -> Result<(), String> {
        let ended = match self.failure.take() {
            Some(failure) => Err(failure),
            None => self.out.flush(),
        };
        ended.map_err(|error| format!("{} cannot be written: {error}", self.path.display()))
    }
}
