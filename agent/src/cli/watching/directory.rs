//! Which files of a watched directory are complete.
//!
//! The system tells (inotify) when whoever wrote a file has closed it, and when one is renamed into the directory: such a file is complete.
//! What it does not tell is found by listing the directory again and again: files that were there before, events that were lost, disks of
//! other machines. Those are complete when they have not changed for [`QUIET`], unless the system has told that somebody writes them.
//!
//! Left out: folders in the directory, and names that begin with a dot, which are how programs name what they have not finished.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use idlewood_trust::manifest::is_file_name;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// How long a file of which the system tells nothing must not have changed.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// Between two listings, at least; a listing that takes long is made the more seldom.
const LISTING_EVERY: Duration = Duration::from_secs(1);
const LISTING_TAKES_MAX: u32 = 20;
/// Bytes of events that are read at once.
const EVENT_BYTES: usize = 16 << 10;

/// By what a file is known to have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) bytes: u64,
    modified_s: i64,
    modified_ns: i64,
    inode: u64,
}

impl Look {
    /// `None` where it is no file.
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        metadata.is_file().then(|| Self {
            bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            inode: metadata.ino(),
        })
    }

    /// Files are taken in this order.
    fn age(&self) -> (i64, i64) {
        (self.modified_s, self.modified_ns)
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Complete files that are not taken, the oldest first.
    pub(super) complete: Vec<(String, Look)>,
    /// Names that no task can have, each told once.
    pub(super) unusable: Vec<String>,
    /// All names, where the directory was listed.
    pub(super) listed: Option<BTreeSet<String>>,
}

/// A watched directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// `None`: the system tells nothing.
    events: Option<OwnedFd>,
    /// Files that somebody writes, as far as the system tells.
    written: BTreeSet<String>,
    /// Files that were closed or renamed into it, and not looked at since.
    closed: BTreeSet<String>,
    /// Files of which the system tells nothing: how each looks, and since when.
    quiet: BTreeMap<String, (Look, Instant)>,
    unusable: BTreeSet<String>,
    lists_at: Instant,
}

impl Directory {
    /// Begins to watch.
    ///
    /// # Errors
    /// When there is no such directory, or it cannot be read.
    pub(super) fn open(path: &Path, now: Instant) -> io::Result<Self> {
        fs::read_dir(path)?;
        let watch = || {
            let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            let of = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::MOVED_TO
                | WatchFlags::MOVED_FROM
                | WatchFlags::DELETE;
            inotify::add_watch(&events, path, of | WatchFlags::ONLYDIR)?;
            Ok::<_, Errno>(events)
        };
        let events = watch().inspect_err(|error| tracing::debug!(%error, "the directory is listed alone")).ok();
        Ok(Self {
            path: path.to_owned(),
            events,
            written: BTreeSet::new(),
            closed: BTreeSet::new(),
            quiet: BTreeMap::new(),
            unusable: BTreeSet::new(),
            lists_at: now,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks for complete files, but for those that are taken as they look.
    ///
    /// # Errors
    /// When the directory cannot be read any more.
    pub(super) fn look(&mut self, now: Instant, is_taken: impl Fn(&str, &Look) -> bool) -> io::Result<Found> {
        self.hear();
        let mut found = Found::default();
        // Closed while it was looked at: that is another event.
        for name in std::mem::take(&mut self.closed) {
            if let Some(look) = self.look_at(&name).filter(|look| !is_taken(&name, look)) {
                self.quiet.remove(&name);
                found.complete.push((name, look));
            }
        }
        if now >= self.lists_at {
            let begin = Instant::now();
            self.list(now, is_taken, &mut found)?;
            self.lists_at = now + LISTING_EVERY.max(begin.elapsed() * LISTING_TAKES_MAX);
        }
        found.complete.sort_by(|(a, a_look), (b, b_look)| (a_look.age(), a).cmp(&(b_look.age(), b)));
        Ok(found)
    }

    /// These were complete, and could not be taken: they are looked at again.
    pub(super) fn again(&mut self, names: impl IntoIterator<Item = String>) {
        self.closed.extend(names);
    }

    fn look_at(&self, name: &str) -> Option<Look> {
        Look::of(&fs::metadata(self.path.join(name)).ok()?)
    }

    fn list(&mut self, now: Instant, is_taken: impl Fn(&str, &Look) -> bool, found: &mut Found) -> io::Result<()> {
        let known: BTreeSet<String> = found.complete.iter().map(|(name, _)| name.clone()).collect();
        let mut listed = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let shown = name.to_string_lossy().into_owned();
            if shown.starts_with('.') {
                continue;
            }
            if name.to_str().is_none() || !is_file_name(&shown) {
                if self.unusable.insert(shown.clone()) {
                    found.unusable.push(shown);
                }
                continue;
            }
            // One that goes away meanwhile is none.
            if let Some(look) = self.look_at(&shown)
                && !is_taken(&shown, &look)
                && !known.contains(&shown)
                && !self.written.contains(&shown)
            {
                let (seen, since) = *self.quiet.entry(shown.clone()).or_insert((look, now));
                if seen != look {
                    self.quiet.insert(shown.clone(), (look, now));
                } else if now.duration_since(since) >= QUIET {
                    found.complete.push((shown.clone(), look));
                }
            }
            listed.insert(shown);
        }
        self.quiet.retain(|name, _| listed.contains(name));
        self.written.retain(|name| listed.contains(name));
        found.listed = Some(listed);
        Ok(())
    }

    /// Hears what the system tells.
    fn hear(&mut self) {
        let Some(events) = self.events.take() else { return };
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = inotify::Reader::new(&events, &mut buffer);
        let goes_on = loop {
            match reader.next() {
                Ok(event) => {
                    let flags = event.events();
                    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                        // What was lost shows in the listing.
                        self.written.clear();
                        self.closed.clear();
                    }
                    if flags.contains(ReadFlags::IGNORED) {
                        break false;
                    }
                    let name = event.file_name().and_then(|name| name.to_str().ok());
                    if let Some(name) = name.filter(|name| !name.starts_with('.') && is_file_name(name)) {
                        let name = name.to_owned();
                        self.note(name, flags);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                Err(error) => {
                    tracing::debug!(%error, "the directory is listed alone from now on");
                    break false;
                }
            }
        };
        if goes_on {
            self.events = Some(events);
        } else {
            self.written.clear();
        }
    }

    fn note(&mut self, name: String, flags: ReadFlags) {
        if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO) {
            self.written.remove(&name);
            self.closed.insert(name);
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            self.written.remove(&name);
            self.closed.remove(&name);
        } else if flags.contains(ReadFlags::MODIFY) || self.is_being_made(&name) {
            self.closed.remove(&name);
            self.written.insert(name);
        }
    }

    /// Whether a name that is new is a file that somebody has open, and no link, which nobody closes: the system tells of what is written
    /// into a new file, so that one with content is a link, whose first name may be gone already.
    fn is_being_made(&self, name: &str) -> bool {
        let metadata = fs::symlink_metadata(self.path.join(name));
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1 && metadata.len() == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(found: &Found) -> Vec<&str> {
        found.complete.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_file_is_complete_when_it_is_closed_or_renamed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let now = Instant::now();
        let mut directory = Directory::open(dir.path(), now).expect("it is there");
        let mut file = fs::File::create(dir.path().join("open")).expect("our directory");
        file.write_all(b"half").expect("there is room");
        fs::write(dir.path().join(".hidden"), "x").expect("our directory");
        fs::write(dir.path().join("closed"), "x").expect("our directory");
        fs::create_dir(dir.path().join("folder")).expect("our directory");
        let found = directory.look(now, |_, _| false).expect("it is there");
        assert_eq!(names(&found), ["closed"]);
        // However long nothing is written.
        let later = now + QUIET * 100;
        let taken = |name: &str, _: &Look| name == "closed";
        assert_eq!(names(&directory.look(later, taken).expect("it is there")), Vec::<&str>::new());
        assert_eq!(names(&directory.look(later + QUIET, taken).expect("it is there")), Vec::<&str>::new());
        drop(file);
        fs::rename(dir.path().join(".hidden"), dir.path().join("renamed")).expect("our directory");
        let mut found = directory.look(later, taken).expect("it is there");
        found.complete.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert_eq!(names(&found), ["open", "renamed"]);
    }

    #[test]
    fn a_file_of_which_nothing_is_told_is_complete_when_it_does_not_change() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("before"), "x").expect("our directory");
        let now = Instant::now();
        let mut directory = Directory::open(dir.path(), now).expect("it is there");
        directory.events = None;
        let mut at = |seconds| names_at(&mut directory, now + Duration::from_secs(seconds));
        assert_eq!(at(0), Vec::<String>::new());
        assert_eq!(at(4), Vec::<String>::new());
        fs::write(dir.path().join("before"), "longer").expect("our directory");
        assert_eq!(at(6), Vec::<String>::new(), "it has changed meanwhile");
        assert_eq!(at(12), ["before"]);
    }

    fn names_at(directory: &mut Directory, now: Instant) -> Vec<String> {
        names(&directory.look(now, |_, _| false).expect("it is there")).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_file_that_is_linked_here_is_complete_though_nobody_closes_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (elsewhere, watched) = (dir.path().join("elsewhere"), dir.path().join("watched"));
        fs::create_dir(&watched).expect("our directory");
        fs::write(&elsewhere, "x").expect("our directory");
        let now = Instant::now();
        let mut directory = Directory::open(&watched, now).expect("it is there");
        fs::hard_link(&elsewhere, watched.join("linked")).expect("our directory");
        fs::remove_file(&elsewhere).expect("our directory");
        assert_eq!(names_at(&mut directory, now), Vec::<String>::new());
        assert_eq!(names_at(&mut directory, now + QUIET), ["linked"]);
    }

    #[test]
    fn links_are_taken_and_bad_names_told_once() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let elsewhere = tempfile::NamedTempFile::new_in(&dir).expect("our directory");
        let now = Instant::now();
        let mut directory = Directory::open(dir.path(), now).expect("it is there");
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("link")).expect("our directory");
        fs::write(dir.path().join("a\nb"), "x").expect("our directory");
        let first = directory.look(now, |_, _| false).expect("it is there");
        assert_eq!(first.unusable, ["a\nb"]);
        let second = directory.look(now + QUIET * 2, |_, _| false).expect("it is there");
        assert!(names(&second).contains(&"link") && second.unusable.is_empty(), "{second:?}");
    }
}
