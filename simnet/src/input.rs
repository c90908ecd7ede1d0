//! Input files of scenarios: reading them, and naming their flaws.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};

/// Characters kept at the beginning and the end of a long message. Our choice: some lines of a terminal.
const QUOTED_MAX: usize = 200;
/// Most bytes of a file, decompressed: our choice, ten times the largest published one, and little enough for memory.
const BYTES_MAX: u64 = 1 << 30;

/// A flaw of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line, from 1; none if the flaw is not in a single line.
    line: Option<usize>,
    sentence: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "line {line}: {}", self.sentence),
            None => formatter.write_str(&self.sentence),
        }
    }
}

impl Malformed {
    /// A flaw of the whole file.
    pub(crate) fn whole(sentence: impl Into<String>) -> Self {
        Self::new(None, sentence.into())
    }

    fn new(line: Option<usize>, sentence: String) -> Self {
        Self { line, sentence: shortened(sentence) }
    }

    /// With the file's name in front.
    fn in_file(&self, path: &Path) -> String {
        let (name, sentence) = (path.display(), &self.sentence);
        self.line.map_or_else(|| format!("{name}: {sentence}"), |line| format!("{name}:{line}: {sentence}"))
    }
}

/// A message without its middle, in case that it quotes a whole file as a field.
pub(crate) fn shortened(sentence: String) -> String {
    let letters: Vec<char> = sentence.chars().collect();
    match letters.len().checked_sub(2 * QUOTED_MAX) {
        Some(1..) => {
            let (start, end) = (&letters[..QUOTED_MAX], &letters[letters.len() - QUOTED_MAX..]);
            format!("{}…{}", start.iter().collect::<String>(), end.iter().collect::<String>())
        }
        _ => sentence,
    }
}

/// A flaw in one line, counted from 1.
pub(crate) fn malformed<T>(line: usize, sentence: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed::new(Some(line), sentence.into()))
}

/// Reads a file, plain or compressed by gzip, with or without a byte order mark. `expected` names what the file should
/// be if it is not text.
///
/// # Errors
/// A sentence with the file, the line where there is one, and what is expected there.
pub(crate) fn read<T>(path: &Path, expected: &str, parse: fn(&str) -> Result<T, Malformed>) -> Result<T, String> {
    let name = path.display();
    let unreadable = |error| format!("{name} cannot be read: {error}");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let bytes = bounded(file, BYTES_MAX).map_err(unreadable)?;
    let bytes = decompress(bytes, BYTES_MAX).map_err(|error| format!("{name} cannot be decompressed: {error}"))?;
    // Comments of old logs use other encodings, in which no letter is a zero.
    if bytes.contains(&0) {
        return Err(format!("{name} is not text: {expected}"));
    }
    let text = String::from_utf8_lossy(&bytes);
    parse(text.strip_prefix('\u{feff}').unwrap_or(&text)).map_err(|malformed| malformed.in_file(path))
}

/// All bytes; an error if there are more than so many.
fn bounded(from: impl Read, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(std::io::Error::other(format!("it is more than {bytes_max} bytes: give a part of it")));
    }
    Ok(bytes)
}

/// Decompresses if the bytes begin like gzip.
fn decompress(bytes: Vec<u8>, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    bounded(flate2::read::MultiGzDecoder::new(bytes.as_slice()), bytes_max)
}

/// Lines that are not empty, trimmed, with their numbers from 1.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty())
}

/// A value in JSON.
///
/// # Errors
/// The flaw, its line, and what is expected.
pub(crate) fn json<T: DeserializeOwned>(text: &str, expected: &str) -> Result<T, Malformed> {
    serde_json::from_str(text).map_err(|error| {
        let sentence = format!("{error}; expected is {expected}");
        Malformed::new(Some(error.line()).filter(|line| *line > 0), sentence)
    })
}

/// A map that refuses repeated names.
pub(crate) struct Named<T>(pub(crate) BTreeMap<String, T>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Names<T> {
            type Value = Named<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("names and their values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut all = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if all.contains_key(&name) {
                        return Err(A::Error::custom(format!("{name} is in it twice")));
                    }
                    let value = map.next_value()?;
                    all.insert(name, value);
                }
                Ok(Named(all))
            }
        }
        deserializer.deserialize_map(Names(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_large_is_not_decompressed_to_its_end() {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[b'1'; 1000]).unwrap();
        let compressed = encoder.finish().unwrap();
        assert!(compressed.len() < 100);
        assert_eq!(decompress(compressed.clone(), 1000).unwrap(), [b'1'; 1000]);
        let error = decompress([compressed.as_slice(), &compressed].concat(), 1000).unwrap_err().to_string();
        assert_eq!(error, "it is more than 1000 bytes: give a part of it");
        assert!(bounded([b'1'; 5].as_slice(), 4).is_err() && bounded([b'1'; 5].as_slice(), 5).is_ok());
    }

    #[test]
    fn a_huge_field_is_not_quoted_in_full() {
        let Err(error) = malformed::<()>(7, format!("{} is not a number", "ß".repeat(100_000))) else { panic!() };
        let error = error.to_string();
        assert!(error.starts_with("line 7: ßß") && error.ends_with("ß is not a number"), "{error}");
        assert_eq!(error.chars().count(), 2 * QUOTED_MAX + "line 7: …".chars().count());
        let Err(error) = malformed::<()>(7, "é".repeat(2 * QUOTED_MAX)) else { panic!() };
        assert!(!error.to_string().contains('…'));
    }
}
