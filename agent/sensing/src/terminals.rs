//! Input on terminals: consoles, remote logins and terminal windows. The kernel records the last read of a terminal, in
//! steps of eight seconds, as access time of its device; `w` shows that time.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::sensed::{Sensed, Unavailable};

/// The terminals below a directory, `/dev`.
#[derive(Debug)]
pub struct Terminals {
    dev: PathBuf,
}

impl Terminals {
    pub(crate) fn new(dev: PathBuf) -> Self {
        Self { dev }
    }

    /// Time since the last input on any of them.
    pub(crate) fn idle(&self) -> Sensed {
        self.idle_at(SystemTime::now())
    }

    fn idle_at(&self, now: SystemTime) -> Sensed {
        let accessed = self.paths().into_iter().filter_map(|path| std::fs::metadata(path).ok()?.accessed().ok());
        let idle = accessed.map(|at| now.duration_since(at).unwrap_or(Duration::ZERO)).min();
        idle.ok_or_else(|| Unavailable::absent("nobody has a console or a terminal"))
    }

    /// Virtual and serial consoles, and pseudo-terminals.
    fn paths(&self) -> Vec<PathBuf> {
        let list = |directory: PathBuf, wanted: fn(&[u8]) -> bool| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.filter(move |entry| wanted(entry.file_name().as_bytes())).map(|entry| entry.path())
        };
        fn digits(name: &[u8]) -> bool {
            !name.is_empty() && name.iter().all(u8::is_ascii_digit)
        }
        let console = |name: &[u8]| {
            // Without tty0, an alias of the active one.
            name.strip_prefix(b"tty").is_some_and(|number| number != b"0" && digits(number))
        };
        list(self.dev.clone(), console).chain(list(self.dev.join("pts"), digits)).collect()
    }

    /// Number of terminals.
    pub fn count(&self) -> usize {
        self.paths().len()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};

    use super::*;

    #[test]
    fn the_terminal_that_was_read_last_counts() {
        let dev = tempfile::tempdir().expect("a directory");
        let terminals = Terminals::new(dev.path().to_owned());
        let now = SystemTime::now();
        let make = |name: &str, read_ago_s| {
            let path = dev.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            let file = File::create(path).expect("a file");
            let times = FileTimes::new().set_accessed(now - Duration::from_secs(read_ago_s)).set_modified(now);
            file.set_times(times).expect("its times");
        };
        for other in ["tty", "tty0", "ttyS0", "console", "null", "pts/ptmx"] {
            make(other, 1);
        }
        assert_eq!(terminals.idle_at(now), Err(Unavailable::absent("nobody has a console or a terminal")));
        make("tty1", 500);
        assert_eq!(terminals.idle_at(now), Ok(Duration::from_secs(500)));
        make("pts/3", 90);
        make("pts/12", 4_000);
        assert_eq!(terminals.idle_at(now), Ok(Duration::from_secs(90)));
        assert_eq!(terminals.count(), 3);
        // The clock was set back.
        assert_eq!(terminals.idle_at(now - Duration::from_secs(1_000)), Ok(Duration::ZERO));
    }
}
