//! Reading directories that workers wrote, which may contain anything. `removal` removes them.
//!
//! The agent has its user's rights, the worker has none: code that broke out of WebAssembly could make the agent read
//! for it through a link, or block for ever on a pipe. So each name is looked up in an open directory, links are not
//! followed, opening never blocks, and only plain files without another name are read. Number and depth of directories,
//! and bytes of contents, are bounded.
//!
//! Directories given by path must lie where workers cannot replace any part but the last.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use idlewood_units::FILES_MAX;
use rustix::fs::{Dir, DirEntry, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How deep the files of a task may lie to be kept.
pub const DEPTH_MAX: usize = 16;
/// Paths that are told of files that are not wanted.
const UNWANTED_TOLD: usize = 5;
/// Most entries read, of any kind.
const ENTRIES_MAX: usize = 4 * FILES_MAX;

/// Bytes that may still be read, and the error beyond that.
#[derive(Debug)]
pub struct Room {
    bytes: u64,
    over: String,
}

impl Room {
    /// Room for so many bytes; `over` is the error beyond that.
    pub fn new(bytes: u64, over: String) -> Self {
        Self { bytes, over }
    }
}

/// A directory that a worker could write to.
#[derive(Debug)]
pub struct UntrustedDir(OwnedFd);

/// The files found below a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files by relative path, with `/`.
    pub files: Vec<(String, Vec<u8>)>,
    /// Directories with nothing in them, by relative path.
    pub folders: Vec<String>,
    /// Paths that are not kept: links, files that have another name, neither files nor directories, and directories
    /// that lie too deep.
    pub left_out: Vec<String>,
    /// The paths of the first files that are not wanted.
    pub unwanted_first: Vec<String>,
    /// How many there are.
    pub unwanted: usize,
}

/// Neither follows a link nor blocks.
const CAREFULLY: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl UntrustedDir {
    /// Opens a directory; `None` if there is none at that path.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        Self::found(rustix::fs::open(path, CAREFULLY | OFlags::DIRECTORY, Mode::empty()))
    }

    /// Opens the subdirectory of this name, as [`UntrustedDir::open`].
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn directory(&self, name: &str) -> io::Result<Option<Self>> {
        directory_at(self.0.as_fd(), name)
    }

    fn found(opened: rustix::io::Result<OwnedFd>) -> io::Result<Option<Self>> {
        match opened {
            Ok(directory) => Ok(Some(Self(directory))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The content of the file of this name, counted against `room`; `None` if there is no such file.
    ///
    /// # Errors
    /// When it cannot be read, or there is no room for it.
    pub fn read(&self, name: &str, room: &mut Room) -> io::Result<Option<Vec<u8>>> {
        read_at(self.0.as_fd(), name, room)
    }

    /// Up to so many bytes of the file of this name from an offset on, also while it is being written; `None` if there is no such file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_part(&self, name: &str, offset: u64, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(mut file) = plain_file_at(self.0.as_fd(), name)? else { return Ok(None) };
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// The files below it whose paths are wanted, read as by [`UntrustedDir::read`], and the paths that are not kept. Keeps one
    /// directory open per level.
    ///
    /// # Errors
    /// When they cannot be read, there is no room for them, there are too many, or a name is not UTF-8.
    pub fn read_all(&self, room: &mut Room, mut is_wanted: impl FnMut(&str) -> bool) -> io::Result<Contents> {
        let too_many = || io::Error::other(format!("it is over the limit of {FILES_MAX} files: pack them into fewer"));
        let mut contents = Contents::default();
        let mut entries_left = ENTRIES_MAX;
        // Each with whether nothing was found in it yet; the outermost is none.
        let mut open = vec![(Dir::read_from(&self.0)?, String::new(), false)];
        loop {
            let may_go_down = open.len() <= DEPTH_MAX;
            let Some((innermost, prefix, is_empty)) = open.last_mut() else { return Ok(contents) };
            let Some(entry) = innermost.read() else {
                if *is_empty {
                    if contents.folders.len() == FILES_MAX {
                        return Err(too_many());
                    }
                    contents.folders.push(prefix.trim_end_matches('/').to_owned());
                }
                open.pop();
                continue;
            };
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            *is_empty = false;
            entries_left = entries_left.checked_sub(1).ok_or_else(too_many)?;
            let name = entry.file_name().to_str().map_err(|_| io::Error::other("a file name is not UTF-8"))?;
            let (path, parent) = (format!("{prefix}{name}"), innermost.fd()?);
            let cannot = |error: io::Error| match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    io::Error::new(error.kind(), format!("{path:?} cannot be read: {error}"))
                }
                _ => error,
            };
            if !is_wanted(&path) && plain_file_at(parent, name).map_err(cannot)?.is_some() {
                contents.unwanted += 1;
                if contents.unwanted_first.len() < UNWANTED_TOLD {
                    contents.unwanted_first.push(path);
                }
            } else if let Some(bytes) = read_at(parent, name, room).map_err(cannot)? {
                if contents.files.len() == FILES_MAX {
                    return Err(too_many());
                }
                contents.files.push((path, bytes));
            } else if may_go_down && let Some(UntrustedDir(inner)) = directory_at(parent, name)? {
                open.push((Dir::new(inner)?, path + "/", true));
            } else {
                contents.left_out.push(path);
            }
        }
    }

    /// Locks the directory for this process until dropped. False if another process has locked it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Names of its entries, one by one, however many. Removing entries meanwhile does no harm.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn names(&self) -> io::Result<impl Iterator<Item = io::Result<PathBuf>>> {
        let name = |entry: rustix::io::Result<DirEntry>| match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                let is_one = !matches!(name, b"." | b"..");
                is_one.then(|| Ok(PathBuf::from(OsStr::from_bytes(name))))
            }
            Err(errno) => Some(Err(errno.into())),
        };
        Ok(Dir::read_from(&self.0)?.filter_map(name))
    }
}

/// As [`UntrustedDir::directory`].
fn directory_at(parent: BorrowedFd, name: &str) -> io::Result<Option<UntrustedDir>> {
    UntrustedDir::found(rustix::fs::openat(parent, name, CAREFULLY | OFlags::DIRECTORY, Mode::empty()))
}

/// Opens the file of this name; `None` if there is none, or it is something else, or has another name.
fn plain_file_at(parent: BorrowedFd, name: &str) -> io::Result<Option<File>> {
    let file = match rustix::fs::openat(parent, name, CAREFULLY, Mode::empty()) {
        Ok(file) => file,
        // A link, or a socket.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
    Ok(is_plain.then(|| File::from(file)))
}

/// As [`UntrustedDir::read`].
fn read_at(parent: BorrowedFd, name: &str, room: &mut Room) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = plain_file_at(parent, name)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(room.bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    let dir = room.bytes.checked_sub(bytes.len() as u64);
    room.bytes = dir.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, room.over.clone()))?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn room(bytes: u64) -> Room {
        Room::new(bytes, "it is too large".to_owned())
    }

    /// A directory, and a secret outside of it.
    fn setup() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().expect("a directory");
        let (dir, secret) = (root.path().join("dir"), root.path().join("secret"));
        fs::create_dir(&dir).expect("ours");
        fs::create_dir(&secret).expect("ours");
        fs::write(secret.join("key"), "secret").expect("ours");
        (root, dir, secret)
    }

    fn fifo(path: &Path) {
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    }

    #[test]
    fn plain_files_are_read_and_nothing_else_is() {
        let (_root, dir, secret) = setup();
        fs::create_dir_all(dir.join("a/b")).expect("ours");
        fs::write(dir.join("a/b/plain"), "result").expect("ours");
        symlink(secret.join("key"), dir.join("link")).expect("a link");
        symlink(&secret, dir.join("a/linked")).expect("a link");
        symlink("loop", dir.join("loop")).expect("a link");
        fs::hard_link(secret.join("key"), dir.join("name")).expect("a link");
        // Opening it for reading would block until another process writes.
        fifo(&dir.join("pipe"));
        let _socket = UnixListener::bind(dir.join("socket")).expect("a socket");
        let directory = UntrustedDir::open(&dir).expect("readable").expect("there");
        for name in ["link", "loop", "name", "pipe", "socket", "a"] {
            assert_eq!(directory.read(name, &mut room(100)).expect("no error"), None, "{name}");
            assert_eq!(directory.read_part(name, 0, 100).expect("no error"), None, "{name}");
        }
        let Contents { files, mut left_out, .. } = directory.read_all(&mut room(100), |_| true).expect("no error");
        assert_eq!(files, [("a/b/plain".to_owned(), b"result".to_vec())]);
        fs::create_dir_all(dir.join("empty/inner")).expect("ours");
        let folders = directory.read_all(&mut room(100), |_| true).expect("no error").folders;
        assert_eq!(folders, ["empty/inner"]);
        left_out.sort();
        assert_eq!(left_out, ["a/linked", "link", "loop", "name", "pipe", "socket"]);
    }

    #[test]
    fn a_file_is_read_piece_by_piece() {
        let (_root, dir, _) = setup();
        fs::write(dir.join("file"), "0123456789").expect("ours");
        let directory = UntrustedDir::open(&dir).expect("readable").expect("there");
        let part =
            |offset, bytes_max| directory.read_part("file", offset, bytes_max).expect("readable").expect("there");
        assert_eq!([part(0, 4), part(8, 4), part(20, 4)], [b"0123".to_vec(), b"89".to_vec(), Vec::new()]);
    }

    #[test]
    fn a_directory_that_is_a_link_is_none() {
        let (root, dir, secret) = setup();
        let link = root.path().join("link");
        symlink(&secret, &link).expect("a link");
        assert!(UntrustedDir::open(&link).expect("no error").is_none());
        assert!(UntrustedDir::open(&link.join("none")).expect("no error").is_none());
        fifo(&dir.join("pipe"));
        assert!(UntrustedDir::open(&dir.join("pipe")).expect("no error").is_none());
        let directory = UntrustedDir::open(root.path()).expect("readable").expect("there");
        assert!(directory.directory("link").expect("no error").is_none());
        assert!(directory.directory("secret").expect("no error").is_some());
    }

    /// Nor do they count against the room.
    #[test]
    fn files_that_are_not_wanted_are_not_read() {
        let (_root, dir, secret) = setup();
        fs::create_dir(dir.join("out")).expect("ours");
        fs::write(dir.join("out/result"), "42").expect("ours");
        fs::write(dir.join("large"), vec![0; 1000]).expect("ours");
        symlink(secret.join("key"), dir.join("out/link")).expect("a link");
        let directory = UntrustedDir::open(&dir).expect("readable").expect("there");
        let contents = directory.read_all(&mut room(2), |path| path.starts_with("out/")).expect("it fits");
        assert_eq!(contents.files, [("out/result".to_owned(), b"42".to_vec())]);
        assert_eq!((contents.unwanted_first, contents.unwanted), (vec!["large".to_owned()], 1));
        assert_eq!(contents.left_out, ["out/link"]);
    }

    #[test]
    fn size_number_and_depth_are_bounded() {
        let (_root, dir, _) = setup();
        let all =
            |room: &mut Room| UntrustedDir::open(&dir).expect("readable").expect("there").read_all(room, |_| true);
        fs::write(dir.join("file"), vec![1; 100]).expect("ours");
        let mut exact = room(100);
        assert_eq!((all(&mut exact).expect("it fits").files.len(), exact.bytes), (1, 0));
        assert!(all(&mut room(99)).expect_err("it does not").to_string().contains("large"));
        // A file that grows while it is read, or does not tell its size.
        File::create(dir.join("sparse")).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
        all(&mut room(1000)).expect_err("it is too large");
        fs::remove_file(dir.join("sparse")).expect("ours");
        fs::create_dir_all(dir.join("d/".repeat(DEPTH_MAX + 1))).expect("ours");
        fs::write(dir.join("d/".repeat(DEPTH_MAX)).join("seen"), "").expect("ours");
        fs::write(dir.join("d/".repeat(DEPTH_MAX + 1)).join("unseen"), "").expect("ours");
        let contents = all(&mut room(100)).expect("bounded");
        assert_eq!(contents.files.len(), 2, "{contents:?}");
        assert_eq!(contents.left_out, [["d"; DEPTH_MAX + 1].join("/")]);
        for number in 0..FILES_MAX {
            fs::write(dir.join(number.to_string()), "").expect("ours");
        }
        assert!(all(&mut room(100)).expect_err("too many").to_string().contains("over the limit"));
        fs::remove_dir_all(&dir).expect("ours");
        // More than this process may have open.
        (0..=ENTRIES_MAX).for_each(|number| fs::create_dir_all(dir.join(number.to_string())).expect("ours"));
        assert!(all(&mut room(100)).expect_err("too many").to_string().contains("over the limit"));
    }
}
