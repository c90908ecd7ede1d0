//! Small disks for tests of full ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::missing;

/// A small file system, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// None if this user may not mount one.
    ///
    /// # Panics
    /// Without a temporary directory.
    pub fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        let is_mounted = mounted.is_ok_and(|status| status.success());
        if !is_mounted {
            missing("this user may not mount a file system");
        }
        is_mounted.then(|| Self(dir))
    }

    /// Fills the disk with one file, except `room_bytes`.
    pub fn fill(&self, room_bytes: u64) -> PathBuf {
        self.fill_with("filler", room_bytes)
    }

    /// Fills it again with another file.
    pub fn fill_more(&self, room_bytes: u64) -> PathBuf {
        self.fill_with("more filler", room_bytes)
    }

    fn fill_with(&self, name: &str, room_bytes: u64) -> PathBuf {
        let taken = self.free_bytes().saturating_sub(room_bytes);
        let filler = self.path().join(name);
        fs::write(&filler, vec![0; usize::try_from(taken).unwrap()]).unwrap();
        filler
    }

    /// Free space.
    pub fn free_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.path()).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}
