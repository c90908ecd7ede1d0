//! Endless bags on the command line: lines of a pipe become tasks, and results are saved as they come, so that the grid can forget them.
//!
//! Both go on after a restart of the agent, and repeat what was not answered: no line becomes two tasks, and no result is forgotten before its
//! files are on the disk.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, DrainRequest, LinesRequest};
use idlewood_scheduler::LINE_BYTES_MAX;
use idlewood_scheduler::ranges::IntervalSet;

use super::context::Context;
use super::interrupt::Interrupt;
use super::results::{self, Saving};
use super::{follow, progress};
use crate::output::{self, Format};

/// Most lines that are sent together, and how long the first of them waits for others.
const LINES_TOGETHER: usize = 1000;
const LINE_WAITS: Duration = Duration::from_millis(200);
/// Results that are saved and forgotten together.
const RESULTS_TOGETHER: u64 = 256;
/// Between two looks for new results.
const LOOK: Duration = Duration::from_millis(500);
/// How long the agent may be away.
const ABSENCE_MAX: Duration = Duration::from_secs(600);
const AGAIN: Duration = Duration::from_millis(500);
/// How long the agent may have no room for something before its user hears of it.
const WAIT_TOLD: Duration = Duration::from_secs(5);
/// The list of what was saved, a line for each result.
const LIST: &str = "results.jsonl";

/// An agent that may be restarted meanwhile.
pub(super) struct Agent<'a> {
    pub(super) context: &'a Context,
    pub(super) client: Arc<Client>,
    pub(super) interrupt: &'a Interrupt,
}

impl Agent<'_> {
    /// Asks until it answers; where it has no room for something, until it has.
    ///
    /// # Errors
    /// When it refuses, is away for very long, or a signal comes.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        ask: impl Fn(&Client) -> Result<T, ClientError> + Clone + Send + 'static,
    ) -> anyhow::Result<T> {
        let mut absent_since: Option<Instant> = None;
        let (begin, mut is_told) = (Instant::now(), false);
        loop {
            self.interrupt.check()?;
            let (client, this) = (self.client.clone(), ask.clone());
            let error = match self.interrupt.unless(move || this(&client))? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match &error {
                ClientError::Refused { status: 503, .. } => {
                    if !is_told && begin.elapsed() >= WAIT_TOLD {
                        output::notice(&format!("waiting: {error}"))?;
                        is_told = true;
                    }
                }
                error if error.is_absence() => {
                    if absent_since.get_or_insert_with(Instant::now).elapsed() > ABSENCE_MAX {
                        bail!("the agent does not come back: {error}");
                    }
                    // It has another port and token now.
                    if let Ok(client) = Client::open(&self.context.state_dir) {
                        self.client = Arc::new(client);
                    }
                }
                _ => return Err(error.into()),
            }
            thread::sleep(AGAIN);
        }
    }
}

/// The lines of an input, without empty ones, until it ends; a line that no task can be is an error.
fn read(mut input: impl BufRead + Send + 'static) -> Receiver<io::Result<String>> {
    let (sender, lines) = sync_channel(LINES_TOGETHER);
    thread::spawn(move || {
        loop {
            let mut line = Vec::new();
            // One byte more than a line may have, and its end.
            let next = io::Read::take(&mut input, LINE_BYTES_MAX as u64 + 2).read_until(b'\n', &mut line);
            let line = match next {
                Ok(0) => return,
                Ok(_) => String::from_utf8(line).map_err(|_| io::Error::other("a line is not UTF-8")),
                Err(error) => Err(error),
            };
            let line = line.map(|line| line.trim_end_matches(['\n', '\r']).to_owned());
            let line = line.and_then(|line| if is_line(&line) { Ok(line) } else { Err(flaw(&line)) });
            let is_over = line.is_err();
            if line.as_ref().is_ok_and(String::is_empty) {
                continue;
            }
            if sender.send(line).is_err() || is_over {
                return;
            }
        }
    });
    lines
}

fn is_line(line: &str) -> bool {
    line.len() <= LINE_BYTES_MAX && !line.contains('\0')
}

fn flaw(line: &str) -> io::Error {
    let begin: String = line.chars().take(40).collect();
    io::Error::other(format!("the line {begin:?}... has more than {LINE_BYTES_MAX} bytes, or a zero byte: use a file"))
}

/// The next lines, and whether the input has ended.
fn some_lines(lines: &Receiver<io::Result<String>>, interrupt: &Interrupt) -> anyhow::Result<(Vec<String>, bool)> {
    let (mut some, mut until) = (Vec::new(), None);
    loop {
        interrupt.check()?;
        let wait = until.map_or(LINE_WAITS, |until: Instant| until.saturating_duration_since(Instant::now()));
        match lines.recv_timeout(wait) {
            Ok(line) => {
                some.push(line.context("cannot read the lines")?);
                until.get_or_insert_with(|| Instant::now() + LINE_WAITS);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((some, true)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let is_due = until.is_some_and(|until| until <= Instant::now());
        if is_due || some.len() >= LINES_TOGETHER {
            return Ok((some, false));
        }
    }
}

/// Makes tasks of a bag of lines as they come, the first of them this one, until there are no more: then the bag is closed. Returns the bag.
pub(super) fn feed(
    context: &Context,
    client: Client,
    id: &str,
    first: u64,
    input: impl BufRead + Send + 'static,
) -> anyhow::Result<Bag> {
    let interrupt = Interrupt::hear()?;
    let mut agent = Agent { context, client: Arc::new(client), interrupt: &interrupt };
    let lines = read(input);
    let mut from = first;
    let short = output::short_id(id).to_owned();
    let ended = (|| {
        loop {
            let (some, has_ended) = some_lines(&lines, &interrupt)?;
            if !some.is_empty() {
                let (bag, request) = (id.to_owned(), LinesRequest { from, lines: some });
                from += request.lines.len() as u64;
                agent.ask(move |client| client.add_lines(&bag, &request))?;
            }
            if has_ended {
                let bag = id.to_owned();
                return close(&mut agent, &bag);
            }
        }
    })();
    ended.with_context(|| {
        format!(
            "bag {short} has the first {}; it stays open: `idlewood bag feed {short}` takes further lines, `idlewood bag close {short}` \
             closes it",
            output::count(from, "line")
        )
    })
}

/// Closes a bag; one that was closed by a request whose answer was lost is closed.
fn close(agent: &mut Agent<'_>, id: &str) -> anyhow::Result<Bag> {
    let bag = id.to_owned();
    agent.ask(move |client| match client.close(&bag) {
        Err(ClientError::Refused { status: 409, .. }) => client.bag(&bag).map(|detail| detail.bag),
        closed => closed,
    })
}

/// Saves each result of an endless bag as it comes, and has the grid forget it, until the bag is over.
pub(super) fn drain(context: &Context, client: Client, id: &str, out: Option<&Path>) -> anyhow::Result<ExitCode> {
    let bag = client.bag(id)?.bag;
    let short = output::short_id(&bag.id).to_owned();
    if bag.endless.is_none() {
        bail!("bag {short} has an end: wait for it with `idlewood bag wait {short}`, then get it without --follow");
    }
    let out = out.map_or_else(|| format!("results-{short}").into(), Path::to_path_buf);
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let interrupt = Interrupt::hear()?;
    let mut agent = Agent { context, client: Arc::new(client), interrupt: &interrupt };
    let mut list = List::open(&out, &bag.id)?;
    let mut drained = 0;
    let ended = follow_results(&mut agent, &bag.id, &out, &mut list, &mut drained);
    let bag = ended.with_context(|| {
        let so_far = output::count(drained, "result");
        format!("{so_far} saved in {} and drained; the same command goes on from there", out.display())
    })?;
    if context.format == Format::Json {
        output::json(&bag)?;
    } else {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{} saved in {}", output::count(drained, "result"), out.display())?;
        writeln!(stdout, "{}", progress::outcome(&bag, context.is_verbose))?;
        stdout.flush()?;
    }
    Ok(ExitCode::from(follow::code(bag.state)))
}

fn follow_results(
    agent: &mut Agent<'_>,
    id: &str,
    out: &Path,
    list: &mut List,
    drained: &mut u64,
) -> anyhow::Result<Bag> {
    // Results whose output cannot be had now: they are tried again, and stay.
    let mut put_off: BTreeMap<u64, String> = BTreeMap::new();
    let mut from = 0;
    loop {
        let (bag, first) = (id.to_owned(), from);
        // The bag is looked at first: what is over before it is among the results after it.
        let state = agent.ask({
            let bag = bag.clone();
            move |client| client.bag(&bag)
        })?;
        let some = agent.ask(move |client| client.some_results(&bag, first, RESULTS_TOGETHER))?;
        let is_last = (some.len() as u64) < RESULTS_TOGETHER;
        from = some.last().map_or(0, |result| result.index + 1);
        let mut saved = IntervalSet::new();
        for result in some {
            let index = result.index;
            if list.has(index) {
                saved.insert_index(index);
                continue;
            }
            match results::save_one(&agent.client, id, out, result, agent.interrupt)? {
                Saving::Saved(record) => {
                    list.add(index, record)?;
                    put_off.remove(&index);
                    saved.insert_index(index);
                }
                Saving::PutOff(why) => {
                    if put_off.insert(index, why.clone()).is_none() {
                        output::notice(&format!("task {index} stays with the agent: {why}"))?;
                    }
                }
            }
        }
        if !saved.is_empty() {
            list.flush(out)?;
            *drained += saved.len();
            let (bag, tasks) = (id.to_owned(), saved.ranges().map(|range| (range.start, range.end - range.start)));
            let request = DrainRequest { tasks: tasks.collect() };
            agent.ask(move |client| client.drain(&bag, &request))?;
        }
        if !is_last {
            continue;
        }
        from = 0;
        if state.bag.state.is_closed() && saved.is_empty() {
            match put_off.values().next() {
                None => return Ok(state.bag),
                Some(why) => bail!("{} cannot be saved: {why}", output::count(put_off.len() as u64, "result")),
            }
        }
        if saved.is_empty() {
            agent.interrupt.unless(|| thread::sleep(LOOK))?;
        }
    }
}

/// `results.jsonl`: what was saved, also by an earlier command.
struct List {
    file: File,
    listed: IntervalSet,
    bag: String,
}

impl List {
    fn open(out: &Path, bag: &str) -> anyhow::Result<Self> {
        let path = out.join(LIST);
        let cannot = || format!("cannot use {}", path.display());
        let mut listed = IntervalSet::new();
        match fs::read(&path) {
            Ok(bytes) => {
                let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                for line in bytes[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                    let record: serde_json::Value = serde_json::from_slice(line).with_context(cannot)?;
                    if record["bag"].as_str() != Some(bag) {
                        bail!("{} has results of another bag: name another directory with --out", out.display());
                    }
                    if let Some(index) = record["index"].as_u64() {
                        listed.insert_index(index);
                    }
                }
                // A line that a crash cut off is written again.
                OpenOptions::new().write(true).open(&path)?.set_len(whole as u64)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(cannot),
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).with_context(cannot)?;
        Ok(Self { file, listed, bag: bag.to_owned() })
    }

    fn has(&self, index: u64) -> bool {
        self.listed.contains(index)
    }

    fn add(&mut self, index: u64, mut record: serde_json::Value) -> anyhow::Result<()> {
        record["bag"] = serde_json::Value::from(self.bag.as_str());
        let line = output::escaped_json(&serde_json::to_string(&record)?);
        writeln!(self.file, "{line}").with_context(|| format!("cannot write {LIST}"))?;
        self.listed.insert_index(index);
        Ok(())
    }

    /// All files that were saved are on the disk, durably.
    fn flush(&mut self, out: &Path) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| format!("cannot write {LIST}"))?;
        let directory = File::open(out)?;
        rustix::fs::syncfs(&directory).with_context(|| format!("cannot write {}", out.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_together_and_end() {
        let text = "a\n\nb c\r\nd".as_bytes();
        let lines = read(io::BufReader::new(text));
        let mut all = Vec::new();
        loop {
            let (some, has_ended) = some_lines(&lines, &Interrupt::default()).expect("lines");
            all.extend(some);
            if has_ended {
                break;
            }
        }
        assert_eq!(all, ["a", "b c", "d"]);
    }

    #[test]
    fn a_line_that_no_task_can_be_ends_the_reading() {
        let long = format!("{}\nnext\n", "x".repeat(LINE_BYTES_MAX + 1));
        for text in [long, "a\0b\n".to_owned()] {
            let lines = read(io::BufReader::new(io::Cursor::new(text.into_bytes())));
            assert!(some_lines(&lines, &Interrupt::default()).is_err());
        }
        let longest = format!("{}\nnext\n", "x".repeat(LINE_BYTES_MAX));
        let lines = read(io::BufReader::new(io::Cursor::new(longest.into_bytes())));
        let (some, _) = some_lines(&lines, &Interrupt::default()).expect("lines");
        assert_eq!(some.len(), 2);
    }

    #[test]
    fn what_is_listed_is_not_saved_again() {
        let out = tempfile::tempdir().expect("a temporary directory");
        let mut list = List::open(out.path(), "ab").expect("a new list");
        list.add(3, serde_json::json!({ "index": 3 })).expect("there is room");
        list.flush(out.path()).expect("there is room");
        drop(list);
        // A crash in the middle of a line.
        let mut file = OpenOptions::new().append(true).open(out.path().join(LIST)).expect("it is there");
        file.write_all(b"{\"index\":4,\"ba").expect("there is room");
        let mut again = List::open(out.path(), "ab").expect("it can be read");
        assert!(again.has(3) && !again.has(4));
        again.add(4, serde_json::json!({ "index": 4 })).expect("there is room");
        assert_eq!(fs::read_to_string(out.path().join(LIST)).expect("it is there").lines().count(), 2);
        assert!(List::open(out.path(), "cd").is_err(), "it has another bag's results");
    }
}
