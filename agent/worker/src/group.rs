//! Control groups: if the system lets the agent make them, the kernel enforces the limits of native tasks.
//!
//! Periodic looks miss what is exceeded between them, and cannot see everything: memory that is mapped nowhere, locks,
//! pipes. A control group counts all of it, for all processes of a task together. There are two kinds:
//! - **Version 2**, on today's desktops. The agent makes groups below its own, which must be delegated to it
//!   (`Delegate=` of its unit, which systemd marks with the attribute `user.delegate`). A group with processes of its
//!   own cannot limit groups below it, so the agent first moves into one of these.
//! - **Version 1**, on older systems: if the agent may make groups below its own, as root may.
//!
//! Without either only the looks remain ([`super::native`]), and `doctor` says so.
//!
//! Left out: groups for workers of WebAssembly, whose memory the runtime counts and whose process the system limits
//! ([`super::limits`]). Groups not made for us: their limits are another's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use super::confine::Gap;
use super::processes::TASKS_SYSTEM_MAX;

/// Prefix of the names of groups that an agent made.
const PREFIX: &str = "idlewood-";
/// How far a task may exceed its limit before the kernel ends it: room for its first process, and for kernel memory.
/// The looks, which give a better reason, are to come first. Our choice.
const MARGIN_BYTES: u64 = 8 << 20;
/// Most groups of ended tasks that could not be removed yet.
const STALE_MAX: usize = 1024;

/// Where control groups are made.
#[derive(Debug)]
pub(super) struct Groups {
    place: Place,
    next: AtomicU64,
    /// Groups whose last processes had not ended when they were to be removed.
    stale: Mutex<Vec<Member>>,
}

/// The agent's own groups.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Unified(PathBuf),
    Separate { memory: PathBuf, pids: Option<PathBuf> },
}

/// The group of one task, for processes that join it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    memory: PathBuf,
    /// The group that limits the number of processes, if it is a separate one.
    pids: Option<PathBuf>,
}

/// The group of one task, for its maker, which removes it.
#[derive(Debug)]
pub(super) struct Group {
    groups: &'static Groups,
    pub(super) member: Member,
}

/// The groups of this process, once prepared.
static GROUPS: OnceLock<Result<Groups, Gap>> = OnceLock::new();

/// The control groups of this process, or why it can make none. The first call prepares them, and must come before this
/// process starts others.
pub(super) fn groups() -> Result<&'static Groups, &'static Gap> {
    GROUPS.get_or_init(Groups::prepare).as_ref()
}

/// Why this agent's tasks get no control groups, or those of an agent started like this process.
pub fn gap() -> Option<Gap> {
    match GROUPS.get() {
        Some(groups) => groups.as_ref().err().cloned(),
        None => find().err().map(|why| no_groups(&why)),
    }
}

fn no_groups(why: &str) -> Gap {
    Gap {
        what: format!(
            "no control groups: memory of native programs is looked at, ten to a hundred times a second, not held: {why}"
        ),
        remedy: "run the agent as a service with Delegate=memory pids, as agent/idlewood.service does",
    }
}

impl Groups {
    fn prepare() -> Result<Self, Gap> {
        let prepared = find().and_then(|place| {
            if let Place::Unified(own) = &place {
                make_room(own).map_err(|error| format!("{} cannot be shared out: {error}", own.display()))?;
            }
            let groups = Self { place, next: AtomicU64::new(0), stale: Mutex::default() };
            groups.sweep();
            // Try once: a feature missing now is missing for every task.
            let tried = groups.make(64 << 20).map(|member| remove(&member));
            tried.map_err(|error| format!("a group cannot be made: {error}"))?;
            Ok(groups)
        });
        prepared.map_err(|why| no_groups(&why))
    }

    /// Removes groups left by killed agents. A group stays while there are processes in it, or while the agent that made it runs:
    /// that agent is about to put a task into it.
    fn sweep(&self) {
        let (Place::Unified(own) | Place::Separate { memory: own, .. }) = &self.place;
        let pids = if let Place::Separate { pids: Some(pids), .. } = &self.place { Some(pids) } else { None };
        for directory in [Some(own), pids].into_iter().flatten() {
            let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
            for name in names.filter(|name| is_abandoned(&name.to_string_lossy())) {
                // The system refuses this for a group with processes.
                drop(fs::remove_dir(directory.join(name)));
            }
        }
    }

    fn make(&self, memory_bytes: u64) -> io::Result<Member> {
        let name = name(std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let member = match &self.place {
            Place::Unified(own) => Member { memory: own.join(&name), pids: None },
            Place::Separate { memory, pids } => {
                Member { memory: memory.join(&name), pids: pids.as_ref().map(|pids| pids.join(&name)) }
            }
        };
        let most = memory_bytes.saturating_add(memory_bytes / 8).saturating_add(MARGIN_BYTES);
        let made = match &self.place {
            Place::Unified(_) => limit_unified(&member.memory, most),
            Place::Separate { .. } => limit_separate(&member, most),
        };
        if let Err(error) = made {
            remove(&member);
            return Err(error);
        }
        Ok(member)
    }

    /// Makes a group for a task.
    ///
    /// # Errors
    /// When the system makes none now.
    pub(super) fn group(&'static self, memory_bytes: u64) -> io::Result<Group> {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        stale.retain(|member| !remove(member));
        if stale.len() >= STALE_MAX {
            return Err(io::Error::other("those of tasks that have ended cannot be removed"));
        }
        drop(stale);
        Ok(Group { groups: self, member: self.make(memory_bytes)? })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !remove(&self.member) {
            self.groups.stale.lock().unwrap_or_else(PoisonError::into_inner).push(self.member.clone());
        }
    }
}

impl Member {
    /// Puts this process, which has one thread, and all that it starts from now on into the group.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn join(&self) -> io::Result<()> {
        [Some(&self.memory), self.pids.as_ref()]
            .into_iter()
            .flatten()
            .try_for_each(|group| write(group, "cgroup.procs", "0"))
    }

    /// Whether the system ended a process in it for lack of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let texts = ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(self.memory.join(name)));
        let mut lines = texts.iter().flatten().flat_map(|text| text.lines());
        lines.any(|line| line.strip_prefix("oom_kill ").is_some_and(|times| times != "0"))
    }
}

fn limit_unified(group: &Path, most: u64) -> io::Result<()> {
    fs::create_dir(group)?;
    write(group, "memory.max", &most.to_string())?;
    // The same amount may be swapped out: a frozen task must make room for the owner.
    write_if_there(group, "memory.swap.max", &most.to_string())?;
    write_if_there(group, "pids.max", &TASKS_SYSTEM_MAX.to_string())
}

fn limit_separate(member: &Member, most: u64) -> io::Result<()> {
    fs::create_dir(&member.memory)?;
    write(&member.memory, "memory.limit_in_bytes", &most.to_string())?;
    write_if_there(&member.memory, "memory.memsw.limit_in_bytes", &most.saturating_mul(2).to_string())?;
    let Some(pids) = &member.pids else { return Ok(()) };
    fs::create_dir(pids)?;
    write(pids, "pids.max", &TASKS_SYSTEM_MAX.to_string())
}

/// The name of a group: it tells which agent made it.
fn name(agent: u32, number: u64) -> String {
    format!("{PREFIX}{agent}-{number}")
}

/// Whether this is the name of a group whose agent has ended. One with the number of this process is of an earlier process of that
/// number.
fn is_abandoned(name: &str) -> bool {
    let Some((agent, _)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) else { return false };
    agent.parse() == Ok(std::process::id()) || agent.parse::<u32>().is_ok() && !Path::new("/proc").join(agent).exists()
}

/// True if the group is gone.
fn remove(member: &Member) -> bool {
    let gone =
        |group: &PathBuf| fs::remove_dir(group).err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound);
    [Some(&member.memory), member.pids.as_ref()].into_iter().flatten().filter(|group| !gone(group)).count() == 0
}

fn write(group: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = group.join(name);
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn write_if_there(group: &Path, name: &str, text: &str) -> io::Result<()> {
    if group.join(name).exists() { write(group, name, text) } else { Ok(()) }
}

/// Moves this process into a group below its own, and enables limits of memory and processes there.
fn make_room(own: &Path) -> io::Result<()> {
    let agent = own.join("agent");
    match fs::create_dir(&agent) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    write(&agent, "cgroup.procs", &std::process::id().to_string())?;
    write(own, "cgroup.subtree_control", "+memory")?;
    let controllers = fs::read_to_string(own.join("cgroup.controllers"))?;
    if controllers.split_whitespace().any(|name| name == "pids") {
        write(own, "cgroup.subtree_control", "+pids")
    } else {
        Ok(())
    }
}

/// Finds a group of this process below which it can make others.
fn find() -> Result<Place, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    let usable = |directory: PathBuf| -> Result<PathBuf, String> {
        rustix::fs::access(&directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| format!("{}: {}", directory.display(), io::Error::from(errno)))?;
        Ok(directory)
    };
    if let Some(memory) = own_group(&mounts, &own, Some("memory")) {
        let pids = own_group(&mounts, &own, Some("pids")).and_then(|pids| usable(pids).ok());
        return Ok(Place::Separate { memory: usable(memory)?, pids });
    }
    let own = usable(own_group(&mounts, &own, None).ok_or("this system has none")?)?;
    let controllers = read(&own.join("cgroup.controllers").to_string_lossy())?;
    if !controllers.split_whitespace().any(|name| name == "memory") {
        return Err(format!("{} does not count memory", own.display()));
    }
    let mut mark = [0; 8];
    let delegated = rustix::fs::getxattr(&own, "user.delegate", &mut mark[..]);
    if !delegated.is_ok_and(|length| mark[..length] == *b"1") {
        return Err(format!("{} is not delegated to the agent", own.display()));
    }
    let processes = read(&own.join("cgroup.procs").to_string_lossy())?;
    if processes.lines().any(|pid| pid != std::process::id().to_string()) {
        return Err(format!("{} has other processes than the agent", own.display()));
    }
    Ok(Place::Unified(own))
}

/// The group of this process, from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`: that of a controller of
/// version 1, or of version 2.
pub(crate) fn own_group(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = controller.map_or(controllers.is_empty(), |name| controllers.split(',').any(|other| other == name));
        is_it.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let is_it = match controller {
            Some(name) => kind == "cgroup" && options.split(',').any(|other| other == name),
            None => kind == "cgroup2",
        };
        let mut fields = mount.split(' ').skip(3).filter(|_| is_it);
        let (root, at) = (fields.next()?, fields.next()?);
        // A part of the hierarchy may be mounted; paths then begin below that.
        Some(Path::new(at).join(Path::new(path).strip_prefix(root).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        30 31 0:31 /docker/7 /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
    const OWN: &str =
        "8:pids:/docker/7/x\n4:memory:/user.slice/a b:c\n0::/user.slice/user-1000.slice/idlewood.service\n";

    #[test]
    fn the_own_groups_are_found() {
        let found = |controller| own_group(MOUNTS, OWN, controller).map(|path| path.display().to_string());
        assert_eq!(found(Some("memory")).as_deref(), Some("/sys/fs/cgroup/memory/user.slice/a b:c"));
        assert_eq!(found(Some("pids")).as_deref(), Some("/sys/fs/cgroup/pids/x"));
        let unified = "/sys/fs/cgroup/unified/user.slice/user-1000.slice/idlewood.service";
        assert_eq!(found(None).as_deref(), Some(unified));
        assert_eq!(found(Some("cpu")), None);
        assert_eq!(own_group("", OWN, None), None);
        assert_eq!(own_group(MOUNTS, "", None), None);
    }

    #[test]
    fn groups_of_running_agents_are_not_abandoned() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().expect("there is sleep");
        let of_other = name(other.id(), 3);
        assert!(!is_abandoned(&of_other), "its agent is about to put a task into it");
        other.kill().expect("ours");
        other.wait().expect("ours");
        assert!(is_abandoned(&of_other));
        assert!(is_abandoned(&name(std::process::id(), 0)), "this process has made none yet");
        for of_nobody in ["idlewood-", "idlewood-agent", "idlewood-x-1", "session-7-1", "idlewood.service"] {
            assert!(!is_abandoned(of_nobody), "{of_nobody}");
        }
    }

    /// Files of a group in which a process was ended for lack of memory, in either version.
    #[test]
    fn running_out_of_memory_is_detected() {
        let root = tempfile::tempdir().expect("a directory");
        let member = Member { memory: root.path().to_owned(), pids: None };
        assert!(!member.ran_out_of_memory());
        for (name, none, some) in [
            ("memory.events", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", "low 0\nmax 9\noom 1\noom_kill 2\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "under_oom 0\noom_kill 1\n"),
        ] {
            fs::write(root.path().join(name), none).expect("ours");
            assert!(!member.ran_out_of_memory());
            fs::write(root.path().join(name), some).expect("ours");
            assert!(member.ran_out_of_memory());
            fs::remove_file(root.path().join(name)).expect("ours");
        }
    }

    /// If this system allows groups. A group outlives its task while a process is in it, but not beyond the next task.
    #[test]
    fn groups_are_limited_and_removed() {
        let groups = match groups() {
            Ok(groups) => groups,
            Err(gap) => return println!("not tried: {}", gap.what),
        };
        let group = groups.group(64 << 20).expect("a group");
        let member = group.member.clone();
        let limit = ["memory.max", "memory.limit_in_bytes"]
            .iter()
            .find_map(|name| fs::read_to_string(member.memory.join(name)).ok()?.trim().parse::<u64>().ok());
        assert_eq!(limit, Some((64 + 8 + 8) << 20));
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().expect("there is sleep");
        write(&member.memory, "cgroup.procs", &sleeper.id().to_string()).expect("it joins");
        drop(group);
        assert!(member.memory.exists(), "somebody is in it");
        sleeper.kill().expect("ours");
        sleeper.wait().expect("ours");
        let other = groups.group(64 << 20).expect("a group");
        assert!(!member.memory.exists());
        let (second, pids) = (other.member.memory.clone(), other.member.pids.clone());
        drop(other);
        assert!(!second.exists() && pids.is_none_or(|pids| !pids.exists()));
    }
}
