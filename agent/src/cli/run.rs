//! `idlewood run`: the agent in the foreground.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use super::context::{BadUsage, Context};
use crate::node::{self, Ended, RunOptions};
use crate::output;
use crate::settings::Address;

/// The environment variable that selects log messages, in the syntax of `tracing_subscriber`.
const LOG_VARIABLE: &str = "IDLEWOOD_LOG";
/// Log messages by default. libp2p warns of every refused stream and malformed message, as often as other machines
/// like; those that matter are counted.
const LOG_DEFAULT: &str = "warn,libp2p=error,idlewood=info";

/// Threads of the runtime. Our choice: the driver is one async task, and more threads than it and the network can use
/// only wake each other.
const THREADS: usize = 1;

/// Arguments of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Listen here for other agents, on the network for example at 0.0.0.0:4001; loopback only without a grid; repeatable
    /// [default: network.listen of the settings, or a free port of loopback]
    #[arg(long, value_name = "ADDRESS", env = "IDLEWOOD_LISTEN", value_delimiter = ',')]
    pub listen: Vec<Address>,
    /// Join the grid through this agent too, beside those it knows, for example lab-pc:4001; repeatable [default:
    /// network.bootstrap of the settings]
    #[arg(long, value_name = "ADDRESS", env = "IDLEWOOD_BOOTSTRAP", value_delimiter = ',')]
    pub bootstrap: Vec<Address>,
    /// Tasks that may run at the same time [default: limits.slots of the settings, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub slots: Option<u32>,
    /// Take commands on this port of 127.0.0.1; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub control_port: u16,
    /// The owner counts as present while FILE exists, and nothing else is sensed of input and processor use: for scripts
    /// that know better, and for tests
    #[arg(long, value_name = "FILE")]
    pub owner_probe: Option<PathBuf>,
    /// Speed of a slot in Mop/s instead of measuring it: for tests
    #[arg(long, value_name = "MOPS", hide = true, value_parser = positive)]
    pub speed_mops: Option<f64>,
    /// Seconds that a submitter trusts an executor it does not hear from: for tests
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = positive)]
    pub lease: Option<f64>,
    /// Seconds that a bag lasts before other machines are asked to keep it: for tests
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = positive)]
    pub appoint_after: Option<f64>,
    /// Seconds without a word of a bag's machine until one that keeps it acts, for each rank: for tests
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = positive)]
    pub steward_silence: Option<f64>,
    /// End when the process that started this one ends: for the demo and tests
    #[arg(long, hide = true)]
    pub die_with_parent: bool,
}

pub(super) fn run(context: &Context, args: RunArgs) -> anyhow::Result<ExitCode> {
    if args.die_with_parent {
        die_with_parent().context("cannot tie this agent to the process that started it")?;
    }
    log()?;
    context.act_as_owner()?;
    let mut options = RunOptions {
        state_dir: context.state_dir.clone(),
        config: context.config.clone(),
        listen: args.listen.into_iter().map(|address| address.0).collect(),
        bootstrap: args.bootstrap.into_iter().map(|address| address.0).collect(),
        slots: args.slots,
        speed_mops: args.speed_mops,
        owner_probe: args.owner_probe,
        lease: args.lease.map(Duration::from_secs_f64),
        appoint_after: args.appoint_after.map(Duration::from_secs_f64),
        steward_silence: args.steward_silence.map(Duration::from_secs_f64),
        control_port: args.control_port,
    };
    loop {
        options = match run_once(options.clone())? {
            Ended::Over => return Ok(ExitCode::SUCCESS),
            Ended::Restarts => options,
            Ended::LeftGrid => options.without_grid(),
        };
        tracing::info!("starting anew");
    }
}

/// Runs the agent once, with nothing of an earlier run but its files.
fn run_once(options: RunOptions) -> anyhow::Result<Ended> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(THREADS).enable_all().build().context("cannot start")?;
    // On a thread of the runtime: network and driver then wake each other without a switch between threads.
    let ended = runtime.block_on(runtime.spawn(node::run(options))).context("the agent panicked")??;
    // Abandons blocking threads.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ended)
}

/// Logs to standard error.
fn log() -> anyhow::Result<()> {
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text)
            .map_err(|error| BadUsage(format!("{LOG_VARIABLE}={text} is no filter: {error}")))?,
        _ => EnvFilter::new(LOG_DEFAULT),
    };
    let colours = output::shows_colours(io::stderr().is_terminal());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| output::Harmless(io::stderr()))
        .with_ansi(colours)
        .try_init()
        .map_err(anyhow::Error::from_boxed)
        .context("cannot log")
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number < 1e9 => Ok(number),
        _ => Err("use a number above 0".to_owned()),
    }
}

#[cfg(target_os = "linux")]
fn die_with_parent() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent() -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Other machines can cause warnings of libp2p as often as they like.
    #[test]
    fn messages_of_others_do_not_fill_the_log() {
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);

        impl io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("nobody panicked").write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(LOG_DEFAULT))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, || {
            for _ in 0..3 {
                tracing::warn!(target: "libp2p_identify::handler", "a key that is another");
                tracing::warn!(target: "libp2p_request_response::handler", "at capacity");
                tracing::warn!(target: "libp2p_yamux", "the buffer is full");
            }
            tracing::error!(target: "libp2p_swarm", "an error");
            tracing::warn!(target: "zbus", "a warning");
            tracing::info!(target: "idlewood::node", "what is ours");
            tracing::info!(target: "idlewood_store", "what is of our crates");
            tracing::debug!(target: "idlewood::node", "a detail");
        });
        let text = String::from_utf8(written.0.lock().expect("nobody panicked").clone()).expect("text");
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            ["an error", "a warning", "what is ours", "what is of our crates"].iter().all(|words| text.contains(words)),
            "{text}"
        );
    }
}
