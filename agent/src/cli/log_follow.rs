//! `idlewood bag logs --follow`: what tasks write while they run.
//!
//! A follower remembers how much it has printed of each task, and its hash: when the task's result comes, what follows is printed, or all of
//! it where the task ran again elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, BagState, Live, LiveRequest, LiveSeen, LiveTask, TaskResult, TaskState};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_trust::manifest::TaskOutput;
use idlewood_units::Numbers;

use super::context::Context;
use super::follow::{self, Reason, View};
use super::log_lines::{Lines, Stream};
use super::results::{self, Problem};
use super::which::check;
use crate::output::{self, Format};

/// First and last interval between two looks. A look that takes long is followed by a longer pause.
const LOOK_MIN: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// A look takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 5;
/// Ranges of tasks in one question.
const RANGES_MAX: usize = 512;
/// Of so many tasks it is said where each is.
const FEW: u64 = 16;
/// The tasks of a bag as ranges, their last included; none: all, also where there would be too many ranges.
pub(super) fn ranges(chosen: Option<&Numbers>) -> Vec<(u64, u64)> {
    let Some(chosen) = chosen else { return Vec::new() };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in chosen.iter() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    if ranges.len() > RANGES_MAX { Vec::new() } else { ranges }
}

/// Standard output and standard error in an answer.
pub(super) fn bytes_of(task: &LiveTask) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let decode = |text: &str| hex::decode(text).context("the agent's answer is damaged");
    Ok((decode(&task.stdout)?, decode(&task.stderr)?))
}

/// What is seen of a task after these bytes.
pub(super) fn seen_after(task: &LiveTask, stdout: &[u8], stderr: &[u8]) -> LiveSeen {
    LiveSeen {
        machine: task.machine.clone(),
        index: task.index,
        run: task.run,
        stdout: task.stdout_from + stdout.len() as u64,
        stderr: task.stderr_from + stderr.len() as u64,
    }
}

/// One stream of a task: what was printed of its present run.
struct Printed {
    lines: Lines,
    bytes: u64,
    hash: blake3::Hasher,
}

impl Printed {
    fn add(&mut self, piece: &[u8]) -> io::Result<()> {
        self.bytes += piece.len() as u64;
        self.hash.update(piece);
        self.lines.add(piece)
    }

    fn begins_anew(&mut self) -> io::Result<()> {
        self.bytes = 0;
        self.hash.reset();
        self.lines.end()
    }

    /// Whether what was printed is how this begins.
    fn is_beginning_of(&self, whole: &[u8]) -> bool {
        let printed = usize::try_from(self.bytes).ok().and_then(|bytes| whole.get(..bytes));
        printed.is_some_and(|printed| blake3::hash(printed) == self.hash.finalize())
    }
}

/// A task that is followed.
struct Followed {
    /// Where its present run is; none was heard of.
    seen: Option<LiveSeen>,
    stands_still: bool,
    streams: Vec<(Stream, Printed)>,
}

/// Whoever follows tasks of a bag.
struct Follower<'a> {
    chosen: Option<&'a Numbers>,
    streams: &'static [Stream],
    /// Tasks of the bag.
    tasks: u64,
    /// Whether it is said where each task is.
    is_few: bool,
    followed: BTreeMap<u64, Followed>,
    over: IntervalSet,
    failed: bool,
    /// Sentences about tasks and machines that were told last.
    told: BTreeMap<String, String>,
    problems: Vec<String>,
    lost: IntervalSet,
}

/// Follows tasks of a bag, all or some, until they are over; standard error alone if wanted. Prints nothing for programs, which get one value at the
/// end.
pub(super) fn follow(context: &Context, bag: &str, chosen: Option<&Numbers>, stderr: bool) -> anyhow::Result<ExitCode> {
    let mut client = context.client()?;
    let first = client.bag(bag)?.bag;
    if let Some(chosen) = chosen {
        check(&first, chosen)?;
    }
    let id = first.id.clone();
    follow::quit_on_interrupt(
        View::Silent,
        context.format,
        "logs --follow",
        Arc::new(OnceLock::from(vec![id.clone()])),
    )?;
    let wanted = chosen.map_or(first.tasks, |chosen| chosen.count() as u64);
    let is_text = context.format == Format::Text;
    let mut follower = Follower {
        chosen,
        streams: if stderr { &[Stream::Stderr] } else { &Stream::ALL },
        tasks: first.tasks,
        is_few: wanted <= FEW,
        followed: BTreeMap::new(),
        over: IntervalSet::new(),
        failed: false,
        told: BTreeMap::new(),
        problems: Vec::new(),
        lost: IntervalSet::new(),
    };
    let ranges = if is_all(chosen, first.tasks) && wanted > FEW { Vec::new() } else { asked(chosen, first.tasks) };
    let (mut reason, mut ended, mut pause) = (Reason::default(), None, LOOK_MIN);
    let bag = loop {
        let began = Instant::now();
        let bag = follow::look(context, &mut client, &id)?;
        let mut runs = false;
        if is_text && !bag.state.is_closed() {
            match client.live(&id, &LiveRequest { tasks: ranges.clone(), seen: follower.seen() }) {
                Ok(live) => runs = follower.hear(live)?,
                // It starts anew: the next look waits for it.
                Err(error) if error.is_absence() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if ended != Some(bag.done + bag.failed) {
            match follower.take_results(&client, &bag, is_text) {
                Ok(()) => ended = Some(bag.done + bag.failed),
                Err(error) if error.downcast_ref::<ClientError>().is_some_and(ClientError::is_absence) => {}
                Err(error) => return Err(error),
            }
        }
        if bag.state.is_closed() && ended.is_some() || follower.over.len() >= wanted {
            break bag;
        }
        if is_text
            && !runs
            && let Some(sentence) = reason.next(&bag, Instant::now())
        {
            output::notice(&sentence)?;
        }
        pause = (pause * 3 / 2).min(LOOK_MAX);
        thread::sleep(pause.max(began.elapsed() * LOOK_SHARE));
    };
    follower.end()?;
    results::end(&bag, &follower.problems, &follower.lost)?;
    Ok(match bag.state {
        BagState::Cancelled => ExitCode::from(follow::code(bag.state)),
        _ if follower.failed => ExitCode::from(follow::code(BagState::Failed)),
        _ => ExitCode::SUCCESS,
    })
}

fn is_all(chosen: Option<&Numbers>, tasks: u64) -> bool {
    chosen.is_none_or(|chosen| chosen.count() as u64 == tasks)
}

/// The ranges to ask for, where it is to be said where each task is.
fn asked(chosen: Option<&Numbers>, tasks: u64) -> Vec<(u64, u64)> {
    match chosen {
        Some(_) => ranges(chosen),
        None => vec![(0, tasks.saturating_sub(1))],
    }
}

impl Follower<'_> {
    fn wants(&self, index: u64) -> bool {
        self.chosen.is_none_or(|chosen| chosen.contains(index)) && !self.over.contains(index)
    }

    fn seen(&self) -> Vec<LiveSeen> {
        self.followed.values().filter_map(|followed| followed.seen.clone()).collect()
    }

    fn followed(&mut self, index: u64) -> &mut Followed {
        let is_alone = self.tasks == 1 || self.chosen.is_some_and(|chosen| chosen.count() == 1);
        let width = self.tasks.saturating_sub(1).to_string().len();
        let prefix = if is_alone { String::new() } else { format!("{index:>width$} | ") };
        let streams = self.streams;
        self.followed.entry(index).or_insert_with(|| {
            let printed =
                |&to| (to, Printed { lines: Lines::new(to, prefix.clone()), bytes: 0, hash: blake3::Hasher::new() });
            Followed { seen: None, stands_still: false, streams: streams.iter().map(printed).collect() }
        })
    }

    /// Says something of a task or a machine, unless that was said last.
    fn tell(&mut self, of: String, sentence: String) -> io::Result<()> {
        if self.told.get(&of) == Some(&sentence) {
            return Ok(());
        }
        output::notice(&sentence)?;
        self.told.insert(of, sentence);
        Ok(())
    }

    /// Prints what running tasks have written since. Whether any runs.
    fn hear(&mut self, live: Live) -> anyhow::Result<bool> {
        let mut runs = false;
        for task in &live.tasks {
            if self.wants(task.index) {
                runs |= !task.stands_still;
                self.hear_task(task)?;
            }
        }
        let waiting = if self.is_few { live.waiting } else { Vec::new() };
        for waiting in waiting {
            let index = waiting.index;
            if !self.wants(index) {
                continue;
            }
            let machine = waiting.machine.as_deref().map(output::short_peer).unwrap_or_default();
            let sentence = match waiting.state {
                TaskState::Placed => format!("task {index} waits for its turn on machine {machine}"),
                TaskState::Retrying => format!("task {index} has failed, or was declined, and is tried again"),
                TaskState::Waiting if self.followed.contains_key(&index) => {
                    format!("task {index} runs on no machine any more, and waits for another")
                }
                TaskState::Waiting => format!("task {index} waits: no machine has it yet"),
                TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled => continue,
            };
            self.tell(format!("task {index}"), sentence)?;
        }
        let mut silent: BTreeMap<String, String> = BTreeMap::new();
        for machine in live.silent {
            let (name, tasks) = (output::short_peer(&machine.machine), output::count(machine.tasks, "task"));
            silent
                .insert(format!("machine {}", machine.machine), format!("machine {name} has {tasks}: {}", machine.why));
        }
        // Whoever answers again may be silent again.
        self.told.retain(|of, _| !of.starts_with("machine ") || silent.contains_key(of));
        for (of, sentence) in silent {
            self.tell(of, sentence)?;
        }
        if live.unasked > 0 {
            let machines = output::count(live.unasked, "machine");
            let how = "name fewer tasks to follow them";
            self.tell(
                "unasked".to_owned(),
                format!("too many machines run tasks of it: {machines} are not asked; {how}"),
            )?;
        }
        Ok(runs)
    }

    fn hear_task(&mut self, task: &LiveTask) -> anyhow::Result<()> {
        let (index, machine) = (task.index, output::short_peer(&task.machine).to_owned());
        let (stdout, stderr) = bytes_of(task)?;
        let followed = self.followed(index);
        let is_same = |seen: &LiveSeen| seen.run == task.run && seen.machine == task.machine;
        let sentence = match &followed.seen {
            Some(seen) if is_same(seen) => None,
            Some(_) => Some(format!("task {index} begins anew, on machine {machine}")),
            None => Some(format!("task {index} runs on machine {machine}")),
        };
        let is_anew = followed.seen.is_some() && sentence.is_some();
        followed.seen = Some(seen_after(task, &stdout, &stderr));
        let still = (task.stands_still != followed.stands_still).then_some(task.stands_still);
        followed.stands_still = task.stands_still;
        if is_anew {
            followed.streams.iter_mut().try_for_each(|(_, printed)| printed.begins_anew())?;
        }
        if let Some(sentence) = sentence.filter(|_| is_anew || self.is_few) {
            self.tell(format!("task {index}"), sentence)?;
        }
        for (stream, printed) in &mut self.followed(index).streams {
            printed.add(if *stream == Stream::Stdout { &stdout } else { &stderr })?;
        }
        match still {
            Some(true) => {
                let why = "its owner is there, or another bag comes first";
                self.tell(format!("task {index}"), format!("task {index} stands still on machine {machine}: {why}"))?;
            }
            Some(false) => self.tell(format!("task {index}"), format!("task {index} goes on on machine {machine}"))?,
            None => {}
        }
        Ok(())
    }

    /// Prints the rest of what tasks wrote that are over.
    fn take_results(&mut self, client: &Client, bag: &Bag, prints: bool) -> anyhow::Result<()> {
        let mut results = Vec::new();
        let ranges = asked(self.chosen, bag.tasks);
        let ranges = if ranges.is_empty() { vec![(0, bag.tasks.saturating_sub(1))] } else { ranges };
        for (from, to) in ranges {
            client.each_result(&bag.id, from..=to, |result| {
                if self.wants(result.index) {
                    results.push(result);
                }
            })?;
        }
        for result in results {
            if prints {
                self.take_result(client, bag, &result)?;
            }
            self.failed |= !result.success;
            self.over.insert_index(result.index);
        }
        Ok(())
    }

    fn take_result(&mut self, client: &Client, bag: &Bag, result: &TaskResult) -> anyhow::Result<()> {
        let index = result.index;
        let task = match results::output_of(client, &bag.id, result)? {
            Ok(task) => task,
            Err(Problem { sentence, is_lost }) => {
                self.problems.push(sentence);
                if is_lost {
                    self.lost.insert_index(index);
                }
                return Ok(());
            }
        };
        let whole = |stream| if stream == Stream::Stdout { &task.stdout } else { &task.stderr };
        let followed = self.followed(index);
        let goes_on = followed.streams.iter().all(|(stream, printed)| printed.is_beginning_of(whole(*stream)));
        if !goes_on {
            let machine = output::short_peer(&result.machine);
            followed.streams.iter_mut().try_for_each(|(_, printed)| printed.begins_anew())?;
            self.tell(
                format!("task {index}"),
                format!("task {index} ran again, on machine {machine}: what it wrote there"),
            )?;
        }
        for (stream, printed) in &mut self.followed(index).streams {
            let rest = usize::try_from(printed.bytes).ok().and_then(|bytes| whole(*stream).get(bytes..));
            printed.add(rest.unwrap_or_default())?;
            printed.lines.end()?;
        }
        // What was printed of it is not needed any more.
        self.followed.remove(&index);
        self.told.remove(&format!("task {index}"));
        if !result.success {
            output::notice(&format!("task {index} failed: {}", how(&task)))?;
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        for followed in self.followed.values_mut() {
            followed.streams.iter_mut().try_for_each(|(_, printed)| printed.lines.end())?;
        }
        Ok(())
    }
}

/// How a task ended.
fn how(task: &TaskOutput) -> String {
    match (&task.error, task.exit_code) {
        (Some(error), _) => error.clone(),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "it did not end by itself".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        let numbers: Numbers = "1,3-5,7".parse().expect("numbers");
        assert_eq!(ranges(Some(&numbers)), [(1, 1), (3, 5), (7, 7)]);
        assert_eq!(ranges(None), []);
        let scattered: Numbers = "0-5000:2".parse().expect("numbers");
        assert_eq!(ranges(Some(&scattered)), [], "all are asked for");
        assert_eq!(asked(None, 3), [(0, 2)]);
    }

    #[test]
    fn a_result_goes_on_where_its_own_run_left_off() {
        let lines = Lines::new(Stream::Stderr, String::new());
        let mut printed = Printed { lines, bytes: 0, hash: blake3::Hasher::new() };
        assert!(printed.is_beginning_of(b"") && printed.is_beginning_of(b"anything"));
        printed.bytes = 3;
        printed.hash.update(b"one");
        assert!(printed.is_beginning_of(b"one two"));
        assert!(!printed.is_beginning_of(b"two one") && !printed.is_beginning_of(b"on"));
        printed.begins_anew().expect("nothing is left to print");
        assert!(printed.is_beginning_of(b"two one"));
    }
}
