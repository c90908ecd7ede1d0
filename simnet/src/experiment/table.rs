//! The table of an experiment: a line for each job, on the disk after each of them.
//!
//! The file is replaced as a whole, so that an interruption leaves the old one or the new one. When the same is run
//! again, lines whose key is that of a job are kept and not run again: a key names the build, all settings and the
//! seed. A file with any other line is put aside as `…-before.csv`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::job::Values;

/// Names and values of what tells a case apart.
pub(super) type Labels = Vec<(&'static str, Value)>;

/// What one job came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) key: String,
    pub(super) labels: Labels,
    pub(super) seed: u64,
    pub(super) values: Values,
}

/// All lines, by job.
#[derive(Debug)]
pub(super) struct Table {
    path: PathBuf,
    pub(super) lines: Vec<Option<Line>>,
}

impl Table {
    /// Reads what an earlier run has found of these jobs: key, labels and seed of each.
    pub(super) fn open(path: PathBuf, jobs: Vec<(String, Labels, u64)>) -> Result<Self, String> {
        let mut table = Self { path, lines: vec![None; jobs.len()] };
        let text = match std::fs::read_to_string(&table.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(table),
            Err(error) => return Err(format!("{} cannot be read: {error}", table.path.display())),
        };
        let mut known: BTreeMap<String, Values> = text_lines(&text);
        for (line, (key, labels, seed)) in table.lines.iter_mut().zip(jobs) {
            *line = known.remove(&key).map(|values| Line { key, labels, seed, values });
        }
        let is_whole = known.is_empty() && text.lines().count() == table.lines.iter().flatten().count() + 1;
        if !is_whole && text.lines().count() > 1 {
            let name = table.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let aside = table.path.with_file_name(format!("{name}-before.csv"));
            std::fs::copy(&table.path, &aside).map_err(|error| unwritable(&aside, &error))?;
        }
        Ok(table)
    }

    /// Writes all lines there are, in the order of the jobs.
    pub(super) fn write(&self) -> Result<(), String> {
        replace(&self.path, &self.to_csv())
    }

    fn to_csv(&self) -> String {
        let lines = || self.lines.iter().flatten();
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in lines().flat_map(|line| &line.values) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let labels = lines().next().map_or(&[][..], |line| &line.labels);
        let labels: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
        let heading = labels.iter().chain(&["seed", "commit"]).chain(&names).chain(&["key"]);
        let mut text = heading.copied().collect::<Vec<_>>().join(",") + "\n";
        for line in lines() {
            for (_, value) in &line.labels {
                match value {
                    Value::String(word) => text += word,
                    number => text += &number.to_string(),
                }
                text.push(',');
            }
            write!(text, "{},{}", line.seed, super::Plan::commit()).expect("text takes every write");
            for name in &names {
                text.push(',');
                if let Some((_, value)) = line.values.iter().find(|(known, _)| known == name) {
                    write!(text, "{value}").expect("text takes every write");
                }
            }
            writeln!(text, ",{}", line.key).expect("text takes every write");
        }
        text
    }
}

/// The lines of a table by their keys; a line that cannot be read is not one.
fn text_lines(text: &str) -> BTreeMap<String, Values> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let first = names.iter().position(|name| *name == "commit").map_or(names.len(), |commit| commit + 1);
    let mut known = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let (Some(&"key"), true, Some(key)) = (names.last(), cells.len() == names.len(), cells.last()) else {
            continue;
        };
        let last = names.len() - 1;
        let read = names[first..last].iter().zip(&cells[first..last]).filter(|(_, cell)| !cell.is_empty());
        let values = read.map(|(name, cell)| Ok(((*name).to_owned(), cell.parse::<f64>()?)));
        if let Ok(values) = values.collect::<Result<Values, std::num::ParseFloatError>>() {
            known.insert((*key).to_owned(), values);
        }
    }
    known
}

/// Replaces a file as a whole.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), String> {
    let new = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(|error| unwritable(path, &error))
}

pub(super) fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("{} cannot be written: {error}; give --out a directory that can", path.display())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(key: &str, seed: u64, values: &[(&str, f64)]) -> Line {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Line { key: key.to_owned(), labels: vec![("nodes", json!(5)), ("failures", json!("none"))], seed, values }
    }

    #[test]
    fn what_is_written_is_read_again_and_what_is_torn_is_not() {
        let lines = vec![
            Some(line("a", 1, &[("x", 0.1), ("y", 1e-7)])),
            None,
            Some(line("c", 3, &[("x", 1.0 / 3.0), ("z", 2.0)])),
        ];
        let table = Table { path: PathBuf::from("none"), lines };
        let text = table.to_csv();
        assert!(text.starts_with("nodes,failures,seed,commit,x,y,z,key\n5,none,1,"), "{text}");
        let known = text_lines(&text);
        let read = |key: &str| known.get(key).cloned();
        assert_eq!(read("a"), table.lines[0].clone().map(|line| line.values));
        assert_eq!(read("c"), table.lines[2].clone().map(|line| line.values));
        let torn = text_lines(&text[..text.len() - 30]);
        assert_eq!(torn.keys().collect::<Vec<_>>(), ["a"]);
    }
}
