//! Torments real agents: `cargo run -p idlewood-tests --bin torture -- --seed 1 --minutes 10`.
//!
//! It serves as the agent, too: without a leading option its arguments are those of `idlewood`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use idlewood_tests::torture::{self, Options};

fn main() -> ExitCode {
    idlewood_tests::with_agents(torment)
}

fn torment(arguments: &[String]) -> Result<(), String> {
    let usage = "usage: torture [--seed S] [--minutes M] [--agents N] [--disk MIB]";
    let (mut seed, mut minutes, mut agents, mut disk_mib) = (1, 1.0, 5, None::<u64>);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(usage.to_owned()) };
        match name.as_str() {
            "--seed" => seed = value.parse().map_err(|_| usage)?,
            "--minutes" => minutes = value.parse().map_err(|_| usage)?,
            "--agents" => agents = value.parse().map_err(|_| usage)?,
            "--disk" => disk_mib = Some(value.parse().map_err(|_| usage)?),
            _ => return Err(usage.to_owned()),
        }
    }
    let dir = std::env::temp_dir().join(format!("idlewood-torture-{}", std::process::id()));
    let options = Options {
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        tasks: Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tasks/probe/probe.wasm"),
        seed,
        agents: std::cmp::max(agents, 1),
        span: Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())?,
        disk_bytes: disk_mib.map(|mib| mib << 20),
        dir: dir.clone(),
    };
    match torture::run(&options) {
        Ok(report) => {
            println!("{report}");
            std::fs::remove_dir_all(&dir).map_err(|error| error.to_string())
        }
        Err(sentence) => Err(format!(
            "{sentence}\nwhat is left is in {}; the same trouble again: cargo run -p idlewood-tests --bin torture -- \
             --seed {seed} --minutes {minutes} --agents {agents}{}",
            dir.display(),
            disk_mib.map(|mib| format!(" --disk {mib}")).unwrap_or_default()
        )),
    }
}
