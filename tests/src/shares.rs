//! Shares of the processor, by control groups.
//!
//! All of a run is in a group whose share is far above that of others, so that what else this computer does disturbs it little: workers
//! of agents ask for the lowest priority, and would wait for all others. Inside of it machines may have groups with a quota.

use std::fs;
use std::path::{Path, PathBuf};

/// The interfaces of the system: version 1 has a tree for each controller, version 2 one for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group of a run; it is removed when this is dropped, with all that is below it.
#[derive(Debug)]
pub struct Shares {
    version: Version,
    tree: PathBuf,
    group: PathBuf,
    /// Where this process was.
    before: PathBuf,
}

const PREFIX: &str = "idlewood-conformance-";
/// Time over which a quota counts, in microseconds: short, so that little waits for its turn.
const PERIOD_US: u64 = 20_000;

impl Shares {
    /// Makes the group and enters it.
    ///
    /// # Errors
    /// A sentence: there are no control groups that this process may use.
    pub fn new() -> Result<Self, String> {
        let (version, tree) = if Path::new("/sys/fs/cgroup/cpu/cpu.shares").exists() {
            (Version::One, PathBuf::from("/sys/fs/cgroup/cpu"))
        } else {
            (Version::Two, PathBuf::from("/sys/fs/cgroup"))
        };
        let failed = |error: std::io::Error| format!("no control group can be made in {}: {error}", tree.display());
        remove_abandoned(&tree);
        let own = fs::read_to_string("/proc/self/cgroup").map_err(failed)?;
        let mut before = tree.clone();
        before.extend(own_group(&own, version));
        let group = tree.join(format!("{PREFIX}{}", std::process::id()));
        if version == Version::Two {
            fs::write(tree.join("cgroup.subtree_control"), "+cpu").map_err(failed)?;
        }
        fs::create_dir(&group).map_err(failed)?;
        let shares = Self { version, tree: tree.clone(), group, before };
        match version {
            Version::One => fs::write(shares.group.join("cpu.shares"), "262144").map_err(failed)?,
            Version::Two => {
                fs::write(shares.group.join("cpu.weight"), "10000").map_err(failed)?;
                fs::write(shares.group.join("cgroup.subtree_control"), "+cpu").map_err(failed)?;
            }
        }
        let harness = shares.group.join("harness");
        fs::create_dir(&harness).map_err(failed)?;
        enter(&harness).map_err(failed)?;
        Ok(shares)
    }

    /// Makes a group with a quota, in percent of one processor, or sets the quota anew; returns the file that takes the ids of its processes.
    ///
    /// # Errors
    /// A sentence: what the system refuses.
    pub fn quota(&self, machine: u32, percent: u64) -> Result<PathBuf, String> {
        let group = self.group.join(format!("machine-{machine}"));
        let quota_us = PERIOD_US * percent / 100;
        let made = fs::create_dir_all(&group).and_then(|()| match self.version {
            Version::One => {
                fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                fs::write(group.join("cpu.cfs_quota_us"), quota_us.to_string())
            }
            Version::Two => fs::write(group.join("cpu.max"), format!("{quota_us} {PERIOD_US}")),
        });
        made.map_err(|error| format!("no share of the processor can be given: {error}"))?;
        Ok(group.join("cgroup.procs"))
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        if enter(&self.before).and_then(|()| remove(&self.group)).is_err() {
            eprintln!("{} could not be removed", self.group.display());
        }
        remove_abandoned(&self.tree);
    }
}

/// The directories that lead to the group of this process, by what the system says of it.
fn own_group(text: &str, version: Version) -> Option<PathBuf> {
    let line = text.lines().find(|line| {
        let controllers = line.split(':').nth(1);
        match version {
            Version::One => controllers.is_some_and(|of| of.split(',').any(|of| of == "cpu")),
            Version::Two => controllers == Some(""),
        }
    })?;
    Some(line.splitn(3, ':').nth(2)?.trim_start_matches('/').into())
}

fn enter(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Removes a group and those below it; its processes have ended, or end just now.
fn remove(group: &Path) -> std::io::Result<()> {
    for below in fs::read_dir(group)? {
        let below = below?.path();
        if below.is_dir() {
            remove(&below)?;
        }
    }
    for _ in 0..100 {
        if fs::remove_dir(group).is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    fs::remove_dir(group)
}

/// Removes what runs left that were killed.
fn remove_abandoned(tree: &Path) {
    for group in fs::read_dir(tree).into_iter().flatten().flatten() {
        let name = group.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|id| id.parse::<u32>().ok());
        if process.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) && remove(&group.path()).is_err() {
            eprintln!("{} could not be removed", group.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_what_either_version_says() {
        let text = "4:memory:/a\n1:cpu,cpuacct:/b/c\n0::/d\n";
        assert_eq!(own_group(text, Version::One), Some("b/c".into()));
        assert_eq!(own_group(text, Version::Two), Some("d".into()));
        assert_eq!(own_group("0::/\n", Version::Two), Some("".into()));
    }
}
