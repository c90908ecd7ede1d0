//! `idlewood submit`: makes a plan, uploads missing files, submits, and waits if asked to.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_api::EndlessRequest;
use idlewood_api::client::Client;
use idlewood_scheduler::Replication;
use idlewood_trust::manifest::{Input, Source};

use super::context::{BadUsage, Context};
use super::follow::{self, View};
use super::which::Found;
use super::{endless, forecast, kept, progress, watching};
use crate::output::{self, Format};
use crate::submit::options::Options;
use crate::submit::{self, Lists, Plan};

/// Tasks that a dry run prints.
const PREVIEW_TASKS: u64 = 3;

/// Names of files that a dry run prints.
const PREVIEW_NAMES: usize = 10;

/// Arguments of `submit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  idlewood submit --program render.wasm --array 0-99 -- --frame {}
  idlewood submit --program count.wasm --glob 'inputs/*.txt' --stdin {}
  idlewood submit --program greet.wasm -- hello {} ::: Ada Grace Edsger
  idlewood submit --program fit.wasm -- --model {1} --seed {2} ::: a b ::: 1 2 3
  idlewood submit --program fit.wasm --csv runs.csv -- --rate {rate}
  idlewood submit --program fit.wasm --input data --output-files 'out/*.csv'
  idlewood submit bag.toml --max-retries 0 --wait
  idlewood submit --program walk.wasm --endless --array 0- --share 2 -- {}
  tail -f queue | idlewood submit --program p.wasm --endless --each-line - -- {}
  idlewood submit --program scan.wasm --endless --watch incoming -- {}
  idlewood submit --program merge.wasm --after fit --notify 'date > over'

Everything after `:::` is an entry, so options come before it. Several lists make a task of each \
combination; `:::: FILE` is the list of a file's lines. Without --array, --each-line, --csv, \
--from-json, --glob or `:::` the bag has one task. {{x}} stands for {x} itself. A spec file has the \
flags' names as its keys; flags win.")]
pub(super) struct SubmitArgs {
    /// A spec file
    #[arg(value_name = "bag.toml")]
    spec: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Wait until every task is over, on a terminal with progress; exit with 3 if some failed, with 4 if the bag was cancelled
    #[arg(long)]
    wait: bool,
    /// The same as --wait
    #[arg(long)]
    progress: bool,
    /// Say what would be submitted, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(context: &Context, args: SubmitArgs, entries: Option<Lists>) -> anyhow::Result<ExitCode> {
    let spec = match &args.spec {
        Some(path) if path.extension().is_some_and(|extension| extension == "wasm") => {
            let path = path.display();
            return Err(BadUsage(format!("{path} is a program, not a spec file: write --program {path}")).into());
        }
        Some(path) => Options::read(path)?,
        None => Options::default(),
    };
    // Before merging: a spec file cannot resolve contradictions between flags.
    let flags = Options { entries, ..args.options };
    if flags.sources() > 1 {
        return Err(BadUsage("`:::` and a flag both say what the tasks are: use one of them".to_owned()).into());
    }
    let options = flags.over(spec);
    let watch = options.watch.clone();
    let plan = Plan::new(options, io::stdin())?;
    if args.dry_run {
        preview(context, &plan)?;
        tell_left_out(&plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = context.client()?;
    upload(&client, &plan)?;
    let bag = client.submit(&plan.request)?;
    tell_left_out(&plan)?;
    let waits = args.wait || args.progress;
    let source = plan.request.endless.map(|endless| endless.source);
    if context.format == Format::Text {
        let mut out = io::stdout().lock();
        let id = output::short_id(&bag.id);
        let tasks = match plan.request.endless {
            Some(_) => "tasks without an end".to_owned(),
            None => output::count(bag.tasks, "task"),
        };
        writeln!(out, "bag {id} submitted: {tasks} of {}", output::printable(&plan.request.program.name))?;
        if !waits {
            writeln!(out, "follow it with: idlewood bag watch {id}")?;
            match bag.bounds.first().filter(|bound| bound.code == "held") {
                Some(bound) => writeln!(out, "{}", progress::bound(bound))?,
                None if plan.request.endless.is_some() => {
                    writeln!(out, "save its results as they come with: idlewood bag get {id} --follow")?;
                }
                None => writeln!(out, "{}", kept::at_first(&bag))?,
            }
        }
        out.flush()?;
    }
    let bag = match (source, watch) {
        (Some(Source::Lines), _) => endless::feed(context, client, &bag.id, 0, io::BufReader::new(io::stdin()))?,
        (Some(Source::Files), Some(directory)) => watching::begin(context, client, &bag, &directory)?,
        _ => bag,
    };
    if !waits {
        if context.format == Format::Json {
            output::json(&bag)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let found = Found { ids: vec![bag.id], is_one: true };
    follow::to_the_end(context, &found, View::on_stderr())
}

fn upload(client: &Client, plan: &Plan) -> anyhow::Result<()> {
    let shows = io::stderr().is_terminal();
    for (position, (hash, local)) in plan.files.iter().enumerate() {
        let hash = Hash::from_bytes(*hash);
        if client.has_blob(hash)? {
            continue;
        }
        if shows {
            let (total, size) = (plan.files.len(), output::bytes(local.bytes));
            write!(io::stderr(), "\r\x1b[Kuploading file {} of {total} ({size})", position + 1)?;
        }
        let file = File::open(&local.path).with_context(|| format!("cannot read {}", local.path.display()))?;
        client.upload(hash, &file).with_context(|| format!("cannot upload {}", local.path.display()))?;
        if shows {
            write!(io::stderr(), "\r\x1b[K")?;
        }
    }
    Ok(())
}

/// Names directories that the user may have meant as tasks, and what they may have forgotten.
fn tell_left_out(plan: &Plan) -> io::Result<()> {
    if let Some(doubt) = &plan.doubt {
        writeln!(io::stderr(), "{}", output::printable(doubt))?;
    }
    let Some(first) = plan.left_out.first() else { return Ok(()) };
    let others = match plan.left_out.len() {
        1 => String::new(),
        directories => format!(" and {} more", directories - 1),
    };
    let first = output::printable(&first.display().to_string());
    writeln!(io::stderr(), "left out, since tasks are made of files only: the directory {first}{others}")
}

/// The first of these names, and how many others there are.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(PREVIEW_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(PREVIEW_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Prints the submission instead of sending it.
fn preview(context: &Context, plan: &Plan) -> io::Result<()> {
    let request = &plan.request;
    if context.format == Format::Json {
        return output::json(request);
    }
    let mut out = io::stdout().lock();
    let names = |inputs: &[Input]| -> Vec<String> { inputs.iter().map(|input| input.name.clone()).collect() };
    let codes: Vec<String> = request.success_codes.iter().map(ToString::to_string).collect();
    let mut pairs = vec![
        ("name", request.name.clone()),
        ("program", format!("{} ({})", request.program.name, output::bytes(request.program.bytes))),
        ("tasks", if request.endless.is_some() { "without an end".to_owned() } else { request.tasks.to_string() }),
    ];
    pairs.extend(request.endless.map(|endless| ("share", output::number(endless.share))));
    if !request.inputs.is_empty() {
        pairs.push(("inputs", listed(&names(&request.inputs))));
    }
    if !request.folders.is_empty() {
        pairs.push(("empty folders", listed(&request.folders)));
    }
    if !request.own.is_empty() {
        let first: Vec<String> =
            request.own.iter().filter(|own| own.task == 0).map(|own| own.input.name.clone()).collect();
        let all = output::count(request.own.len() as u64, "file");
        pairs.push(("own inputs", format!("{all}; task 0 has {}", listed(&first))));
    }
    if !request.own_folders.is_empty() {
        let first =
            request.own_folders.iter().filter(|own| own.task == 0).map(|own| own.folder.clone()).collect::<Vec<_>>();
        let first = if first.is_empty() { "none".to_owned() } else { listed(&first) };
        let all = output::count(request.own_folders.len() as u64, "empty folder");
        pairs.push(("own folders", format!("{all}; task 0 has {first}")));
    }
    if !request.executable.is_empty() {
        pairs.push(("executable", listed(&request.executable)));
    }
    if !request.outputs.is_empty() {
        pairs.push(("outputs", request.outputs.join(", ")));
    }
    pairs.extend(request.output_bytes.map(|bytes| ("output limit", output::bytes(bytes))));
    if let Some(stdin) = &request.stdin {
        pairs.push(("stdin", stdin.clone()));
    }
    for (key, value) in &request.env {
        pairs.push(("env", format!("{key}={value}")));
    }
    pairs.push(("memory", output::bytes(request.memory_bytes)));
    pairs.push(("disk", output::bytes(request.disk_bytes)));
    pairs.push(("time limit", output::duration(request.time_limit_s as f64)));
    pairs.push(("retries", request.retries_max.to_string()));
    if request.replication.quorum > 1 {
        let Replication { replicas, quorum, recheck } = request.replication;
        let recheck =
            if recheck > 0 { format!(", one task in {recheck} of machines that always agreed") } else { String::new() };
        pairs.push(("replicas", format!("{replicas}, of which {quorum} decide{recheck}")));
    }
    if let Some(rounds) = &request.rounds {
        let idlewood_scheduler::rounds::Plan { processes, rounds: count, is_asynchronous, .. } = rounds.plan;
        let mode = if is_asynchronous { "async" } else { "sync" };
        let more = rounds.plan.fill.map_or("", |_| " or more");
        let each = output::count(rounds.iterations, "iteration") + more;
        pairs.push(("rounds", format!("{count} of {processes} processes, {each} each, {mode}")));
        pairs.push((
            "merge",
            rounds
                .merge
                .as_ref()
                .map_or("none: each is given the results of all".to_owned(), |merge| merge.name.clone()),
        ));
    }
    if request.hold {
        pairs.push(("held", "yes: until `idlewood bag release`".to_owned()));
    }
    if !request.after.is_empty() {
        pairs.push(("after", request.after.join(", ")));
    }
    pairs.extend(request.max_running.map(|most| ("at once", output::count(most, "task"))));
    if request.priority != 0 {
        pairs.push(("priority", request.priority.to_string()));
    }
    if let Some(codes) = &request.retry_on {
        let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
        pairs.push(("tried again on", codes.join(", ")));
    }
    pairs.extend(request.notify.as_ref().map(|notify| ("at the end", notify.command.clone())));
    pairs.extend(request.stewards.map(|stewards| ("stewards", stewards.to_string())));
    if request.keep_results {
        pairs.push(("results", "kept by the machines that keep the bag, too".to_owned()));
    }
    if request.deterministic {
        pairs.push(("deterministic", "yes".to_owned()));
    }
    if request.native {
        pairs.push(("native", "yes: where owners let native programs run".to_owned()));
    }
    pairs.push(("success codes", codes.join(", ")));
    pairs.push((
        "work",
        request.work_mops.map_or("to be measured".to_owned(), |work| format!("{} Mop", output::number(work))),
    ));
    pairs.push(("predicted end", forecast::forecast(context, request)));
    pairs.push((
        "upload",
        format!("{} in {}", output::bytes(plan.bytes()), output::count(plan.files.len() as u64, "file")),
    ));
    let comes_later = |endless: &EndlessRequest| matches!(endless.source, Source::Lines | Source::Files);
    let previewed = if request.endless.as_ref().is_some_and(comes_later) { 0 } else { PREVIEW_TASKS };
    for index in 0..request.tasks.min(previewed) {
        let args: Vec<String> = request.args.iter().map(|arg| submit::fill(arg, index, request)).collect();
        let text = usize::try_from(index).ok().and_then(|index| request.entries.get(index)).map(|entry| &entry.text);
        let entry = text.map_or_else(String::new, |text| format!("entry {text:?}, "));
        pairs.push(("task", format!("{index}: {entry}arguments {args:?}")));
    }
    if request.tasks > PREVIEW_TASKS && request.endless.is_none() {
        pairs.push(("", format!("and {} more", request.tasks - PREVIEW_TASKS)));
    }
    let pairs: Vec<_> = pairs.into_iter().map(|(name, value)| (name, output::printable(&value))).collect();
    output::pairs(&mut out, &pairs)?;
    out.flush()
}
