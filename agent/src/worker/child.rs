//! The worker process: what `idlewood worker` does.
//!
//! It reads a greeting and then jobs from its standard input, a socket of packets, and reports on its standard output
//! (`protocol`), one job at a time, until the input ends. It takes a job only when it begins it: what is still in the
//! socket the agent can take back. It keeps the engine, and the last few programs compiled, for its whole life; a
//! task gets a fresh instance and memory of its own.
//!
//! It makes itself small first (`low`): killed with its agent, lowest priority, first choice of the out-of-memory killer, no
//! core dumps. Then it confines itself (`confine`): its directories are all that it can reach from then on.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::Signal;
use wasmtime::{Engine, InstancePre, Linker, ResourceLimiter, Store, Trap};
use wasmtime_wasi::cli::InputFile;
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtxBuilder};

use super::compile_cache::{self, CompileCache};
use super::confine::confine;
use super::disk::{self, Allowance};
use super::low;
use super::output::CappedFile;
use super::program::{PREVIEW1_MODULE, check_shape, one_line};
use super::protocol::{self, End, FromWorker, Hello, Report};
use super::{Input, Job, Stdin};

/// Programs kept compiled in memory. Our choice: a machine works on few bags at a time.
const PROGRAMS_IN_MEMORY: usize = 4;
/// Most table entries (function pointers) of a task; 8 MiB. Our choice.
const TABLE_ENTRIES_MAX: usize = 1 << 20;

/// Runs the worker: takes over standard input and output, and never returns. Exits with 0 when the agent closes the
/// pipe, with 1 when it cannot go on (said on stderr).
pub fn main() -> ! {
    match serve() {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("idlewood worker: {error:#}");
            std::process::exit(1)
        }
    }
}

fn serve() -> anyhow::Result<()> {
    use anyhow::Context as _;
    use std::os::fd::AsFd as _;

    // Before the greeting: should the agent die in between, its pipe ends, and we with it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot tie the worker to its agent (prctl PR_SET_PDEATHSIG)")?;
    // A session of its own: the terminal's Ctrl-C is for the agent, and signals to the group reach all of the worker.
    rustix::process::setsid().context("cannot leave the agent's session (setsid)")?;
    let input = io::stdin();
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned().context("standard output is closed")?);
    let mut packet = vec![0; protocol::PACKET_BYTES_MAX];
    let by_hand = "this command is run by the agent, not by hand";
    let Some(hello) = receive(&input, &mut packet).context(by_hand)? else { return Ok(()) };
    let hello: Hello = protocol::decode_packet(hello).context(by_hand)?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(parent == i32::try_from(hello.agent_pid).ok(), "the agent is gone");
    low::keep_low();
    disk::outlive_large_files().context("cannot ignore a signal (SIGXFSZ)")?;
    let directories: Vec<PathBuf> = hello.directories.into_iter().chain([hello.cache_dir.clone()]).collect();
    for gap in confine(&directories) {
        anyhow::ensure!(!hello.strict, "{}, and the owner asked for all of the sandbox; {}", gap.what, gap.remedy);
        eprintln!("idlewood worker: {}", gap.what);
    }

    say(&mut output, &FromWorker::Ready)?;
    let mut worker = Worker::new(&hello.cache_dir)?;
    while let Some(job) = receive(&input, &mut packet)? {
        let (job, from_file) = protocol::decode_job(job)?;
        let mut report = worker.run(&job, &mut output)?;
        report.untouched &= !from_file;
        say(&mut output, &FromWorker::Done(report))?;
    }
    Ok(())
}

/// The next packet; `None` when the agent has closed its end.
fn receive<'a>(input: &io::Stdin, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    loop {
        match rustix::net::recv(input, &mut *buffer, rustix::net::RecvFlags::empty()) {
            Ok((0, _)) => return Ok(None),
            Ok((bytes, _)) => return Ok(Some(&buffer[..bytes])),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn say(output: &mut File, message: &FromWorker) -> anyhow::Result<()> {
    let frame = protocol::encode(message, protocol::FROM_WORKER_BYTES_MAX)
        .ok_or_else(|| anyhow::anyhow!("a report is too large to send"))?;
    Ok(protocol::write(output, &frame)?)
}

/// A program, ready to be instantiated.
struct Program {
    hash: [u8; 32],
    instance: InstancePre<Task>,
    /// It imports what it takes to get at a directory; else it is given none.
    uses_files: bool,
}

/// What a running task holds.
struct Task {
    wasi: WasiP1Ctx,
    limits: Limits,
}

struct Limits {
    memory_bytes: u64,
}

/// Why a task's memory did not grow.
#[derive(Debug, thiserror::Error)]
#[error("needs more memory than its limit of {} MiB: submit the bag with a larger --memory", .limit_bytes >> 20)]
struct MemoryLimit {
    limit_bytes: u64,
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if desired as u64 > self.memory_bytes {
            return Err(wasmtime::Error::new(MemoryLimit { limit_bytes: self.memory_bytes }));
        }
        Ok(true)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        // The machine, not the limit, refused: end the task rather than let it write through a null pointer.
        Err(error.context("the machine has no more memory to give"))
    }

    fn table_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= maximum.unwrap_or(usize::MAX).min(TABLE_ENTRIES_MAX))
    }
}

struct Worker {
    engine: Engine,
    linker: Linker<Task>,
    cache: CompileCache,
    /// The most recently used last.
    programs: Vec<Arc<Program>>,
    runtime: tokio::runtime::Runtime,
}

impl Worker {
    fn new(cache_dir: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;

        let plain = |error: wasmtime::Error| anyhow::anyhow!("cannot set up WebAssembly on this machine: {error:#}");
        let engine = compile_cache::engine().map_err(plain)?;
        let mut linker: Linker<Task> = Linker::new(&engine);
        link_wasi(&mut linker).map_err(plain)?;
        let cache = CompileCache::open(cache_dir)
            .with_context(|| format!("cannot create the directory for compiled programs {}", cache_dir.display()))?;
        // One thread: WASI calls are made to block in place, so nothing else ever runs. Timers are for poll_oneoff.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Worker { engine, linker, cache, programs: Vec::new(), runtime })
    }

    /// Runs one job from beginning to end. An error ends the worker: the pipe to the agent is broken.
    fn run(&mut self, job: &Job, output: &mut File) -> anyhow::Result<Report> {
        let begin = cpu_time();
        let program = match self.remembered(&job.program_hash) {
            Some(program) => Ok(program),
            None => {
                say(output, &FromWorker::Preparing)?;
                let prepared = self.prepare(job);
                say(output, &FromWorker::Begun)?;
                prepared
            }
        };
        let prepared = cpu_time();
        let begun = Instant::now();
        let (mut output_truncated, mut untouched) = (false, false);
        let run = |program: Arc<Program>| self.execute(job, &program, &mut output_truncated, &mut untouched);
        let end = program.and_then(run).unwrap_or_else(|end| end);
        let worker_cpu = cpu_time();
        Ok(Report {
            end,
            wall: begun.elapsed(),
            cpu: worker_cpu.saturating_sub(prepared),
            compile: prepared.saturating_sub(begin),
            worker_cpu,
            output_truncated,
            untouched,
        })
    }

    fn remembered(&mut self, hash: &[u8; 32]) -> Option<Arc<Program>> {
        let position = self.programs.iter().position(|program| program.hash == *hash)?;
        let program = self.programs.remove(position);
        self.programs.push(Arc::clone(&program));
        Some(program)
    }

    /// Makes the job's program ready; the error is how the job ends.
    fn prepare(&mut self, job: &Job) -> Result<Arc<Program>, End> {
        let wasm = fs::read(&job.program).map_err(|error| unable(&job.program, "read the program", &error))?;
        if *blake3::hash(&wasm).as_bytes() != job.program_hash {
            let message = format!("the program's file {} is damaged: its hash is another", job.program.display());
            return Err(End::CouldNotStart { message });
        }
        check_shape(&wasm).map_err(|error| End::Invalid { message: error.to_string() })?;
        let invalid = |error: wasmtime::Error| End::Invalid {
            message: format!("not a valid WebAssembly module: {}", one_line(&format!("{error:#}"))),
        };
        let (module, _) = self.cache.module(&self.engine, &wasm).map_err(invalid)?;
        let instance = self.linker.instantiate_pre(&module).map_err(invalid)?;
        let uses_files = module.imports().any(|import| names_files(import.name()));
        let program = Arc::new(Program { hash: job.program_hash, instance, uses_files });
        if self.programs.len() == PROGRAMS_IN_MEMORY {
            self.programs.remove(0);
        }
        self.programs.push(Arc::clone(&program));
        Ok(program)
    }

    fn execute(
        &self,
        job: &Job,
        program: &Program,
        output_truncated: &mut bool,
        untouched: &mut bool,
    ) -> Result<End, End> {
        let stdout = CappedFile::new(job.stdout_path(), job.output_bytes);
        let stderr = CappedFile::new(job.stderr_path(), job.output_bytes);
        let checkpoint = Checkpoint::of(job, program.uses_files)?;
        let wasi = present(job, program.uses_files, &stdout, &stderr)?;
        let limits = Limits { memory_bytes: job.memory_bytes };
        let mut store = Store::new(&self.engine, Task { wasi, limits });
        store.limiter(|task| &mut task.limits);
        if program.uses_files {
            // One byte more than all files may take: what is refused a byte is over the limit.
            limit_files(job, Some(job.disk_bytes.saturating_add(1).max(job.output_bytes)))?;
        }
        let result = self.runtime.block_on(async {
            let instance = program.instance.instantiate_async(&mut store).await?;
            instance.get_typed_func::<(), ()>(&mut store, "_start")?.call_async(&mut store, ()).await
        });
        *output_truncated = stdout.exceeded() || stderr.exceeded();
        *untouched = !program.uses_files && !stdout.exists() && !stderr.exists();
        if program.uses_files {
            limit_files(job, None)?;
            let looked = Allowance::of(job).exceeded();
            if let Some(limit_bytes) =
                looked.map_err(|error| unable(&job.directory, "look at a task's files", &error))?
            {
                return Ok(End::OverDisk { limit_bytes });
            }
        }
        drop(checkpoint);
        Ok(match result {
            Ok(()) => End::Exited { code: 0 },
            Err(error) => end_of(&error),
        })
    }
}

/// Gives programs WASI preview 1, with one difference: wasmtime's own `proc_exit` takes codes from 126 on for faults,
/// but `exit(255)` and `return -1` are everyday C.
fn link_wasi(linker: &mut Linker<Task>) -> wasmtime::Result<()> {
    p1::add_to_linker_async(linker, |task| &mut task.wasi)?;
    linker.allow_shadowing(true);
    let exit = |code: i32| -> wasmtime::Result<()> { Err(I32Exit(code).into()) };
    linker.func_wrap(PREVIEW1_MODULE, "proc_exit", exit)?;
    linker.allow_shadowing(false);
    Ok(())
}

fn limit_files(job: &Job, bytes_max: Option<u64>) -> Result<(), End> {
    disk::limit_files(bytes_max).map_err(|error| unable(&job.directory, "limit the size of files", &error))
}

fn unable(path: &Path, what: &str, error: &io::Error) -> End {
    End::CouldNotStart { message: format!("cannot {what} ({}): {error}", path.display()) }
}

/// Whether a program that imports this function can get at a directory.
fn names_files(import: &str) -> bool {
    import.starts_with("path_") || import.starts_with("fd_prestat_") || import == "fd_readdir"
}

/// Lays out the task's directories, if it can get at them, and opens exactly them to it.
fn present(job: &Job, uses_files: bool, stdout: &CappedFile, stderr: &CappedFile) -> Result<WasiP1Ctx, End> {
    let (work, inputs) = (job.work_dir(), job.inputs_dir());
    if uses_files {
        lay_out(job, &work, &inputs)?;
    } else if let Some(missing) = job.inputs.iter().find(|input| !input.path.exists()) {
        // As for everybody else, though it would not notice.
        let error = io::Error::from(io::ErrorKind::NotFound);
        return Err(unable(&missing.path, "provide an input", &error));
    }

    let mut wasi = WasiCtxBuilder::new();
    wasi.allow_blocking_current_thread(true).args(&job.args).envs(&job.env);
    wasi.stdout(stdout.clone()).stderr(stderr.clone());
    match &job.stdin {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => {
            wasi.stdin(MemoryInputPipe::new(bytes.clone()));
        }
        Stdin::File(path) => {
            let file = File::open(path).map_err(|error| unable(path, "open the standard input", &error))?;
            wasi.stdin(InputFile::new(file));
        }
    }
    let preopens = [
        (Some(work.as_path()), ".", FsPerms::ReadWrite),
        (Some(inputs.as_path()).filter(|_| !job.inputs.is_empty()), "inputs", FsPerms::ReadOnly),
        (job.checkpoint.as_deref(), "checkpoint", FsPerms::ReadWrite),
    ];
    for (dir, name, permissions) in preopens {
        if let Some(dir) = dir.filter(|_| uses_files) {
            wasi.preopened_dir(dir, name, permissions).map_err(|error| {
                unable(dir, "open a directory of the task", &io::Error::other(format!("{error:#}")))
            })?;
        }
    }
    Ok(wasi.build_p1())
}

/// A task's checkpoint, which no other worker has until this is dropped, or this process dies.
struct Checkpoint<'a> {
    path: &'a Path,
    // Closing it gives the lock back.
    _directory: File,
}

impl<'a> Checkpoint<'a> {
    /// Makes and locks it, if the task can get at it.
    fn of(job: &'a Job, uses_files: bool) -> Result<Option<Self>, End> {
        let Some(path) = job.checkpoint.as_deref().filter(|_| uses_files) else { return Ok(None) };
        let failed = |error: io::Error| unable(path, "keep the checkpoint", &error);
        fs::create_dir_all(path).map_err(failed)?;
        let directory = File::open(path).map_err(failed)?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| failed(errno.into()))?;
        Ok(Some(Self { path, _directory: directory }))
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // Most tasks leave nothing in it.
        match fs::remove_dir(self.path) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                eprintln!("idlewood worker: the checkpoint {} stays: {error}", self.path.display());
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Makes the working directory and puts the inputs in theirs.
fn lay_out(job: &Job, work: &Path, inputs: &Path) -> Result<(), End> {
    let make = |dir: &Path| fs::create_dir_all(dir).map_err(|error| unable(dir, "create a directory", &error));
    make(work)?;
    for Input { name, path } in &job.inputs {
        let place = inputs.join(name);
        place.parent().map_or(Ok(()), make)?;
        // A link costs nothing whatever the size. Another file system, or one without links: copy.
        if fs::hard_link(path, &place).is_err() {
            fs::copy(path, &place).map_err(|error| unable(path, "provide an input", &error))?;
        }
    }
    Ok(())
}

/// What the error that ended a run says about the task.
fn end_of(error: &wasmtime::Error) -> End {
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return End::Exited { code: (code & 0xff) as u8 };
    }
    if let Some(limit) = error.downcast_ref::<MemoryLimit>() {
        return End::Trapped { message: limit.to_string() };
    }
    let message = match error.downcast_ref::<Trap>() {
        Some(Trap::UnreachableCodeReached) => {
            "aborted itself (abort, a failed assertion, a panic): its stderr may say why".to_owned()
        }
        Some(Trap::StackOverflow) => {
            format!("called functions too deep: the call stack of {} MiB is full", compile_cache::STACK_BYTES_MAX >> 20)
        }
        Some(Trap::MemoryOutOfBounds) => "accessed memory outside of what it has (a wild pointer?)".to_owned(),
        Some(Trap::IntegerDivisionByZero) => "divided an integer by zero".to_owned(),
        Some(Trap::IndirectCallToNull | Trap::TableOutOfBounds | Trap::BadSignature) => {
            "called a function through a bad function pointer".to_owned()
        }
        _ => one_line(&format!("{error:#}")),
    };
    End::Trapped { message }
}

/// Processor time of this process since its start.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
