//! Values of a spec file that may be texts, numbers or truth values, and lists of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

/// One list of values: each combination of the values of all lists is a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// After `:::`, or in the spec file.
    Values(Vec<String>),
    /// After `::::`: the lines of a file.
    File(PathBuf),
}

/// All lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists(pub Vec<List>);

impl Lists {
    /// One list of values.
    pub fn of(values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(vec![List::Values(values.into_iter().map(Into::into).collect())])
    }
}

/// A text, a number or a truth value of a spec file, as text.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(&toml::Value::deserialize(deserializer)?).map(Self).map_err(serde::de::Error::custom)
    }
}

fn text(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) | toml::Value::Datetime(_) => {
            Ok(value.to_string())
        }
        toml::Value::Array(_) | toml::Value::Table(_) => {
            Err(format!("{value} is no text, number or truth value: write for example \"a\", 1.5 or true"))
        }
    }
}

/// The values of a table as texts.
pub(super) fn all_texts(table: BTreeMap<String, toml::Value>) -> Result<BTreeMap<String, String>, String> {
    table.into_iter().map(|(key, value)| text(&value).map(|text| (key, text))).collect()
}

/// Texts, numbers and truth values, as texts.
pub(super) fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let scalars = Vec::<Scalar>::deserialize(deserializer)?;
    Ok(scalars.into_iter().map(|Scalar(text)| text).collect())
}

/// A text, a number or a truth value, as text.
pub(super) fn one_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Scalar::deserialize(deserializer).map(|Scalar(text)| Some(text))
}

impl<'de> Deserialize<'de> for Lists {
    /// `["a", 1]`, or lists whose combinations are tasks: `[["a", "b"], [1, 2], { file = "c.txt" }]`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<toml::Value>::deserialize(deserializer)?;
        let is_list = |value: &toml::Value| value.is_array() || value.is_table();
        let lists = if values.iter().any(is_list) {
            values.iter().map(list).collect::<Result<_, _>>()
        } else {
            values.iter().map(text).collect::<Result<_, _>>().map(|values| vec![List::Values(values)])
        };
        lists.map(Self).map_err(serde::de::Error::custom)
    }
}

fn list(value: &toml::Value) -> Result<List, String> {
    let wrong =
        || format!("{value} is no list of values: write for example [[\"a\", \"b\"], [1, 2], {{ file = \"c.txt\" }}]");
    match value {
        toml::Value::Array(values) => Ok(List::Values(values.iter().map(text).collect::<Result<_, _>>()?)),
        toml::Value::Table(table) => match (table.len(), table.get("file").and_then(toml::Value::as_str)) {
            (1, Some(file)) => Ok(List::File(file.into())),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_files_have_numbers_and_truth_values() {
        #[derive(Deserialize)]
        struct Spec {
            entries: Lists,
        }
        let read =
            |text: &str| toml::from_str::<Spec>(text).map(|spec| spec.entries.0).map_err(|error| error.to_string());
        let values = |texts: &[&str]| List::Values(texts.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!(read("entries = ['a', 1, 2.5, true]"), Ok(vec![values(&["a", "1", "2.5", "true"])]));
        let nested = read("entries = [['a', 'b'], [1, 2.0], { file = 'c' }]").expect("lists");
        assert_eq!(nested, [values(&["a", "b"]), values(&["1", "2.0"]), List::File("c".into())]);
        for text in ["entries = ['a', ['b']]", "entries = [[['a']]]", "entries = [{ path = 'c' }]", "entries = 'a'"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
