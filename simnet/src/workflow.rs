//! Runs of real workflows as bags: instances in WfFormat (WfCommons, versions up to 1.4), of which the largest set of tasks that run
//! the same program at the same depth is taken: as many have to run before each, one after the other, so that none needs another.
//!
//! Used are each task's run time, its program, its parents and the sizes of the files that it writes. Left out: the tasks before
//! and behind that set, inputs, memory, and which machine ran what.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::input::{self, Malformed};
use crate::log::LoggedBag;

#[derive(Deserialize)]
struct Instance {
    workflow: Workflow,
}

#[derive(Deserialize)]
struct Workflow {
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    name: String,
    /// Tasks that are the same in kind have the same; else they have the same program.
    category: Option<String>,
    command: Option<Command>,
    /// Seconds; the second name is that of older instances.
    #[serde(rename = "runtimeInSeconds", alias = "runtime")]
    run_s: f64,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    files: Vec<File>,
}

#[derive(Deserialize)]
struct Command {
    program: Option<String>,
}

#[derive(Deserialize)]
struct File {
    link: String,
    #[serde(rename = "sizeInBytes", alias = "size", default)]
    bytes: u64,
}

/// Longest run time of a task, in seconds: what a log may have, too.
const RUN_S_MAX: f64 = u32::MAX as f64;
/// Largest output of a task, as in scenarios.
const OUTPUT_BYTES_MAX: u64 = 1 << 40;

impl Task {
    fn program(&self) -> &str {
        let program = || self.command.as_ref().and_then(|command| command.program.as_deref());
        self.category.as_deref().or_else(program).unwrap_or("")
    }

    fn output_bytes(&self) -> u64 {
        self.files.iter().filter(|file| file.link == "output").fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

/// The bag of a workflow in a file, plain or compressed by gzip; it arrives at 0.
///
/// # Errors
/// A sentence with the file, the line where there is one, and what is expected there.
pub fn read(path: &Path) -> Result<LoggedBag, String> {
    input::read(path, "give a workflow in WfFormat", parse)
}

/// The bag of a workflow.
///
/// # Errors
/// What is wrong, and in which line or task.
pub fn parse(text: &str) -> Result<LoggedBag, Malformed> {
    let expected = "WfFormat 1.4: {\"workflow\": {\"tasks\": [{\"name\": …, \"runtimeInSeconds\": …, \"parents\": […], \"files\": […]}]}}";
    let tasks = input::json::<Instance>(text, expected)?.workflow.tasks;
    for task in &tasks {
        let (name, run_s) = (&task.name, task.run_s);
        if !(0.0..=RUN_S_MAX).contains(&run_s) {
            return Err(Malformed::whole(format!(
                "task {name}: a run time of {run_s} s is not between 0 and {RUN_S_MAX}"
            )));
        }
        if task.output_bytes() > OUTPUT_BYTES_MAX {
            return Err(Malformed::whole(format!("task {name}: it writes more than {OUTPUT_BYTES_MAX} bytes")));
        }
    }
    let mut alike: BTreeMap<(u32, &str), Vec<&Task>> = BTreeMap::new();
    for (task, level) in tasks.iter().zip(levels(&tasks)?) {
        alike.entry((level, task.program())).or_default().push(task);
    }
    // The first of the largest.
    let largest = alike.into_values().rev().max_by_key(Vec::len);
    let tasks = largest.ok_or_else(|| Malformed::whole("there is no task in it"))?;
    Ok(LoggedBag {
        arrival: Duration::ZERO,
        tasks_s: tasks.iter().map(|task| task.run_s as f32).collect(),
        outputs_bytes: tasks.iter().map(|task| task.output_bytes()).collect(),
    })
}

/// For each task how many tasks have to run one after the other before it, at least.
fn levels(tasks: &[Task]) -> Result<Vec<u32>, Malformed> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, task) in tasks.iter().enumerate() {
        if numbers.insert(&task.name, number).is_some() {
            return Err(Malformed::whole(format!("two tasks are named {}", task.name)));
        }
    }
    let mut children: Vec<Vec<usize>> = tasks.iter().map(|_| Vec::new()).collect();
    for (number, task) in tasks.iter().enumerate() {
        for parent in &task.parents {
            let Some(&parent) = numbers.get(parent.as_str()) else {
                return Err(Malformed::whole(format!("task {}: its parent {parent} is no task of it", task.name)));
            };
            children[parent].push(number);
        }
    }
    let mut missing: Vec<usize> = tasks.iter().map(|task| task.parents.len()).collect();
    let mut ready: VecDeque<usize> = (0..tasks.len()).filter(|&number| missing[number] == 0).collect();
    let mut levels = vec![0; tasks.len()];
    while let Some(number) = ready.pop_front() {
        for &child in &children[number] {
            levels[child] = levels[child].max(levels[number] + 1);
            missing[child] -= 1;
            if missing[child] == 0 {
                ready.push_back(child);
            }
        }
    }
    match missing.iter().position(|&missing| missing > 0) {
        Some(number) => Err(Malformed::whole(format!("task {} needs itself", tasks[number].name))),
        None => Ok(levels),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &str, program: &str, run_s: f64, parents: &[&str]) -> String {
        let parents: Vec<String> = parents.iter().map(|parent| format!("{parent:?}")).collect();
        format!(
            r#"{{"name": "{name}", "category": "{program}", "runtimeInSeconds": {run_s}, "parents": [{}], "files":
            [{{"link": "output", "sizeInBytes": 7}}, {{"link": "input", "sizeInBytes": 9}}, {{"link": "output", "sizeInBytes": 1}}]}}"#,
            parents.join(", ")
        )
    }

    fn workflow(tasks: &[String]) -> String {
        format!("{{\"name\": \"a\",\n \"workflow\": {{\"tasks\": [\n{}]}}}}", tasks.join(",\n"))
    }

    #[test]
    fn the_largest_set_of_tasks_of_one_program_at_one_depth_is_the_bag() {
        let text = workflow(&[
            task("split", "split", 3.0, &[]),
            task("b1", "blast", 0.25, &["split"]),
            task("b2", "blast", 1.5, &["split"]),
            task("c1", "check", 9.0, &["split"]),
            task("again", "blast", 7.0, &["b1", "b2"]),
            task("cat", "cat", 1.0, &["again"]),
        ]);
        let bag = parse(&text).unwrap();
        assert_eq!((bag.tasks_s, bag.outputs_bytes), (vec![0.25, 1.5], vec![8, 8]));
        // The first of those that are as large.
        let alike = workflow(&[task("a", "p", 1.0, &[]), task("b", "q", 2.0, &[])]);
        assert_eq!(parse(&alike).map(|bag| bag.tasks_s), Ok(vec![1.0]));
        let older = r#"{"workflow": {"tasks": [{"name": "x", "runtime": 2, "command": {"program": "p"}}]}}"#;
        assert_eq!(parse(older).map(|bag| bag.tasks_s), Ok(vec![2.0]));
    }

    #[test]
    fn what_is_malformed_is_named() {
        let one = task("one", "p", 1.0, &["two"]);
        for (text, sentence) in [
            (workflow(std::slice::from_ref(&one)), "task one: its parent two is no task of it"),
            (workflow(&[one.clone(), task("two", "p", 1.0, &["one"])]), "task one needs itself"),
            (workflow(&[task("two", "p", 1.0, &[]), task("two", "p", 1.0, &[])]), "two tasks are named two"),
            (workflow(&[task("two", "p", -1.0, &[])]), "task two: a run time of -1 s"),
            (workflow(&[]), "there is no task in it"),
            ("{\"workflow\":\n {\"tasks\": [{}]}}".to_owned(), "line 2: missing field `name`"),
            ("[]".to_owned(), "expected is WfFormat"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }
}
