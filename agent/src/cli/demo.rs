//! `idlewood demo`: options and summary; the demo is in `crate::demo`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use super::context::{Context, FAILURE};
use crate::demo::{self, DemoOptions, Summary};
use crate::output::{self, Format};

/// Arguments of `demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Agent processes to start
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(3..=64))]
    pub agents: u32,
    /// Tasks of the bag
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub tasks: u64,
    /// Draws who submits, who crashes, and what is rendered [default: at random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Where the picture goes
    #[arg(long, value_name = "DIR", default_value = "idlewood-demo")]
    pub out: PathBuf,
}

pub(super) fn run(context: &Context, args: DemoArgs) -> anyhow::Result<ExitCode> {
    let json = context.format == Format::Json;
    let options = DemoOptions {
        agents: args.agents,
        tasks: args.tasks,
        // Short enough to type again.
        seed: args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
        out: args.out,
        quiet: json,
    };
    let summary = demo::run(&options)?;
    if json {
        output::json(&summary)?;
    } else {
        print(&summary)?;
    }
    Ok(if summary.is_success() { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
}

fn print(summary: &Summary) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let pairs = [
        ("agents", format!("{}, {} of them worked on the bag", summary.agents, summary.machines)),
        ("tree", format!("{} high", output::count(u64::from(summary.tree_height), "level"))),
        ("tasks", format!("{}, {} completed, {} lost", summary.tasks, summary.completed, summary.lost)),
        ("verified", format!("{} of {} tiles equal an independent render", summary.verified, summary.tasks)),
        ("crashes", format!("{}, {} issued again", summary.crashed, output::count(summary.reissued, "task"))),
        ("reclaimed", format!("{} frozen for their owner", output::count(u64::from(summary.reclaimed), "machine"))),
        ("duplicates", output::count(summary.duplicates, "result")),
        ("makespan", output::duration(summary.makespan_s)),
        ("max stretch", format!("{} s/Mop", output::number(summary.max_stretch))),
        ("traffic", format!("{} sent per agent", output::bytes(summary.bytes_sent_per_agent as u64))),
        ("seed", summary.seed.to_string()),
        ("picture", summary.picture.clone()),
    ];
    output::pairs(&mut out, &pairs)?;
    out.flush()
}
