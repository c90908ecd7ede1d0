//! Availability of real machines: parsers for the traces that simulations replay.
//!
//! Reads two formats, plain or compressed by gzip, told apart by their content:
//!
//! - **Failure Trace Archive, tabbed** (`event_trace.tab`): a heading line (several where files were put together), then `event_id
//!   component_id node_id platform_id node_name event_type event_start_time event_stop_time event_end_reason`, separated by tabs (then a
//!   name may have spaces, or be empty) or spaces. Type 1 is available, 0 unavailable; times are seconds since 1970. A machine is
//!   up where it has a row of type 1. One that has only rows of type 0 is up except then; where a row of each type cover the
//!   same moment, it is down.
//! - **Spot instances** (JSON): `{name: {"gap_seconds": s, "data": [instances up at each tick]}}`, or one such value
//!   without a name. A series of up to k instances is k machines: the j-th is up at the ticks with at least j up.
//!
//! Left out: why a machine went down, and correlations with others.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::input::{self, Malformed, Named, malformed};

/// Machines of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    machines: Vec<Machine>,
}

/// When one machine was up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// When it came up and went down, alternately, in seconds; it comes up first.
    changes: Vec<u64>,
    /// Begin and end of its trace.
    first: u64,
    last: u64,
}

impl Availability {
    /// Reads a trace.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        input::read(path, "give an event_trace.tab or JSON", Self::parse)
    }

    /// Parses a trace in one of the two forms.
    ///
    /// # Errors
    /// The flaw, and its line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let machines = if text.trim_start().starts_with('{') { spot(text)? } else { tabbed(text)? };
        if machines.is_empty() {
            return Err(Malformed::whole("no machine is ever up in it"));
        }
        Ok(Self { machines })
    }

    /// The earliest begin and the latest end of a machine's trace.
    pub fn calendar(&self) -> (Duration, Duration) {
        let all = self.machines.iter();
        let (first, last) = all.fold((u64::MAX, 0), |(first, last), of| (first.min(of.first), last.max(of.last)));
        (Duration::from_secs(first), Duration::from_secs(last))
    }

    /// All machines that were ever up, in the order of the file's numbers or names.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }
}

impl Machine {
    /// From the intervals [from, to) of its uptime, in any order. None if it was never up.
    fn new(up: Vec<(u64, u64)>, first: u64, last: u64) -> Option<Self> {
        let changes: Vec<u64> = merged(up).into_iter().flat_map(|(from, to)| [from, to]).collect();
        (!changes.is_empty()).then_some(Self { changes, first, last })
    }

    /// When its trace begins.
    pub fn first(&self) -> Duration {
        Duration::from_secs(self.first)
    }

    /// How long its trace is.
    pub fn span(&self) -> Duration {
        Duration::from_secs(self.last - self.first)
    }

    /// Share of its trace's time that it is up.
    pub fn share_up(&self) -> f64 {
        let up: u64 = self.changes.chunks(2).map(|of| of.last().unwrap_or(&self.last) - of[0]).sum();
        up as f64 / (self.last - self.first).max(1) as f64
    }

    /// Whether it is up at a moment.
    pub fn is_up(&self, at: Duration) -> bool {
        self.changes.partition_point(|change| Duration::from_secs(*change) <= at) % 2 == 1
    }

    /// When it comes up (true) and goes down, after one moment and up to another.
    pub fn changes(&self, after: Duration, until: Duration) -> impl Iterator<Item = (Duration, bool)> {
        let changes = self.changes.iter().enumerate().map(|(index, at)| (Duration::from_secs(*at), index % 2 == 0));
        changes.filter(move |(at, _)| *at > after && *at <= until)
    }
}

/// The same time as ordered intervals [from, to) that do not touch. Empty and reversed ones cover nothing.
fn merged(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.retain(|(from, to)| from < to);
    intervals.sort_unstable();
    intervals.dedup_by(|(from, to), (_, before)| {
        let goes_on = *from <= *before;
        if goes_on {
            *before = (*before).max(*to);
        }
        goes_on
    });
    intervals
}

// ---- Failure Trace Archive ----

/// Fields of a row.
const FIELDS: usize = 9;
/// How headings begin.
const HEADING: [&str; 2] = ["event_id", "component_id"];

/// Fields of a row. Names in one that is separated by tabs may have spaces, or be empty.
fn fields(line: &str) -> Vec<&str> {
    let by_spaces: Vec<&str> = line.split_whitespace().collect();
    let by_tabs: Vec<&str> = line.split('\t').map(str::trim).collect();
    if by_tabs.len() == FIELDS { by_tabs } else { by_spaces }
}

/// The rows of one machine.
#[derive(Default)]
struct Rows {
    up: Vec<(u64, u64)>,
    down: Vec<(u64, u64)>,
}

fn tabbed(text: &str) -> Result<Vec<Machine>, Malformed> {
    let mut rows: BTreeMap<u64, Rows> = BTreeMap::new();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let is_row = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
    for (number, line) in lines.filter(|(_, line)| is_row(line)) {
        let fields = fields(line);
        let [id, component, node, _, _, kind, start, stop, _] = fields[..] else {
            return malformed(
                number,
                format!(
                    "{} fields where {FIELDS} are expected: event_id component_id node_id platform_id node_name event_type event_start_time event_stop_time event_end_reason",
                    fields.len()
                ),
            );
        };
        if [id, component] == HEADING {
            continue;
        }
        let node = whole(number, "node_id", node)?;
        let (start, stop) = (time(number, "event_start_time", start)?, time(number, "event_stop_time", stop)?);
        if stop < start {
            return malformed(number, format!("event_stop_time {stop} is before event_start_time {start}"));
        }
        let rows = rows.entry(node).or_default();
        match kind {
            "1" => rows.up.push((start, stop)),
            "0" => rows.down.push((start, stop)),
            other => {
                return malformed(
                    number,
                    format!("event_type is {other}: 1 (available) or 0 (unavailable) is expected"),
                );
            }
        }
    }
    let all = rows.values().flat_map(|rows| rows.up.iter().chain(&rows.down));
    let (first, last) = all.fold((u64::MAX, 0), |(first, last), (from, to)| (first.min(*from), last.max(*to)));
    Ok(rows.into_values().filter_map(|rows| rows.machine(first, last)).collect())
}

impl Rows {
    /// `first` and `last` are those of the whole trace.
    fn machine(self, first: u64, last: u64) -> Option<Machine> {
        let (up, first, last) = if self.up.is_empty() {
            (vec![(first, last)], first, last)
        } else {
            let all = self.up.iter().chain(&self.down);
            let (first, last) = all.fold((u64::MAX, 0), |(first, last), (from, to)| (first.min(*from), last.max(*to)));
            (self.up, first, last)
        };
        let down = merged(self.down);
        let mut rest = Vec::new();
        for (mut from, to) in up {
            let next = down.partition_point(|(_, down_to)| *down_to <= from);
            for &(down_from, down_to) in down[next..].iter().take_while(|(down_from, _)| *down_from < to) {
                rest.push((from, down_from));
                from = down_to;
            }
            rest.push((from, to));
        }
        Machine::new(rest, first, last)
    }
}

fn whole(line: usize, field: &str, text: &str) -> Result<u64, Malformed> {
    text.parse().or_else(|_| malformed(line, format!("{field} is {text}: a whole number is expected")))
}

/// Seconds; some traces have fractions.
fn time(line: usize, field: &str, text: &str) -> Result<u64, Malformed> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..1e12).contains(&seconds) => Ok(seconds as u64),
        _ => malformed(line, format!("{field} is {text}: seconds since 1970 are expected")),
    }
}

// ---- spot instances ----

#[derive(Deserialize)]
struct Series {
    gap_seconds: Option<u64>,
    metadata: Option<Metadata>,
    data: Vec<u32>,
}

#[derive(Deserialize)]
struct Metadata {
    gap_seconds: u64,
}

/// Longest time between two ticks of a series: a year.
const GAP_SECONDS_MAX: u64 = 365 * 24 * 3600;
/// Most machines of one series.
const INSTANCES_MAX: u32 = 1_024;

/// Whether this is a series, perhaps a flawed one: it begins like a series, and a name does not.
fn is_series(text: &str) -> bool {
    let first = text.trim_start().trim_start_matches('{').trim_start();
    let is = |name: &str, value: &str| {
        let behind = first.strip_prefix(name).map(str::trim_start).and_then(|rest| rest.strip_prefix(':'));
        behind.is_some_and(|behind| behind.trim_start().starts_with(value))
    };
    // The rest is checked when it is read.
    let values = || serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>().next();
    is("\"gap_seconds\"", "")
        || is("\"metadata\"", "")
        || is("\"data\"", "[")
        || values().is_some_and(|value| value.is_ok_and(|value| value["data"].is_array()))
}

/// One series, or many by their names.
fn spot(text: &str) -> Result<Vec<Machine>, Malformed> {
    let expected = "{name: {\"gap_seconds\": seconds, \"data\": [instances up at each tick]}}";
    let Named(all): Named<Series> = if is_series(text) {
        Named(BTreeMap::from([("data".to_owned(), input::json(text, expected)?)]))
    } else {
        input::json(text, expected)?
    };
    let mut machines = Vec::new();
    for (name, series) in all {
        let gap = series.gap_seconds.or(series.metadata.map(|metadata| metadata.gap_seconds));
        let Some(gap) = gap.filter(|gap| (1..=GAP_SECONDS_MAX).contains(gap)) else {
            let sentence = format!("{name}: gap_seconds is missing or not between 1 and {GAP_SECONDS_MAX}");
            return Err(Malformed::whole(sentence));
        };
        let most = series.data.iter().copied().max().unwrap_or(0);
        if most > INSTANCES_MAX {
            let sentence = format!("{name}: {most} instances up at a tick are more than {INSTANCES_MAX}");
            return Err(Malformed::whole(sentence));
        }
        let last = gap * series.data.len() as u64;
        for instance in 1..=most {
            let ticks = series.data.iter().zip(0u64..).filter(|(up, _)| **up >= instance);
            let up = ticks.map(|(_, tick)| (tick * gap, (tick + 1) * gap)).collect();
            machines.extend(Machine::new(up, 0, last));
        }
    }
    Ok(machines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str = "event_id\tcomponent_id\tnode_id\tplatform_id\tnode_name\tevent_type\tevent_start_time\tevent_stop_time\tevent_end_reason\n";

    fn row(node: u64, kind: u8, start: u64, stop: u64) -> String {
        format!("0\t0\t{node}\t3\t10.000\t{kind}\t{start}\t{stop}\t8000\n")
    }

    fn changes(machine: &Machine) -> Vec<(u64, bool)> {
        machine.changes(Duration::ZERO, Duration::MAX).map(|(at, up)| (at.as_secs(), up)).collect()
    }

    #[test]
    fn a_tabbed_trace_tells_when_machines_were_up() {
        let text = [
            HEADING,
            // Headings of files that were put together.
            "# more\n",
            HEADING,
            &row(9, 1, 100, 200),
            &row(9, 0, 200, 250),
            &row(9, 1, 250, 300),
            &row(9, 1, 300, 400),
            // Only a row of type 0: up except then.
            &row(4, 0, 150, 160),
            // Down wins where both cover a moment.
            &row(5, 1, 100, 400),
            &row(5, 0, 120, 130),
        ];
        let trace = Availability::parse(&text.concat()).unwrap();
        let [four, five, nine] = trace.machines() else { panic!("{trace:?}") };
        assert_eq!(changes(nine), [(100, true), (200, false), (250, true), (400, false)]);
        assert_eq!(changes(four), [(100, true), (150, false), (160, true), (400, false)]);
        assert_eq!(changes(five), [(100, true), (120, false), (130, true), (400, false)]);
        assert_eq!((nine.first().as_secs(), nine.span().as_secs()), (100, 300));
        let is_up = |at| nine.is_up(Duration::from_secs(at));
        assert_eq!([99, 100, 199, 200, 250, 400].map(is_up), [false, true, true, false, true, false]);
    }

    #[test]
    fn names_between_tabs_may_have_spaces_or_be_empty() {
        let plain = [row(9, 1, 100, 200), row(9, 0, 120, 130)].concat();
        let expected = Availability::parse(&plain).unwrap();
        let misleading = plain.replace("10.000", "lab 1").replace("\t8000", "\t");
        let [spaces, empty] = ["lab 3, by the door", ""].map(|name| plain.replace("10.000", name));
        for text in [misleading, spaces, empty, plain.replace('\t', "  ")] {
            assert_eq!(Availability::parse(&text), Ok(expected.clone()), "{text}");
        }
    }

    /// At any overlap of rows: up where one of type 1 covers a second and none of type 0.
    #[test]
    fn overlapping_rows_are_resolved_second_by_second() {
        let mut state = 7_u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for _ in 0..300 {
            let rows: Vec<(u8, u64, u64)> = (0..8)
                .map(|number| {
                    let from = 1 + below(40);
                    (u8::from(number % 2 == 0), from, from + below(12))
                })
                .collect();
            let text: String = rows.iter().map(|&(kind, from, to)| row(1, kind, from, to)).collect();
            let says = |kind, at| rows.iter().any(|&(of, from, to)| of == kind && (from..to).contains(&at));
            let seconds: Vec<bool> = (0..60).map(|at| says(1, at) && !says(0, at)).collect();
            let found: Vec<bool> = match Availability::parse(&text) {
                Ok(trace) => (0..60).map(|at| trace.machines()[0].is_up(Duration::from_secs(at))).collect(),
                Err(_) => vec![false; 60],
            };
            assert_eq!(found, seconds, "{rows:?}");
        }
    }

    #[test]
    fn a_spot_trace_is_as_many_machines_as_there_were_instances() {
        for text in [
            r#"{"a": {"gap_seconds": 10, "metadata": {"gap_seconds": 10}, "data": [0, 2, 1, 0, 1]}}"#,
            r#"{"metadata": {"gap_seconds": 10}, "data": [0, 2, 1, 0, 1]}"#,
            r#"{"name": "a", "data": [0, 2, 1, 0, 1], "gap_seconds": 10}"#,
            r#"{"data": {"data": [0, 2, 1, 0, 1], "gap_seconds": 10}}"#,
        ] {
            let trace = Availability::parse(text).unwrap();
            let [one, two] = trace.machines() else { panic!("{trace:?}") };
            assert_eq!(changes(one), [(10, true), (30, false), (40, true), (50, false)]);
            assert_eq!(changes(two), [(10, true), (20, false)]);
        }
    }

    #[test]
    fn flaws_are_named_with_their_line() {
        let good = row(1, 1, 100, 200);
        for (text, sentence) in [
            (format!("{HEADING}{good}1 2 3\n"), "line 3: 3 fields where 9 are expected"),
            (format!("{HEADING}{good}{}", row(1, 2, 1, 2)), "line 3: event_type is 2: 1 (available) or 0"),
            (format!("{good}{}", row(1, 1, 5, 4)), "line 2: event_stop_time 4 is before event_start_time 5"),
            (good.replace("\t1\t3", "\tx\t3"), "line 1: node_id is x: a whole number"),
            (good.replace("200", "soon"), "line 1: event_stop_time is soon: seconds since 1970"),
            (HEADING.to_owned(), "no machine is ever up"),
            ("{\"a\": {\"gap_seconds\": 10,\n \"data\": [0, \"x\"]}}".to_owned(), "line 2: "),
            ("{\"a\":\n {\"data\": [1]}}".to_owned(), "a: gap_seconds is missing or not between 1 and"),
            (
                format!("{{\"a\": {{\"gap_seconds\": {}, \"data\": [0, 1, 1]}}}}", u64::MAX),
                "a: gap_seconds is missing or not",
            ),
            (
                "{\"gap_seconds\": 1, \"data\": [1.5]}".to_owned(),
                "line 1: invalid type: floating point `1.5`, expected u32",
            ),
            ("{\"a\": 1}".to_owned(), "line 1: invalid type: integer `1`"),
            ("{\"a\": ".to_owned(), "line 1: "),
            (good.replace("\t8000", ""), "line 1: 8 fields where 9 are expected"),
            (good.replace("\t8000", "\t8000\tx y\t1\t2"), "line 1: 13 fields where 9 are expected"),
            (format!("{HEADING}{good}event_idx foo\n"), "line 3: 2 fields where 9 are expected"),
            ("{\"gap_seconds\": 60, \"data\": [0, 1]}\ntext\n".to_owned(), "line 2: trailing characters"),
            ("{\"gap_seconds\": 60,\n\"data\": [0, 1".to_owned(), "line 2: EOF while parsing"),
            (
                "{\"a\": {\"gap_seconds\": 9, \"data\": [1]},\n\"a\": {\"gap_seconds\": 9, \"data\": [0]}}".to_owned(),
                "line 2: a is in it twice",
            ),
        ] {
            let error = Availability::parse(&text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }

    #[test]
    fn files_are_read_plain_and_compressed() {
        use std::io::Write;
        let directory = std::env::temp_dir().join(format!("idlewood-availability-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let text = row(1, 1, 100, 200);
        let path = directory.join("trace.gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        std::fs::write(&path, encoder.finish().unwrap()).unwrap();
        assert_eq!(Availability::read(&path).unwrap(), Availability::parse(&text).unwrap());
        // A byte order mark, and a comment in the encoding of its time.
        let path = directory.join("trace.old");
        std::fs::write(&path, [b"\xef\xbb\xbf# Universit\xe9\n", text.as_bytes()].concat()).unwrap();
        assert_eq!(Availability::read(&path).unwrap(), Availability::parse(&text).unwrap());
        std::fs::write(&path, b"\x7fELF\x00").unwrap();
        assert!(Availability::read(&path).unwrap_err().contains("is not text: give an event_trace.tab"));
        let path = directory.join("trace.tab");
        std::fs::write(&path, format!("{text}x")).unwrap();
        let error = Availability::read(&path).unwrap_err();
        assert!(error.ends_with("node_name event_type event_start_time event_stop_time event_end_reason"), "{error}");
        assert!(error.contains("trace.tab:2: 1 fields"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(Availability::read(&path).unwrap_err().contains("cannot be read"));
    }
}
