//! The worker process, started by the agent as `idlewood worker`.
//!
//! It reads a greeting from its standard input, a packet socket, and lowers its priority (`low`): killed with its
//! agent, lowest priority, first choice of the out-of-memory killer, no core dumps. Then it confines itself
//! (`confine`): from then on it can reach only the files that the greeting lists.
//!
//! A compiling worker compiles one program, reports, and ends. A running worker loads its program and takes jobs, one
//! at a time, until the input ends; it reports on its standard output (`protocol`). It takes a job only to begin it:
//! the agent can take back every job still in the socket. A task gets a fresh instance and memory of its own. A worker
//! for a native program starts that, in a process that confines itself, and watches it (`native`).

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::{Resource, Rlimit};
use wasmtime::{Engine, InstancePre, Linker, Module, Store, Trap};
use wasmtime_wasi::cli::InputFile;
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtxBuilder};

use crate::checkpoint::Checkpoint;
use crate::compile_cache::{self, DISK_BYTES_MAX};
use crate::confine::confine;
use crate::disk::{self, Allowance};
use crate::end::{End, unable};
use crate::fixed;
use crate::group::Member;
use crate::job::{Job, Stdin};
use crate::limits::{Limits, MemoryLimit, ProcessLimits, RANDOM_BYTES_MAX};
use crate::low;
use crate::native;
use crate::output::CappedFile;
use crate::processor_time::cpu_time;
use crate::program::{PREVIEW1_MODULE, check_shape, one_line};
use crate::protocol::{self, FromWorker, Hello, Report, Role};
use crate::shared_output::{SharedOutput, Stream};

/// Address-space limit of a compiling worker. Our choice: many times what the largest known programs take.
const COMPILE_BYTES_MAX: u64 = 8 << 30;

/// Runs the worker: takes over standard input and output, and never returns. Exits with 0 when the agent closes the
/// pipe, with 1 after a failure, reported on stderr.
pub fn main() -> ! {
    match serve() {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{error:#}");
            std::process::exit(1)
        }
    }
}

fn serve() -> anyhow::Result<()> {
    use anyhow::Context as _;
    use std::os::fd::AsFd as _;

    // A session of its own: the terminal's Ctrl-C is for the agent, and signals to the group reach every process of the
    // worker.
    rustix::process::setsid().context("cannot leave the agent's session (setsid)")?;
    let input = io::stdin();
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned().context("standard output is closed")?);
    let mut packet = vec![0; protocol::PACKET_BYTES_MAX];
    let by_hand = "this command is run by the agent, not by hand";
    let (hello, beside) = protocol::receive(&input, &mut packet).context(by_hand)?;
    if hello.is_empty() {
        return Ok(());
    }
    let hello: Hello = protocol::decode_packet(hello).context(by_hand)?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(parent == i32::try_from(hello.agent_pid).ok(), "the agent is gone");
    match hello.role {
        Role::Native { .. } => low::lower_process(),
        Role::Compile { .. } | Role::Run { .. } => low::keep_low(),
    }
    disk::outlive_large_files().context("cannot ignore a signal (SIGXFSZ)")?;
    disk::limit_open_files().context("no limit of open files")?;
    if let Role::Compile { .. } = hello.role {
        let most = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        rustix::process::setrlimit(Resource::As, most(COMPILE_BYTES_MAX)).context("no limit of memory")?;
        rustix::process::setrlimit(Resource::Fsize, most(DISK_BYTES_MAX)).context("no limit of file sizes")?;
    }
    if let Role::Native { group } = &hello.role {
        return serve_native(&hello, group.as_ref(), &input, &mut output, &mut packet);
    }
    let mut process = ProcessLimits::new().context("cannot limit this process")?;
    for gap in confine(&hello.readable, &hello.writable) {
        anyhow::ensure!(!hello.strict, "{}, and the owner asked for all of the sandbox; {}", gap.what, gap.remedy);
        eprintln!("{}", gap.what);
    }

    let mut worker = Worker::new()?;
    let artefact = match hello.role {
        Role::Compile { program, hash, artefact } => {
            let compiled = worker.compile(&program, &hash, &artefact);
            return say_ready(&mut output, compiled).map(drop);
        }
        Role::Run { artefact } => artefact,
        Role::Native { .. } => anyhow::bail!("that was seen to above"),
    };
    let loaded = worker.load(&artefact);
    let Some(program) = say_ready(&mut output, loaded)? else { return Ok(()) };
    let shared = Arc::new(SharedOutput::new(beside.context("the agent has sent no memory for output")?));
    process.program_is_loaded().context("cannot say what memory this process has")?;
    loop {
        let (job, beside) = protocol::receive(&input, &mut packet)?;
        if job.is_empty() {
            return Ok(());
        }
        let (number, job) = protocol::decode_job(job, beside)?;
        process.admit(job.memory_bytes).context("cannot limit this process's memory")?;
        shared.begin(number);
        let report = worker.run(&job, &program, &shared);
        say(&mut output, &FromWorker::Done(number, report))?;
    }
}

/// Runs the one job of a native program, and waits for it.
fn serve_native(
    hello: &Hello,
    group: Option<&Member>,
    input: &io::Stdin,
    output: &mut File,
    packet: &mut [u8],
) -> anyhow::Result<()> {
    let gap = native::enter_namespaces().err();
    if let Some(error) = &gap {
        let gap = native::no_namespaces(error);
        anyhow::ensure!(!hello.strict, "{}, and the owner asked for all of the sandbox; {}", gap.what, gap.remedy);
        eprintln!("{}", gap.what);
    }
    say(output, &FromWorker::Ready { cpu: cpu_time() })?;
    let (job, beside) = protocol::receive(input, packet)?;
    if job.is_empty() {
        return Ok(());
    }
    let (number, job) = protocol::decode_job(job, beside)?;
    say(output, &FromWorker::Done(number, native::run(&job, gap.is_none(), group)))?;
    // The agent ends the whole process group.
    protocol::receive(input, packet)?;
    Ok(())
}

/// Reports the result of the preparation; returns the prepared value if it succeeded.
fn say_ready<T>(output: &mut File, prepared: Result<T, End>) -> anyhow::Result<Option<T>> {
    let (message, prepared) = match prepared {
        Ok(prepared) => (FromWorker::Ready { cpu: cpu_time() }, Some(prepared)),
        Err(end) => (FromWorker::Unusable(end), None),
    };
    say(output, &message)?;
    Ok(prepared)
}

fn say(output: &mut File, message: &FromWorker) -> anyhow::Result<()> {
    let frame = protocol::encode(message, protocol::FROM_WORKER_BYTES_MAX)
        .ok_or_else(|| anyhow::anyhow!("a report is too large to send"))?;
    Ok(protocol::write(output, &frame)?)
}

/// A program, ready to be instantiated.
struct Program {
    instance: InstancePre<Task>,
    /// It imports functions that need a directory; else it is given none.
    uses_files: bool,
}

/// The state of a running task.
struct Task {
    wasi: WasiP1Ctx,
    limits: Limits,
}

struct Worker {
    engine: Engine,
    linker: Linker<Task>,
    runtime: tokio::runtime::Runtime,
}

impl Worker {
    fn new() -> anyhow::Result<Self> {
        let plain = |error: wasmtime::Error| anyhow::anyhow!("cannot set up WebAssembly on this machine: {error:#}");
        let engine = compile_cache::engine().map_err(plain)?;
        let mut linker: Linker<Task> = Linker::new(&engine);
        link_wasi(&mut linker).map_err(plain)?;
        // One thread: WASI calls block in place, so nothing else ever runs. Timers are for poll_oneoff.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Worker { engine, linker, runtime })
    }

    /// Compiles a program into an empty file; on error, returns how each of its jobs ends.
    fn compile(&self, program: &Path, hash: &[u8; 32], artefact: &Path) -> Result<(), End> {
        let wasm = fs::read(program).map_err(|error| unable(program, "read the program", &error))?;
        if blake3::hash(&wasm).as_bytes() != hash {
            let message = format!("the program's file {} is damaged: its hash is another", program.display());
            return Err(End::CouldNotStart { message });
        }
        check_shape(&wasm).map_err(|error| End::Invalid { message: error.to_string() })?;
        let failed = |error: io::Error| unable(artefact, "keep the compiled program", &error);
        let mut file = File::options().write(true).open(artefact).map_err(failed)?;
        let module = compile_cache::compile(&self.engine, &wasm, &mut file);
        let module = module.map_err(|error| match error.downcast::<io::Error>() {
            Ok(error) => failed(error),
            Err(error) => invalid(&error),
        })?;
        // Find out now whether it can be linked.
        self.link(&module).map(drop)
    }

    /// Loads a compiled program; on error, returns how each of its jobs ends.
    fn load(&self, artefact: &Path) -> Result<Program, End> {
        let module = compile_cache::load(&self.engine, artefact)
            .map_err(|error| unable(artefact, "load the compiled program", &io::Error::other(format!("{error:#}"))))?;
        self.link(&module)
    }

    fn link(&self, module: &Module) -> Result<Program, End> {
        let instance = self.linker.instantiate_pre(module).map_err(|error| invalid(&error))?;
        let uses_files = module.imports().any(|import| names_files(import.name()));
        Ok(Program { instance, uses_files })
    }

    /// Runs one job from beginning to end.
    fn run(&mut self, job: &Job, program: &Program, shared: &Arc<SharedOutput>) -> Report {
        let before = cpu_time();
        let begun = Instant::now();
        let (mut output_truncated, mut untouched) = (false, false);
        let end = self.execute(job, program, shared, &mut output_truncated, &mut untouched).unwrap_or_else(|end| end);
        let worker_cpu = cpu_time();
        Report {
            end,
            wall: begun.elapsed(),
            cpu: worker_cpu.saturating_sub(before),
            worker_cpu,
            output_truncated,
            untouched,
            streams: shared.end(),
        }
    }

    fn execute(
        &self,
        job: &Job,
        program: &Program,
        shared: &Arc<SharedOutput>,
        output_truncated: &mut bool,
        untouched: &mut bool,
    ) -> Result<End, End> {
        let stdout = CappedFile::in_memory(shared, Stream::Stdout, job.stdout_path(), job.output_bytes);
        let stderr = CappedFile::in_memory(shared, Stream::Stderr, job.stderr_path(), job.output_bytes);
        let checkpoint = Checkpoint::of(job, program.uses_files)?;
        let wasi = present(job, program.uses_files, &stdout, &stderr)?;
        let limits = Limits::new(job.memory_bytes);
        let mut store = Store::new(&self.engine, Task { wasi, limits });
        store.limiter(|task| &mut task.limits);
        if program.uses_files {
            // One byte more than all files may take: a task that is refused a byte has exceeded the limit.
            limit_files(job, Some(job.disk_bytes.saturating_add(1).max(job.output_bytes)))?;
        }
        let result = self.runtime.block_on(async {
            let instance = program.instance.instantiate_async(&mut store).await?;
            instance.get_typed_func::<(), ()>(&mut store, "_start")?.call_async(&mut store, ()).await
        });
        *output_truncated = stdout.exceeded() || stderr.exceeded();
        *untouched = !program.uses_files && !stdout.exists() && !stderr.exists();
        // This closes all of the task's files: it may have used up the descriptors that checking them needs.
        drop(store);
        if program.uses_files {
            limit_files(job, None)?;
            let looked = Allowance::of(job).exceeded(None);
            if let Some(end) = looked.map_err(|error| unable(&job.directory, "look at a task's files", &error))? {
                return Ok(end);
            }
        }
        drop(checkpoint);
        Ok(match result {
            Ok(()) => End::Exited { code: 0 },
            Err(error) => end_of(&error),
        })
    }
}

/// Provides WASI preview 1, with one difference: wasmtime's own `proc_exit` treats codes from 126 on as faults, but
/// `exit(255)` and `return -1` are everyday C.
fn link_wasi(linker: &mut Linker<Task>) -> wasmtime::Result<()> {
    p1::add_to_linker_async(linker, |task| &mut task.wasi)?;
    linker.allow_shadowing(true);
    let exit = |code: i32| -> wasmtime::Result<()> { Err(I32Exit(code).into()) };
    linker.func_wrap(PREVIEW1_MODULE, "proc_exit", exit)?;
    linker.allow_shadowing(false);
    Ok(())
}

fn invalid(error: &wasmtime::Error) -> End {
    End::Invalid { message: format!("not a valid WebAssembly module: {}", one_line(&format!("{error:#}"))) }
}

fn limit_files(job: &Job, bytes_max: Option<u64>) -> Result<(), End> {
    disk::limit_files(bytes_max).map_err(|error| unable(&job.directory, "limit the size of files", &error))
}

/// Whether a program that imports this function can use a directory.
fn names_files(import: &str) -> bool {
    import.starts_with("path_") || import.starts_with("fd_prestat_") || import == "fd_readdir"
}

/// Makes the task's working directory, if the program can use one, and opens exactly the task's directories to it.
fn present(job: &Job, uses_files: bool, stdout: &CappedFile, stderr: &CappedFile) -> Result<WasiP1Ctx, End> {
    let work = job.work_dir();
    if uses_files {
        fs::create_dir_all(&work).map_err(|error| unable(&work, "create a directory", &error))?;
    }

    let mut wasi = WasiCtxBuilder::new();
    wasi.allow_blocking_current_thread(true).args(&job.args).envs(&job.env);
    wasi.stdout(stdout.clone()).stderr(stderr.clone()).max_random_size(RANDOM_BYTES_MAX);
    if let Some(seed) = job.fixed {
        fixed::fix(&mut wasi, seed);
    }
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
        (job.inputs.as_deref(), "inputs", FsPerms::ReadOnly),
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

/// How a task ends after this error of its run.
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
