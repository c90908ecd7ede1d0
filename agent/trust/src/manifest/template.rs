//! Arguments with places to be filled in for each task: `{}`, `{index}`, `{1}`, `{name}`.
//!
//! A text is cut into [`Piece`]s once, from left to right, and what is filled in is not looked at again. Braces around anything but a
//! name are text; `{{name}}` stands for `{name}` itself.

use serde::{Deserialize, Serialize};

use super::bounded::at_most;
use super::{Entry, Rounds};

/// Most fields with names.
pub const FIELDS_MAX: usize = 1000;
/// Longest name of a field, in bytes.
pub const FIELD_NAME_BYTES_MAX: usize = 100;

/// How the text of each entry of a bag is cut into fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fields {
    /// Stands between two fields.
    pub separator: String,
    /// Names of the fields, from the first on; fewer where some have none.
    #[serde(deserialize_with = "at_most::<_, _, FIELDS_MAX>")]
    pub names: Vec<String>,
}

impl Fields {
    /// A field of an entry with this text: by its number from 1, or its name.
    pub fn of<'a>(&self, text: &'a str, name: &str) -> Option<&'a str> {
        let position = match name.parse::<usize>() {
            Ok(number) => number.checked_sub(1)?,
            Err(_) => self.names.iter().position(|known| known == name)?,
        };
        text.split(&self.separator).nth(position)
    }

    /// Why these cannot be fields.
    pub fn flaw(&self) -> Option<String> {
        if self.separator.is_empty() || self.separator.len() > FIELD_NAME_BYTES_MAX {
            return Some(format!("the separator of fields has 1 to {FIELD_NAME_BYTES_MAX} bytes"));
        }
        if self.names.len() > FIELDS_MAX {
            return Some(format!("{} fields are too many: {FIELDS_MAX} at most", self.names.len()));
        }
        let is_bad = |name: &&String| !is_name(name) || is_number(name) || name.as_str() == "index";
        if let Some(name) = self.names.iter().find(is_bad) {
            return Some(format!(
                "{name:?} cannot be the name of a field: use letters, digits, - and _, not a number and not index"
            ));
        }
        let twice = self.names.iter().enumerate().find(|(position, name)| self.names[..*position].contains(name));
        twice.map(|(_, name)| format!("two fields are named {name}: rename one"))
    }
}

/// Whether a text between braces can be a name.
fn is_name(text: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '.');
    !text.is_empty() && text.len() <= FIELD_NAME_BYTES_MAX && text.chars().all(is_part)
}

/// Whether a name is the number of a field.
pub fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// A part of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Stays as it is.
    Text(&'a str),
    /// `{}`: the entry.
    Entry,
    /// `{index}`: the task's index.
    Index,
    /// `{name}` or `{1}`: a field of the entry.
    Field(&'a str),
}

/// The parts of a template, in their order.
pub fn pieces(template: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut from) = (0, 0);
    while let Some(open) = template[from..].find('{').map(|offset| from + offset) {
        let inside = &template[open + 1..];
        // `{{name}}` stays as `{name}`.
        if let Some(end) =
            inside.strip_prefix('{').and_then(|rest| rest.find("}}").filter(|end| is_name(&rest[..*end])))
        {
            pieces.push(Piece::Text(&template[start..open]));
            pieces.push(Piece::Text(&template[open + 1..open + 1 + end + 2]));
            from = open + 2 + end + 2;
            start = from;
            continue;
        }
        let piece = match inside.find('}').map(|end| &inside[..end]) {
            Some("") => Some((Piece::Entry, 0)),
            Some("index") => Some((Piece::Index, 5)),
            Some(name) if is_name(name) => Some((Piece::Field(name), name.len())),
            _ => None,
        };
        match piece {
            Some((piece, length)) => {
                pieces.push(Piece::Text(&template[start..open]));
                pieces.push(piece);
                from = open + length + 2;
                start = from;
            }
            None => from = open + 1,
        }
    }
    pieces.push(Piece::Text(&template[start..]));
    pieces.retain(|piece| *piece != Piece::Text(""));
    pieces
}

/// `template` with `{index}`, `{}`, fields, and `{process}`, `{round}` and `{iterations}` of rounds filled in for a task. If the entry has a file, `{}` is its path. What stands for no field of this
/// entry stays as it is.
pub fn filled(template: &str, index: u64, entry: &Entry, fields: Option<&Fields>, rounds: Option<&Rounds>) -> String {
    filled_with(template, index, entry, fields, rounds, str::to_owned)
}

/// As [`filled`]; what is filled in is written as `written` says.
pub fn filled_with(
    template: &str,
    index: u64,
    entry: &Entry,
    fields: Option<&Fields>,
    rounds: Option<&Rounds>,
    written: impl Fn(&str) -> String,
) -> String {
    let path = entry.input.as_ref().map(|input| format!("inputs/{}", input.name));
    let value = path.as_ref().unwrap_or(&entry.text);
    let mut filled = String::with_capacity(template.len());
    for piece in pieces(template) {
        match piece {
            Piece::Text(text) => filled += text,
            Piece::Entry => filled += &written(value),
            Piece::Index => filled += &index.to_string(),
            Piece::Field(name) => {
                let field = fields.and_then(|fields| fields.of(&entry.text, name));
                let field = field.or_else(|| (fields.is_none() && name == "1").then_some(value.as_str()));
                match (field, rounds.and_then(|rounds| rounds.value(index, name))) {
                    (Some(field), _) => filled += &written(field),
                    (None, Some(number)) => filled += &number.to_string(),
                    (None, None) => filled += &format!("{{{name}}}"),
                }
            }
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_cut_into_pieces() {
        use Piece::{Entry, Field, Index, Text};
        for (template, expected) in [
            ("", vec![]),
            ("plain", vec![Text("plain")]),
            ("{}", vec![Entry]),
            ("-o{index}-{}.x", vec![Text("-o"), Index, Text("-"), Entry, Text(".x")]),
            ("{1}{2}{seed}", vec![Field("1"), Field("2"), Field("seed")]),
            ("{{seed}} {seed}", vec![Text("{seed}"), Text(" "), Field("seed")]),
            // As before there were names.
            ("{{}}", vec![Text("{"), Entry, Text("}")]),
            ("{ print $1 }", vec![Text("{ print $1 }")]),
            ("{\"a\": {}}", vec![Text("{\"a\": "), Entry, Text("}")]),
            ("a{", vec![Text("a{")]),
            ("{ä}{", vec![Field("ä"), Text("{")]),
            ("{a b}{{", vec![Text("{a b}{{")]),
        ] {
            assert_eq!(pieces(template), expected, "{template}");
        }
    }

    #[test]
    fn fields_are_found_by_number_and_name() {
        let fields = Fields { separator: ", ".to_owned(), names: vec!["x".to_owned(), "y".to_owned()] };
        let of = |name| fields.of("1, 2, 3", name);
        assert_eq!([of("1"), of("3"), of("x"), of("y")], [Some("1"), Some("3"), Some("1"), Some("2")]);
        assert_eq!([of("0"), of("4"), of("z"), of("")], [None; 4]);
        assert_eq!(fields.flaw(), None);
        for (separator, names) in
            [("", vec![]), (",", vec!["a b"]), (",", vec!["1"]), (",", vec!["index"]), (",", vec!["a", "a"])]
        {
            let names = names.into_iter().map(str::to_owned).collect();
            assert!(Fields { separator: separator.to_owned(), names }.flaw().is_some());
        }
    }
}
