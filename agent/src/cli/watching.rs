//! Endless bags of files: each file that is complete in a directory becomes a task of the bag, once.
//!
//! The content of a file goes to the agent before the file is a task: who removes the file afterwards takes nothing from it. Which files are
//! tasks is written down here (`taken`), so that the command can be ended, and goes on as `idlewood bag feed`.

mod directory;
mod taken;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{slice, thread};

use anyhow::{Context as _, anyhow};
use blake3::Hash;
use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, LinesRequest};
use idlewood_scheduler::BlobId;
use idlewood_trust::manifest::{Entry, INPUT_BYTES_MAX, Input};

use self::directory::{Directory, Look};
use self::taken::{Taken, Took};
use super::context::Context;
use super::endless::Agent;
use super::interrupt::Interrupt;
use crate::output;

/// Files that are sent together: each is open meanwhile.
const FILES_TOGETHER: usize = 32;
/// Between two looks at the directory.
const LOOK: Duration = Duration::from_millis(300);
/// Between two looks at whether the bag was closed.
const BAG_LOOK: Duration = Duration::from_secs(2);
/// Bytes of a file between two checks for a signal.
const PART_BYTES: usize = 1 << 20;

/// A complete file, whose content does not go away any more.
#[derive(Debug)]
struct Ready {
    name: String,
    look: Look,
    hash: Hash,
    file: File,
}

impl Ready {
    /// As the agent takes it.
    fn line(&self) -> anyhow::Result<String> {
        let blob = BlobId(*self.hash.as_bytes());
        let input = Some(Input { name: self.name.clone(), blob, bytes: self.look.bytes });
        Ok(serde_json::to_string(&Entry { text: self.name.clone(), input })?)
    }
}

/// What became of files that were sent.
enum Sent {
    Taken,
    /// This one has changed meanwhile.
    Changed(String),
    /// The agent does not take them, for this reason.
    Refused(String),
}

/// Watches for a bag that was just submitted, until it is closed. Returns the bag.
pub(super) fn begin(context: &Context, client: Client, bag: &Bag, path: &Path) -> anyhow::Result<Bag> {
    let path = fs::canonicalize(path).with_context(|| format!("cannot watch {}", path.display()))?;
    let taken = Taken::begin(&context.state_dir, &bag.id, &path)?;
    let interrupt = Interrupt::hear()?;
    watch(Agent { context, client: Arc::new(client), interrupt: &interrupt }, &bag.id, bag.tasks, taken)
}

/// Goes on watching for a bag until it is closed. Returns the bag.
pub(super) fn go_on(context: &Context, client: Client, bag: &Bag) -> anyhow::Result<Bag> {
    let short = output::short_id(&bag.id);
    let interrupt = Interrupt::hear()?;
    let mut agent = Agent { context, client: Arc::new(client), interrupt: &interrupt };
    let mut tasks = bag.tasks;
    let taken = Taken::go_on(&context.state_dir, &bag.id, || {
        // The command before may have ended while the agent wrote what it had sent: this is answered behind that.
        let (id, nothing) = (bag.id.clone(), LinesRequest { from: 0, lines: Vec::new() });
        tasks = agent.ask(move |client| client.add_lines(&id, &nothing))?.tasks;
        Ok(tasks)
    })?;
    let taken = taken.ok_or_else(|| {
        anyhow!(
            "bag {short} was not submitted from this state directory: which of the files are tasks already is not known"
        )
    })?;
    watch(agent, &bag.id, tasks, taken)
}

/// Watches for a bag that has so many tasks, until it is closed. Returns the bag.
fn watch(agent: Agent<'_>, bag: &str, tasks: u64, taken: Taken) -> anyhow::Result<Bag> {
    let path = taken.directory().to_owned();
    let directory =
        Directory::open(&path, Instant::now()).with_context(|| format!("cannot watch {}", path.display()))?;
    let short = output::short_id(bag).to_owned();
    output::notice(&format!(
        "files of {} become tasks of bag {short} until `idlewood bag close {short}`; Ctrl-C ends the watching alone, and \
         `idlewood bag feed {short}` goes on",
        path.display()
    ))?;
    let mut watching = Watching { agent, directory, taken, bag: bag.to_owned(), tasks, left: BTreeMap::new() };
    let ended = watching.run();
    if ended.is_ok() {
        watching.taken.forget();
    }
    let tasks = output::count(watching.tasks, "task");
    ended.with_context(|| {
        format!("bag {short} has {tasks} and stays open: `idlewood bag feed {short}` goes on, `idlewood bag close {short}` closes it")
    })
}

struct Watching<'a> {
    agent: Agent<'a>,
    directory: Directory,
    taken: Taken,
    bag: String,
    /// How many tasks the bag has.
    tasks: u64,
    /// Files that cannot be tasks as they look.
    left: BTreeMap<String, Look>,
}

impl Watching<'_> {
    fn run(&mut self) -> anyhow::Result<Bag> {
        let mut bag_look = Instant::now();
        loop {
            self.agent.interrupt.check()?;
            if Instant::now() >= bag_look {
                bag_look = Instant::now() + BAG_LOOK;
                if let Some(bag) = self.closed()? {
                    return Ok(bag);
                }
            }
            let (taken, left) = (&self.taken, &self.left);
            let is_done = |name: &str, look: &Look| taken.has(name, look) || left.get(name) == Some(look);
            let found = self.directory.look(Instant::now(), is_done);
            let found = found.with_context(|| format!("cannot read {}", self.directory.path().display()))?;
            for name in &found.unusable {
                output::notice(&format!("{name:?} is left out: no input can have such a name; rename it"))?;
            }
            if let Some(listed) = &found.listed {
                self.left.retain(|name, _| listed.contains(name));
                self.taken.retain(listed)?;
            }
            if found.complete.is_empty() {
                self.agent.interrupt.unless(|| thread::sleep(LOOK))?;
            }
            for some in found.complete.chunks(FILES_TOGETHER) {
                if let Some(bag) = self.take(some)? {
                    return Ok(bag);
                }
            }
        }
    }

    /// The bag, if it takes no more.
    fn closed(&mut self) -> anyhow::Result<Option<Bag>> {
        let id = self.bag.clone();
        let bag = self.agent.ask(move |client| client.bag(&id))?.bag;
        let is_closed = bag.state.is_closed() || bag.endless.as_ref().is_none_or(|endless| endless.closed);
        Ok(is_closed.then_some(bag))
    }

    /// Makes tasks of these files. Returns the bag if it takes no more.
    fn take(&mut self, files: &[(String, Look)]) -> anyhow::Result<Option<Bag>> {
        let mut ready = Vec::new();
        for (name, look) in files {
            match self.read(name, *look)? {
                Ok(file) => ready.push(Arc::new(file)),
                Err(Some(why)) => {
                    self.left.insert(name.clone(), *look);
                    output::notice(&format!("{name} is left out until it changes: {why}"))?;
                }
                // The system tells when it is closed again, or it is found in the listing.
                Err(None) => {}
            }
        }
        self.hand(&ready)
    }

    /// Makes tasks of these files, as they were read. Returns the bag if it takes no more.
    fn hand(&mut self, ready: &[Arc<Ready>]) -> anyhow::Result<Option<Bag>> {
        match self.send(ready) {
            Ok(Sent::Taken) => Ok(None),
            Ok(Sent::Changed(name)) => {
                // The others are sent without it.
                self.directory.again(ready.iter().map(|file| file.name.clone()).filter(|other| *other != name));
                Ok(None)
            }
            Ok(Sent::Refused(why)) => {
                if let [file] = ready {
                    self.left.insert(file.name.clone(), file.look);
                    output::notice(&format!("{} is left out until it changes: {why}", file.name))?;
                    return Ok(None);
                }
                // Perhaps one of them alone.
                for file in ready {
                    if let Some(bag) = self.hand(slice::from_ref(file))? {
                        return Ok(Some(bag));
                    }
                }
                Ok(None)
            }
            Err(error) if is_refusal(&error) => match self.closed() {
                Ok(Some(bag)) => Ok(Some(bag)),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Reads a file. Else why it cannot be a task as it looks; `None`: it does not look like that any more, or is a task already.
    fn read(&mut self, name: &str, look: Look) -> anyhow::Result<Result<Ready, Option<String>>> {
        if look.bytes > INPUT_BYTES_MAX {
            return Ok(Err(Some(format!("it is over {} GiB; split it", INPUT_BYTES_MAX >> 30))));
        }
        let mut file = match File::open(self.directory.path().join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                output::notice(&format!("{name} went away before it was read: it is no task"))?;
                return Ok(Err(None));
            }
            Err(error) => return Ok(Err(Some(error.to_string()))),
        };
        let looks = |file: &File| file.metadata().ok().as_ref().and_then(Look::of) == Some(look);
        let mut hasher = blake3::Hasher::new();
        let mut part = vec![0; PART_BYTES];
        loop {
            self.agent.interrupt.check()?;
            match file.read(&mut part) {
                Ok(0) => break,
                Ok(bytes) => drop(hasher.update(&part[..bytes])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Err(Some(error.to_string()))),
            }
        }
        if !looks(&file) {
            return Ok(Err(None));
        }
        Ok(Ok(Ready { name: name.to_owned(), look, hash: hasher.finalize(), file }))
    }

    /// Uploads these files, and makes tasks of them that are none with this content.
    ///
    /// # Errors
    /// When the agent refuses for good, is away for very long, or a signal comes: in the last two cases they may be tasks yet, which shows
    /// in how many tasks the bag has.
    fn send(&mut self, files: &[Arc<Ready>]) -> anyhow::Result<Sent> {
        let (mut new, mut all, mut tasks) = (Vec::new(), Vec::new(), self.tasks);
        for file in files {
            let blob = file.hash.to_hex().to_string();
            let task = self.taken.task(&file.name, &blob).unwrap_or_else(|| {
                new.push(file.clone());
                tasks += 1;
                tasks - 1
            });
            all.push(Took { task, name: file.name.clone(), look: file.look, blob });
        }
        let lines = new.iter().map(|file| file.line()).collect::<anyhow::Result<Vec<_>>>()?;
        let mark = self.taken.announce(&all)?;
        let (id, request) = (self.bag.clone(), LinesRequest { from: self.tasks, lines });
        let sent = match new.is_empty() {
            true => Ok(Sent::Taken),
            false => self.agent.ask(move |client| send(client, &id, &new, &request)),
        };
        match &sent {
            Ok(Sent::Taken) => {
                self.taken.confirm(all);
                self.tasks = tasks;
            }
            Ok(Sent::Changed(_) | Sent::Refused(_)) => self.taken.take_back(mark)?,
            Err(error) if is_refusal(error) => self.taken.take_back(mark)?,
            Err(_) => {}
        }
        sent
    }
}

/// Whether the agent does not take the files, and will not.
fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Refused { status: 404 | 409, .. }))
}

/// Uploads what the agent has not got, and adds the tasks. Where the agent has no room, all of it is repeated: a file may have gone again.
fn send(client: &Client, bag: &str, files: &[Arc<Ready>], request: &LinesRequest) -> Result<Sent, ClientError> {
    for file in files {
        if client.has_blob(file.hash)? {
            continue;
        }
        let mut content = &file.file;
        if let Err(error) = content.rewind() {
            tracing::debug!(%error, name = file.name, "it cannot be read again");
            return Ok(Sent::Changed(file.name.clone()));
        }
        match client.upload(file.hash, content) {
            Ok(()) => {}
            Err(ClientError::Refused { status: 400, .. }) => return Ok(Sent::Changed(file.name.clone())),
            Err(ClientError::Refused { status: 413, sentence }) => return Ok(Sent::Refused(sentence)),
            Err(error) => return Err(error),
        }
    }
    match client.add_lines(bag, request) {
        Ok(_) => Ok(Sent::Taken),
        Err(ClientError::Refused { status: 400 | 422, sentence }) => Ok(Sent::Refused(sentence)),
        Err(error) => Err(error),
    }
}
