//! Native programs: one task each, in processes of this system.
//!
//! # Who is who
//! - The **worker** is our code and starts nothing but one task. It puts the program where it can be executed, takes what it
//!   writes to stdout and stderr, and looks ten times a second at how many processes there are and what memory they take.
//! - The **first process** of the task is our code, too, forked by the worker: it is tied to it, makes the system read-only,
//!   sets the limits and confines itself ([`super::confine`]); then it starts the program, reaps whatever that leaves, and ends
//!   with it.
//! - The **program**, and all that it starts.
//!
//! # What holds them
//! - All are in the worker's process group, which no system call that is left to them leaves: one signal freezes or ends all.
//! - Namespaces of their own, where the system gives them: no network device but a loopback that is down, no other processes,
//!   a system that is read-only. When the first process ends, so does everything in them; it ends with the worker, and that
//!   with its agent.
//! - Landlock and seccomp, without which no native program runs: files other than the task's own and what is installed, the
//!   network and other users' processes stay closed.
//! - Limits of the system for each process (memory, size of a file, open files) and in user namespaces for the number of
//!   processes; the sums are looked at.
//!
//! # Left out
//! - bubblewrap: it would be a second way to the same namespaces (docs/adr/0016).
//! - What is taken between two looks, and files that are removed and still open.
//! - Of a killed task the processor time, and without namespaces that of processes which outlive the program.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use super::child::{Checkpoint, cpu_time, unable};
use super::confine::{Gap, confine_native};
use super::disk::Allowance;
use super::low;
use super::output::CappedFile;
use super::protocol::{self, End, Report};
use super::{Job, Stdin};

/// Most processes and threads of a task at the same time. Our choice: a build or a pipeline has tens.
const TASKS_MAX: u64 = 256;
/// How many more the system would let it have, so that too many are seen rather than refused.
const TASKS_MARGIN: u64 = 64;
/// Between two looks at a task's processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Most files that one process may have open.
const OPEN_FILES_MAX: u64 = 256;
/// Largest report of the first process.
const END_BYTES_MAX: usize = 4096;
/// What of a stream is taken at once.
const PIECE_BYTES: usize = 64 << 10;
/// Names of the program in an attempt's directory, and of what leads to directories in the working directory.
const PROGRAM: &str = "program";
const INPUTS: &str = "inputs";
const CHECKPOINT: &str = "checkpoint";

/// Gives this process, which must have one thread, namespaces: users, in which it is itself and nobody else is anybody, and
/// for what it starts network, processes and shared memory.
///
/// # Errors
/// The system gives none, or refuses the map of users of those that it gives: nothing has changed.
pub(super) fn enter_namespaces() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    try_and_enter(format!("{user} {user} 1").as_bytes(), format!("{group} {group} 1").as_bytes())
}

/// Enters where a child got its map of users: there is no way back out of a namespace in which this process is nobody.
/// Allocates nothing.
#[allow(unsafe_code)]
fn try_and_enter(users: &[u8], groups: &[u8]) -> io::Result<()> {
    // SAFETY: the child makes system calls, allocates nothing, and does not return.
    let child = match unsafe { libc::fork() } {
        0 => {
            let tried = unshare(libc::CLONE_NEWUSER).and_then(|()| map(users, groups));
            // Numbers of errors fit what a process leaves.
            let code = tried.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            // SAFETY: ends the process, and runs no code of ours in it.
            unsafe { libc::_exit(code) }
        }
        child if child > 0 => Pid::from_raw(child),
        _ => return Err(io::Error::last_os_error()),
    };
    let ended = rustix::io::retry_on_intr(|| rustix::process::waitpid(child, WaitOptions::empty()))?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => enter(users, groups),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Allocates nothing, so that it can be called between fork and exec.
fn enter(users: &[u8], groups: &[u8]) -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC)?;
    map(users, groups)
}

fn map(users: &[u8], groups: &[u8]) -> io::Result<()> {
    // Without the second a user may not write the third.
    let texts = [("/proc/self/uid_map", users), ("/proc/self/setgroups", b"deny"), ("/proc/self/gid_map", groups)];
    texts.into_iter().try_for_each(|(path, text)| File::options().write(true).open(path)?.write_all(text))
}

#[allow(unsafe_code)]
fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: an integer; file descriptors stay shared, and no memory is touched.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What this machine lacks for native programs besides [`super::gaps`], tried out in a process that ends.
#[allow(unsafe_code)]
pub fn gap() -> Option<Gap> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (users, groups) = (format!("{user} {user} 1"), format!("{group} {group} 1"));
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec it makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(move || enter(users.as_bytes(), groups.as_bytes()));
    }
    match command.status() {
        Ok(_) => None,
        Err(error) => Some(no_namespaces(&error)),
    }
}

/// The gap where there are no namespaces.
pub(super) fn no_namespaces(error: &io::Error) -> Gap {
    let what = "native programs get no namespaces: what they start may outlive a killed agent, and seccomp alone keeps \
                them from the network and from other processes";
    Gap {
        what: format!("{what}: {error}"),
        remedy: "let users have namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)",
    }
}

/// The descendants of a process, itself first; as far as they are seen, since they go on meanwhile. Not more than a few
/// hundred.
pub(super) fn tree_of(root: u32) -> Vec<u32> {
    if !Path::new("/proc/thread-self/children").exists() {
        return tree_by_parents(root);
    }
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next).filter(|_| tree.len() as u64 <= TASKS_MAX) {
        next += 1;
        // One that has just ended has none.
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten().take(TASKS_MAX as usize) {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            tree.extend(children.split(' ').filter_map(|child| child.trim().parse::<u32>().ok()));
        }
    }
    tree
}

/// The same, of what all processes of the machine say of their parents: for kernels that do not list children
/// (`CONFIG_PROC_CHILDREN`).
fn tree_by_parents(root: u32) -> Vec<u32> {
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may have anything in it, and the state.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        Some((pid, parent))
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(parent_of);
    let all: Vec<(u32, u32)> = all.collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next).filter(|_| tree.len() as u64 <= TASKS_MAX) {
        next += 1;
        tree.extend(all.iter().filter(|(child, parent)| *parent == pid && *child != root).map(|(child, _)| child));
    }
    tree
}

/// What a task takes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Taken {
    /// Processes and threads.
    tasks: u64,
    /// Memory of their own. What two processes share since one was forked counts for both.
    memory_bytes: u64,
}

impl Taken {
    fn by(first: u32) -> Self {
        let mut taken = Self::default();
        for pid in tree_of(first) {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().next()?.parse::<u64>().ok()
            };
            taken.tasks += field("Threads:").unwrap_or(1);
            let kib = field("RssAnon:").unwrap_or(0) + field("RssShmem:").unwrap_or(0);
            taken.memory_bytes = taken.memory_bytes.saturating_add(kib << 10);
        }
        taken
    }

    /// How it ends for that, if it does.
    fn verdict(&self, job: &Job) -> Option<End> {
        let message = if self.tasks > TASKS_MAX {
            format!("had more than {TASKS_MAX} processes and threads at the same time")
        } else if self.memory_bytes > job.memory_bytes {
            let limit = job.memory_bytes >> 20;
            format!("needs more memory than its limit of {limit} MiB: submit the bag with a larger --memory")
        } else {
            return None;
        };
        Some(End::Trapped { message })
    }
}

/// Runs a job from beginning to end. What it has started may be there still.
pub(super) fn run(job: &Job, namespaces: bool) -> Report {
    let (begun, before) = (Instant::now(), cpu_time_of_ended());
    let mut output_truncated = false;
    let end = execute(job, namespaces, &mut output_truncated).unwrap_or_else(|end| end);
    let all = cpu_time_of_ended();
    let (cpu, worker_cpu) = (all.saturating_sub(before), cpu_time().saturating_add(all));
    Report { end, wall: begun.elapsed(), cpu, worker_cpu, output_truncated, untouched: false }
}

fn execute(job: &Job, namespaces: bool, output_truncated: &mut bool) -> Result<End, End> {
    let work = job.work_dir();
    fs::create_dir_all(&work).map_err(|error| unable(&work, "create a directory", &error))?;
    let program = install(job)?;
    let checkpoint = Checkpoint::of(job, true)?;
    let links = [(INPUTS, &job.inputs), (CHECKPOINT, &job.checkpoint)];
    let links = links.into_iter().filter_map(|(name, to)| Some((work.join(name), to.as_ref()?)));
    let links: Vec<(PathBuf, &PathBuf)> = links.collect();
    for (link, to) in &links {
        symlink(to, link).map_err(|error| unable(link, "show a directory to the task", &error))?;
    }
    let pipe = |flags| rustix::pipe::pipe_with(flags | PipeFlags::CLOEXEC).map_err(|errno| no_process(&errno.into()));
    let (stdout, stdout_of_task) = pipe(PipeFlags::empty())?;
    let (stderr, stderr_of_task) = pipe(PipeFlags::empty())?;
    let (report, report_of_first) = pipe(PipeFlags::empty())?;
    let begin = First { job, program, stdout: stdout_of_task, stderr: stderr_of_task, report: report_of_first };
    let forked = fork(begin, [stdout, stderr, report], namespaces).map_err(|error| no_process(&error))?;
    let (first, [stdout, stderr, report]) = forked;
    let mut streams = [Stream::of(stdout, job.stdout_path(), job), Stream::of(stderr, job.stderr_path(), job)];
    if let Some(verdict) = watch(job, first, &mut streams, &report)? {
        // The agent ends all of them at one blow. From here they would go one by one, and others come meanwhile.
        return Ok(verdict);
    }
    let end = match protocol::read::<End>(&mut File::from(report), END_BYTES_MAX) {
        Ok(Some(end)) => end,
        Ok(None) | Err(_) => {
            End::Trapped { message: "was ended from outside, perhaps because memory ran out".to_owned() }
        }
    };
    // In namespaces all others end with it. It was not reaped yet, so that the number is its own.
    rustix::process::kill_process(first, Signal::KILL).map_err(|errno| no_process(&errno.into()))?;
    rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(first), WaitOptions::empty()))
        .map_err(|errno| no_process(&errno.into()))?;
    streams.iter_mut().for_each(Stream::take);
    *output_truncated = streams.iter().any(|stream| stream.file.exceeded());
    for (link, to) in links {
        if fs::read_link(&link).is_ok_and(|leads| leads == *to) {
            fs::remove_file(&link).map_err(|error| unable(&link, "remove a link", &error))?;
        }
    }
    let over =
        Allowance::of(job).exceeded().map_err(|error| unable(&job.directory, "look at a task's files", &error))?;
    drop(checkpoint);
    Ok(over.map_or(end, |limit_bytes| End::OverDisk { limit_bytes }))
}

fn no_process(error: &io::Error) -> End {
    End::CouldNotStart { message: format!("cannot start a process for the program: {error}") }
}

/// Puts the program where it can be executed and not be changed.
fn install(job: &Job) -> Result<PathBuf, End> {
    let bytes = fs::read(&job.program).map_err(|error| unable(&job.program, "read the program", &error))?;
    if *blake3::hash(&bytes).as_bytes() != job.program_hash {
        let message = format!("the program's file {} is damaged: its hash is another", job.program.display());
        return Err(End::CouldNotStart { message });
    }
    let path = job.directory.join(PROGRAM);
    let write = |file: io::Result<File>| file?.write_all(&bytes);
    let file = File::options().write(true).create_new(true).mode(0o700).open(&path);
    write(file).map_err(|error| unable(&path, "put the program there", &error))?;
    Ok(path)
}

fn open_stdin(stdin: &Stdin) -> Result<File, End> {
    let (path, opened) = match stdin {
        Stdin::Empty => (Path::new("/dev/null"), File::open("/dev/null")),
        Stdin::File(path) => (path.as_path(), File::open(path)),
        Stdin::Bytes(bytes) => {
            let file = rustix::fs::memfd_create("stdin", MemfdFlags::CLOEXEC).map_err(io::Error::from);
            let filled = file.and_then(|file| {
                let mut file = File::from(file);
                file.write_all(bytes)?;
                io::Seek::rewind(&mut file)?;
                Ok(file)
            });
            (Path::new("memory"), filled)
        }
    };
    opened.map_err(|error| unable(path, "open the standard input", &error))
}

/// Processor time of the children that have ended and were waited for, and of theirs.
#[allow(unsafe_code)]
fn cpu_time_of_ended() -> Duration {
    // SAFETY: a struct of integers, for which zero is a value; the call writes to it alone.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return Duration::ZERO;
    }
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// What a task writes, on its way to a file.
struct Stream {
    /// Closed when the file takes no more: who goes on writing is ended (SIGPIPE), or told (EPIPE).
    pipe: Option<File>,
    file: CappedFile,
}

impl Stream {
    fn of(pipe: OwnedFd, path: PathBuf, job: &Job) -> Self {
        Self { pipe: Some(File::from(pipe)), file: CappedFile::new(path, job.output_bytes) }
    }

    /// Takes what there is now, and does not wait for more.
    fn take(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        if rustix::fs::fcntl_setfl(&*pipe, OFlags::NONBLOCK).is_err() {
            self.pipe = None;
            return;
        }
        let mut piece = vec![0; PIECE_BYTES];
        // So often at most, or who writes without end keeps us from everything else.
        for _ in 0..16 {
            match pipe.read(&mut piece) {
                Ok(bytes @ 1..) if self.file.write(&piece[..bytes]).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The end, or no room.
                Ok(_) | Err(_) => {
                    self.pipe = None;
                    return;
                }
            }
        }
    }
}

/// Takes what the task writes and looks at what it takes until it is over, or (how) to be ended.
fn watch(job: &Job, first: Pid, streams: &mut [Stream; 2], report: &OwnedFd) -> Result<Option<End>, End> {
    let mut next_look = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next_look {
            if let Some(verdict) = Taken::by(first.as_raw_nonzero().get().unsigned_abs()).verdict(job) {
                return Ok(Some(verdict));
            }
            next_look = now + LOOK_INTERVAL;
        }
        let mut waits = vec![PollFd::new(report, PollFlags::IN)];
        let pipes = streams.iter().filter_map(|stream| stream.pipe.as_ref());
        waits.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_INTERVAL.subsec_nanos()) };
        match rustix::event::poll(&mut waits, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(no_process(&errno.into())),
        }
        let is_over = !waits[0].revents().is_empty();
        streams.iter_mut().for_each(Stream::take);
        if is_over {
            return Ok(None);
        }
    }
}

/// What the first process of a task needs.
struct First<'a> {
    job: &'a Job,
    program: PathBuf,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// Where it says how the program ended.
    report: OwnedFd,
}

/// Starts the first process. What is the worker's alone is closed there: else it would be who still reads what the program
/// writes, and who still waits for the end when the worker is gone.
#[allow(unsafe_code)]
fn fork<const N: usize>(first: First, ours: [OwnedFd; N], namespaces: bool) -> io::Result<(Pid, [OwnedFd; N])> {
    // SAFETY: this process has one thread, so that the child has all there is, and may do as it likes. It does not return.
    match unsafe { libc::fork() } {
        0 => {
            drop(ours);
            let body = std::panic::AssertUnwindSafe(|| first.run(namespaces));
            let code = i32::from(std::panic::catch_unwind(body).is_err());
            // SAFETY: ends the process, and runs no code of ours in it.
            unsafe { libc::_exit(code) }
        }
        pid if pid > 0 => Ok((Pid::from_raw(pid).ok_or(Errno::CHILD)?, ours)),
        _ => Err(io::Error::last_os_error()),
    }
}

impl First<'_> {
    fn run(self, namespaces: bool) {
        let report = self.report.as_fd().try_clone_to_owned();
        let end = self.start_and_wait(namespaces).unwrap_or_else(|end| end);
        if namespaces {
            // Before the end is told, so that what they took is counted.
            end_all_others();
            while rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::empty())).is_ok() {}
        }
        let told = report.and_then(|report| {
            let frame =
                protocol::encode(&end, END_BYTES_MAX).ok_or_else(|| io::Error::other("a report is too large"))?;
            protocol::write(&mut File::from(report), &frame)
        });
        if let Err(error) = told {
            eprintln!("the end of a native program cannot be told: {error}");
        }
    }

    fn start_and_wait(self, namespaces: bool) -> Result<End, End> {
        let job = self.job;
        let parent_is_gone = || {
            // The worker alone reads it.
            let mut ends = [PollFd::new(&self.report, PollFlags::OUT)];
            let polled = rustix::event::poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            polled.is_err() || ends[0].revents().contains(PollFlags::ERR)
        };
        let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if tied.is_err() || parent_is_gone() {
            return Err(no_process(&io::Error::other("it cannot be tied to its worker")));
        }
        low::lower_thread();
        let writable: Vec<PathBuf> = [Some(job.work_dir()), job.checkpoint.clone()].into_iter().flatten().collect();
        if namespaces {
            make_read_only(&writable)
                .map_err(|error| wall(&format!("the system cannot be made read-only: {error}")))?;
        } else {
            let me = Some(rustix::process::getpid());
            rustix::process::set_child_subreaper(me).map_err(|errno| no_process(&errno.into()))?;
        }
        // Not before: through a file that is open already the task could change the rights of what it is read from.
        let stdin = open_stdin(&job.stdin)?;
        if namespaces || rustix::process::geteuid().is_root() {
            give_up_capabilities().map_err(|errno| wall(&format!("rights cannot be given up: {errno}")))?;
        }
        limit(job, namespaces).map_err(|errno| wall(&format!("a limit cannot be set: {errno}")))?;
        let readable: Vec<PathBuf> = job.inputs.iter().cloned().collect();
        if let Some(gap) = confine_native(&self.program, &readable, &writable, namespaces).first() {
            return Err(wall(&gap.what));
        }
        let mut command = Command::new(&self.program);
        if let Some((name, arguments)) = job.args.split_first() {
            command.arg0(name).args(arguments);
        }
        command.env_clear().envs(job.env.iter().map(|(name, value)| (name, value))).current_dir(job.work_dir());
        command.stdin(stdin).stdout(self.stdout).stderr(self.stderr);
        let child = command.spawn().map_err(|error| End::CouldNotStart {
            message: format!("this machine cannot execute the program: {error}"),
        })?;
        // Else its streams would never end.
        drop(command);
        let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        loop {
            match rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::empty())) {
                Ok(Some((pid, status))) if Some(pid) == program => {
                    return Ok(end_of(ExitStatus::from_raw(status.as_raw())));
                }
                // Somebody whose parent had gone.
                Ok(_) => {}
                Err(errno) => return Err(no_process(&errno.into())),
            }
        }
    }
}

fn wall(why: &str) -> End {
    End::CouldNotStart { message: format!("a native program cannot be confined: {why}") }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited { code: (code & 0xff) as u8 },
        (None, Some(signal)) => {
            let name = match signal {
                libc::SIGABRT => "aborted itself: its stderr may say why",
                libc::SIGSEGV | libc::SIGBUS => "accessed memory outside of what it has (a wild pointer?)",
                libc::SIGKILL => "was killed, perhaps because memory ran out",
                libc::SIGSYS => "made a system call that it may not",
                libc::SIGPIPE => "wrote more than is kept, or to who does not read any more",
                _ => "was ended by a signal",
            };
            End::Trapped { message: format!("{name} (signal {signal})") }
        }
        (None, None) => End::Trapped { message: "ended in a way that the system does not tell".to_owned() },
    }
}

/// For who is the first in a namespace of processes: the others are all that there are.
#[allow(unsafe_code)]
fn end_all_others() {
    // SAFETY: two integers. There may be none, which is an error that says nothing.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
    }
}

/// In a namespace of mounts: everything can be read only, but for these directories.
fn make_read_only(writable: &[PathBuf]) -> io::Result<()> {
    unshare(libc::CLONE_NEWNS)?;
    for directory in writable {
        bind_to_itself(directory)?;
    }
    // Private: nothing that is mounted later elsewhere appears here.
    set_attributes(Path::new("/"), libc::AT_RECURSIVE, libc::MOUNT_ATTR_RDONLY, 0, libc::MS_PRIVATE)?;
    writable.iter().try_for_each(|directory| set_attributes(directory, 0, 0, libc::MOUNT_ATTR_RDONLY, 0))
}

fn c_path(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt as _;
    Ok(std::ffi::CString::new(path.as_os_str().as_bytes())?)
}

#[allow(unsafe_code)]
fn bind_to_itself(directory: &Path) -> io::Result<()> {
    let path = c_path(directory)?;
    let none = std::ptr::null();
    // SAFETY: the path ends with a zero byte and outlives the call; the others are not read for a bind.
    match unsafe { libc::mount(path.as_ptr(), path.as_ptr(), none, libc::MS_BIND, none.cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[allow(unsafe_code)]
fn set_attributes(at: &Path, flags: libc::c_int, set: u64, clear: u64, propagation: libc::c_ulong) -> io::Result<()> {
    let path = c_path(at)?;
    #[allow(clippy::useless_conversion)]
    let propagation = u64::from(propagation);
    let attributes = libc::mount_attr { attr_set: set, attr_clr: clear, propagation, userns_fd: 0 };
    let (pointer, bytes) = (&raw const attributes, size_of::<libc::mount_attr>());
    // SAFETY: the path ends with a zero byte, and both outlive the call, which only reads them. The C library of older
    // systems has no function for it.
    match unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, pointer, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What it has in its namespace of users, or as root: nothing of it is left to it, nor comes back with a program that is
/// executed.
fn give_up_capabilities() -> Result<(), Errno> {
    let bits = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// The limits of each process, and in namespaces that of their number.
fn limit(job: &Job, namespaces: bool) -> Result<(), Errno> {
    let set =
        |resource, most| rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    set(Resource::Data, job.memory_bytes)?;
    set(Resource::Nofile, OPEN_FILES_MAX)?;
    // One byte more than all files may take: what is refused a byte is over the limit.
    set(Resource::Fsize, job.disk_bytes.saturating_add(1))?;
    if namespaces {
        // Elsewhere it would count all that the user runs.
        set(Resource::Nproc, TASKS_MAX + TASKS_MARGIN)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_with_and_without_lists_of_children() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & (sleep 60; true) & wait"])
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        let begun = Instant::now();
        let sorted = |mut tree: Vec<u32>| {
            tree.sort_unstable();
            tree
        };
        // The shell, two of its children, and one of the second's.
        while tree_of(shell.id()).len() < 4 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (listed, by_parents) = (sorted(tree_of(shell.id())), sorted(tree_by_parents(shell.id())));
        rustix::process::kill_process_group(Pid::from_child(&shell), Signal::KILL).expect("it is ours");
        shell.wait().expect("it is ours");
        assert_eq!(listed.len(), 4);
        assert_eq!(by_parents, listed);
    }

    /// Where the system gives namespaces and then refuses the map of users, a process stays where it was.
    #[test]
    #[allow(unsafe_code)]
    fn who_gets_no_map_of_users_enters_nothing() {
        let namespace = || std::fs::read_link("/proc/self/ns/user").expect("the system says so");
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/user");
        // SAFETY: between fork and exec it makes system calls, and allocates nothing.
        unsafe {
            command.pre_exec(|| match try_and_enter(b"this is no map", b"nor this") {
                Err(error) if error.raw_os_error().is_some() => Ok(()),
                Err(error) => Err(error),
                Ok(()) => Err(io::ErrorKind::InvalidData.into()),
            });
        }
        let output = command.output().expect("it is refused, with the system's reason");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), namespace().to_string_lossy());
    }
}
