//! Logs of real grids as workloads: the Standard Workload Format, its jobs grouped into bags.
//!
//! A line is a job of 18 numbers (<https://www.cs.huji.ac.il/labs/parallel/workload/swf.html>), a comment begins with a
//! semicolon. Used are the 2nd (submission, seconds), the 4th (run time, seconds), the 5th (processors) and the 12th
//! (user). Jobs that a user submits at most 120 s after the one before are one bag, as in `docs/design/defaults.md`; a job of
//! an unknown user (-1) is a bag by itself, and nobody's. Fractions are rounded up.
//! A job on k processors counts as k tasks of its run time: a job that needs its processors together is not a bag, but
//! there is no better log among the data. Left out: jobs that never ran, waiting times, dependencies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::input::{self, Malformed, malformed};
use crate::observed_bag::ObservedBag;

/// Longest time between two jobs of a user in one bag.
const GAP: u64 = 120;
/// Numbers of a line.
const FIELDS: usize = 18;

/// Most tasks that one job may count as.
const PROCESSORS_MAX: i64 = 1 << 20;
/// Most tasks of a log: 400 MB of memory.
const TASKS_MAX: usize = 100_000_000;

/// A log that was read.
#[derive(Clone, Debug)]
pub struct Log {
    /// Its file.
    pub path: PathBuf,
    /// Its bags, in the order of their arrival.
    pub bags: Arc<Vec<ObservedBag>>,
}

impl Log {
    /// Reads a log, plain or compressed by gzip.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        Ok(Self { path: path.to_owned(), bags: Arc::new(read(path)?) })
    }
}

/// The bags of a log in a file, plain or compressed by gzip, in the order of their arrival.
///
/// # Errors
/// A sentence with the file, the line where there is one, and what is expected there.
pub fn read(path: &Path) -> Result<Vec<ObservedBag>, String> {
    input::read(path, "give a log in the Standard Workload Format", parse)
}

/// The bags of a log, in the order of their arrival.
///
/// # Errors
/// The flaw, and its line.
pub fn parse(text: &str) -> Result<Vec<ObservedBag>, Malformed> {
    let mut jobs = Vec::new();
    let mut tasks_len = 0;
    for (number, line) in input::lines(text).filter(|(_, line)| !line.starts_with(';')) {
        let fields: Vec<i64> =
            line.split_whitespace().map(|field| rounded_up(number, field)).collect::<Result<_, _>>()?;
        let &[_, submitted, _, run_s, processors, _, _, _, _, _, _, user, ..] = fields.as_slice() else {
            return malformed(number, format!("{} fields where {FIELDS} are expected", fields.len()));
        };
        if fields.len() != FIELDS {
            return malformed(number, format!("{} fields where {FIELDS} are expected", fields.len()));
        }
        let Ok(submitted) = u64::try_from(submitted) else {
            return malformed(number, format!("the submission is at {submitted}: seconds from 0 on are expected"));
        };
        if processors > PROCESSORS_MAX {
            return malformed(number, format!("{processors} processors are more than {PROCESSORS_MAX}"));
        }
        // Cancelled before it ran, or unknown.
        let (1.., 1..) = (processors, run_s) else { continue };
        let Ok(run_s) = u32::try_from(run_s) else {
            return malformed(number, format!("a run time of {run_s} s is more than {}", u32::MAX));
        };
        tasks_len += processors as usize;
        if tasks_len > TASKS_MAX {
            return malformed(
                number,
                format!("there are more than {TASKS_MAX} tasks up to here: cut the log off before"),
            );
        }
        jobs.push((submitted, user, std::iter::repeat_n(run_s as f32, processors as usize)));
    }
    // Logs should be in that order.
    jobs.sort_by_key(|(submitted, ..)| *submitted);
    let mut bags: Vec<(u64, ObservedBag)> = Vec::new();
    // By user: the bag, and when its last job was submitted.
    let mut open: BTreeMap<i64, (usize, u64)> = BTreeMap::new();
    let mut users: BTreeMap<i64, u32> = BTreeMap::new();
    for (submitted, user, tasks) in jobs {
        match open.get_mut(&user).filter(|_| user >= 0) {
            Some((bag, last)) if submitted - *last <= GAP => {
                *last = submitted;
                bags[*bag].1.tasks_s.extend(tasks);
            }
            _ => {
                open.insert(user, (bags.len(), submitted));
                let (arrival, outputs_bytes, users_len) = (Duration::ZERO, Vec::new(), users.len() as u32);
                let user = (user >= 0).then(|| *users.entry(user).or_insert(users_len));
                bags.push((submitted, ObservedBag { arrival, tasks_s: tasks.collect(), outputs_bytes, user }));
            }
        }
    }
    let Some(first) = bags.first().map(|(submitted, _)| *submitted) else {
        return Err(Malformed::whole("no job in it ever ran"));
    };
    let bags = bags.into_iter().map(|(at, bag)| ObservedBag { arrival: Duration::from_secs(at - first), ..bag });
    Ok(bags.collect())
}

fn rounded_up(line: usize, field: &str) -> Result<i64, Malformed> {
    // Some logs have fractions of seconds.
    match field.parse::<f64>() {
        Ok(number) if number.abs() < 1e15 => Ok(number.ceil() as i64),
        _ => malformed(line, format!("{field} is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(submitted: i64, run: i64, processors: i64, user: i64) -> String {
        format!("1 {submitted} -1 {run} {processors} -1 -1 -1 -1 -1 -1 {user} 1 -1 -1 -1 -1 -1\n")
    }

    #[test]
    fn jobs_of_a_user_that_follow_each_other_are_one_bag() {
        let text = [
            "; a comment\n",
            &job(1_000, 60, 2, 7),
            &job(1_050, 30, 1, 8),
            &job(1_120, 90, 1, 7),
            &job(1_241, 10, 1, 7),
            &job(1_242, 0, 1, 7),
            &job(1_243, 5, -1, 7),
            &job(1_301, 2, 1, -1),
            &job(1_300, 1, 1, -1).replace(" 1 1 ", " 0.2 1 "),
        ];
        let bags = parse(&text.concat()).unwrap();
        let bag = |arrival, tasks_s: &[f32], user| {
            let (arrival, outputs_bytes) = (Duration::from_secs(arrival), Vec::new());
            ObservedBag { arrival, tasks_s: tasks_s.into(), outputs_bytes, user }
        };
        let unknown = [bag(300, &[1.0], None), bag(301, &[2.0], None)];
        let known = [bag(0, &[60.0, 60.0, 90.0], Some(0)), bag(50, &[30.0], Some(1)), bag(241, &[10.0], Some(0))];
        assert_eq!(bags, [&known[..], &unknown[..]].concat());
        assert_eq!(bags[0].mean_s(), 70.0);
    }

    #[test]
    fn flaws_are_named_with_their_line() {
        let good = job(0, 1, 1, 1);
        for (text, sentence) in [
            (format!("{good}1 2 3\n"), "line 2: 3 fields where 18 are expected"),
            (format!("{good}\n{}", good.trim().to_owned() + " 5"), "line 3: 19 fields where 18 are expected"),
            (good.replacen('1', "one", 1), "line 1: one is not a number"),
            (job(-5, 1, 1, 1), "line 1: the submission is at -5"),
            (job(0, 1, 1 << 40, 1), "line 1: 1099511627776 processors"),
            (job(0, 1 << 40, 1, 1), "line 1: a run time of 1099511627776 s is more than 4294967295"),
            ("; nothing\n".to_owned(), "no job in it ever ran"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }
}
