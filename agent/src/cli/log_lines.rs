//! Output of tasks on its way to the user's terminal: pieces that may end anywhere become whole lines, each with its task before it.

use std::io::{self, IsTerminal as _, Write};

/// A line is printed once it has so many bytes, whole or not.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Standard output or standard error of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(super) const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    fn is_terminal(self) -> bool {
        match self {
            Self::Stdout => io::stdout().is_terminal(),
            Self::Stderr => io::stderr().is_terminal(),
        }
    }

    pub(super) fn write(self, bytes: &[u8]) -> io::Result<()> {
        let write = |out: &mut dyn Write| {
            out.write_all(bytes)?;
            out.flush()
        };
        match self {
            Self::Stdout => write(&mut io::stdout().lock()),
            Self::Stderr => write(&mut io::stderr().lock()),
        }
    }
}

/// One stream of one task, and what of it is not printed yet.
#[derive(Debug)]
pub(super) struct Lines {
    to: Stream,
    /// Stands before each line; empty: pieces are printed as they come.
    prefix: String,
    is_terminal: bool,
    rest: Vec<u8>,
}

impl Lines {
    pub(super) fn new(to: Stream, prefix: String) -> Self {
        Self { to, prefix, is_terminal: to.is_terminal(), rest: Vec::new() }
    }

    /// Takes a piece, and prints what can be.
    pub(super) fn add(&mut self, piece: &[u8]) -> io::Result<()> {
        self.rest.extend_from_slice(piece);
        let ready = match self.rest.iter().rposition(|&byte| byte == b'\n') {
            _ if self.rest.len() > LINE_BYTES_MAX => self.rest.len(),
            Some(last) if !self.prefix.is_empty() => last + 1,
            None if !self.prefix.is_empty() => 0,
            _ if self.is_terminal => whole_characters(&self.rest),
            _ => self.rest.len(),
        };
        let ready: Vec<u8> = self.rest.drain(..ready).collect();
        self.print(&ready)
    }

    /// Nothing follows: prints the rest, and ends its line where others follow.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.rest);
        self.print(&rest)
    }

    fn print(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.to.write(&prefixed(bytes, &self.prefix, self.is_terminal))
    }
}

/// Each line with the prefix before it; none is left open where there is a prefix.
fn prefixed(bytes: &[u8], prefix: &str, is_terminal: bool) -> Vec<u8> {
    let clean = |bytes: &[u8]| if is_terminal { harmless(bytes).into_bytes() } else { bytes.to_vec() };
    if prefix.is_empty() {
        return clean(bytes);
    }
    let mut lines = Vec::with_capacity(bytes.len() + 64);
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        lines.extend_from_slice(prefix.as_bytes());
        lines.extend(clean(line));
        if !line.ends_with(b"\n") {
            lines.push(b'\n');
        }
    }
    lines
}

/// How many bytes of text do not end within a character.
fn whole_characters(text: &[u8]) -> usize {
    match std::str::from_utf8(text) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        // Bytes that are no text are printed as such.
        Ok(_) | Err(_) => text.len(),
    }
}

/// `text` without characters that could steer a terminal.
pub(super) fn harmless(text: &[u8]) -> String {
    let steers = |character| idlewood_units::steers(character) && !matches!(character, '\n' | '\t');
    let text = String::from_utf8_lossy(text);
    text.chars().map(|character| if steers(character) { char::REPLACEMENT_CHARACTER } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_steered() {
        assert_eq!(harmless(b"a\tb\n\x1b[2J\xff"), "a\tb\n\u{fffd}[2J\u{fffd}");
        assert_eq!(prefixed(b"\x1b[2J\n", "7 | ", true), "7 | \u{fffd}[2J\n".as_bytes());
        assert_eq!(prefixed(b"\x1b[2J\n", "", false), b"\x1b[2J\n");
    }

    #[test]
    fn lines_of_several_tasks_stay_apart() {
        assert_eq!(prefixed(b"one\ntwo", "7 | ", false), b"7 | one\n7 | two\n");
        assert_eq!(prefixed(b"\n\n", "7 | ", false), b"7 | \n7 | \n");
        assert_eq!(prefixed(b"", "7 | ", false), b"");
    }

    #[test]
    fn characters_are_not_torn() {
        assert_eq!(whole_characters("aä".as_bytes()), 3);
        assert_eq!(whole_characters(&"aä".as_bytes()[..2]), 1);
        assert_eq!(whole_characters(b"a\xff\xfeb"), 4);
    }
}
