//! Runs tasks: WebAssembly programs (WASI preview 1), each slot in a worker process of its own.
//!
//! # Why processes
//! A machine must go back to its owner at once. Checks compiled into the program (epochs, fuel) cost up to twice the
//! time in tight loops; a signal costs nothing. So the engine lives in a child process per slot: the owner's return is
//! SIGSTOP (memory stays, nothing runs), vacating is SIGKILL, and a task that crashes takes down a worker, not the
//! agent. One worker runs many tasks of a bag, one after the other, so that small tasks do not each pay for a process,
//! and may be given several ahead ([`Pool::append`]), which can be taken back until they begin ([`Pool::take_back`]). A
//! worker runs one program and reaches one bag's directories ([`Reach`]): a task that breaks out of WebAssembly reaches
//! only what its submitter may see and change anyway. A bag's first task on a slot costs a new process.
//!
//! # The parts
//! - [`Pool`] (agent side): one thread and at most one worker process per slot, time limits, freezing.
//! - [`child`] (worker side): what `idlewood worker` does; compiles, or runs.
//! - [`lay_out`] (before): puts a task's inputs where it can read them. [`untrusted`] (after): reads its output.
//!   [`removal`]: removes its files.
//! - [`check_program`]: says in one sentence what is wrong with a program, without running or compiling it.
//! - [`speed`]: the reference kernel, by which the size of a task is measured; [`quota`]: how much of the processors there is for tasks.
//! - `protocol`: the packets and frames between the two; `compile_cache`: compiled programs on disk; `output`: capped
//!   streams, `shared_output`: their beginning in memory; `low`: priorities; `confine`: the second wall; `disk`: the
//!   limit on a task's files, `open_files`: including removed ones; `limits`: that on its memory; `group`: control
//!   groups, which enforce the limits of native programs; `processes`: what the system tells of a task's processes;
//!   `job`, `outcome`, `end`: a task, and how it ends for the agent and for the worker.
//!
//! # What a task sees
//! Its arguments, exactly the environment that it was given, and three directories (WASI knows no working directory,
//! only opened ones; C and Rust programs resolve relative paths against `.`):
//!
//! | path | is | may |
//! |---|---|---|
//! | `.` | [`Job::work_dir`], empty at first | be written; what it holds at the end are the outputs |
//! | `inputs/` | the directory [`Job::inputs`], if any | be read |
//! | `checkpoint/` | the directory [`Job::checkpoint`], if any | be written; outlives the attempt |
//!
//! A program that imports no function that needs a directory gets none of these, and stdout and stderr become files
//! only when they exceed some memory: a small task costs less than a file.
//!
//! `inputs/` and `checkpoint/` lie outside the working directory on the host, so that no path through `.` reaches an
//! input for writing. Hence listing `.` does not show them, and wasi-libc finds `inputs/a` and `/inputs/a` but not
//! `./inputs/a`, which it looks for in the working directory. Writing past [`Job::output_bytes`] on stdout or stderr fails with
//! an I/O error (EFBIG) and is reported in [`WorkerEvent::Ended`]. So does writing a file past [`Job::disk_bytes`]; a task
//! whose files take more than that together is ended. Asking for more memory than [`Job::memory_bytes`]
//! ends the task: C programs seldom check `malloc`, and address 0 is ordinary memory in WebAssembly.
//!
//! Programs may leave symbolic links that point anywhere in their working directory. Neither the task nor [`untrusted`]
//! follows them.
//!
//! # Native programs
//! If the owner allows them ([`Job::native`]), a worker serves one task: it starts the program, watches it, and ends
//! with all that it has started (`native`). Such a program finds `inputs` and `checkpoint` as links in its working
//! directory, and the installed system, read-only. With namespaces nothing else exists for it, no path of the owner's.
//!
//! # Left out
//! - Clocks and random numbers are the host's, unless a job wants them fixed (`fixed`); the monotonic clock goes on while a task is frozen.
//! - No NaN canonicalisation (2.5 times the time): programs that look at NaN bits may differ between machines.
//!   Relaxed SIMD, which also may, is off.

mod checkpoint;
mod compile_cache;
mod confine;
mod disk;
mod end;
mod fixed;
mod group;
mod inputs;
mod job;
mod limits;
mod low;
mod native;
mod open_files;
mod outcome;
mod output;
mod pool;
mod processes;
mod processor_time;
mod program;
mod protocol;
pub mod quota;
mod shared_output;
mod start_error;
mod stop;

pub mod child;
pub mod removal;
pub mod speed;
pub mod untrusted;

pub use confine::{Gap, gaps};
pub use group::gap as group_gap;
pub use inputs::{Input, LayOutError, lay_out, lay_out_folders};
pub use job::{Job, JobError, Reach, STDERR, STDOUT, Stdin, WORK};
pub use limits::NO_MEMORY;
pub use native::gap as native_gap;
pub use outcome::Outcome;
pub use pool::event::WorkerEvent;
pub use pool::{Pool, PoolConfig, PoolError};
pub use program::{ProgramError, check_program};
pub use shared_output::Streams;
pub use start_error::StartError;
