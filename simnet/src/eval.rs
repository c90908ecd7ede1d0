//! `simnet eval`: the scheduler's arithmetic on one queue, as JSON, so that anybody can check it with other tools.
//!
//! The document:
//!
//! ```json
//! {"speed": 100, "slots": 1, "now": 50, "preemptive": false, "running": [200],
//!  "queue": [{"r": 10, "w": 4000, "a": 100, "left": 7.5}],
//!  "queries": [{"S": 0.05, "r": 50, "w": 3000, "a": 100}]}
//! ```
//!
//! The answer:
//!
//! ```json
//! {"max_stretch": 0.012375005, "max_stretch_exact": 0.012375, "answers": [{"h": 14800, "n": 148}]}
//! ```
//!
//! Every field is required, and no other is accepted. Units as in the paper's chapter 4 with work in Mop: `speed` in
//! Mop/s per slot; `now` and `r` in seconds from any origin; `w`, `a` and `running` in Mop; `S` in s/Mop. The results
//! come from the functions that ship: [`max_stretch`] with its default error, [`max_stretch_exact`],
//! [`available_work`], [`available_tasks`] and [`queue_at`].
//!
//! - `running` is the remaining work of running tasks, one per busy slot: without preemption they come first and have
//!   no deadline; with preemption it must be empty, and their remaining work is part of the queue.
//! - A bag with `left` 0 is ignored. A queue without work has the stretch 0.
//! - A query is about a bag released at its own `r`. If that is after `now`, the queue is evaluated as it will be at
//!   `r`: served by earliest deadline first at `S` until then, task after task on the slot that is free first (a part
//!   of a task counts as its bag's first). Work done by then is ignored, even if it was late.
//! - On one slot all values are exact except for rounding. On several, both maximum stretches are what list scheduling
//!   surely keeps (it may do better, rarely by much), h is what it surely keeps with new tasks of the size a, and n =
//!   ⌊h/a⌋.
//! - **Rounding.** The answer shall not hang on the last binary digit of a decimal number. So n = ⌊h/a⌋ counts a
//!   task that fits but for rounding: h/a = 2.9999999999999996 is 3. There h counts as larger by δ, [`ROUNDING`] ·
//!   speed · (|now| + |r| + S·w), as long as δ is less than [`ROUNDING_TASKS_MAX`] of a task; else, and on several
//!   slots, where h is a bound, n is rounded down plainly. And where the queue misses a deadline at S and meets all
//!   at S · (1 + [`ROUNDING`]), that is taken for S. h itself is not rounded.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use idlewood_scheduler::availability::{available_tasks, available_work, queue_at};
use idlewood_scheduler::queue::{
    ENTRIES_MAX, Entry, Load, MOMENT_S_MAX, SLOTS_MAX, SPEED_MOPS_MAX, SPEED_MOPS_MIN, TASKS_MAX, WORK_MOPS_MAX,
    WORK_MOPS_MIN,
};
use idlewood_scheduler::stretch::{EPSILON_DEFAULT, max_stretch, max_stretch_exact, meets_deadlines};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};

/// Relative error of a number that went through the rounding of a decimal fraction and a few operations.
pub const ROUNDING: f64 = 8.0 * f64::EPSILON;

/// Largest part of a task that rounding may be worth: where it is more, no count is exact anyhow.
pub const ROUNDING_TASKS_MAX: f64 = 1e-3;

/// Largest stretch of a query, s/Mop: far above that of any queue that is accepted, far below what overflows.
pub const STRETCH_MAX: f64 = 1e60;

/// Longest quotation of the document in an error.
const QUOTED_CHARS_MAX: usize = 60;

/// Why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalError {
    /// The field, such as `queue[2].w`; empty for the document as a whole.
    pub field: String,
    /// The mistake, or what to write instead.
    pub problem: String,
}

impl fmt::Display for EvalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "the document" } else { &brief(&self.field) };
        write!(formatter, "{field} {}", self.problem)
    }
}

impl std::error::Error for EvalError {}

/// A quotation on one line, shortened.
fn brief(text: &str) -> String {
    let escaped: String = text.escape_debug().collect();
    match escaped.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &escaped[..end]),
        None => escaped,
    }
}

/// The output of `simnet eval`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// By binary search, s/Mop (paper §4, Algorithm 2).
    pub max_stretch: f64,
    /// By the exact method, s/Mop.
    pub max_stretch_exact: f64,
    /// One per query, in their order.
    pub answers: Vec<Answer>,
}

/// What a leaf has available for one query (paper §5.1, Algorithm 3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Mop.
    pub h: f64,
    /// Tasks, at most 2^64 − 1.
    pub n: u64,
}

/// Reads the document and computes the answers.
///
/// # Errors
/// The first field that is missing, unknown or out of range.
pub fn evaluate(document: &str) -> Result<Evaluation, EvalError> {
    let path = RefCell::new(String::new());
    let mut reader = serde_json::Deserializer::from_str(document);
    let json = (JsonAt { path: &path })
        .deserialize(&mut reader)
        .and_then(|json| {
            reader.end()?;
            Ok(json)
        })
        .map_err(|error| EvalError { field: path.borrow().clone(), problem: format!("is not valid: {error}") })?;
    let (load, queries) = read(&Field { path: String::new(), json: &json })?;
    Ok(Evaluation {
        max_stretch: max_stretch(&load, EPSILON_DEFAULT),
        max_stretch_exact: max_stretch_exact(&load),
        answers: queries.iter().map(|query| query.answer(&load)).collect(),
    })
}

/// A new bag.
#[derive(Clone, Copy, Debug)]
struct Query {
    stretch: f64,
    release_s: f64,
    application_size_mops: f64,
    task_mops: f64,
}

impl Query {
    fn answer(&self, load: &Load) -> Answer {
        if self.release_s > load.now_s {
            return self.answer(&queue_at(load, self.stretch, self.release_s));
        }
        let Self { mut stretch, release_s, application_size_mops, task_mops } = *self;
        let nudged = stretch * (1.0 + ROUNDING);
        if !meets_deadlines(load, stretch) && meets_deadlines(load, nudged) {
            stretch = nudged;
        }
        let h = available_work(load, stretch, release_s, application_size_mops, task_mops);
        if load.slots > 1 {
            return Answer { h, n: available_tasks(load, stretch, release_s, application_size_mops, task_mops) };
        }
        let scale_s = load.now_s.abs() + release_s.abs() + stretch * application_size_mops;
        let rounding_mops = ROUNDING * load.speed_mops * scale_s;
        let counts = h > 0.0 && rounding_mops < ROUNDING_TASKS_MAX * task_mops;
        let counted_mops = if counts { h + rounding_mops } else { h };
        // The cast saturates.
        Answer { h, n: (counted_mops / task_mops) as u64 }
    }
}

fn read(document: &Field<'_>) -> Result<(Load, Vec<Query>), EvalError> {
    let [speed, slots, now, preemptive, running, queue, queries] =
        document.object(["speed", "slots", "now", "preemptive", "running", "queue", "queries"])?;
    let speed_mops = speed.number(SPEED_MOPS_MIN..=SPEED_MOPS_MAX, "Mop/s")?;
    let slots = slots.count(SLOTS_MAX)?;
    let now_s = now.number(-MOMENT_S_MAX..=MOMENT_S_MAX, "s")?;
    let preemptive = preemptive.boolean()?;
    let rests = running.array()?;
    if preemptive && !rests.is_empty() {
        return Err(running.wrong("must be empty with preemption: count what is left of running tasks in the queue"));
    }
    if rests.len() > slots as usize {
        return Err(running.wrong(format!("has {} entries for {slots} slots: at most one per slot", rests.len())));
    }
    let running_mops =
        rests.iter().map(|rest| rest.number(0.0..=WORK_MOPS_MAX, "Mop")).collect::<Result<Vec<_>, _>>()?;
    let bags = queue.array()?;
    if bags.len() > ENTRIES_MAX {
        return Err(queue.wrong(format!("has {} bags: at most {ENTRIES_MAX}", bags.len())));
    }
    let work = WORK_MOPS_MIN..=WORK_MOPS_MAX;
    let mut entries = Vec::with_capacity(bags.len());
    for bag in bags {
        let [r, w, a, left] = bag.object(["r", "w", "a", "left"])?;
        let release_s = r.number(-MOMENT_S_MAX..=MOMENT_S_MAX, "s")?;
        if release_s > now_s {
            return Err(r.wrong(format!("must not be later than now ({now_s}), but is {release_s}")));
        }
        entries.push(Entry {
            release_s,
            application_size_mops: w.number(work.clone(), "Mop")?,
            task_mops: a.number(work.clone(), "Mop")?,
            left: left.number(0.0..=TASKS_MAX, "tasks")?,
        });
    }
    let mut asked = Vec::new();
    for query in queries.array()? {
        let [stretch, r, w, a] = query.object(["S", "r", "w", "a"])?;
        let release_s = r.number(-MOMENT_S_MAX..=MOMENT_S_MAX, "s")?;
        asked.push(Query {
            stretch: stretch.number(0.0..=STRETCH_MAX, "s/Mop")?,
            release_s,
            application_size_mops: w.number(work.clone(), "Mop")?,
            task_mops: a.number(work.clone(), "Mop")?,
        });
    }
    let load = Load { now_s, speed_mops, slots, preemptive, running_mops, entries };
    load.validate().map_err(|error| document.wrong(format!("is not a valid queue: {error}")))?;
    Ok((load, asked))
}

/// A JSON value as written: all fields of an object, in their order.
#[derive(Debug)]
enum Json {
    Null,
    Boolean(bool),
    Number(f64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    fn kind(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Boolean(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Text(text) => format!("\"{}\"", brief(text)),
            Self::Array(_) => "an array".into(),
            Self::Object(_) => "an object".into(),
        }
    }
}

/// A value and its path in the document.
struct Field<'a> {
    path: String,
    json: &'a Json,
}

impl<'a> Field<'a> {
    fn wrong(&self, problem: impl Into<String>) -> EvalError {
        EvalError { field: self.path.clone(), problem: problem.into() }
    }

    /// The fields with these names; an error if there are others.
    fn object<const N: usize>(&self, names: [&str; N]) -> Result<[Field<'a>; N], EvalError> {
        let Json::Object(fields) = self.json else {
            return Err(self.wrong(format!("must be an object with {}, not {}", names.join(", "), self.json.kind())));
        };
        let at = |name: &str| join(&self.path, name);
        if let Some((name, _)) = fields.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            let problem = format!("is not known: the fields here are {}", names.join(", "));
            return Err(EvalError { field: at(name), problem });
        }
        let mut found = Vec::with_capacity(N);
        for name in names {
            let Some((_, json)) = fields.iter().find(|(known, _)| known == name) else {
                return Err(EvalError { field: at(name), problem: "is missing".into() });
            };
            found.push(Field { path: at(name), json });
        }
        Ok(found.try_into().unwrap_or_else(|_| unreachable!("one field for each name")))
    }

    fn array(&self) -> Result<Vec<Field<'a>>, EvalError> {
        let Json::Array(values) = self.json else {
            return Err(self.wrong(format!("must be an array, not {}", self.json.kind())));
        };
        Ok(values
            .iter()
            .enumerate()
            .map(|(index, json)| Field { path: format!("{}[{index}]", self.path), json })
            .collect())
    }

    fn number(&self, range: RangeInclusive<f64>, unit: &str) -> Result<f64, EvalError> {
        match self.json {
            Json::Number(value) if range.contains(value) => Ok(*value),
            other => {
                let (least, most) = range.into_inner();
                Err(self.wrong(format!("must be a number from {least:e} to {most:e} ({unit}), not {}", other.kind())))
            }
        }
    }

    fn count(&self, most: u32) -> Result<u32, EvalError> {
        match self.json {
            Json::Number(value) if value.fract() == 0.0 && (1.0..=f64::from(most)).contains(value) => Ok(*value as u32),
            other => Err(self.wrong(format!("must be a whole number from 1 to {most}, not {}", other.kind()))),
        }
    }

    fn boolean(&self) -> Result<bool, EvalError> {
        match self.json {
            Json::Boolean(value) => Ok(*value),
            other => Err(self.wrong(format!("must be true or false, not {}", other.kind()))),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Reads a JSON value and tracks its path, so that a syntax error names its field, too.
#[derive(Clone, Copy)]
struct JsonAt<'p> {
    path: &'p RefCell<String>,
}

impl JsonAt<'_> {
    /// Extends the path while `read` runs; keeps it if that fails.
    fn within<T, E>(self, step: &str, read: impl FnOnce(Self) -> Result<T, E>) -> Result<T, E> {
        let before = self.path.borrow().len();
        self.path.borrow_mut().push_str(step);
        let value = read(self)?;
        self.path.borrow_mut().truncate(before);
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for JsonAt<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonAt<'_> {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Boolean(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(value) = self.within(&format!("[{}]", array.len()), |at| values.next_element_seed(at))? {
            array.push(value);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object: Vec<(String, Json)> = Vec::new();
        let mut known = BTreeSet::new();
        while let Some(name) = entries.next_key::<String>()? {
            let step = if self.path.borrow().is_empty() { name.clone() } else { format!(".{name}") };
            let new = known.insert(name.clone());
            let value = self.within(&step, |at| {
                if !new {
                    return Err(A::Error::custom("it stands here twice"));
                }
                entries.next_value_seed(at)
            })?;
            object.push((name, value));
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"speed": 100, "slots": 1, "now": 50, "preemptive": false, "running": [200],
        "queue": [{"r": 10, "w": 4000, "a": 100, "left": 7.5}],
        "queries": [{"S": 0.05, "r": 50, "w": 3000, "a": 100}]}"#;

    fn refused(document: &str) -> String {
        evaluate(document).unwrap_err().to_string()
    }

    fn refused_with(old: &str, new: &str) -> String {
        assert!(DOCUMENT.contains(old), "{old}");
        refused(&DOCUMENT.replacen(old, new, 1))
    }

    #[test]
    fn the_example_of_the_docs() {
        let Evaluation { max_stretch, max_stretch_exact, answers } = evaluate(DOCUMENT).unwrap();
        // 40 s old, 200 + 750 Mop at 100 Mop/s: 49.5 s for 4,000 Mop.
        assert!((max_stretch_exact - 0.012375).abs() < 1e-15);
        assert!((max_stretch / 0.012375 - 1.0).abs() < 1e-6);
        // Due in 150 s, before the other one, which is due in 160 s and needs 9.5 s.
        assert_eq!(answers.len(), 1);
        assert!((answers[0].h - 14_800.0).abs() < 1e-6);
        assert_eq!(answers[0].n, 148);
    }

    #[test]
    fn mistakes_are_named() {
        for (old, new, sentence) in [
            ("\"speed\": 100", "\"speed\": 0", "speed must be a number from 1e-3 to 1e12 (Mop/s), not 0"),
            ("\"speed\": 100", "\"speed\": null", "speed must be a number from 1e-3 to 1e12 (Mop/s), not null"),
            ("\"speed\": 100,", "", "speed is missing"),
            ("\"slots\": 1", "\"slots\": 1.5", "slots must be a whole number from 1 to 4096, not 1.5"),
            ("\"slots\": 1", "\"slots\": 0", "slots must be a whole number from 1 to 4096, not 0"),
            ("\"now\": 50", "\"now\": \"50\"", "now must be a number from -1e12 to 1e12 (s), not \"50\""),
            ("\"preemptive\": false", "\"preemptive\": 0", "preemptive must be true or false, not 0"),
            ("[200]", "[200, 1]", "running has 2 entries for 1 slots: at most one per slot"),
            ("[200]", "[-1]", "running[0] must be a number from 0e0 to 1e24 (Mop), not -1"),
            ("[200]", "200", "running must be an array, not 200"),
            ("\"w\": 4000", "\"w\": -1", "queue[0].w must be a number from 1e-6 to 1e24 (Mop), not -1"),
            ("\"w\": 4000", "\"W\": 4000", "queue[0].W is not known: the fields here are r, w, a, left"),
            ("\"r\": 10", "\"r\": 50.5", "queue[0].r must not be later than now (50), but is 50.5"),
            ("\"left\": 7.5", "\"left\": -7", "queue[0].left must be a number from 0e0 to 1e15 (tasks), not -7"),
            ("\"S\": 0.05", "\"S\": -0.1", "queries[0].S must be a number from 0e0 to 1e60 (s/Mop), not -0.1"),
            (
                "\"queries\"",
                "\"asked\": 1, \"queries\"",
                "asked is not known: the fields here are speed, slots, now, preemptive, running, queue, queries",
            ),
        ] {
            assert_eq!(refused_with(old, new), sentence);
        }
        let preemptive = refused_with("\"preemptive\": false", "\"preemptive\": true");
        assert!(preemptive.starts_with("running must be empty with preemption"), "{preemptive}");
        let long = refused_with("\"speed\"", &format!("\"a\\nb{}\"", "c".repeat(1000)));
        assert!(
            long.starts_with("a\\nbccc") && long.contains("c… is not known") && long.lines().count() == 1,
            "{long}"
        );
        let deep = refused(&"[".repeat(100_000));
        assert!(deep.chars().count() < 200 && deep.contains("is not valid"), "{deep}");
        assert!(refused("[]").starts_with("the document must be an object with speed"));
        assert!(refused("").starts_with("the document is not valid: EOF"));
    }

    #[test]
    fn errors_of_the_syntax_name_the_field_too() {
        for (old, new, start) in [
            ("\"w\": 4000", "\"w\": NaN", "queue[0].w is not valid: expected value"),
            ("\"w\": 4000", "\"w\": 1e999", "queue[0].w is not valid: number out of range"),
            ("\"r\": 10", "\"r\": 10, \"r\": 11", "queue[0].r is not valid: it stands here twice"),
            ("[200]", "[Infinity]", "running[0] is not valid"),
            ("3000, \"a\": 100}]}", "3000, \"a\": 100}]} 1", "the document is not valid: trailing characters"),
        ] {
            let sentence = refused_with(old, new);
            assert!(sentence.starts_with(start), "{sentence}");
            assert!(!sentence.contains('\n'));
        }
    }

    #[test]
    fn a_task_that_fits_but_for_rounding_counts() {
        let n = |speed: &str, stretch: &str, w: &str, a: &str| {
            let document = format!(
                r#"{{"speed": {speed}, "slots": 1, "now": 1700000000.3, "preemptive": true, "running": [], "queue": [],
                "queries": [{{"S": {stretch}, "r": 1700000000.2, "w": {w}, "a": {a}}}]}}"#
            );
            evaluate(&document).unwrap().answers[0].n
        };
        // (0.3·1 − 0.1)·1 = 0.2 s, of which the difference of the two moments has six exact digits.
        assert_eq!(n("1", "0.3", "1", "0.1"), 2);
        assert_eq!(n("1", "0.3", "1", "0.05"), 4);
        assert_eq!(n("1", "0.3", "1", "0.2"), 1);
        // Nor can binary numbers express 0.29·100.
        let document = r#"{"speed": 1, "slots": 1, "now": 0, "preemptive": true, "running": [], "queue": [],
            "queries": [{"S": 0.29, "r": 0, "w": 100, "a": 1}]}"#;
        let answer = evaluate(document).unwrap().answers[0];
        assert!(answer.h < 29.0);
        assert_eq!(answer.n, 29);
        // A task that misses by more than rounding does not count.
        assert_eq!(n("1", "0.3", "1", "0.20001"), 0);
        assert_eq!(n("1", "0.3", "1", "0.09999"), 2);
        // The queue is due exactly at its end at 0.07·100 s.
        let exact = |queue_w: &str, stretch: &str| {
            let document = format!(
                r#"{{"speed": 1, "slots": 1, "now": 0, "preemptive": true, "running": [],
                "queue": [{{"r": 0, "w": {queue_w}, "a": 1, "left": 29}}],
                "queries": [{{"S": {stretch}, "r": 0, "w": 1000, "a": 1}}]}}"#
            );
            evaluate(&document).unwrap().answers[0]
        };
        assert!(std::hint::black_box(0.29) * 100.0 < 29.0);
        let answer = exact("100", "0.29");
        assert!((answer.h - 261.0).abs() < 1e-9);
        assert_eq!(answer.n, 261);
        assert_eq!(exact("100", "0.28999999"), Answer { h: 0.0, n: 0 });
    }

    #[test]
    fn a_bag_that_is_released_later_finds_the_queue_as_it_will_be() {
        let answer = |r: &str, w: &str| {
            let document = format!(
                r#"{{"speed": 10, "slots": 1, "now": 100, "preemptive": true, "running": [],
                "queue": [{{"r": 100, "w": 200, "a": 10, "left": 10}}, {{"r": 100, "w": 1000, "a": 10, "left": 20}}],
                "queries": [{{"S": 0.1, "r": {r}, "w": {w}, "a": 7}}]}}"#
            );
            evaluate(&document).unwrap().answers[0].h
        };
        // Due after 20 and 100 s, done after 10 and 30 s. At once: due in 50 s, behind the first.
        assert_eq!(answer("100", "500"), 400.0);
        // In 5 s: due after 55 s; in 15 s: it cannot begin earlier, and is due after 65 s.
        assert_eq!(answer("105", "500"), 450.0);
        assert_eq!(answer("115", "500"), 500.0);
        // Between both, with 70 s to spare before the second is late, or after it is done.
        assert_eq!(answer("115", "840"), 700.0);
        assert_eq!(answer("131", "680"), 680.0);
        assert_eq!(answer("131", "5000"), 5000.0);
        assert_eq!(answer("101", "5000"), 5010.0 - 300.0);
    }
    #[test]
    fn work_done_by_the_release_is_ignored() {
        let answer = |preemptive: bool, running: &str, slots: u32, r: &str, a: &str| {
            let document = format!(
                r#"{{"speed": 1, "slots": {slots}, "now": 0, "preemptive": {preemptive}, "running": [{running}],
                "queue": [{{"r": 0, "w": 1, "a": 1, "left": 5}}],
                "queries": [{{"S": 2, "r": {r}, "w": 10, "a": {a}}}]}}"#
            );
            let Answer { h, n } = evaluate(&document).unwrap().answers[0];
            (h, n)
        };
        // Late at 4.5 s, done at 5 s; due 20 s after its release.
        assert_eq!(answer(true, "", 1, "4.5", "3"), (0.0, 0));
        assert_eq!(answer(true, "", 1, "5", "3"), (20.0, 6));
        // Without preemption the running task comes first, and then no other is waiting.
        assert_eq!(answer(false, "", 1, "4.5", "3"), (19.5, 6));
        assert_eq!(answer(false, "2", 1, "6.5", "3"), (19.5, 6));
        // On two slots five tasks take three seconds: whole tasks of the new bag, and n = ⌊h/a⌋ always.
        assert_eq!(answer(true, "", 2, "3", "7").1, 4);
        assert_eq!(answer(false, "", 2, "2.5", "7").1, 4);
        assert_eq!(answer(true, "", 2, "3", "21").1, 0);
    }
}
