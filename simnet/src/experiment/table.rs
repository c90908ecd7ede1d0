//! The table of an experiment: a row of CSV for each job, on disk after each of them.
//!
//! Rows are appended, so that an interruption leaves at most one unreadable row; when there are new columns, and at the
//! end of a run, the file is replaced as a whole. When the same command is run again, rows whose key is that of a job
//! are kept and not run again: a key identifies the build, all settings and the seed. Other rows are put aside in
//! `…-before.csv`, and taken back when they are asked for again; that file has several tables, one below the other, if
//! their columns differ.
//!
//! Before its key each row has a checksum (`check`) over all its other cells and the names of their columns: after a
//! change of a value, or of the heading, its job is run again.
//!
//! Quantities measured many times in a job are in tables of their own, with several rows for a job ([`Samples`]), kept
//! and put aside together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::program::commit;

/// Labels that tell cases apart; each experiment uses some of them. Rows begin with these, followed by `seeds`.
pub const LABELS: [&str; 13] = [
    "nodes",
    "failures",
    "bag_interval_s",
    "update_limit_bytes_s",
    "rule",
    "bound",
    "machines",
    "sizes",
    "load",
    "user_percent",
    "user",
    "variant",
    "owners",
];
/// Names and values of a case's labels.
pub(crate) type Labels = Vec<(&'static str, Value)>;
/// Quantities by name, in the order of columns.
pub(crate) type Values = Vec<(String, f64)>;

/// The column before the key.
const CHECK: &str = "check";

/// The values of one job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) key: String,
    pub(crate) labels: Labels,
    pub(crate) seed: u64,
    /// Trace hash of the simulation, in hexadecimal.
    pub(crate) trace_hash: String,
    pub(crate) values: Values,
}

/// All rows, by job.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    pub(crate) lines: Vec<Option<Line>>,
    /// Names of values, in the order of the file's columns.
    names: Vec<String>,
}

impl Table {
    /// Reads the rows of these jobs (key, labels and seed of each) from earlier runs, also those put aside, and puts
    /// all other rows aside.
    pub(crate) fn open(path: PathBuf, jobs: Vec<(String, Labels, u64)>) -> Result<Self, String> {
        let earlier = Earlier::read(&path)?;
        let texts = earlier.texts.iter();
        let mut known: BTreeMap<String, (String, Values)> = texts.flat_map(|text| text_lines(text)).collect();
        let lines = jobs.into_iter().map(|(key, labels, seed)| {
            let (trace_hash, values) = known.remove(&key)?;
            Some(Line { key, labels, seed, trace_hash, values })
        });
        let mut table = Self { path, lines: lines.collect(), names: Vec::new() };
        table.names = table.names();
        let used: BTreeSet<&str> = table.lines.iter().flatten().map(|line| line.key.as_str()).collect();
        earlier.put_aside(&used, || table.write())?;
        Ok(table)
    }

    /// Writes all rows, in the order of the jobs.
    pub(crate) fn write(&self) -> Result<(), String> {
        replace(&self.path, &self.to_csv(&self.names()))
    }

    /// Adds the values of a job, and writes them.
    pub(crate) fn insert(&mut self, job: usize, line: Line) -> Result<(), String> {
        let is_known = |(name, _): &(String, f64)| self.names.contains(name);
        let text = (!self.names.is_empty() && line.values.iter().all(is_known))
            .then(|| row(&heading(&line.labels, &self.names), &line, &self.names));
        self.lines[job] = Some(line);
        if let Some(text) = text {
            return append(&self.path, &text);
        }
        self.names = self.names();
        self.write()
    }

    /// Names of all values, in their first order.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.lines.iter().flatten().flat_map(|line| &line.values) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    fn to_csv(&self, names: &[String]) -> String {
        let lines = || self.lines.iter().flatten();
        let heading = heading(lines().next().map_or(&[], |line| &line.labels), names);
        let rows = lines().map(|line| row(&heading, line, names));
        [format!("{heading}\n")].into_iter().chain(rows).collect()
    }
}

fn heading(labels: &[(&'static str, Value)], names: &[String]) -> String {
    let labels = labels.iter().map(|(name, _)| *name).chain(["seed", "commit", "trace_hash"]);
    labels.chain(names.iter().map(String::as_str)).chain([CHECK, "key"]).collect::<Vec<_>>().join(",")
}

/// The text of a row with these columns.
fn row(heading: &str, line: &Line, names: &[String]) -> String {
    let mut cells = String::new();
    for (_, value) in &line.labels {
        match value {
            Value::String(word) => cells += word,
            number => cells += &number.to_string(),
        }
        cells.push(',');
    }
    let (seed, commit, trace_hash) = (line.seed, commit(), &line.trace_hash);
    write!(cells, "{seed},{commit},{trace_hash}").expect("text takes every write");
    for name in names {
        cells.push(',');
        if let Some((_, value)) = line.values.iter().find(|(known, _)| known == name) {
            write!(cells, "{value}").expect("text takes every write");
        }
    }
    checked(heading, &cells, &line.key) + "\n"
}

/// Tables left by earlier runs: the ones put aside, then the table itself.
struct Earlier {
    before: PathBuf,
    texts: [String; 2],
}

impl Earlier {
    fn read(path: &Path) -> Result<Self, String> {
        let mut before = path.with_extension("").into_os_string();
        before.push("-before.csv");
        let before = PathBuf::from(before);
        let texts = [read(&before)?, read(path)?];
        Ok(Self { before, texts })
    }

    /// Puts all rows aside except those with these keys, which `write` writes into the table.
    fn put_aside(&self, used: &BTreeSet<&str>, write: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let aside = others(&self.texts, used);
        // An interruption leaves every row in one of the files, or in both.
        if !aside.is_empty() {
            replace(&self.before, &others(&self.texts, &BTreeSet::new()))?;
        }
        write()?;
        if !aside.is_empty() {
            replace(&self.before, &aside)
        } else if !self.texts[0].is_empty() {
            std::fs::remove_file(&self.before).map_err(|error| unwritable(&self.before, &error))
        } else {
            Ok(())
        }
    }
}

/// A table with several rows for each job: its path and columns, the last of which are check and key; and the jobs'
/// rows.
pub(crate) struct Samples {
    path: PathBuf,
    heading: &'static str,
    earlier: Earlier,
    /// Rows by key, which ends each.
    known: BTreeMap<String, Vec<String>>,
}

impl Samples {
    /// Reads rows of earlier runs, also those put aside, and changes nothing yet.
    pub(crate) fn open(path: PathBuf, heading: &'static str) -> Result<Self, String> {
        let earlier = Earlier::read(&path)?;
        let mut known = BTreeMap::new();
        for text in &earlier.texts {
            let mut of_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
            let mut is_ours = false;
            for line in text.lines() {
                if is_heading(line) {
                    is_ours = line == heading;
                } else if is_ours && let Some(key) = key_of(heading, line) {
                    of_text.entry(key.to_owned()).or_default().push(line.to_owned());
                }
            }
            known.extend(of_text);
        }
        Ok(Self { path, heading, earlier, known })
    }

    /// The cells of a job's rows.
    pub(crate) fn lines(&self, key: &str) -> Vec<Vec<&str>> {
        self.known.get(key).into_iter().flatten().map(|line| line.split(',').collect()).collect()
    }

    /// Puts rows of other jobs aside. The table then has the rows of these jobs, in their order, or is removed if they
    /// have none.
    pub(crate) fn put_aside(&self, keys: &[&str]) -> Result<(), String> {
        let used: BTreeSet<&str> = keys.iter().copied().collect();
        self.earlier.put_aside(&used, || self.write(keys))
    }

    /// Adds the rows of a job, without check and key, and writes them.
    pub(crate) fn insert(&mut self, key: &str, lines: impl IntoIterator<Item = String>) -> Result<(), String> {
        let lines: Vec<String> = lines.into_iter().map(|cells| checked(self.heading, &cells, key)).collect();
        let heading = [self.heading].into_iter().filter(|_| !self.path.exists());
        let text: String = heading.chain(lines.iter().map(String::as_str)).flat_map(|line| [line, "\n"]).collect();
        let is_empty = lines.is_empty();
        self.known.insert(key.to_owned(), lines);
        if is_empty { Ok(()) } else { append(&self.path, &text) }
    }

    /// Writes the rows of these jobs in their order; no file if there are none.
    pub(crate) fn write(&self, keys: &[&str]) -> Result<(), String> {
        let mut lines = keys.iter().filter_map(|key| self.known.get(*key)).flatten().peekable();
        if lines.peek().is_some() {
            let lines = [self.heading].into_iter().chain(lines.map(String::as_str));
            return replace(&self.path, &lines.flat_map(|line| [line, "\n"]).collect::<String>());
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(unwritable(&self.path, &error)),
            _ => Ok(()),
        }
    }
}

/// A file's text; empty if there is no file. Bytes that are not text make one row unreadable, and none of the others.
fn read(path: &Path) -> Result<String, String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

/// The rows of these texts without those with these keys, unreadable ones included. A row that an earlier text has is
/// not repeated. Rows of one heading are together below it.
fn others(texts: &[String], keys: &BTreeSet<&str>) -> String {
    let mut seen = keys.clone();
    let mut tables: Vec<(&str, Vec<&str>)> = Vec::new();
    for text in texts {
        let mut heading = "";
        let mut of_text = BTreeSet::new();
        for line in text.lines() {
            let identity = key_of(heading, line).unwrap_or(line);
            if is_heading(line) {
                heading = line;
            } else if !seen.contains(identity) {
                of_text.insert(identity);
                match tables.iter_mut().find(|(known, _)| *known == heading) {
                    Some((_, lines)) => lines.push(line),
                    None => tables.push((heading, vec![line])),
                }
            }
        }
        seen.append(&mut of_text);
    }
    // Rows without a heading come first.
    tables.sort_by_key(|(heading, _)| !heading.is_empty());
    let headed = tables.iter().flat_map(|(heading, lines)| [heading].into_iter().chain(lines));
    headed.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// The checksum of a row: of name and content of all cells except its own and empty ones, which depend on other rows.
fn check(names: &[&str], cells: &[&str]) -> String {
    let full = names.iter().zip(cells).filter(|(name, cell)| **name != CHECK && !cell.is_empty());
    let text: String = full.map(|(name, cell)| format!("{name}={cell}\n")).collect();
    hex::encode(&blake3::hash(text.as_bytes()).as_bytes()[..4])
}

/// A row of these cells and this key, with its checksum.
fn checked(heading: &str, cells: &str, key: &str) -> String {
    let names: Vec<&str> = heading.split(',').collect();
    let check = check(&names, &format!("{cells},,{key}").split(',').collect::<Vec<_>>());
    format!("{cells},{check},{key}")
}

fn is_heading(line: &str) -> bool {
    line.ends_with(",key")
}

/// The key of a row below a heading; none if it cannot be read.
fn key_of<'a>(heading: &str, line: &'a str) -> Option<&'a str> {
    let names: Vec<&str> = heading.split(',').collect();
    let cells: Vec<&str> = line.split(',').collect();
    read_line(&names, &cells).and_then(|_| cells.last().copied())
}

/// Trace hash and values of a row: the columns between the fixed ones; without a hash column, the last before the
/// checksum. None if the row has been changed.
fn read_line(names: &[&str], cells: &[&str]) -> Option<(String, Values)> {
    if !names.ends_with(&[CHECK, "key"]) || names.len() < 3 || cells.len() != names.len() {
        return None;
    }
    let end = names.len() - 2;
    if cells[end] != check(names, cells) {
        return None;
    }
    let trace = names.iter().position(|name| *name == "trace_hash");
    let first = trace.map_or(end - 1, |trace| trace + 1);
    let read = (first..end).filter(|&column| !cells[column].is_empty());
    let number = |cell: &str| cell.parse::<f64>().ok().filter(|value| value.is_finite());
    let values = read.map(|column| Some((names[column].to_owned(), number(cells[column])?)));
    let trace_hash = trace.map_or(String::new(), |trace| cells[trace].to_owned());
    values.collect::<Option<Values>>().map(|values| (trace_hash, values))
}

/// Trace hashes and values of the rows of a table by key; leaves out unreadable rows.
fn text_lines(text: &str) -> BTreeMap<String, (String, Values)> {
    let mut names: Vec<&str> = Vec::new();
    let mut known = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split(',').collect();
        if is_heading(line) {
            names = cells;
        } else if let (Some(read), Some(key)) = (read_line(&names, &cells), cells.last()) {
            known.insert((*key).to_owned(), read);
        }
    }
    known
}

/// Locks a directory against other processes until the file is dropped.
pub(crate) fn lock(directory: &Path) -> Result<File, String> {
    let path = directory.join(".lock");
    let file = File::create(&path).map_err(|error| unwritable(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let directory = directory.display();
            Err(format!("another simnet works in {directory}: wait for it or give another --out"))
        }
        Err(TryLockError::Error(error)) => Err(unwritable(&path, &error)),
    }
}

/// Replaces a file atomically.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), String> {
    let new = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(|error| {
        // On a full disk half a file would take the remaining space; if it cannot be removed either, the first error
        // says more.
        drop(std::fs::remove_file(&new));
        unwritable(path, &error)
    })
}

/// Appends rows to a file.
fn append(path: &Path, text: &str) -> Result<(), String> {
    let file = File::options().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| unwritable(path, &error))
}

pub(crate) fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("{} cannot be written: {error}; give --out a directory that can", path.display())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(key: &str, seed: u64, values: &[(&str, f64)]) -> Line {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let labels = vec![("nodes", json!(5)), ("failures", json!("none"))];
        Line { key: key.to_owned(), labels, seed, trace_hash: format!("{seed:064x}"), values }
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        // A directory where the file should be.
        let path = std::env::temp_dir().join(format!("idlewood-table-{}", std::process::id()));
        std::fs::create_dir_all(path.join("there")).unwrap();
        assert!(replace(&path.join("there"), "text").unwrap_err().contains("cannot be written"));
        let left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["there"]);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn every_other_line_is_put_aside_once() {
        let (heading, wider) =
            ("nodes,seed,commit,trace_hash,x,check,key", "nodes,seed,commit,trace_hash,x,y,check,key");
        let one = checked(heading, "4,1,abc,f0,0.5", "k1");
        let (torn, other) = (one.replace("0.5", "0.5z"), checked(wider, "4,2,abc,f1,0.5,1", "k2"));
        let texts = [format!("{heading}\n{torn}\n{one}\n"), format!("{heading}\n{one}\n{wider}\n{other}\n")];
        let both = format!("{heading}\n{torn}\n{one}\n{wider}\n{other}\n");
        assert_eq!(others(&texts, &BTreeSet::new()), both);
        // An unreadable row is in no table, so it stays.
        assert_eq!(others(&texts, &BTreeSet::from(["k1", "k2"])), format!("{heading}\n{torn}\n"));
        assert_eq!(others(&[texts[1].clone()], &BTreeSet::from(["k1", "k2"])), "");
    }

    #[test]
    fn all_lines_of_a_job_are_kept_and_put_aside_together() {
        let directory = std::env::temp_dir().join(format!("idlewood-samples-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, before) = (directory.join("x.csv"), directory.join("x-before.csv"));
        let text = |path: &Path| std::fs::read_to_string(path).ok();
        // Of two jobs, one of which has measured the same twice; and a table from before keys.
        let heading = "nodes,value,check,key";
        let of = |cells: &str, key: &str| checked(heading, cells, key) + "\n";
        let (first, second, third) = (of("4,1", "k1").repeat(2), of("4,2", "k2"), of("5,7", "k3"));
        let old = "nodes,value\n4,1\n4,1\n";
        std::fs::write(&path, format!("{old}{heading}\n{first}{second}")).unwrap();
        let open = || Samples::open(path.clone(), heading).unwrap();
        let samples = open();
        let cells: Vec<&str> = first.lines().next().unwrap().split(',').collect();
        assert_eq!(samples.lines("k1"), [cells.clone(), cells]);
        samples.put_aside(&["k2"]).unwrap();
        assert_eq!(text(&path).unwrap(), format!("{heading}\n{second}"));
        assert_eq!(text(&before).unwrap(), format!("{old}{heading}\n{first}"));
        // Rows put aside come back; of rows in both files one copy is enough.
        std::fs::write(&path, format!("{heading}\n{second}{first}")).unwrap();
        let mut samples = open();
        samples.insert("k3", ["5,7".to_owned()]).unwrap();
        assert_eq!(text(&path).unwrap(), format!("{heading}\n{second}{first}{third}"));
        samples.put_aside(&["k1", "k3"]).unwrap();
        assert_eq!(text(&path).unwrap(), format!("{heading}\n{first}{third}"));
        assert_eq!(text(&before).unwrap(), format!("{old}{heading}\n{second}"));
        open().put_aside(&[]).unwrap();
        assert_eq!(text(&path), None, "a table of nobody");
        assert_eq!(text(&before).unwrap(), format!("{old}{heading}\n{second}{first}{third}"));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn written_rows_are_read_again_and_torn_ones_are_not() {
        let lines = vec![
            Some(line("a", 1, &[("x", 0.1), ("y", 1e-7)])),
            None,
            Some(line("c", 3, &[("x", 1.0 / 3.0), ("z", 2.0)])),
        ];
        let table = Table { path: PathBuf::from("none"), lines, names: Vec::new() };
        let text = table.to_csv(&table.names());
        assert!(text.starts_with("nodes,failures,seed,commit,trace_hash,x,y,z,check,key\n5,none,1,"), "{text}");
        let known = text_lines(&text);
        let read = |key: &str| known.get(key).cloned();
        assert_eq!(read("a"), table.lines[0].clone().map(|line| (line.trace_hash, line.values)));
        assert_eq!(read("c"), table.lines[2].clone().map(|line| (line.trace_hash, line.values)));
        let torn = text_lines(&text[..text.len() - 30]);
        assert_eq!(torn.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn lines_are_added_until_there_are_new_columns() {
        let directory = std::env::temp_dir().join(format!("idlewood-added-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("x.csv");
        let jobs = ["a", "b", "c"].map(|key| line(key, 1, &[]));
        let jobs = || jobs.iter().map(|line| (line.key.clone(), line.labels.clone(), line.seed)).collect();
        let mut table = Table::open(path.clone(), jobs()).unwrap();
        let keys = || -> Vec<String> {
            let text = std::fs::read_to_string(&path).unwrap();
            text.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().to_owned()).collect()
        };
        let (a, b, c) = (
            line("a", 1, &[("x", 1.0)]),
            line("b", 1, &[("x", 2.0), ("y", 3.0)]),
            line("c", 1, &[("y", 4.0), ("x", 5.0)]),
        );
        table.insert(1, b).unwrap();
        table.insert(0, a).unwrap();
        assert_eq!(keys(), ["b", "a"], "in the order in which they came");
        assert!(Table::open(path.clone(), jobs()).unwrap().lines[..2].iter().all(Option::is_some));
        assert_eq!(keys(), ["a", "b"]);
        let mut table = Table::open(path.clone(), jobs()).unwrap();
        table.insert(2, line("c", 1, &[("z", 4.0)])).unwrap();
        assert_eq!(keys(), ["a", "b", "c"]);
        table.insert(2, c).unwrap();
        let again = Table::open(path.clone(), jobs()).unwrap();
        assert_eq!(again.lines[2].as_ref().unwrap().values, [("x".to_owned(), 5.0), ("y".to_owned(), 4.0)]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_changed_row_is_refused() {
        let lines = vec![Some(line("a", 1, &[("x", 0.1), ("y", 0.3)])), Some(line("b", 2, &[("x", 0.2), ("z", 0.4)]))];
        let table = Table { path: PathBuf::from("none"), lines, names: Vec::new() };
        let text = table.to_csv(&table.names());
        let keys = |text: &str| text_lines(text).into_keys().collect::<Vec<_>>();
        assert_eq!(keys(&text), ["a", "b"]);
        for (from, to) in
            [(",0.1,", ",0.5,"), (",0.1,", ",NaN,"), (",0.1,", ",,"), ("0.3,", ",0.3"), ("5,none,1,", "6,none,1,")]
        {
            assert!(text.contains(from), "{from} in {text}");
            assert_eq!(keys(&text.replacen(from, to, 1)), ["b"], "{from} to {to}");
        }
        // Only columns count in which a row has a value.
        assert_eq!(keys(&text.replace("x,y,z", "w,y,z")), [""; 0]);
        assert_eq!(keys(&text.replace("x,y,z", "x,y,w")), ["a"]);
        assert_eq!(keys(&text.replace("check,key", "key")), [""; 0]);
        // Nor is a row valid whose value is no number, even with the right checksum.
        let heading = "nodes,seed,commit,trace_hash,x,check,key";
        let of = |value: &str| format!("{heading}\n{}\n", checked(heading, &format!("4,1,abc,f0,{value}"), "k1"));
        assert_eq!(["0.5", "inf", "NaN", "x"].map(|value| text_lines(&of(value)).len()), [1, 0, 0, 0]);
    }
}
