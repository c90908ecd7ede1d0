//! `idlewood store`: inspecting a state directory's store while its agent does not run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use idlewood_api::client::Client;
use idlewood_scheduler::{Record, RecordError};
use idlewood_store::{Inspection, StateLock, StoreError};
use serde::Serialize;
use serde_json::{Value, json};

use super::context::{Context, FAILURE};
use crate::output::{self, Format};

/// An agent ends within this time, or something is wrong: more than it promises.
const END_WAIT: Duration = Duration::from_secs(30);
const END_LOOK: Duration = Duration::from_millis(100);
/// A wait is told once it has taken so long.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// The verbs under `store`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum StoreCommand {
    /// Verify every record on disk, and tell how many there are and what they take; the agent must not run
    Check,
    /// Print all records as one JSON value; the agent must not run
    Export {
        /// Write them to this file instead
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
}

/// The result of a check.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Report {
    sound: bool,
    /// By kind.
    records: BTreeMap<&'static str, Tally>,
    /// Records whose version or checksum is wrong.
    damaged: u64,
    /// Sound records that this idlewood cannot decode.
    unreadable: u64,
    /// Records that a newer idlewood wrote.
    newer: u64,
    /// Acknowledged commits that are gone.
    commits_lost: u64,
    size_bytes: u64,
    live_bytes: u64,
    /// Damage in the store's files.
    flaws: Vec<String>,
    set_aside: Vec<PathBuf>,
    /// The remedy; null if nothing is wrong.
    advice: Option<String>,
}

/// Number and bytes of records.
#[derive(Clone, Copy, Debug, Default, Serialize, schemars::JsonSchema)]
pub(super) struct Tally {
    count: u64,
    bytes: u64,
}

pub(super) fn run(context: &Context, command: &StoreCommand) -> anyhow::Result<ExitCode> {
    if !context.state_dir.exists() {
        anyhow::bail!("there is no state directory {}: name another with --state-dir", context.state_dir.display());
    }
    context.act_as_owner()?;
    let lock = lock(context)?;
    let inspection = idlewood_store::inspect(&lock)?;
    match command {
        StoreCommand::Check => check(context, inspection),
        StoreCommand::Export { to } => export(&inspection, to.as_ref()),
    }
}

/// The lock of the state directory. An agent that does not answer is ending, as after `finish`, or starting: that is waited for.
fn lock(context: &Context) -> anyhow::Result<StateLock> {
    let begin = Instant::now();
    let mut is_told = false;
    loop {
        let error = match StateLock::acquire(&context.state_dir) {
            Ok(lock) => return Ok(lock),
            Err(error @ StoreError::Locked { .. }) if begin.elapsed() < END_WAIT => error,
            Err(error) => return Err(error.into()),
        };
        if Client::open(&context.state_dir).and_then(|client| client.status()).is_ok() {
            return Err(anyhow::Error::from(error).context("its agent runs: `idlewood finish` ends it"));
        }
        if !is_told && begin.elapsed() >= TOLD_AFTER && context.format == Format::Text {
            is_told = true;
            output::notice("waiting for the agent to end; Ctrl-C ends the wait alone")?;
        }
        thread::sleep(END_LOOK);
    }
}

fn check(context: &Context, inspection: Inspection) -> anyhow::Result<ExitCode> {
    let report = report(inspection);
    match context.format {
        Format::Json => output::json(&report)?,
        Format::Text => print(&report)?,
    }
    Ok(if report.sound { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
}

fn report(inspection: Inspection) -> Report {
    let mut report = Report {
        sound: false,
        records: BTreeMap::new(),
        damaged: inspection.damaged.len() as u64,
        unreadable: 0,
        newer: 0,
        commits_lost: inspection.commits_lost,
        size_bytes: inspection.size_bytes,
        live_bytes: inspection.live_bytes,
        flaws: inspection.flaws,
        set_aside: inspection.set_aside,
        advice: None,
    };
    for (key, value) in &inspection.records {
        match Record::decode(value) {
            Ok(record) if record.key().to_bytes() == *key => {
                let tally = report.records.entry(kind(&record)).or_default();
                tally.count += 1;
                tally.bytes += (key.len() + value.len()) as u64;
            }
            Ok(_) | Err(RecordError::Malformed(_)) => report.unreadable += 1,
            Err(RecordError::Version(_)) => report.newer += 1,
        }
    }
    report.advice = advice(&report).map(str::to_owned);
    report.sound = report.advice.is_none();
    report
}

fn advice(report: &Report) -> Option<&'static str> {
    if report.newer > 0 {
        Some("a newer idlewood wrote these records: update this one")
    } else if report.damaged + report.unreadable > 0 {
        Some(
            "`idlewood store export` saves what is sound; start the agent: it goes on without the damaged records, and the \
             grid issues again what it held",
        )
    } else if report.commits_lost > 0 {
        Some(
            "the disk or its cache lost what was synced: check the disk; start the agent: it keeps what is damaged under \
             another name and goes on with what is there",
        )
    } else if !report.flaws.is_empty() {
        Some(
            "nothing is lost, since all is there twice: start the agent, which keeps what is damaged under another name and \
             writes it anew; check the disk",
        )
    } else {
        None
    }
}

fn kind(record: &Record) -> &'static str {
    match record {
        Record::Incarnation(_) => "incarnation",
        Record::Held { .. } => "held",
        Record::Outbox { .. } => "outbox",
        Record::Bag { .. } => "bag",
        Record::Placed { .. } => "placed",
        Record::Former { .. } => "former",
        Record::Reputation { .. } => "reputation",
        Record::Failures { .. } => "failures",
        Record::Checkpoint { .. } => "checkpoint",
        Record::Done { .. } => "done",
        Record::Stewards { .. } => "stewards",
        Record::Kept { .. } => "kept",
        Record::Obeyed { .. } => "obeyed",
    }
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut pairs = vec![("store", if report.sound { "sound".to_owned() } else { "damaged".to_owned() })];
    for flaw in &report.flaws {
        pairs.push(("why", output::printable(flaw)));
    }
    for (kind, tally) in &report.records {
        pairs.push((kind, format!("{}, {}", output::count(tally.count, "record"), output::bytes(tally.bytes))));
    }
    for (what, count) in [("damaged", report.damaged), ("unreadable", report.unreadable), ("newer", report.newer)] {
        if count > 0 {
            pairs.push((what, output::count(count, "record")));
        }
    }
    if report.commits_lost > 0 {
        pairs.push(("lost", output::count(report.commits_lost, "acknowledged commit")));
    }
    pairs.push((
        "size",
        format!("{} on disk, of which {} live", output::bytes(report.size_bytes), output::bytes(report.live_bytes)),
    ));
    for path in &report.set_aside {
        pairs.push(("set aside", format!("{} (remove it when it is of no use)", path.display())));
    }
    if let Some(advice) = &report.advice {
        pairs.push(("to do", advice.clone()));
    }
    output::pairs(&mut out, &pairs)
}

/// JSON output of `store export`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Exported {
    /// Each with its `key`, and its content as `record`, or as `bytes` with the `error` why it cannot be read.
    records: Vec<Value>,
    damaged_keys: Vec<String>,
    commits_lost: u64,
}

fn export(inspection: &Inspection, to: Option<&PathBuf>) -> anyhow::Result<ExitCode> {
    let records: Vec<Value> = inspection.records.iter().map(|(key, value)| exported(key, value)).collect();
    let damaged: Vec<String> = inspection.damaged.iter().map(hex::encode).collect();
    let all = Exported { records, damaged_keys: damaged, commits_lost: inspection.commits_lost };
    match to {
        None => output::json(&all)?,
        Some(path) => {
            let failed = || format!("cannot write {}: choose another file", path.display());
            let mut file = BufWriter::new(File::create(path).with_context(failed)?);
            serde_json::to_writer(&mut file, &all).with_context(failed)?;
            writeln!(file).and_then(|()| file.flush()).with_context(failed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A record's key and content: as JSON if it decodes, else as bytes.
fn exported(key: &[u8], value: &[u8]) -> Value {
    let key = hex::encode(key);
    let content = Record::decode(value).map_err(|error| error.to_string()).and_then(|record| {
        ciborium::Value::serialized(&record).map_err(|error| error.to_string()).map(|content| readable(&content))
    });
    match content {
        Ok(content) => json!({ "key": key, "record": content }),
        Err(error) => json!({ "key": key, "bytes": hex::encode(value), "error": error }),
    }
}

/// CBOR as JSON; byte strings, which are ids, as lower-case hex.
fn readable(value: &ciborium::Value) -> Value {
    match value {
        ciborium::Value::Bytes(bytes) => Value::String(hex::encode(bytes)),
        ciborium::Value::Array(values) => values.iter().map(readable).collect(),
        ciborium::Value::Map(entries) => {
            let name = |key: &ciborium::Value| match readable(key) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            Value::Object(entries.iter().map(|(key, value)| (name(key), readable(value))).collect())
        }
        ciborium::Value::Integer(number) => {
            let number = i128::from(*number);
            u64::try_from(number).map(Value::from).unwrap_or_else(|_| json!(number as f64))
        }
        ciborium::Value::Float(number) => json!(number),
        ciborium::Value::Text(text) => Value::String(text.clone()),
        ciborium::Value::Bool(truth) => Value::Bool(*truth),
        ciborium::Value::Tag(_, value) => readable(value),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A store that idlewood wrote when its records were of version 1.
    fn old_store() -> (tempfile::TempDir, StateLock) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/store-v1");
        std::fs::create_dir(dir.path().join("store")).expect("our directory");
        for file in ["store.mark", "store/db", "store/conf"] {
            std::fs::copy(fixture.join(file), dir.path().join(file)).expect("a committed file");
        }
        let lock = StateLock::acquire(dir.path()).expect("nobody has it");
        (dir, lock)
    }

    /// The guide looks at the store as soon as `status` fails, while the agent has still to close it.
    #[test]
    fn an_agent_that_is_ending_is_waited_for() {
        let (dir, held) = old_store();
        let (state_dir, config) = (dir.path().to_owned(), dir.path().join("config.toml"));
        let context = Context { state_dir, config, format: Format::Json, is_verbose: false };
        let ending = thread::spawn(move || {
            thread::sleep(Duration::from_secs(1));
            drop(held);
        });
        assert_eq!(run(&context, &StoreCommand::Check).expect("it has ended"), ExitCode::SUCCESS);
        ending.join().expect("it does not panic");
    }

    #[test]
    fn a_store_of_version_1_is_read_in_full() {
        let (_dir, lock) = old_store();
        let inspection = idlewood_store::inspect(&lock).expect("it is readable");
        assert!(inspection.records.iter().all(|(_, value)| value[0] == 1), "it is no old store");
        let mut found: Vec<Value> = inspection.records.iter().map(|(key, value)| exported(key, value)).collect();
        assert!(found.iter().all(|record| record["error"].is_null()), "{found:?}");
        // The records that idlewood of that time was told to write.
        let result = |index: u64, success: bool| {
            // Index, attempt, output, its bytes, work in Mop; success is the default.
            let mut result = json!({ "i": index, "t": 1, "o": "09".repeat(32), "b": 12, "w": 49.5 });
            if !success {
                result["s"] = json!(false);
            }
            result
        };
        let done = found.pop().expect("a record")["record"]["Placed"].clone();
        assert_eq!((&done["bag"], &done["executor"]["incarnation"]), (&json!("11".repeat(32)), &json!(7)));
        let outbox = &found.pop().expect("a record")["record"]["Outbox"];
        assert_eq!(outbox["result"], result(8, true));
        assert_eq!(found.pop().expect("a record")["record"]["Incarnation"], json!(1_790_000_000_000_u64));
        let held = &found.pop().expect("a record")["record"]["Held"];
        assert_eq!((&held["bag"]["n"], &held["attempt"]), (&json!(10), &json!(2)));
        for (index, success) in [(1, false), (0, true)] {
            assert_eq!(found.pop().expect("a record")["record"]["Done"]["result"], result(index, success));
        }
        let bags: Vec<_> = found.iter().map(|bag| &bag["record"]["Bag"]).collect();
        assert_eq!((bags[0]["retries_max"].as_u64(), bags[0]["closed"].is_null()), (Some(3), true));
        assert_eq!(bags[1]["closed"][0], "Cancelled");

        let report = report(inspection);
        assert!(report.sound, "{report:?}");
        let counts: Vec<_> = report.records.iter().map(|(kind, tally)| (*kind, tally.count)).collect();
        assert_eq!(counts, [("bag", 2), ("done", 2), ("held", 1), ("incarnation", 1), ("outbox", 1), ("placed", 1)]);
    }

    #[test]
    fn every_fault_is_reported_with_a_remedy() {
        let record = Record::Incarnation(3);
        let (key, value) = (record.key().to_bytes(), record.encode());
        let with = |change: fn(&mut Inspection)| {
            let mut inspection = Inspection { records: vec![(key.clone(), value.clone())], ..Inspection::default() };
            change(&mut inspection);
            report(inspection)
        };
        let sound = with(|_| {});
        assert!(sound.sound && sound.advice.is_none());
        let damaged = with(|inspection| inspection.damaged.push(b"h".to_vec()));
        assert!(!damaged.sound && damaged.advice.is_some_and(|advice| advice.contains("export")));
        let newer = with(|inspection| inspection.records[0].1[0] = 200);
        assert!(!newer.sound && newer.newer == 1 && newer.advice.is_some_and(|advice| advice.contains("update")));
        let elsewhere = with(|inspection| inspection.records[0].0 = b"h".to_vec());
        assert_eq!((elsewhere.sound, elsewhere.unreadable), (false, 1));
        let nonsense = with(|inspection| inspection.records[0].1.truncate(2));
        assert_eq!((nonsense.sound, nonsense.unreadable), (false, 1));
        assert!(!with(|inspection| inspection.commits_lost = 1).sound);
        let healed = with(|inspection| inspection.flaws.push("the database: corrupt".to_owned()));
        assert!(!healed.sound && healed.advice.is_some_and(|advice| advice.contains("nothing is lost")));
    }
}
