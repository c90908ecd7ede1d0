//! Output of commands: one JSON value, or text for people.
//!
//! Text is aligned tables, short ids, human sizes and times, colour only on a terminal that shows it and without
//! `NO_COLOR`. Texts from other machines (names, reasons) pass through [`printable`], so that they cannot steer the
//! terminal; JSON escapes the same characters, so that nothing is lost.
//!
//! All write errors are returned: a reader that went away (`idlewood peers | head -1`) ends the command quietly, see
//! `cli`.

mod table;
mod width;

use std::collections::BTreeMap;
use std::env;
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_units::steers;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use idlewood_api::{BagState, ErrorBody};

pub use self::table::{Column, Table, pairs};
pub use self::width::{fit_to_terminal, paragraph};

/// Hex digits of an id that people see.
const SHORT_ID_DIGITS: usize = 12;

/// How a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON value, for programs
    Json,
}

/// Writes `value` as one line of JSON on standard output.
///
/// # Errors
/// When standard output refuses.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    write_json(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Writes `value` as JSON without a line break, with escapes for characters that steer a terminal.
///
/// # Errors
/// When `out` refuses.
pub fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, EscapingFormatter);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// Valid JSON with escapes for characters that steer a terminal: these occur only in its strings.
pub fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !steers(character) {
            escaped.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                escaped += &format!("\\u{unit:04x}");
            }
        }
    }
    escaped
}

/// Compact JSON that also escapes characters which a terminal would obey.
struct EscapingFormatter;

impl serde_json::ser::Formatter for EscapingFormatter {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if fragment.is_ascii() && !fragment.contains('\x7f') {
            return out.write_all(fragment.as_bytes());
        }
        out.write_all(escaped_json(fragment).as_bytes())
    }
}

/// Prints what the user should know while a command goes on, on standard error.
///
/// # Errors
/// When standard error refuses.
pub fn notice(sentence: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{}", printable(sentence))
}

/// Prints values as one JSON value: the first where the user named one thing, else a list.
///
/// # Errors
/// When standard output refuses.
pub fn one_or_all<T: Serialize>(values: Vec<T>, is_one: bool) -> anyhow::Result<()> {
    match values.first().filter(|_| is_one) {
        Some(value) => json(value)?,
        None => json(&values)?,
    }
    Ok(())
}

/// Prints a warning on standard error.
///
/// # Errors
/// When standard error refuses.
pub fn warning(sentence: &str) -> io::Result<()> {
    writeln!(io::stderr(), "warning: {}", printable(sentence))
}

/// Prints on standard error that the command failed. As text, further lines are indented.
///
/// # Errors
/// When standard error refuses; then nothing can be printed.
pub fn error(format: Format, sentence: &str) -> io::Result<()> {
    let mut out = io::stderr().lock();
    match format {
        Format::Text => {
            let lines: Vec<String> = sentence.lines().map(|line| printable(line.trim())).collect();
            writeln!(out, "error: {}", lines.join("\n  "))
        }
        Format::Json => {
            write_json(&mut out, &ErrorBody { error: sentence.to_owned() })?;
            writeln!(out)
        }
    }
}

/// `text` on one line, without characters that steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|character| if steers(character) { ' ' } else { character }).collect()
}

/// An argument as one would type it in a shell.
pub fn as_typed(arg: &str) -> String {
    let plain = !arg.is_empty()
        && arg.chars().all(|character| character.is_alphanumeric() || "-_./{}=,:+%@".contains(character));
    if plain { arg.to_owned() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
}

/// The beginning of a text of arbitrary length, and how much more there is.
pub fn shortened(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{} ... and {} more", &text[..end], bytes((text.len() - end) as u64)),
        None => text.to_owned(),
    }
}

/// Replaces characters in whole lines of a log that steer a terminal, except the escape sequences of its colours.
#[derive(Debug)]
pub struct Harmless<W>(pub W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.is_ascii() {
            return self.0.write(line);
        }
        let harmless = |character| if steers(character) && !character.is_ascii() { ' ' } else { character };
        let text: String = String::from_utf8_lossy(line).chars().map(harmless).collect();
        self.0.write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The beginning of an id; enough to name it.
pub fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID_DIGITS).unwrap_or(id)
}

/// What machines are called, by peer id, where people are to see that instead of ids; set once, by the command that prints.
static NAMES: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// From now on [`short_peer`] tells these names.
pub fn set_names(names: BTreeMap<String, String>) {
    if NAMES.set(names).is_err() {
        tracing::debug!("names of machines are known already");
    }
}

/// What people see of a machine: its name, if that is known, or the end of its peer id, since all ids begin alike.
pub fn short_peer(peer: &str) -> &str {
    if let Some(name) = NAMES.get().and_then(|names| names.get(peer)) {
        return name;
    }
    let start = peer.char_indices().rev().nth(SHORT_ID_DIGITS - 1).map_or(0, |(position, _)| position);
    &peer[start..]
}

/// What people call a machine: its name, or the end of its id where it has none.
pub fn machine(name: Option<&str>, peer: &str) -> String {
    name.map_or_else(|| short_peer(peer).to_owned(), printable)
}

/// `1536` → `1.5 KiB`.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // Not 1024: values that round to it belong to the next unit.
    while value >= 1_023.95 && unit + 1 < units.len() {
        value /= 1_024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// `3725.0` → `1h 02m`; the two largest units.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole}s"),
        (0, 0, _) => format!("{minutes}m {:02}s", whole % 60),
        (0, _, _) => format!("{hours}h {minutes:02}m"),
        (_, _, _) => format!("{days}d {hours:02}h"),
    }
}

/// `16 s`, `1.2 min`, `3.4 h`, `2.5 d`: for sentences.
pub fn span(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    match seconds {
        ..9.95 => format!("{seconds:.1} s"),
        ..59.5 => format!("{seconds:.0} s"),
        ..5_970.0 => format!("{:.1} min", seconds / 60.0),
        ..169_200.0 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}

/// A factor: `1.3`, `12`.
pub fn times(factor: f64) -> String {
    if factor < 9.95 { format!("{factor:.1}") } else { format!("{factor:.0}") }
}

/// A number with three significant digits.
pub fn number(value: f64) -> String {
    if value != 0.0 && !(0.001..1_000_000.0).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let digits = if value == 0.0 { 0 } else { 2 - value.abs().log10().floor() as i32 };
    format!("{value:.*}", digits.max(0) as usize)
}

/// `2026-01-02T03:04:05.678Z` → `2026-01-02 04:04:05`, where the clock of the machine is an hour ahead; anything else as it is.
pub fn when(iso: &str) -> String {
    when_in(iso, "%Y-%m-%d %H:%M:%S", &TimeZone::system())
}

/// The same without seconds.
pub fn when_to_the_minute(iso: &str) -> String {
    when_in(iso, "%Y-%m-%d %H:%M", &TimeZone::system())
}

fn when_in(iso: &str, format: &str, zone: &TimeZone) -> String {
    match iso.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(zone.clone()).strftime(format).to_string(),
        Err(_) => printable(iso),
    }
}

/// Name of a bag's state.
pub fn state(state: BagState) -> &'static str {
    match state {
        BagState::Held => "held",
        BagState::Waiting => "waiting",
        BagState::Measuring => "measuring",
        BagState::Running => "running",
        BagState::Succeeded => "succeeded",
        BagState::Failed => "failed",
        BagState::Cancelled => "cancelled",
    }
}

/// Colour of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Success.
    Green,
    /// Failure.
    Red,
    /// Under way, or held up.
    Yellow,
}

impl Colour {
    /// Colour of a bag's state.
    pub fn of(state: BagState) -> Self {
        match state {
            BagState::Held | BagState::Waiting | BagState::Measuring | BagState::Running => Self::Yellow,
            BagState::Succeeded => Self::Green,
            BagState::Failed | BagState::Cancelled => Self::Red,
        }
    }

    /// `text` in this colour, if standard output shows colours.
    pub fn paint(self, text: &str) -> String {
        if !shows_colours(io::stdout().is_terminal()) {
            return text.to_owned();
        }
        let code = match self {
            Self::Green => 32,
            Self::Red => 31,
            Self::Yellow => 33,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Whether to colour output: the stream is a terminal that can, and the user does not object (<https://no-color.org>).
pub fn shows_colours(is_terminal: bool) -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !refused && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `1 task`, `2 tasks`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `3-7,9`: numbers of tasks, as `--index` takes them.
pub fn spans(tasks: &IntervalSet) -> String {
    let spans = tasks.ranges().map(|range| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    });
    spans.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_shown_as_typed() {
        assert_eq!(["a", "", "a b", "it's", "{}"].map(as_typed).join(" "), r"a '' 'a b' 'it'\''s' {}");
    }

    #[test]
    fn numbers_are_for_people() {
        for (value, text) in
            [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (1_536, "1.5 KiB"), (1_048_575, "1.0 MiB")]
        {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        for (value, text) in [
            (0.04, "0.0s"),
            (9.94, "9.9s"),
            (9.96, "10s"),
            (59.6, "1m 00s"),
            (3_725.0, "1h 02m"),
            (90_000.0, "1d 01h"),
            (f64::NAN, "?"),
            (-1.0, "?"),
        ] {
            assert_eq!(duration(value), text);
        }
        for (value, text) in [
            (0.04, "0.0 s"),
            (16.2, "16 s"),
            (59.6, "1.0 min"),
            (72.0, "1.2 min"),
            (7_200.0, "2.0 h"),
            (216_000.0, "2.5 d"),
            (f64::INFINITY, "?"),
        ] {
            assert_eq!(span(value), text);
        }
        assert_eq!([times(1.0), times(1.34), times(12.3)], ["1.0", "1.3", "12"]);
        for (value, text) in
            [(0.0, "0"), (1.0, "1.00"), (0.012345, "0.0123"), (123.4, "123"), (12_345.6, "12346"), (2.5e7, "2.50e7")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn times_are_for_people() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a time zone");
        assert_eq!(when_in("2026-01-02T03:04:05.678Z", "%Y-%m-%d %H:%M:%S", &zone), "2026-01-02 04:04:05");
        assert_eq!(when_in("2026-07-02T23:04:05Z", "%Y-%m-%d %H:%M", &zone), "2026-07-03 01:04", "in summer");
        assert_eq!(when("soon"), "soon");
        assert_eq!(when("ääääääääääääääääääää"), "ääääääääääääääääääää");
    }

    /// C1 controls, direction overrides, isolates, joiners, byte order marks, tags, separators.
    #[test]
    fn nothing_steers_a_terminal() {
        let hostile = "a\u{9b}2J\u{202e}b\u{2066}\u{200d}\u{feff}\u{e0041}\u{2028}\u{ad}\u{7f}";
        for character in hostile.chars().filter(|character| !character.is_ascii_alphanumeric()) {
            assert!(steers(character), "{character:?}");
        }
        assert!(!"aé漢字 –€😀نص".chars().any(steers), "texts of all languages stay");
        assert_eq!(printable(hostile), "a 2J b       ");

        let mut written = Vec::new();
        write_json(&mut written, &[hostile]).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert!(written.is_ascii() && !written.chars().any(steers), "{written}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&written).unwrap(), [hostile], "nothing is lost");
        let pretty = escaped_json(&serde_json::to_string_pretty(&[hostile]).unwrap());
        assert!(!pretty.chars().any(|character| character != '\n' && steers(character)), "{pretty}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&pretty).unwrap(), [hostile]);

        let mut log = Harmless(Vec::new());
        log.write_all("\x1b[32minfo\x1b[0m \u{9b}2J\u{202e}\n".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(log.0).unwrap(), "\x1b[32minfo\x1b[0m  2J \n");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened(&"ä".repeat(1_000), 2), "ää ... and 1.9 KiB more");
    }

    #[test]
    fn tasks_are_told_in_spans() {
        assert_eq!(spans(&[3..8, 9..10].into_iter().collect()), "3-7,9");
        assert_eq!(spans(&IntervalSet::new()), "");
    }

    #[test]
    fn ids_are_cut() {
        assert_eq!(short_id("0123456789abcdef"), "0123456789ab");
        assert_eq!(short_id("last"), "last");
        assert_eq!(short_peer("12D3KooWAqiQEXXBNvkP8sc5"), "EXXBNvkP8sc5");
        assert_eq!([short_peer("ab"), short_peer("")], ["ab", ""]);
    }
}
