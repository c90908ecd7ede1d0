//! Which files of a watched directory are tasks of a bag already, on the disk.
//!
//! A line is written before the agent is told of the file, with the task that it will be: after a crash the number of tasks that the agent
//! has tells which lines count. A file that goes away is forgotten: another of its name is another task.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::directory::Look;

/// Lines that are there for nothing before all are written anew.
const STALE_MAX: usize = 10_000;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    bag: String,
    directory: PathBuf,
}

/// A file that is a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Took {
    pub(super) task: u64,
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) look: Look,
    /// Of its content, in hex.
    pub(super) blob: String,
}

/// Where the list ended before files were announced.
#[derive(Debug)]
pub(super) struct Mark(u64);

/// The files that are tasks.
#[derive(Debug)]
pub(super) struct Taken {
    path: PathBuf,
    head: Head,
    file: File,
    lines: usize,
    files: BTreeMap<String, Took>,
    _lock: File,
}

fn path(state_dir: &Path, bag: &str) -> PathBuf {
    state_dir.join("watched").join(bag)
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let path = path.with_extension("lock");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("another command takes files for this bag already: end that one first"),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Replaces the list, and opens it.
fn written(path: &Path, head: &Head, files: &BTreeMap<String, Took>) -> anyhow::Result<File> {
    let write = || -> io::Result<File> {
        let mut file = NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        let mut out = io::BufWriter::new(file.as_file_mut());
        writeln!(out, "{}", serde_json::to_string(head)?)?;
        for took in files.values() {
            writeln!(out, "{}", serde_json::to_string(took)?)?;
        }
        out.flush()?;
        drop(out);
        file.as_file().sync_all()?;
        file.persist(path)?;
        OpenOptions::new().append(true).open(path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

impl Taken {
    /// Of a new bag: none.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(super) fn begin(state_dir: &Path, bag: &str, directory: &Path) -> anyhow::Result<Self> {
        let path = path(state_dir, bag);
        let parent = path.parent().unwrap_or(state_dir);
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let lock = lock(&path)?;
        let (head, files) = (Head { bag: bag.to_owned(), directory: directory.to_owned() }, BTreeMap::new());
        let file = written(&path, &head, &files)?;
        Ok(Self { path, head, file, lines: 0, files, _lock: lock })
    }

    /// Of a bag that was begun here; `None`: it was not. How many tasks it has is asked once no other command takes files for it: else a
    /// file that such a command has just sent would be none, and become a second task.
    ///
    /// # Errors
    /// When it cannot be read, another command does so, or the question ends in one.
    pub(super) fn go_on(
        state_dir: &Path,
        bag: &str,
        tasks: impl FnOnce() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Option<Self>> {
        let path = path(state_dir, bag);
        if !path.exists() {
            return Ok(None);
        }
        let lock = lock(&path)?;
        let tasks = tasks()?;
        let damaged = || format!("{} is damaged: which files are tasks already is not known", path.display());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // A line that a crash cut off was told to nobody.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let head: Head = serde_json::from_str(lines.next().unwrap_or_default()).with_context(damaged)?;
        let mut files = BTreeMap::new();
        for line in lines {
            let took: Took = serde_json::from_str(line).with_context(damaged)?;
            if took.task < tasks {
                files.insert(took.name.clone(), took);
            }
        }
        let file = written(&path, &head, &files)?;
        Ok(Some(Self { path, head, file, lines: files.len(), files, _lock: lock }))
    }

    fn write_anew(&mut self) -> anyhow::Result<()> {
        self.file = written(&self.path, &self.head, &self.files)?;
        self.lines = self.files.len();
        Ok(())
    }

    /// The directory that is watched.
    pub(super) fn directory(&self) -> &Path {
        &self.head.directory
    }

    /// Whether a file as it looks is a task.
    pub(super) fn has(&self, name: &str, look: &Look) -> bool {
        self.files.get(name).is_some_and(|took| took.look == *look)
    }

    /// The task that this content of a file of this name is.
    pub(super) fn task(&self, name: &str, blob: &str) -> Option<u64> {
        self.files.get(name).filter(|took| took.blob == blob).map(|took| took.task)
    }

    /// Writes that these files become tasks, before the agent is told. Returns what takes that back.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn announce(&mut self, files: &[Took]) -> anyhow::Result<Mark> {
        let cannot = || format!("cannot write {}", self.path.display());
        let before = self.file.metadata().with_context(cannot)?.len();
        let mut text = String::new();
        for took in files {
            text += &serde_json::to_string(took)?;
            text.push('\n');
        }
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data()).with_context(cannot)?;
        Ok(Mark(before))
    }

    /// They are tasks.
    pub(super) fn confirm(&mut self, files: Vec<Took>) {
        self.lines += files.len();
        self.files.extend(files.into_iter().map(|took| (took.name.clone(), took)));
    }

    /// They are none, and will not be.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(super) fn take_back(&mut self, Mark(before): Mark) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        self.file.set_len(before).and_then(|()| self.file.sync_data()).with_context(cannot)
    }

    /// Only these are there still.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(super) fn retain(&mut self, there: &BTreeSet<String>) -> anyhow::Result<()> {
        self.files.retain(|name, _| there.contains(name));
        if self.lines > STALE_MAX + 2 * self.files.len() {
            self.write_anew()?;
        }
        Ok(())
    }

    /// The bag takes no more.
    pub(super) fn forget(&self) {
        for path in [self.path.with_extension("lock"), self.path.clone()] {
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(%error, path = %path.display(), "it stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(dir: &Path, task: u64, name: &str) -> Took {
        fs::write(dir.join(name), name).expect("our directory");
        let look = Look::of(&fs::metadata(dir.join(name)).expect("it is there")).expect("a file");
        Took { task, name: name.to_owned(), look, blob: name.to_owned() }
    }

    #[test]
    fn what_the_agent_has_counts_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut taken = Taken::begin(dir.path(), "ab", Path::new("/in")).expect("there is room");
        let files: Vec<Took> = ["a", "b"].iter().zip(0..).map(|(name, task)| took(dir.path(), task, name)).collect();
        let looks: Vec<Look> = files.iter().map(|took| took.look).collect();
        taken.announce(&files).expect("there is room");
        taken.confirm(files);
        let refused = taken.announce(&[took(dir.path(), 2, "c")]).expect("there is room");
        taken.take_back(refused).expect("there is room");
        assert!(taken.task("c", "c").is_none());
        let second = Taken::go_on(dir.path(), "ab", || panic!("the other command may add tasks still"));
        assert!(second.is_err(), "two commands at once");
        drop(taken);
        // The agent heard of the first alone; and the last line was cut off.
        let mut file = OpenOptions::new().append(true).open(path(dir.path(), "ab")).expect("it is there");
        file.write_all(b"{\"task\":3").expect("there is room");
        let taken = Taken::go_on(dir.path(), "ab", || Ok(1)).expect("it can be read").expect("it was begun");
        assert_eq!(taken.directory(), Path::new("/in"));
        assert!(taken.has("a", &looks[0]) && !taken.has("b", &looks[1]));
        assert_eq!(taken.task("a", "a"), Some(0));
        let mut taken = taken;
        taken.retain(&BTreeSet::new()).expect("there is room");
        assert!(!taken.has("a", &looks[0]), "it went away");
        taken.forget();
        assert!(Taken::go_on(dir.path(), "ab", || Ok(1)).expect("it can be read").is_none());
    }
}
