//! Native programs: each task in processes of this system.
//!
//! # Who does what
//! - The **worker** is our code and starts nothing but one task. It puts the program where it can be executed, copies
//!   its stdout and stderr to files, and checks its processes' resource use ten to a hundred times a second (`usage`).
//! - The **first process** of the task is our code, too, forked by the worker, and dies with it: it makes itself a root
//!   of its own (`space`), sets the limits and confines itself ([`super::confine`]); then it starts the program, reaps
//!   that and its orphans, and ends.
//! - The **program**, and all that it starts.
//!
//! # What holds them
//! - All are in the worker's process group, and no system call allowed to them leaves it: one signal freezes or ends
//!   all.
//! - Namespaces of their own, if the system allows them: no network device but a loopback that is down, no other
//!   processes, and a root with only the installed system, read-only, and the task's files. All processes in them end
//!   with the first process, that with the worker, and that with its agent.
//! - Landlock and seccomp, without which no native program runs: files other than the task's own and installed ones,
//!   the network and other users' processes stay closed.
//! - Limits of the system for each process (memory, size of a file, open files) and in user namespaces for the number
//!   of processes; the sums are checked at each look, and enforced by a control group if there is one
//!   ([`super::group`]).
//!
//! # Left out
//! - bubblewrap: it would be a second way to the same namespaces (docs/adr/0016).
//! - What is used only between two looks: of the disk always, of the rest without a control group.
//! - Processor time of a killed task, and without namespaces that of processes that outlive the program.

mod space;
mod usage;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

pub use self::space::gap;
pub(super) use self::space::{enter_namespaces, no_namespaces};

use self::space::Paths;
use self::usage::{CLOSE_LOOK_INTERVAL, Usage, too_little_memory};
use crate::checkpoint::Checkpoint;
use crate::confine::confine_native;
use crate::disk::Allowance;
use crate::end::{End, unable};
use crate::group::Member;
use crate::job::{Job, Stdin};
use crate::low;
use crate::output::CappedFile;
use crate::processor_time::{cpu_time, cpu_time_of_ended};
use crate::protocol::{self, Report};
use crate::shared_output::Streams;

/// Largest report of the first process.
const END_BYTES_MAX: usize = 4096;
/// Bytes read from a stream at once.
const PIECE_BYTES: usize = 64 << 10;
/// Names of the program in an attempt's directory, and of the links to directories in the working directory.
const PROGRAM: &str = "program";
const INPUTS: &str = "inputs";
const CHECKPOINT: &str = "checkpoint";

/// Runs a job from beginning to end, in a control group if there is one. Processes that it started may remain.
pub(super) fn run(job: &Job, namespaces: bool, group: Option<&Member>) -> Report {
    let (begun, before) = (Instant::now(), cpu_time_of_ended());
    let mut output_truncated = false;
    let end = execute(job, namespaces, group, &mut output_truncated).unwrap_or_else(|end| end);
    let all = cpu_time_of_ended();
    let (cpu, worker_cpu) = (all.saturating_sub(before), cpu_time().saturating_add(all));
    Report {
        end,
        wall: begun.elapsed(),
        cpu,
        worker_cpu,
        output_truncated,
        untouched: false,
        streams: Streams::default(),
    }
}

fn execute(job: &Job, namespaces: bool, group: Option<&Member>, output_truncated: &mut bool) -> Result<End, End> {
    let work = job.work_dir();
    fs::create_dir_all(&work).map_err(|error| unable(&work, "create a directory", &error))?;
    let real = Paths::real(job, &install(job)?);
    let own = if namespaces { Paths::own(job) } else { Paths::real(job, &real.program) };
    let checkpoint = Checkpoint::of(job, true)?;
    let links = [(INPUTS, &own.inputs), (CHECKPOINT, &own.checkpoint)];
    let links = links.into_iter().filter_map(|(name, to)| Some((work.join(name), to.as_ref()?)));
    let links: Vec<(PathBuf, &PathBuf)> = links.collect();
    for (link, to) in &links {
        symlink(to, link).map_err(|error| unable(link, "show a directory to the task", &error))?;
    }
    let pipe = |flags| rustix::pipe::pipe_with(flags | PipeFlags::CLOEXEC).map_err(|errno| no_process(&errno.into()));
    let (stdout, stdout_of_task) = pipe(PipeFlags::empty())?;
    let (stderr, stderr_of_task) = pipe(PipeFlags::empty())?;
    let (report, report_of_first) = pipe(PipeFlags::empty())?;
    let paths = (&real, &own);
    let begin = First { job, paths, group, stdout: stdout_of_task, stderr: stderr_of_task, report: report_of_first };
    let forked = fork(begin, [stdout, stderr, report], namespaces).map_err(|error| no_process(&error))?;
    let (first, [stdout, stderr, report]) = forked;
    let mut streams = [Stream::of(stdout, job.stdout_path(), job), Stream::of(stderr, job.stderr_path(), job)];
    if let Some(verdict) = watch(job, group, first, &mut streams, &report)? {
        // The agent ends all of them at once. From here they would go one by one, while others start.
        return Ok(verdict);
    }
    let end = match protocol::read::<End>(&mut File::from(report), END_BYTES_MAX) {
        Ok(Some(end)) => end,
        Ok(None) | Err(_) => {
            End::Trapped { message: "was ended from outside, perhaps because memory ran out".to_owned() }
        }
    };
    // It is chance which of its processes the system ended: the task used too much.
    let end = if group.is_some_and(Member::ran_out_of_memory) {
        End::Trapped { message: too_little_memory(job) }
    } else {
        end
    };
    // In namespaces all others end with it. It is not reaped yet, so the number is its own.
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
    // Nothing is held open any more.
    let over = Allowance::of(job).exceeded(None);
    let over = over.map_err(|error| unable(&job.directory, "look at a task's files", &error))?;
    drop(checkpoint);
    Ok(over.unwrap_or(end))
}

fn no_process(error: &io::Error) -> End {
    End::CouldNotStart { message: format!("cannot start a process for the program: {error}") }
}

/// Puts the program where it can be executed but not changed.
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

fn open_stdin(job: &Job, paths: &Paths) -> Result<File, End> {
    let opened = match &job.stdin {
        Stdin::Empty | Stdin::File(_) => File::open(&paths.stdin),
        Stdin::Bytes(bytes) => {
            let file = rustix::fs::memfd_create("stdin", MemfdFlags::CLOEXEC).map_err(io::Error::from);
            file.and_then(|file| {
                let mut file = File::from(file);
                file.write_all(bytes)?;
                io::Seek::rewind(&mut file)?;
                // Read-only: no limit counts memory that could grow.
                File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))
            })
        }
    };
    opened.map_err(|error| unable(&paths.stdin, "open the standard input", &error))
}

/// A stream of the task, on its way to a file.
struct Stream {
    /// Closed when the file is full: a program that continues writing is ended (SIGPIPE), or gets EPIPE.
    pipe: Option<File>,
    file: CappedFile,
}

impl Stream {
    fn of(pipe: OwnedFd, path: PathBuf, job: &Job) -> Self {
        Self { pipe: Some(File::from(pipe)), file: CappedFile::new(path, job.output_bytes) }
    }

    /// Copies what there is now, without waiting.
    fn take(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        if rustix::fs::fcntl_setfl(&*pipe, OFlags::NONBLOCK).is_err() {
            self.pipe = None;
            return;
        }
        let mut piece = vec![0; PIECE_BYTES];
        // Bounded, or a program that writes without end would keep us from everything else.
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

/// Copies the task's output and checks its resource use until it ends, or has to be ended, and how.
fn watch(
    job: &Job,
    group: Option<&Member>,
    first: Pid,
    streams: &mut [Stream; 2],
    report: &OwnedFd,
) -> Result<Option<End>, End> {
    let (mut next_look, mut next_close_look) = (Instant::now(), Instant::now());
    loop {
        let now = Instant::now();
        if now >= next_look {
            let closely = now >= next_close_look;
            let usage = Usage::by(first.as_raw_nonzero().get().unsigned_abs(), closely);
            if let Some(verdict) = usage.verdict(job) {
                return Ok(Some(verdict));
            }
            // The system may have ended some of its processes, for which the others wait without end.
            if group.is_some_and(Member::ran_out_of_memory) {
                return Ok(Some(End::Trapped { message: too_little_memory(job) }));
            }
            let took = now.elapsed();
            next_look = now + usage.next_look(job, took);
            if closely {
                next_close_look = now + CLOSE_LOOK_INTERVAL;
            }
        }
        let mut waits = vec![PollFd::new(report, PollFlags::IN)];
        let pipes = streams.iter().filter_map(|stream| stream.pipe.as_ref());
        waits.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let pause = next_look.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
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
    /// On the host, and as it will see them.
    paths: (&'a Paths, &'a Paths),
    group: Option<&'a Member>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// Receives how the program ended.
    report: OwnedFd,
}

/// Starts the first process, and closes the worker's descriptors in it: else it would keep the program's output open,
/// and outlive the worker.
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
            // Before the report, so that their use is counted.
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
        if let Some(group) = self.group {
            group.join().map_err(|error| wall(&format!("its control group cannot be joined: {error}")))?;
        }
        let (real, paths) = self.paths;
        // Bytes are in memory. A file is opened in the root where it is read-only: through a descriptor from before the
        // task could change its rights.
        let bytes = if let Stdin::Bytes(_) = job.stdin { Some(open_stdin(job, real)?) } else { None };
        if namespaces {
            space::enter_own_root(job, real)
                .map_err(|error| wall(&format!("it cannot be given a root of its own: {error}")))?;
        } else {
            let me = Some(rustix::process::getpid());
            rustix::process::set_child_subreaper(me).map_err(|errno| no_process(&errno.into()))?;
        }
        let stdin = bytes.map_or_else(|| open_stdin(job, paths), Ok)?;
        if namespaces || rustix::process::geteuid().is_root() {
            space::give_up_capabilities().map_err(|errno| wall(&format!("rights cannot be given up: {errno}")))?;
        }
        usage::limit(job, namespaces).map_err(|errno| wall(&format!("a limit cannot be set: {errno}")))?;
        let readable: Vec<PathBuf> = paths.inputs.iter().cloned().collect();
        let writable: Vec<PathBuf> =
            [Some(&paths.work), paths.checkpoint.as_ref()].into_iter().flatten().cloned().collect();
        if let Some(gap) = confine_native(&paths.program, &readable, &writable, namespaces).first() {
            return Err(wall(&gap.what));
        }
        let mut command = Command::new(&paths.program);
        if let Some((name, arguments)) = job.args.split_first() {
            command.arg0(name).args(arguments);
        }
        command.env_clear().envs(job.env.iter().map(|(name, value)| (name, value))).current_dir(&paths.work);
        command.stdin(stdin).stdout(self.stdout).stderr(self.stderr);
        let child = command.spawn().map_err(|error| not_executed(&paths.program, &error))?;
        // Else its streams would never end.
        drop(command);
        let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        loop {
            match rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::empty())) {
                Ok(Some((pid, status))) if Some(pid) == program => {
                    return Ok(end_of(ExitStatus::from_raw(status.as_raw())));
                }
                // An orphan.
                Ok(_) => {}
                Err(errno) => return Err(no_process(&errno.into())),
            }
        }
    }
}

/// The system does not execute the program. What is wrong with the program, or with what it needs installed, is permanent: the try has
/// failed, and other machines may have what this one lacks. All else is the machine's, such as that it is out of processes, files or
/// memory, and no try of the task.
fn not_executed(program: &Path, error: &io::Error) -> End {
    if !is_of_program(error) {
        return no_process(error);
    }
    let why = match interpreter(program).filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(interpreter) => format!("it does not have {interpreter}, which the program's first line names"),
        None => error.to_string(),
    };
    End::Trapped { message: format!("this machine cannot execute the program: {why}") }
}

/// Whether it is the program, its arguments, or what it needs installed for which the system does not execute it.
fn is_of_program(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(code) => matches!(
            code,
            libc::ENOENT
                | libc::EACCES
                | libc::EPERM
                | libc::ENOEXEC
                | libc::E2BIG
                | libc::ELOOP
                // The interpreter is a directory, below a file, or damaged; the program's headers contradict each other.
                | libc::EISDIR
                | libc::ENOTDIR
                | libc::ELIBBAD
                | libc::EINVAL
        ),
        // An argument has a zero byte, which the system is not even asked about.
        None => error.kind() == io::ErrorKind::InvalidInput,
    }
}

/// What the first line of a script names.
fn interpreter(program: &Path) -> Option<String> {
    let mut line = String::new();
    BufReader::new(File::open(program).ok()?.take(LINE_BYTES_MAX)).read_line(&mut line).ok()?;
    Some(line.strip_prefix("#!")?.split_whitespace().next()?.to_owned())
}

/// Linux reads no more of a script's first line.
const LINE_BYTES_MAX: u64 = 256;

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

/// Ends all other processes of this namespace, of which this is the first.
#[allow(unsafe_code)]
fn end_all_others() {
    // SAFETY: two integers. There may be none, which is an error that says nothing.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_program_fails_the_task_and_all_else_is_the_machines() {
        let end = |error: io::Error| not_executed(Path::new("/nowhere/program"), &error);
        let of_code = |code: i32| end(io::Error::from_raw_os_error(code));
        for code in [
            libc::ENOENT,
            libc::EACCES,
            libc::EPERM,
            libc::ENOEXEC,
            libc::E2BIG,
            libc::ELOOP,
            libc::EISDIR,
            libc::ENOTDIR,
            libc::ELIBBAD,
            libc::EINVAL,
        ] {
            assert!(matches!(of_code(code), End::Trapped { .. }), "{code}");
        }
        for code in [
            libc::EAGAIN,
            libc::ENOMEM,
            libc::ENFILE,
            libc::EMFILE,
            libc::EIO,
            libc::ESTALE,
            libc::ETXTBSY,
            libc::EINTR,
            libc::ENOSPC,
        ] {
            assert!(matches!(of_code(code), End::CouldNotStart { .. }), "{code}");
        }
        let zero_byte = Command::new("true").arg("a\0b").spawn().expect_err("no argument has a zero byte");
        assert!(matches!(end(zero_byte), End::Trapped { .. }));
    }
}
