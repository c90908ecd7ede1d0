//! Removing a task's files, whatever their rights, depth, number and names.
//!
//! A task can nest directories as deep as it likes, even beyond what a path can express, remove the rights to them,
//! fill them with any number of files, and give them names that are not UTF-8. A recursive removal would run out of
//! stack, and one that keeps all parent directories open would run out of descriptors. So nothing is walked here: a
//! directory that is not empty is moved up, into the topmost directory that is being removed, and waits there for its
//! turn. The state is that directory, one directory in it, and two numbers.
//!
//! - Each directory is moved once, and each entry is read once: the work grows with the number of entries alone.
//! - Entries are removed while they are read; their names are not kept.
//! - Links are not followed: names are looked up in open directories, and a link itself is removed.
//! - An interrupted removal continues with the next call, since directories that were moved up lie below the top.
//!
//! Left out: stopping another process that writes there at the same time, which may make the removal fail.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Most passes, each of which removes something. One is enough, except where a file system skips entries while others
/// are removed, or limits the directories in one directory (65,000 on some).
const PASSES_MAX: u32 = 1000;

/// Rights that the agent's user needs to empty a directory.
const OWN: Mode = Mode::RWXU;

/// Opens directories only, does not follow links, closes on exec.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes the file, link or directory at a path, with all its content. Does nothing if there is none. Blocks.
///
/// The path must lie where no worker can replace any part but the last.
///
/// # Errors
/// When some of it cannot be removed: the rest is.
pub fn remove(path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let name = CString::new(name.as_bytes())?;
    let parent = match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => parent,
        None => Path::new("."),
    };
    let parent = match rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        parent => parent?,
    };
    let mut passes_left = PASSES_MAX;
    loop {
        match take_away(parent.as_fd(), &name, FileType::Unknown)? {
            Rest::None => return Ok(()),
            Rest::Directory => {}
        }
        let mut heap = Heap::of(enter(parent.as_fd(), &name)?);
        heap.clear()?;
        passes_left -= 1;
        if heap.taken == 0 || passes_left == 0 {
            return Err(heap.failure.unwrap_or(Errno::NOTEMPTY).into());
        }
    }
}

/// Gives the agent's user all rights to a directory, so that it can be opened; does not follow a link.
///
/// # Errors
/// When it is no directory, or the system refuses.
pub(super) fn open_up(path: &Path) -> io::Result<()> {
    Ok(open_up_at(rustix::fs::CWD, &CString::new(path.as_os_str().as_bytes())?)?)
}

fn open_up_at(parent: BorrowedFd, name: &CStr) -> Result<(), Errno> {
    // Opening with O_PATH needs no rights, and then the directory cannot be exchanged any more.
    let handle = rustix::fs::openat(parent, name, DIRECTORY | OFlags::PATH, Mode::empty())?;
    // The system refuses to change rights through such a handle, but not through its link in /proc.
    rustix::fs::chmod(format!("/proc/thread-self/fd/{}", handle.as_raw_fd()), OWN)
}

/// The remains of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    None,
    /// A directory that is not empty.
    Directory,
}

/// Removes one entry, unless it is a directory that is not empty.
fn take_away(parent: BorrowedFd, name: &CStr, is: FileType) -> Result<Rest, Errno> {
    if is != FileType::Directory {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(Rest::None),
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Rest::None),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Rest::Directory),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory so that it can be emptied.
fn enter(parent: BorrowedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let open = || rustix::fs::openat(parent, name, DIRECTORY | OFlags::RDONLY, Mode::empty());
    let directory = match open() {
        Err(Errno::ACCESS) => {
            open_up_at(parent, name)?;
            open()?
        }
        directory => directory?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    if !mode.contains(OWN) {
        match rustix::fs::fchmod(&directory, OWN) {
            // Root may not need the rights; a user who does is refused later.
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(directory)
}

/// A directory that is being emptied, with the directories moved up into it, whose names are numbers.
struct Heap {
    top: OwnedFd,
    /// Prefix of their names, which no other entry has.
    prefix: String,
    /// The numbers of those that still exist.
    first: u64,
    next: u64,
    /// Number of entries removed.
    taken: u64,
    /// The first failure.
    failure: Option<Errno>,
}

impl Heap {
    fn of(top: OwnedFd) -> Self {
        let prefix = format!("{:016x}-", rand::random::<u64>());
        Self { top, prefix, first: 0, next: 0, taken: 0, failure: None }
    }

    fn name(&self, number: u64) -> Result<CString, Errno> {
        CString::new(format!("{}{number}", self.prefix)).map_err(|_| Errno::INVAL)
    }

    /// Empties the top as far as possible: notes failures, and continues with the rest.
    fn clear(&mut self) -> Result<(), Errno> {
        let top = Dir::read_from(&self.top)?;
        self.empty(top);
        while self.first < self.next {
            let name = self.name(self.first)?;
            self.first += 1;
            let entered = enter(self.top.as_fd(), &name).and_then(Dir::new);
            if let Some(directory) = self.note(entered) {
                self.empty(directory);
                let gone = take_away(self.top.as_fd(), &name, FileType::Directory);
                self.count(gone);
            }
        }
        Ok(())
    }

    /// Empties a directory: removes entries, and moves full directories up.
    fn empty(&mut self, mut directory: Dir) {
        while let Some(entry) = directory.read() {
            let Some(entry) = self.note(entry) else { return };
            let name = entry.file_name();
            // The top may list directories that were just moved there.
            if matches!(name.to_bytes(), b"." | b"..") || name.to_bytes().starts_with(self.prefix.as_bytes()) {
                continue;
            }
            let gone = directory.fd().and_then(|parent| {
                let rest = take_away(parent, name, entry.file_type())?;
                if rest == Rest::Directory {
                    self.move_up(parent, name)?;
                }
                Ok(rest)
            });
            self.count(gone);
        }
    }

    fn move_up(&mut self, parent: BorrowedFd, name: &CStr) -> Result<(), Errno> {
        let to = self.name(self.next)?;
        match rustix::fs::renameat(parent, name, &self.top, &to) {
            // Moving a directory to another parent needs write access to it.
            Err(Errno::ACCESS) => {
                open_up_at(parent, name)?;
                rustix::fs::renameat(parent, name, &self.top, &to)?;
            }
            moved => moved?,
        }
        self.next += 1;
        Ok(())
    }

    fn count(&mut self, rest: Result<Rest, Errno>) {
        if self.note(rest) == Some(Rest::None) {
            self.taken += 1;
        }
    }

    fn note<T>(&mut self, done: Result<T, Errno>) -> Option<T> {
        done.map_err(|errno| self.failure.get_or_insert(errno)).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use rustix::fs::CWD;
    use rustix::thread::UnshareFlags;

    use super::*;

    /// A user without rights here.
    const NOBODY: u32 = 65534;

    /// Runs `body` on a thread with little stack and so many free descriptors, as another user if this one is root.
    #[allow(unsafe_code)]
    fn with_little(descriptors: usize, as_nobody: bool, body: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let begin = move || {
                // SAFETY: from here on this thread has a table of descriptors of its own, and nobody else gives it any.
                unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.expect("a table of its own");
                let null = fs::File::open("/dev/null").expect("it is there");
                let mut taken: Vec<OwnedFd> = Vec::new();
                while let Ok(more) = rustix::io::dup(&null) {
                    taken.push(more);
                }
                taken.truncate(taken.len() - descriptors);
                if as_nobody && rustix::process::geteuid().is_root() {
                    // For this thread alone.
                    rustix::thread::set_thread_groups(&[]).expect("root may");
                    let (user, group) = (rustix::fs::Uid::from_raw(NOBODY), rustix::fs::Gid::from_raw(NOBODY));
                    rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
                    rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
                }
                body();
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, begin).expect("a thread");
        });
    }

    /// A directory that all users may write to.
    fn everybodys() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        root
    }

    /// Makes so many nested directories, and a file in the innermost.
    fn nest(root: &Path, name: &str, levels: usize) {
        let mut at = rustix::fs::open(root, DIRECTORY, Mode::empty()).expect("ours");
        let names = std::iter::once(name).chain(std::iter::repeat("d")).take(levels);
        for name in names {
            rustix::fs::mkdirat(&at, name, OWN).expect("it is new");
            at = rustix::fs::openat(&at, name, DIRECTORY, Mode::empty()).expect("it is there");
        }
        drop(rustix::fs::openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, OWN).expect("it is new"));
    }

    fn names(directory: &Path) -> Vec<PathBuf> {
        fs::read_dir(directory).expect("ours").map(|entry| entry.expect("ours").path()).collect()
    }

    /// Made as a task would that opens no path longer than the system takes: by moving them below each other.
    #[test]
    fn depth_takes_neither_stack_nor_descriptors() {
        let root = tempfile::tempdir().expect("a directory");
        let tree = root.path().join("tree");
        fs::create_dir(&tree).expect("ours");
        let deep = |chain: usize| format!("chain-{chain}{}", "/d".repeat(1899));
        nest(&tree, "chain-0", 1900);
        for chain in 1..11 {
            nest(&tree, &format!("chain-{chain}"), 1900);
            let to = tree.join(deep(chain)).join("below");
            fs::rename(tree.join(format!("chain-{}", chain - 1)), to).expect("they are ours");
        }
        assert_eq!(names(&tree).len(), 1, "20,900 levels below each other");
        with_little(6, false, || remove(&tree).expect("whatever its depth"));
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn rights_do_not_hinder_a_plain_user() {
        let root = everybodys();
        let tree = root.path().join("tree");
        with_little(6, true, || {
            fs::create_dir(&tree).expect("everybody may");
            for mode in [0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600] {
                let closed = tree.join(format!("{mode:o}"));
                fs::create_dir_all(closed.join("in/deep")).expect("ours");
                for path in [closed.join("file"), closed.join("in/file"), closed.join("in/deep/file")] {
                    fs::write(&path, "").expect("ours");
                    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("ours");
                }
                for directory in [closed.join("in/deep"), closed.join("in"), closed] {
                    fs::set_permissions(directory, fs::Permissions::from_mode(mode)).expect("ours");
                }
            }
            fs::set_permissions(&tree, fs::Permissions::from_mode(0o000)).expect("ours");
            if !rustix::process::geteuid().is_root() {
                fs::read_dir(&tree).expect_err("it is closed to us");
            }
            remove(&tree).expect("whatever its rights");
        });
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn names_are_any_bytes() {
        let root = tempfile::tempdir().expect("a directory");
        let tree = root.path().join("tree");
        let long = [0xfe; 255];
        let odd: [&[u8]; 7] = [b"a\nb", b"\n", b"\xff\xfe", b"-rf", b" ", b"0000000000000000-0", &long];
        for outer in odd {
            let outer = tree.join(OsStr::from_bytes(outer));
            for inner in odd {
                let inner = outer.join(OsStr::from_bytes(inner));
                fs::create_dir_all(&inner).expect("ours");
                odd.iter().for_each(|file| fs::write(inner.join(OsStr::from_bytes(file)), "").expect("ours"));
            }
        }
        remove(&tree).expect("whatever its names");
        assert!(names(root.path()).is_empty());
        let odd = root.path().join(OsStr::from_bytes(b"\xff\n"));
        fs::create_dir(&odd).expect("ours");
        remove(&odd).expect("its own name, too");
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn links_are_not_followed_and_pipes_do_not_block() {
        let root = tempfile::tempdir().expect("a directory");
        let (tree, kept) = (root.path().join("tree"), root.path().join("kept"));
        fs::create_dir_all(tree.join("in")).expect("ours");
        fs::create_dir(&kept).expect("ours");
        fs::write(kept.join("letter"), "dear").expect("ours");
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o750)).expect("ours");
        symlink(&kept, tree.join("in/link")).expect("a link");
        symlink(kept.join("letter"), tree.join("in/other")).expect("a link");
        fs::hard_link(kept.join("letter"), tree.join("in/name")).expect("a name");
        rustix::fs::mknodat(CWD, tree.join("in/pipe"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        let _socket = UnixListener::bind(tree.join("in/socket")).expect("a socket");
        remove(&tree).expect("ours");
        symlink(&kept, &tree).expect("a link");
        remove(&tree).expect("a link goes");
        assert_eq!(names(root.path()), std::slice::from_ref(&kept));
        assert_eq!(fs::read_to_string(kept.join("letter")).expect("it is there"), "dear");
        assert_eq!(fs::metadata(&kept).expect("it is there").permissions().mode() & 0o777, 0o750);
        remove(&tree).expect("it is gone already");
        remove(&tree.join("in")).expect("so is what it was in");
        remove(&kept.join("letter")).expect("a file goes");
        assert!(names(&kept).is_empty());
    }

    /// A failure is reported, and does not keep anything else from being removed.
    #[test]
    fn a_failure_is_reported_and_the_rest_is_removed() {
        let root = everybodys();
        let tree = root.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).expect("ours");
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o777)).expect("ours");
        if !rustix::process::geteuid().is_root() {
            // This user can remove everything that it can make.
            return remove(&tree).expect("it is ours");
        }
        with_little(6, true, || {
            fs::create_dir_all(tree.join("mine/deep")).expect("everybody may");
            let error = remove(&tree).expect_err("others' directories are not ours to empty");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        });
        assert_eq!(names(&tree).len(), 1, "what was ours is gone");
        remove(&tree).expect("root may");
        assert!(names(root.path()).is_empty());
    }

    /// So many directories that are not empty, each with two below it.
    fn spread(at: &Path, levels: u32) {
        fs::create_dir(at).expect("it is new");
        fs::write(at.join("file"), "").expect("ours");
        if levels > 0 {
            ["left", "right"].iter().for_each(|side| spread(&at.join(side), levels - 1));
        }
    }

    #[test]
    fn an_interrupted_removal_continues() {
        let root = tempfile::tempdir().expect("a directory");
        let tree = root.path().join("tree");
        spread(&tree, 9);
        let parent = rustix::fs::open(&tree, DIRECTORY, Mode::empty()).expect("ours");
        let mut heap = Heap::of(parent);
        let top = Dir::read_from(&heap.top).expect("ours");
        heap.empty(top);
        assert!(heap.next > 0 && heap.failure.is_none() && !names(&tree).is_empty(), "it has only begun");
        drop(heap);
        remove(&tree).expect("it is gone on with");
        assert!(names(root.path()).is_empty());
    }

    /// Empty files, in one directory and in many.
    fn fill(tree: &Path, files: u32) {
        fs::create_dir(tree).expect("it is new");
        for part in 0..4 {
            let directory = tree.join(part.to_string());
            fs::create_dir(&directory).expect("it is new");
            let directory = rustix::fs::open(&directory, DIRECTORY, Mode::empty()).expect("ours");
            for file in 0..files / 4 {
                let name = file.to_string();
                rustix::fs::mknodat(&directory, name, FileType::RegularFile, Mode::RUSR, 0).expect("it is new");
            }
        }
    }

    #[test]
    fn a_hundred_thousand_files_are_removed() {
        let root = tempfile::tempdir().expect("a directory");
        fill(&root.path().join("tree"), 100_000);
        with_little(6, false, || remove(&root.path().join("tree")).expect("whatever their number"));
        assert!(names(root.path()).is_empty());
    }

    /// `cargo test --release -p idlewood --lib a_million_files_go -- --ignored`
    #[test]
    #[ignore = "takes half a minute"]
    fn a_million_files_are_removed() {
        let root = tempfile::tempdir().expect("a directory");
        fill(&root.path().join("tree"), 1_000_000);
        with_little(6, false, || remove(&root.path().join("tree")).expect("whatever their number"));
        assert!(names(root.path()).is_empty());
    }
}
