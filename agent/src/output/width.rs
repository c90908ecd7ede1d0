//! How wide text for people may be: as wide as the terminal that it is for, and as its content elsewhere.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

use textwrap::core::{Word, display_width};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// A terminal that is narrower has its lines broken by itself.
const COLUMNS_LEAST: usize = 40;
/// Text is not squeezed into fewer columns than these beside what stands before it.
const ROOM_LEAST: usize = 20;

/// The columns of standard output, where the command that prints has asked for them.
static COLUMNS: OnceLock<usize> = OnceLock::new();

/// From now on what is printed for people fits the terminal of standard output, if it is one.
pub fn fit_to_terminal() {
    let out = io::stdout();
    let size = if out.is_terminal() { rustix::termios::tcgetwinsize(&out).ok() } else { None };
    if let Some(columns) = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns >= COLUMNS_LEAST)
        && COLUMNS.set(columns).is_err()
    {
        tracing::debug!("the width of the terminal is known already");
    }
}

/// How wide lines may be; `None`: as they are.
pub(super) fn columns() -> Option<usize> {
    COLUMNS.get().copied()
}

/// The room for text behind so many columns.
pub(super) fn room(columns: Option<usize>, before: usize) -> usize {
    columns.map_or(usize::MAX, |columns| columns.saturating_sub(before).max(ROOM_LEAST))
}

/// Writes `first` and the text behind it; where the terminal is narrower, in lines below each other.
///
/// # Errors
/// When `out` refuses.
pub fn paragraph(out: &mut (impl Write + ?Sized), first: &str, text: &str) -> io::Result<()> {
    paragraph_within(out, first, text, columns())
}

pub(super) fn paragraph_within(
    out: &mut (impl Write + ?Sized),
    first: &str,
    text: &str,
    columns: Option<usize>,
) -> io::Result<()> {
    let before = display_width(first);
    let mut margin = first.to_owned();
    for line in wrapped(text, room(columns, before)) {
        writeln!(out, "{}", format!("{margin}{line}").trim_end())?;
        margin = " ".repeat(before);
    }
    Ok(())
}

/// A text in lines of at most so many columns, broken between words. Longer words stay whole, and so does what stands in `backquotes`:
/// somebody may want to copy them.
pub(super) fn wrapped(text: &str, room: usize) -> Vec<Cow<'_, str>> {
    let options = Options::new(room)
        .break_words(false)
        .word_separator(WordSeparator::Custom(words))
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(text, options)
}

/// How many columns the longest piece takes that stays whole.
pub(super) fn longest_word(text: &str) -> usize {
    words(text).map(|word| display_width(&word)).max().unwrap_or(0)
}

/// Words with the spaces behind them; those between backquotes are one.
fn words(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let mut is_open = false;
    let ends = move |character| {
        is_open ^= character == '`';
        character == ' ' && !is_open
    };
    Box::new(line.split_inclusive(ends).map(Word::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_broken_between_words_and_commands_stay_whole() {
        let text = "others come first; `idlewood bag priority BAG 5` changes that ääääääääääääääääääääääääääääää";
        assert_eq!(
            wrapped(text, 30),
            ["others come first;", "`idlewood bag priority BAG 5`", "changes that", &"ä".repeat(30)]
        );
        assert_eq!(wrapped(text, usize::MAX), [text]);
        assert_eq!(wrapped("研究室 研究室", 10), ["研究室", "研究室"], "each takes six columns");
        assert_eq!(wrapped("", 20), [""], "a line all the same");
        assert_eq!(
            wrapped("one ` alone and then more and more words", 20).len(),
            2,
            "it is not torn, and nothing is lost"
        );
        let mut out = Vec::new();
        paragraph_within(&mut out, "now   ", "one two three four five six seven", Some(22)).expect("memory takes it");
        assert_eq!(String::from_utf8(out).expect("it is text"), "now   one two three four\n      five six seven\n");
    }
}
