//! `idlewood doctor`: whether the owner's presence can be sensed on this machine, whether tasks can be confined, and
//! how to fix the rest.
//!
//! It checks by itself, as the calling user, without an agent: to see what a service sees, call it as the service's
//! user. Whether others reach this machine (`reach`) is asked of the agent that runs.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Disk, Status};
use idlewood_sensing::{Source, SourceName, Unavailable, cpu, power, programs};

use super::context::Context;
use super::finding::Finding;
use super::reach;
use crate::output::{self, Column, Format, Table};
use crate::settings;

/// Pause between two samples of the processor.
const CPU_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().context("cannot start")?;
    let mut findings = runtime.block_on(runtime.spawn(find_input()))?;
    findings.extend(find_rest(context));
    findings.extend(reach::find(context));
    match context.format {
        Format::Json => output::json(&findings)?,
        Format::Text => print(&findings)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn find_input() -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut sees_display = false;
    for mut source in Source::all() {
        let sensed = source.idle().await;
        let name = source.name();
        sees_display |= sensed.is_ok() && matches!(name, SourceName::X11 | SourceName::Mutter | SourceName::Wayland);
        let label = match name {
            SourceName::X11 => "input: x11",
            SourceName::Mutter => "input: mutter",
            SourceName::Wayland => "input: wayland",
            SourceName::Terminals => "input: terminals",
            SourceName::Logind => "input: logind",
            SourceName::File => "input: file",
        };
        findings.push(match sensed {
            Ok(idle) => {
                let more = match &source {
                    Source::X11(x11) => format!(" on {}", x11.displays().join(", ")),
                    Source::Terminals(terminals) => {
                        format!(" on {}", output::count(terminals.count() as u64, "terminal"))
                    }
                    // It has just begun to watch.
                    Source::Wayland(_) => " (counted from now on)".to_owned(),
                    Source::Logind(_) if sees_display => " (not needed: displays are watched directly)".to_owned(),
                    Source::Mutter(_) | Source::Logind(_) => String::new(),
                };
                Finding::works(label, format!("idle for {}{more}", output::duration(idle.as_secs_f64())))
            }
            Err(unavailable) => Finding::fails(label, unavailable),
        });
    }
    if findings.iter().all(|finding| !finding.works) {
        let why = "nothing tells whether the owner is there: the machine counts as idle";
        let remedy = "if somebody works at it, run the agent in their session, or write a script for --owner-probe";
        findings.push(Finding::fails("input", Unavailable::new(why, remedy)));
    }
    findings
}

fn find_rest(context: &Context) -> Vec<Finding> {
    let proc = Path::new("/proc");
    let mut meter = cpu::Meter::default();
    let mut sample = |at| meter.sample(proc, std::process::id(), &[], at);
    let first = sample(Duration::ZERO);
    std::thread::sleep(CPU_PAUSE);
    let cpu = match first.and_then(|_| sample(CPU_PAUSE)) {
        Ok(share) => {
            let percent = share.unwrap_or(0.0) * 100.0;
            Finding::works("processor", format!("others use {percent:.0} % at normal priority"))
        }
        Err(unavailable) => Finding::fails("processor", unavailable),
    };
    let gaps = idlewood_worker::gaps(&[]).into_iter();
    let mut sandbox: Vec<Finding> =
        gaps.map(|gap| Finding::fails("sandbox", Unavailable::new(gap.what, gap.remedy))).collect();
    if sandbox.is_empty() {
        sandbox.push(Finding::works("sandbox", "closes files, network and other processes to workers"));
    }
    sandbox.push(match idlewood_worker::native_gap() {
        None => Finding::works("native programs", "have namespaces of their own, where bags.native lets them run"),
        Some(gap) => Finding::fails("native programs", Unavailable::new(gap.what, gap.remedy)),
    });
    // No disk quota of the system: that needs an administrator.
    let measured = "files of tasks are measured every second and at their end; the system bounds each single one";
    sandbox.push(Finding::works("limit of disk", measured));
    // For an agent started like this command: groups belong to sessions and services.
    sandbox.push(match idlewood_worker::group_gap() {
        None => Finding::works("memory limits", "the kernel holds those of native programs (control groups)"),
        Some(gap) => Finding::fails("memory limits", Unavailable::new(gap.what, gap.remedy)),
    });
    let battery = match power::on_battery(Path::new(power::POWER_SUPPLY)) {
        Ok(true) => Finding::works("battery", "the machine runs on it"),
        Ok(false) => Finding::works("battery", "the machine is plugged in"),
        Err(unavailable) => Finding::fails("battery", unavailable),
    };
    let settings = match settings::load(&context.config) {
        Ok(settings) => {
            let there = if context.config.exists() { "" } else { " (no such file: defaults)" };
            let names = &settings.owner.programs;
            let mut detail = format!("{}{there}", context.config.display());
            if let Some(name) = programs::running(proc, names) {
                detail = format!("{detail}; {name} runs, which pauses everything");
            }
            Finding::works("settings", detail)
        }
        Err(error) => Finding::fails("settings", Unavailable::new(error.to_string(), "correct that line")),
    };
    sandbox.extend([cpu, battery, settings, find_disk(context), find_damage(&context.state_dir)]);
    sandbox
}

/// Whether there is room for results, by the agent, or else on the disk.
fn find_disk(context: &Context) -> Finding {
    match Client::open(&context.state_dir).and_then(|client| client.status()) {
        Ok(status) => disk_of(&status),
        Err(ClientError::NoAgent { .. } | ClientError::NotReady { .. }) => {
            Finding::works("disk", format!("no agent runs on {}", context.state_dir.display()))
        }
        Err(error) => Finding::fails("disk", Unavailable::new(error.to_string(), "see whether the agent still runs")),
    }
}

/// Whether damaged files of the store are kept.
fn find_damage(state_dir: &Path) -> Finding {
    match idlewood_store::damaged_files(state_dir) {
        Ok(kept) if kept.is_empty() => Finding::works("store", "none of its files was found damaged"),
        Ok(kept) => {
            let paths: Vec<String> = kept.iter().map(|path| path.display().to_string()).collect();
            let why = format!("files were damaged, and written anew; kept are: {}", paths.join(", "));
            let remedy = "check the disk; why.txt in each says what was wrong; remove them when they are of no use";
            Finding::fails("store", Unavailable::new(why, remedy))
        }
        Err(error) => Finding::fails("store", Unavailable::new(error.to_string(), "")),
    }
}

fn disk_of(status: &Status) -> Finding {
    let Disk { kept_bytes, limit_bytes, .. } = status.disk;
    let used = format!("{} of {} are needed", output::bytes(kept_bytes), output::bytes(limit_bytes));
    if status.reason_code.as_deref() == Some("disk_full") {
        let remedy = "remove bags that are over with `idlewood bag rm`, make room on the disk, or raise limits.disk";
        return Finding::fails("disk", Unavailable::new(format!("{used}: no task begins here"), remedy));
    }
    Finding::works("disk", used)
}

fn print(findings: &[Finding]) -> io::Result<()> {
    let mut table = Table::new(&[Column::left("what"), Column::left("works"), Column::left("")]);
    for finding in findings {
        let works = if finding.works { "yes" } else { "no" };
        let detail = match &finding.advice {
            Some(advice) => format!("{}; to do: {advice}", finding.detail),
            None => finding.detail.clone(),
        };
        table.row([finding.source.to_owned(), works.to_owned(), output::printable(&detail)]);
    }
    let mut out = io::stdout().lock();
    table.write(&mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_set_aside_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(find_damage(&dir.path().join("none")).works && find_damage(dir.path()).works);
        std::fs::create_dir(dir.path().join("store.damaged-3")).expect("ours");
        let found = find_damage(dir.path());
        assert!(!found.works && found.detail.contains("store.damaged-3") && found.advice.is_some(), "{found:?}");
    }

    #[test]
    fn faults_are_reported_with_a_remedy() {
        let absent = Finding::fails("input: x11", Unavailable::absent("there is no X11 display"));
        assert_eq!((absent.works, absent.advice), (false, None));
        let wrong = Finding::fails("processor", Unavailable::new("cannot read", "mount /proc"));
        assert_eq!(wrong.advice.as_deref(), Some("mount /proc"));
    }
}
