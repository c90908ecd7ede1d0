//! Real workflows as bags: instances in WfFormat (WfCommons, all versions up to 1.6), of which the largest set of tasks
//! of one kind at the same depth is taken. The depth of a task is the number of tasks that have to run before it, one
//! after the other: so none of the set needs another.
//!
//! Used are each task's run time, kind, parents and the sizes of its output files. Ignored are the tasks before and
//! behind that set, inputs, memory, and on which machine a task ran.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::input::{self, Malformed};
use crate::observed_bag::ObservedBag;

#[derive(Deserialize)]
struct Instance {
    workflow: Workflow,
}

/// Up to version 1.4 it has `tasks`, from 1.5 on the two others.
#[derive(Deserialize)]
struct Workflow {
    tasks: Option<Vec<Listed>>,
    specification: Option<Specification>,
    execution: Option<Execution>,
}

/// A task with all its properties, up to version 1.4.
#[derive(Deserialize)]
struct Listed {
    name: String,
    /// Same for tasks of the same kind; without it the program tells kinds apart.
    category: Option<String>,
    command: Option<Command>,
    /// Seconds; the second name is that of older instances.
    #[serde(rename = "runtimeInSeconds", alias = "runtime")]
    run_s: f64,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    files: Vec<ListedFile>,
}

#[derive(Deserialize)]
struct Command {
    program: Option<String>,
}

#[derive(Deserialize)]
struct ListedFile {
    link: String,
    #[serde(rename = "sizeInBytes", alias = "size", default)]
    bytes: u64,
}

/// What was to run, from version 1.5 on.
#[derive(Deserialize)]
struct Specification {
    tasks: Vec<Specified>,
    #[serde(default)]
    files: Vec<File>,
}

#[derive(Deserialize)]
struct Specified {
    id: String,
    /// Name of its kind, or its id once more.
    name: String,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(rename = "outputFiles", default)]
    outputs: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    id: String,
    #[serde(rename = "sizeInBytes")]
    bytes: u64,
}

/// How it ran, from version 1.5 on.
#[derive(Deserialize)]
struct Execution {
    tasks: Vec<Executed>,
}

#[derive(Deserialize)]
struct Executed {
    id: String,
    #[serde(rename = "runtimeInSeconds")]
    run_s: f64,
    command: Option<Command>,
}

/// Longest run time of a task, in seconds: what a log may have, too.
const RUN_S_MAX: f64 = u32::MAX as f64;
/// Largest output of a task, as in scenarios.
const OUTPUT_BYTES_MAX: u64 = 1 << 40;
/// Names what is read.
const EXPECTED: &str = "WfFormat: {\"workflow\": {\"tasks\": [{\"name\": …, \"runtimeInSeconds\": …, \"parents\": […], \"files\": […]}]}}, \
    from version 1.5 on {\"workflow\": {\"specification\": {\"tasks\": […], \"files\": […]}, \"execution\": {\"tasks\": […]}}}";

/// A task of any version.
struct Task {
    /// Unique.
    name: String,
    /// Empty where the file has none: all those are of one kind.
    kind: String,
    run_s: f64,
    parents: Vec<String>,
    output_bytes: u64,
}

impl From<Listed> for Task {
    fn from(listed: Listed) -> Self {
        let Listed { name, category, command, run_s, parents, files } = listed;
        let program = || command.and_then(|command| command.program);
        let kind = category.or_else(program).unwrap_or_default();
        let outputs = files.iter().filter(|file| file.link == "output").map(|file| file.bytes);
        Self { name, kind, run_s, parents, output_bytes: outputs.fold(0, u64::saturating_add) }
    }
}

/// By their names, which must be unique.
fn named<T>(whose: &str, all: impl IntoIterator<Item = (String, T)>) -> Result<BTreeMap<String, T>, Malformed> {
    let mut named = BTreeMap::new();
    for (name, one) in all {
        if named.contains_key(&name) {
            return Err(Malformed::whole(format!("{whose} {name} twice: leave the one that counts")));
        }
        named.insert(name, one);
    }
    Ok(named)
}

/// Joins what was to run with how it ran.
fn executed(specification: Specification, execution: Option<Execution>) -> Result<Vec<Task>, Malformed> {
    let execution = execution.ok_or_else(|| {
        Malformed::whole("it has no execution: it tells what was to run, and not for how long that took")
    })?;
    let files = named("the specification has file", specification.files.into_iter().map(|file| (file.id, file.bytes)))?;
    // Of several attempts of a task it is unknown which one the others waited for.
    let runs = named("the execution has task", execution.tasks.into_iter().map(|task| (task.id.clone(), task)))?;
    let with_run = |Specified { id, name, parents, outputs }: Specified| {
        let Some(run) = runs.get(&id) else {
            return Err(Malformed::whole(format!("task {id}: it is not among the tasks of the execution")));
        };
        let program = || run.command.as_ref().and_then(|command| command.program.clone());
        let kind = if name == id { program().unwrap_or_default() } else { name };
        let outputs = outputs.iter().filter_map(|file| files.get(file)).copied();
        let output_bytes = outputs.fold(0, u64::saturating_add);
        Ok(Task { name: id, kind, run_s: run.run_s, parents, output_bytes })
    };
    specification.tasks.into_iter().map(with_run).collect()
}

/// The bag of a workflow in a file, plain or compressed by gzip; it arrives at 0.
///
/// # Errors
/// A sentence with the file, the line where there is one, and what is expected there.
pub fn read(path: &Path) -> Result<ObservedBag, String> {
    input::read(path, "give a workflow in WfFormat", parse)
}

/// The bag of a workflow.
///
/// # Errors
/// What is wrong, and in which line or task.
pub fn parse(text: &str) -> Result<ObservedBag, Malformed> {
    let Workflow { tasks, specification, execution } = input::json::<Instance>(text, EXPECTED)?.workflow;
    let tasks: Vec<Task> = match (tasks, specification) {
        (Some(tasks), _) => tasks.into_iter().map(Task::from).collect(),
        (None, Some(specification)) => executed(specification, execution)?,
        (None, None) => return Err(Malformed::whole(format!("it has no tasks; expected is {EXPECTED}"))),
    };
    for task in &tasks {
        let (name, run_s) = (&task.name, task.run_s);
        if !(0.0..=RUN_S_MAX).contains(&run_s) {
            return Err(Malformed::whole(format!(
                "task {name}: a run time of {run_s} s is not between 0 and {RUN_S_MAX}"
            )));
        }
        if task.output_bytes > OUTPUT_BYTES_MAX {
            return Err(Malformed::whole(format!("task {name}: it writes more than {OUTPUT_BYTES_MAX} bytes")));
        }
    }
    let mut alike: BTreeMap<(u32, &str), Vec<&Task>> = BTreeMap::new();
    for (task, level) in tasks.iter().zip(levels(&tasks)?) {
        alike.entry((level, task.kind.as_str())).or_default().push(task);
    }
    // The first of the largest sets.
    let largest = alike.into_values().rev().max_by_key(Vec::len);
    let tasks = largest.ok_or_else(|| Malformed::whole("there is no task in it"))?;
    Ok(ObservedBag {
        arrival: Duration::ZERO,
        tasks_s: tasks.iter().map(|task| task.run_s as f32).collect(),
        outputs_bytes: tasks.iter().map(|task| task.output_bytes).collect(),
        user: None,
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
        // Of sets equally large the first one.
        let alike = workflow(&[task("a", "p", 1.0, &[]), task("b", "q", 2.0, &[])]);
        assert_eq!(parse(&alike).map(|bag| bag.tasks_s), Ok(vec![1.0]));
        let older = r#"{"workflow": {"tasks": [{"name": "x", "runtime": 2, "command": {"program": "p"}}]}}"#;
        assert_eq!(parse(older).map(|bag| bag.tasks_s), Ok(vec![2.0]));
    }

    /// An instance of version 1.5: what was to run, and how it ran.
    fn newer(specified: &str, executed: &str) -> String {
        format!(
            r#"{{"schemaVersion": "1.5", "workflow": {{"specification": {{"tasks": [{specified}],
            "files": [{{"id": "in", "sizeInBytes": 100}}, {{"id": "o1", "sizeInBytes": 7}}, {{"id": "o2", "sizeInBytes": 1}}]}}{executed}}}}}"#
        )
    }

    #[test]
    fn from_version_1_5_on_what_ran_stands_beside_what_was_to_run() {
        let specified = r#"
            {"name": "split_1", "id": "split_1", "parents": [], "children": ["b_2", "b_3"], "outputFiles": ["in"]},
            {"name": "b_2", "id": "b_2", "parents": ["split_1"], "inputFiles": ["in"], "outputFiles": ["o1", "o2"]},
            {"name": "b_3", "id": "b_3", "parents": ["split_1"], "inputFiles": ["in"], "outputFiles": ["o2", "gone"]},
            {"name": "CHECK", "id": "c_4", "parents": ["split_1"]}"#;
        let executed = r#", "execution": {"tasks": [
            {"id": "b_3", "runtimeInSeconds": 3.5, "command": {"program": "blast"}},
            {"id": "b_2", "runtimeInSeconds": 2, "command": {"program": "blast", "arguments": ["-d"]}},
            {"id": "c_4", "runtimeInSeconds": 9, "command": {"program": "blast"}},
            {"id": "split_1", "runtimeInSeconds": 1}]}"#;
        let bag = parse(&newer(specified, executed)).unwrap();
        assert_eq!((bag.tasks_s, bag.outputs_bytes), (vec![2.0, 3.5], vec![8, 1]));
        let again =
            executed.replace(r#"{"id": "split_1""#, r#"{"id": "b_3", "runtimeInSeconds": 60}, {"id": "split_1""#);
        for (text, sentence) in [
            (newer(specified, ""), "it has no execution"),
            (newer(specified, &again), "the execution has task b_3 twice: leave the one that counts"),
            (
                newer(specified, executed).replace(r#""id": "o2""#, r#""id": "o1""#),
                "the specification has file o1 twice",
            ),
            (
                newer(specified, r#", "execution": {"tasks": []}"#),
                "task split_1: it is not among the tasks of the execution",
            ),
            (newer(&specified.replace("b_3", "b_2"), executed), "two tasks are named b_2"),
            (r#"{"workflow": {"execution": {"tasks": []}}}"#.to_owned(), "it has no tasks; expected is WfFormat"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }

    #[test]
    fn malformed_instances_are_refused_by_name() {
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
