//! Does the simulator predict reality? The same bags, machines, links and faults on real agents and in simnet, and the figures of both.
//!
//! ```text
//! cargo run -p idlewood-tests --bin conformance -- --output json
//! ```
//!
//! Each scenario (`scenarios/*.toml`; [`scenario`] says what may stand there) is run once with real agents ([`real`]): each in a network
//! namespace of its own ([`lab`]), joined by a switch in this process ([`switch`]). Then it is simulated with several seeds
//! ([`simulated`]), and the figures are compared ([`figures`]). Needs root, `ip` and `tc`. Nothing outside of the namespaces that a run
//! makes is touched, and they end with it, however it ends.
//!
//! It serves as the agent, too: without a leading option its arguments are those of `idlewood`.

mod agents;
mod figures;
mod lab;
mod namespace;
mod packet_socket;
mod real;
mod scenario;
mod simulated;
mod stop;
mod switch;

use std::path::PathBuf;
use std::process::ExitCode;

use figures::{Comparison, Took};
use scenario::Scenario;

const USAGE: &str = "\
usage: conformance [OPTIONS]
  --scenario FILE    a scenario of your own, repeatable [default: all that come with it]
  --only NAME        of those that come with it this one alone, repeatable
  --short            the short form: two scenarios, within a minute
  --seeds N          simulations of each scenario [default: 20]
  --kinds            messages and bytes of each kind, too
  --simulate         simulations alone: needs no root
  --list             the names of the scenarios
  --output FORMAT    text or json [default: text]
  --keep DIR         keep what agents wrote there";

struct Options {
    scenarios: Vec<Scenario>,
    seeds: u64,
    is_real: bool,
    is_json: bool,
    by_kind: bool,
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if serves_as_agent(&arguments) {
        return idlewood::cli::main();
    }
    match options(&arguments).and_then(|options| options.map_or(Ok(()), |options| compare(&options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn serves_as_agent(arguments: &[String]) -> bool {
    arguments
        .first()
        .is_some_and(|first| !first.starts_with("--") || ["--state-dir", "--config"].contains(&first.as_str()))
}

/// What is wanted; none: all has been said.
fn options(arguments: &[String]) -> Result<Option<Options>, String> {
    let mut options =
        Options { scenarios: Vec::new(), seeds: 20, is_real: true, is_json: false, by_kind: false, keep: None };
    let (mut names, mut is_short, mut is_list) = (Vec::new(), false, false);
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value\n{USAGE}"));
        match name.as_str() {
            "--scenario" => options.scenarios.push(Scenario::read(value()?.as_ref())?),
            "--only" => names.push(value()?.clone()),
            "--seeds" => options.seeds = value()?.parse().map_err(|_| USAGE)?,
            "--output" => options.is_json = value()? == "json",
            "--keep" => options.keep = Some(value()?.into()),
            "--kinds" => options.by_kind = true,
            "--short" => is_short = true,
            "--simulate" => options.is_real = false,
            "--list" => is_list = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    if options.scenarios.is_empty() {
        options.scenarios = scenario::shipped()?;
        options.scenarios.retain(|of| (!is_short || of.short) && (names.is_empty() || names.contains(&of.name)));
    }
    if is_list {
        options.scenarios.iter().for_each(|of| println!("{:<16} {}", of.name, of.about));
        return Ok(None);
    }
    if options.scenarios.is_empty() || options.seeds == 0 {
        return Err(format!("there is nothing to do: --list shows the scenarios\n{USAGE}"));
    }
    Ok(Some(options))
}

fn compare(options: &Options) -> Result<(), String> {
    stop::watch()?;
    if options.is_real {
        lab::check()?;
    }
    let (mut all, mut near, mut by_chance, mut unexplained) = (0, 0, 0, 0);
    for scenario in &options.scenarios {
        let real = if options.is_real { Some(real::run(scenario, options.keep.as_deref())?) } else { None };
        let (real, took) = real.map_or((None, Took::AS_SAID), |(real, took)| (Some(real), took));
        let simulated = simulated::run(scenario, took, options.seeds)?;
        for row in Comparison::of(scenario, real.as_ref(), &simulated, options.by_kind) {
            all += 1;
            near += u32::from(row.is_near());
            by_chance += u32::from(row.is_by_chance() == Some(true));
            unexplained += u32::from(row.is_unexplained());
            if options.is_json {
                println!("{}", serde_json::to_string(&row).map_err(|error| error.to_string())?);
            } else {
                println!("{row}");
            }
        }
    }
    if options.is_real {
        eprintln!(
            "{near} of {all} figures are within the goal, {by_chance} others within what seeds of the simulation differ by; of \
             {unexplained} others nobody has written down why"
        );
    }
    Ok(())
}
