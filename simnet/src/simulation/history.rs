//! The history of a simulation: a row for each event of a task or machine, to follow one of them by hand.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use idlewood_overlay::Time;

use super::observed::{Observation, Observed};
use crate::event_queue::HostIndex;
use crate::host::Ending;
use crate::record::Record;

const HEADING: &str = "at_s,what,machine,bag,task";

/// The history as CSV, in order of time.
pub(super) struct History {
    path: PathBuf,
    out: BufWriter<File>,
    /// Why the first missing row could not be written; no row follows it.
    failure: Option<io::Error>,
}

impl History {
    /// Begins with the heading, and replaces an earlier history.
    ///
    /// # Errors
    /// A sentence: the file exists and is no history, or cannot be written.
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

    /// Whether a row is missing.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Adds an event on a machine, of a bag by its number, or of a task of it.
    pub(super) fn note(&mut self, at: Time, what: &str, host: HostIndex, bag: Option<usize>, task: Option<u64>) {
        let text = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let (bag, task) = (text(bag.map(|bag| bag as u64)), text(task));
        self.write(&format!("{:.6},{what},{host},{bag},{task}\n", at.as_secs_f64()));
    }

    /// Adds an observation that the record does not have yet.
    pub(super) fn observe(&mut self, observation: &Observation, record: &Record) {
        let Observation { at, host, observed } = *observation;
        let (what, task) = match observed {
            // The machine's own word on how well it predicted: no event.
            Observed::Predicted(..) => return,
            Observed::Down { .. } => return self.note(at, "down", host, None, None),
            Observed::Owner { here } => {
                return self.note(at, if here { "owner_returned" } else { "owner_left" }, host, None, None);
            }
            Observed::Accepted(bag) => return self.note(at, "accepted", host, Some(record.number(bag)), None),
            Observed::Closed(bag) => return self.note(at, "closed", host, Some(record.number(bag)), None),
            Observed::Started(task) => ("started", task),
            Observed::Frozen(task) => ("frozen", task),
            Observed::Thawed(task) => ("thawed", task),
            Observed::Stopped(task) => ("stopped", task),
            Observed::Ended { task, ending: Ending::Success } => ("succeeded", task),
            Observed::Ended { task, ending: Ending::Failure } => ("failed", task),
            Observed::Ended { task, ending: Ending::Crash } => ("crashed", task),
            // Machines other than the submitter journal what they have run themselves.
            Observed::Journalled { task, .. } if !record.is_submitter(task.bag, host) => return,
            Observed::Journalled { task, has_output: false, .. } => ("journalled_without_output", task),
            Observed::Journalled { task, success: true, .. } => ("delivered", task),
            Observed::Journalled { task, success: false, .. } => ("given_up", task),
        };
        self.note(at, what, host, Some(record.number(task.bag)), Some(task.index));
    }

    /// Ends the history.
    ///
    /// # Errors
    /// A sentence: why a row is missing.
    pub(super) fn finish(mut self) -> Result<(), String> {
        let ended = match self.failure.take() {
            Some(failure) => Err(failure),
            None => self.out.flush(),
        };
        ended.map_err(|error| format!("{} cannot be written: {error}", self.path.display()))
    }
}
