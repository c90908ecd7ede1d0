//! Where tasks come from: numbers, lines, tables, files, and lists of which each combination is a task.
//!
//! A task's entry is one text. Where it has several fields, they stand in it one after the other with a separator in between that
//! occurs in none of them, so that `{}` is all of them and `{1}` or `{name}` one.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use idlewood_trust::manifest::Fields;
use idlewood_units::TASKS_MAX;

use super::error::SubmitError;
use super::lists::{List, Lists};
use super::options::Options;

/// What may stand between two fields; the first that occurs in none of them does.
const SEPARATORS: [&str; 6] = [" ", "\t", ",", ";", "|", "\u{1f}"];

/// The entries of all tasks, as texts, and how they are cut into fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub(super) texts: Vec<String>,
    pub(super) fields: Option<Fields>,
}

/// The entries that options other than a pattern ask for; `None` if they ask for none.
pub(super) fn sweep(options: &Options, stdin: &mut impl io::Read) -> Result<Option<Swept>, SubmitError> {
    let plain = |texts| Swept { texts, fields: None };
    Ok(Some(if let Some(array) = &options.array {
        let Some(numbers) = array.numbers() else {
            return refused("an array without an end is for endless bags: add --endless, or say where it ends");
        };
        plain(numbers.iter().map(|number| number.to_string()).collect())
    } else if let Some(path) = &options.each_line {
        let texts = lines(path, stdin)?;
        match &options.colsep {
            Some(separator) => columns(path, texts, separator)?,
            None => plain(texts),
        }
    } else if let Some(path) = &options.csv {
        csv(path, stdin)?
    } else if let Some(path) = &options.from_json {
        json(path, stdin)?
    } else if let Some(Lists(lists)) = &options.entries {
        product(lists, stdin)?
    } else {
        return Ok(None);
    }))
}

fn refused<T>(sentence: impl fmt::Display) -> Result<T, SubmitError> {
    Err(SubmitError::Value(sentence.to_string()))
}

fn read(what: &'static str, path: &Path, stdin: &mut impl io::Read) -> Result<String, SubmitError> {
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        stdin.read_to_string(&mut text)
    } else {
        File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|source| SubmitError::File { what, path: path.to_owned(), source })?;
    Ok(text)
}

fn lines(path: &Path, stdin: &mut impl io::Read) -> Result<Vec<String>, SubmitError> {
    let text = read("lines of", path, stdin)?;
    let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(SubmitError::NoTask(format!("{} has no line", path.display())));
    }
    Ok(lines)
}

/// Lines with columns.
fn columns(path: &Path, texts: Vec<String>, separator: &str) -> Result<Swept, SubmitError> {
    let separator = separator.replace("\\t", "\t");
    if separator.is_empty() {
        return refused("--colsep cannot be empty: write for example --colsep , or --colsep '\\t'");
    }
    let count = |text: &String| text.split(&separator).count();
    let columns = texts.first().map_or(1, count);
    if let Some(other) = texts.iter().find(|text| count(text) != columns) {
        let (path, found) = (path.display(), count(other));
        return refused(format!(
            "{path}: {other:?} has {found} columns, the first line has {columns}; a table with quotes is read by --csv"
        ));
    }
    Ok(Swept { texts, fields: Some(Fields { separator, names: Vec::new() }) })
}

/// A table whose first line has the names of its columns.
fn csv(path: &Path, stdin: &mut impl io::Read) -> Result<Swept, SubmitError> {
    let text = read("table", path, stdin)?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let wrong = |error: csv::Error| SubmitError::Value(format!("{}: {error}", path.display()));
    let names: Vec<String> = reader.headers().map_err(wrong)?.iter().map(str::to_owned).collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        rows.push(record.map_err(wrong)?.iter().map(str::to_owned).collect());
    }
    if rows.is_empty() {
        return Err(SubmitError::NoTask(format!("{} has no line below the names of its columns", path.display())));
    }
    joined(rows, names)
}

/// A list of values, or values one after the other: texts and numbers, lists with fields, or objects with fields by name.
fn json(path: &Path, stdin: &mut impl io::Read) -> Result<Swept, SubmitError> {
    let text = read("JSON", path, stdin)?;
    let wrong = |why: String| SubmitError::Value(format!("{}: {why}", path.display()));
    let mut values = Vec::new();
    for value in serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>() {
        values.push(value.map_err(|error| wrong(format!("it is no JSON, or not all of it: {error}")))?);
    }
    if let [serde_json::Value::Array(elements)] = &mut values[..] {
        values = std::mem::take(elements);
    }
    let Some(first) = values.first() else {
        return Err(SubmitError::NoTask(format!("{} has no value", path.display())));
    };
    let names: Vec<String> = first.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default();
    let row = |(number, value): (usize, &serde_json::Value)| match value {
        serde_json::Value::Object(object) if first.is_object() => {
            let known = names.iter().map(|name| {
                object
                    .get(name)
                    .map(shown)
                    .ok_or_else(|| wrong(format!("value {} has no {name:?}, as the first has", number + 1)))
            });
            match object.keys().find(|key| !names.contains(key)) {
                Some(key) => Err(wrong(format!("value {} has {key:?}, and the first has not", number + 1))),
                None => known.collect(),
            }
        }
        serde_json::Value::Array(elements) if first.is_array() => Ok(elements.iter().map(shown).collect()),
        serde_json::Value::Object(_) | serde_json::Value::Array(_) => Err(wrong(format!(
            "value {} is of another kind than the first: use objects, lists or plain values for all",
            number + 1
        ))),
        plain if !first.is_object() && !first.is_array() => Ok(vec![shown(plain)]),
        _ => Err(wrong(format!(
            "value {} is of another kind than the first: use objects, lists or plain values for all",
            number + 1
        ))),
    };
    let rows: Vec<Vec<String>> = values.iter().enumerate().map(row).collect::<Result<_, _>>()?;
    if let Some(number) = rows.iter().position(|row| row.len() != rows[0].len()) {
        return Err(wrong(format!(
            "value {} has {} fields, the first has {}",
            number + 1,
            rows[number].len(),
            rows[0].len()
        )));
    }
    joined(rows, names)
}

/// A value as a task reads it: a text without its quotes.
fn shown(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Each combination, that of the last list changing first.
fn product(lists: &[List], stdin: &mut impl io::Read) -> Result<Swept, SubmitError> {
    let mut all = Vec::new();
    for list in lists {
        let values = match list {
            List::Values(values) => values.clone(),
            List::File(path) => lines(path, stdin)?,
        };
        if values.is_empty() {
            return Err(SubmitError::NoTask("nothing follows `:::`".to_owned()));
        }
        all.push(values);
    }
    if let [values] = &mut all[..] {
        return Ok(Swept { texts: std::mem::take(values), fields: None });
    }
    // Before anything is built.
    let tasks = all.iter().fold(1_u64, |tasks, values| tasks.saturating_mul(values.len() as u64));
    if tasks > TASKS_MAX {
        let sizes: Vec<String> = all.iter().map(|values| values.len().to_string()).collect();
        return refused(format!("{} are {tasks} tasks, too many: {TASKS_MAX} at most", sizes.join(" x ")));
    }
    let mut rows: Vec<Vec<String>> = vec![Vec::new()];
    for values in &all {
        let longer = |row: &Vec<String>| {
            let row = row.clone();
            values.iter().map(move |value| [&row[..], std::slice::from_ref(value)].concat()).collect::<Vec<_>>()
        };
        rows = rows.iter().flat_map(longer).collect();
    }
    joined(rows, Vec::new())
}

/// Rows as texts.
fn joined(rows: Vec<Vec<String>>, names: Vec<String>) -> Result<Swept, SubmitError> {
    let is_free = |separator: &&&str| !rows.iter().flatten().any(|value| value.contains(**separator));
    let Some(separator) = SEPARATORS.iter().find(is_free) else {
        return refused(
            "values of the sweep contain space, tab, comma, semicolon, bar and unit separator: leave one of them out",
        );
    };
    let fields = Fields { separator: (*separator).to_owned(), names };
    if let Some(flaw) = fields.flaw() {
        return refused(flaw);
    }
    Ok(Swept { texts: rows.into_iter().map(|row| row.join(separator)).collect(), fields: Some(fields) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &Options, stdin: &str) -> Result<Swept, String> {
        let swept = sweep(options, &mut stdin.as_bytes()).map_err(|error| error.to_string())?;
        Ok(swept.expect("a source"))
    }

    fn lists(lists: &[&[&str]]) -> Options {
        let values = |list: &&[&str]| List::Values(list.iter().map(|text| (*text).to_owned()).collect());
        Options { entries: Some(Lists(lists.iter().map(values).collect())), ..Options::default() }
    }

    #[test]
    fn lists_are_multiplied() {
        let swept = of(&lists(&[&["a", "b"], &["1", "2"], &["x"]]), "").expect("tasks");
        assert_eq!(swept.texts, ["a 1 x", "a 2 x", "b 1 x", "b 2 x"]);
        assert_eq!(swept.fields.expect("fields").separator, " ");
        let spaced = of(&lists(&[&["a b"], &["1\t2", "3"]]), "").expect("tasks");
        assert_eq!(spaced.texts, ["a b,1\t2", "a b,3"]);
        assert_eq!(of(&lists(&[&["a b"]]), "").expect("tasks").fields, None, "one list has no fields");
        assert!(of(&lists(&[&["a"], &[]]), "").expect_err("none").contains("nothing follows"));
        let many: Vec<&str> = vec!["x"; 1_001];
        let error = of(&lists(&[&many, &many]), "").expect_err("too many");
        assert!(error.starts_with("1001 x 1001 are 1002001 tasks"), "{error}");
        assert!(
            of(&lists(&[&[" \t,;|\u{1f}"], &["a"]]), "").expect_err("no separator").contains("leave one of them out")
        );
    }

    #[test]
    fn lists_of_files_have_their_lines() {
        let entries = Some(Lists(vec![List::File("-".into()), List::Values(vec!["1".to_owned(), "2".to_owned()])]));
        let options = Options { entries, ..Options::default() };
        assert_eq!(of(&options, "a\n\nb\n").expect("tasks").texts, ["a 1", "a 2", "b 1", "b 2"]);
        assert!(of(&options, "\n").expect_err("empty").contains("has no line"));
    }

    #[test]
    fn lines_are_cut_into_columns() {
        let options = |separator: &str| Options {
            each_line: Some("-".into()),
            colsep: Some(separator.to_owned()),
            ..Options::default()
        };
        let swept = of(&options("\\t"), "a\t1\nb c\t2\n").expect("tasks");
        assert_eq!(swept.fields.expect("fields").of(&swept.texts[1], "1"), Some("b c"));
        let error = of(&options(","), "a,1\nb\n").expect_err("a column is missing");
        assert!(error.contains("\"b\" has 1 columns, the first line has 2"), "{error}");
        assert!(of(&options(""), "a\n").expect_err("no separator").contains("cannot be empty"));
    }

    #[test]
    fn tables_have_names() {
        let options = Options { csv: Some("-".into()), ..Options::default() };
        let swept = of(&options, "seed, rate\n1,0.5\n2,\"0,25\"\n").expect("tasks");
        assert_eq!(swept.texts, ["1 0.5", "2 0,25"]);
        let fields = swept.fields.expect("fields");
        assert_eq!(fields.of(&swept.texts[1], "rate"), Some("0,25"));
        assert!(of(&options, "seed,rate\n1\n").expect_err("a column is missing").contains("2 fields"));
        assert!(of(&options, "seed\n").expect_err("no line").starts_with("no task: "));
    }

    #[test]
    fn json_has_names_or_numbers() {
        let options = Options { from_json: Some("-".into()), ..Options::default() };
        let objects = of(&options, r#"[{"seed": 1, "name": "a b"}, {"name": "c", "seed": [2, true]}]"#).expect("tasks");
        let fields = objects.fields.expect("fields");
        assert_eq!(fields.of(&objects.texts[0], "name"), Some("a b"));
        assert_eq!(fields.of(&objects.texts[1], "seed"), Some("[2,true]"));
        assert_eq!(of(&options, "[[1, 2], [3, 4]]").expect("tasks").texts, ["1 2", "3 4"]);
        assert_eq!(of(&options, "1 \"x\"\n2.5").expect("lines").texts, ["1", "x", "2.5"]);
        for (text, wanted) in [
            ("[{\"a\": 1}, {\"b\": 1}]", "value 2 has \"b\", and the first has not"),
            ("[{\"a\": 1, \"b\": 2}, {\"a\": 1}]", "value 2 has no \"b\""),
            ("[{\"a\": 1}, [1]]", "value 2 is of another kind"),
            ("[1, {}]", "value 2 is of another kind"),
            ("[[1, 2], [1]]", "value 2 has 1 fields, the first has 2"),
            ("[]", "no task: "),
            ("", "no task: "),
            ("[1, ", "EOF"),
        ] {
            let error = of(&options, text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
