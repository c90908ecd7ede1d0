use std::fs;

use idlewood_trust::manifest::OwnFolder;
use idlewood_units::Variable;

use super::*;

const PROGRAM: &[u8] = include_bytes!("../../tasks/noop/noop.wasm");

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        desk.file("p.wasm", PROGRAM);
        desk
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn options(&self) -> Options {
        Options { program: Some(self.0.path().join("p.wasm")), ..Options::default() }
    }

    fn pattern(&self, pattern: &str) -> Option<String> {
        Some(format!("{}/{pattern}", self.0.path().display()))
    }
}

fn plan(options: Options) -> Result<Plan, SubmitError> {
    Plan::new(options, io::empty())
}

fn texts(plan: &Plan) -> Vec<&str> {
    plan.request.entries.iter().map(|entry| entry.text.as_str()).collect()
}

#[test]
fn without_a_source_there_is_one_task() {
    let request = plan(Desk::new().options()).unwrap().request;
    assert_eq!((request.tasks, request.entries.len(), request.name.as_str()), (1, 0, "p"));
    assert_eq!((request.memory_bytes, request.time_limit_s, request.retries_max), (512 << 20, 86_400, 2));
    assert_eq!(request.disk_bytes, 1 << 30);
    assert_eq!((request.success_codes, request.work_mops), (vec![0], None));
}

#[test]
fn sources_become_entries() {
    let desk = Desk::new();
    let array = plan(Options { array: Some("2-6:2".parse().unwrap()), ..desk.options() }).unwrap();
    assert_eq!((array.request.tasks, texts(&array)), (3, vec!["2", "4", "6"]));

    let path = desk.file("lines", "eins\r\n\nzwei 2\nää\n".as_bytes());
    let each_line = plan(Options { each_line: Some(path), ..desk.options() }).unwrap();
    assert_eq!(texts(&each_line), ["eins", "zwei 2", "ää"]);

    let options = Options { each_line: Some("-".into()), ..desk.options() };
    assert_eq!(texts(&Plan::new(options, "a\nb".as_bytes()).unwrap()), ["a", "b"]);

    let colons = plan(Options { entries: Some(Lists::of(["x", ""])), ..desk.options() }).unwrap();
    assert_eq!((colons.request.tasks, texts(&colons)), (2, vec!["x", ""]));
}

#[test]
fn matches_become_inputs() {
    let desk = Desk::new();
    for name in ["in/b.dat", "in/a.dat", "in/c.txt", "in/sub.dat/x"] {
        desk.file(name, name.as_bytes());
    }
    let plan =
        plan(Options { glob: desk.pattern("in/[ab]*.d?t"), stdin: Some("{}".into()), ..desk.options() }).unwrap();
    let inputs: Vec<_> = plan.request.entries.iter().map(|entry| entry.input.clone().unwrap()).collect();
    assert_eq!(inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["a.dat", "b.dat"]);
    assert_eq!(inputs[0].blob.0, *blake3::hash(b"in/a.dat").as_bytes());
    assert_eq!(plan.request.stdin.as_deref(), Some("{}"));
    assert_eq!(fill("-o{index} {} {}", 1, &plan.request), "-o1 inputs/b.dat inputs/b.dat");
    assert_eq!(plan.files.len(), 3);
    assert!(plan.left_out.is_empty());
}

#[test]
fn directories_that_match_are_named() {
    let desk = Desk::new();
    for name in ["in/a", "in/sub/x", "in/tub/y", "only/sub/x"] {
        desk.file(name, name.as_bytes());
    }
    let with_files = plan(Options { glob: desk.pattern("in/*"), ..desk.options() }).unwrap();
    let left_out = ["in/sub", "in/tub"].map(|name| desk.0.path().join(name));
    assert_eq!((with_files.request.tasks, with_files.left_out), (1, left_out.to_vec()));
    let error = plan(Options { glob: desk.pattern("only/*"), ..desk.options() }).unwrap_err().to_string();
    assert!(error.starts_with("no task: only directories match ") && error.ends_with("only/sub/*"), "{error}");
}

#[test]
fn equal_content_travels_once() {
    let desk = Desk::new();
    desk.file("in/a.dat", b"same");
    desk.file("in/b.dat", b"same");
    let shared = desk.file("c.dat", b"same");
    let plan = plan(Options { glob: desk.pattern("in/*"), input: vec![shared], ..desk.options() }).unwrap();
    assert_eq!((plan.request.tasks, plan.files.len()), (2, 2));
    assert_eq!(plan.bytes(), 4 + PROGRAM.len() as u64);
}

#[test]
fn names_must_not_collide() {
    let desk = Desk::new();
    let one = desk.file("1/a", b"1");
    let two = desk.file("2/a", b"2");
    let refused = |options: Options| {
        let error = plan(options).unwrap_err();
        assert!(matches!(&error, SubmitError::SameName { name, .. } if name == "a"), "{error}");
    };
    refused(Options { input: vec![one.clone(), two.clone()], ..desk.options() });
    refused(Options { input: vec![one.clone()], glob: desk.pattern("2/*"), ..desk.options() });
    refused(Options { input: vec![one.clone()], stdin: Some(two.display().to_string()), ..desk.options() });
    let twice = plan(Options { input: vec![one.clone(), one.clone()], ..desk.options() }).unwrap();
    assert_eq!(twice.request.inputs.len(), 1);
}

/// Each task has its own file, so that nothing collides.
#[test]
fn files_of_single_tasks_may_have_equal_names() {
    let desk = Desk::new();
    for (name, content) in [("1/a", "1"), ("2/a", "2"), ("1/b.log", "3"), ("1/c.log", "4")] {
        desk.file(name, content.as_bytes());
    }
    let each = plan(Options { glob: desk.pattern("?/a"), ..desk.options() }).unwrap().request;
    let names: Vec<_> = each.entries.iter().map(|entry| entry.input.as_ref().unwrap().name.as_str()).collect();
    assert_eq!((names, fill("{}", 1, &each).as_str()), (vec!["a", "a"], "inputs/a"));

    let input = |text: &str| vec![desk.0.path().join(text)];
    let tasks = || Options { array: Some("1-2".parse().unwrap()), ..desk.options() };
    let own = |options: Options| -> Vec<(u64, String)> {
        let own = plan(options).unwrap().request.own;
        own.into_iter().map(|own| (own.task, own.input.name)).collect()
    };
    assert_eq!(own(Options { input: input("{}/a"), ..tasks() }), [(0, "a".to_owned()), (1, "a".to_owned())]);
    let both = [input("{1}/a"), input("1/*.log")].concat();
    let request = plan(Options { input: both, ..tasks() }).unwrap().request;
    let shared: Vec<_> = request.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!((shared, request.own.len()), (vec!["b.log", "c.log"], 2));
    assert_eq!(own(Options { input: input("{}"), ..tasks() }).len(), 4, "folders, too");
    let error = |options: Options| plan(options).unwrap_err().to_string();
    let missing = error(Options { input: input("{index}/a"), ..tasks() });
    assert!(missing.contains("cannot read the input of a task, ") && missing.contains("/0/a"), "{missing}");
    let missing = error(Options { input: input("{}/*.log"), ..tasks() });
    assert!(missing.contains("task 1 has no input: no input matches"), "{missing}");
    let unknown = error(Options { input: input("{nobody}/a"), ..tasks() });
    assert!(unknown.contains("has {nobody}, which is no field"), "{unknown}");
    let unfilled = error(Options { input: input("{}/a"), ..desk.options() });
    assert!(unfilled.contains("no entries to fill it with"), "{unfilled}");
    assert!(error(Options { input: input("*.none"), ..desk.options() }).contains("no input matches"));
}

#[test]
fn folders_are_carried_whole_and_nothing_outside_of_them() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let desk = Desk::new();
    let folder = desk.0.path().join("tools");
    let script = desk.file("tools/bin/run.sh", b"#!/bin/sh\n");
    desk.file("tools/a b.txt", b"text");
    desk.file("tools/.hidden", b"seen");
    let secret = desk.file("secret", b"key");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("bin/run.sh", folder.join("run")).unwrap();
    let of = |options: Options| plan(Options { input: vec![folder.clone()], ..options });
    let request = of(desk.options()).unwrap().request;
    let names: Vec<_> = request.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["tools/.hidden", "tools/a b.txt", "tools/bin/run.sh", "tools/run"]);
    assert_eq!(request.executable, Vec::<String>::new(), "WebAssembly executes no file");
    let native = Options { program: Some(script.clone()), native: true, ..Options::default() };
    assert_eq!(of(native).unwrap().request.executable, ["tools/bin/run.sh", "tools/run"]);
    // Of its own folder in another.
    let other = desk.file("other/tools/bin/run.sh", b"another");
    let both = vec![folder.clone(), other.parent().unwrap().to_owned()];
    assert_eq!(plan(Options { input: both, ..desk.options() }).unwrap().request.inputs.len(), 5);

    let refused = |expected: &str| {
        let error = of(desk.options()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        fs::remove_file(folder.join("link")).unwrap();
    };
    for (target, expected) in [
        (secret.as_path(), "leaves the folder"),
        (Path::new("../secret"), "leaves the folder"),
        (Path::new("no-such"), "leads nowhere"),
        (Path::new("bin"), "leads to a folder"),
        (Path::new("."), "leads to a folder"),
    ] {
        symlink(target, folder.join("link")).unwrap();
        refused(expected);
    }
    rustix::fs::mknodat(rustix::fs::CWD, folder.join("link"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    refused("not a regular file");
    of(desk.options()).unwrap();
    fs::create_dir(desk.0.path().join("empty")).unwrap();
    fs::create_dir_all(folder.join("kept/inner")).unwrap();
    let inputs = vec![desk.0.path().join("empty"), folder.clone()];
    let request = plan(Options { input: inputs, ..desk.options() }).unwrap().request;
    let inner = format!("{}/kept/inner", folder.file_name().unwrap().to_str().unwrap());
    assert!(request.folders.contains(&"empty".to_owned()) && request.folders.contains(&inner), "{:?}", request.folders);
    let own = vec![desk.0.path().join("{}")];
    let own = Options { input: own, entries: Some(Lists::of(["empty"])), ..desk.options() };
    let request = plan(own).unwrap().request;
    assert_eq!((request.folders.len(), request.own_folders), (0, vec![of_task(0, "empty")]));
}

fn of_task(task: u64, folder: &str) -> OwnFolder {
    OwnFolder { task, folder: folder.to_owned() }
}

#[test]
fn a_task_gets_the_empty_folders_of_its_own_inputs_alone() {
    let desk = Desk::new();
    let input = |text: &str| desk.0.path().join(text);
    for folder in ["part-1/results", "part-1/logs", "part-2/results", "shared/results", "none-a", "none-b"] {
        fs::create_dir_all(input(folder)).unwrap();
    }
    desk.file("part-1/data", b"1");
    let tasks = || Options { array: Some("1-2".parse().unwrap()), ..desk.options() };
    // Named twice, each is there once.
    let inputs = ["part-{}", "shared", "part-{}"].map(input).to_vec();
    let request = plan(Options { input: inputs, ..tasks() }).unwrap().request;
    assert_eq!(request.folders, ["shared/results"]);
    let own = [(0, "part-1/logs"), (0, "part-1/results"), (1, "part-2/results")];
    assert_eq!(request.own_folders, own.map(|(task, folder)| of_task(task, folder)));
    let by_pattern = plan(Options { input: vec![input("none-*")], ..tasks() }).unwrap().request;
    assert_eq!((by_pattern.folders, by_pattern.inputs.len()), (vec!["none-a".to_owned(), "none-b".to_owned()], 0));
}

#[test]
fn standard_input_is_an_input() {
    let desk = Desk::new();
    let path = desk.file("in/a", b"1");
    let by_path = plan(Options { stdin: Some(path.display().to_string()), ..desk.options() }).unwrap().request;
    assert_eq!((by_path.stdin.as_deref(), by_path.inputs.len()), (Some("a"), 1));
    let by_name = Options { input: vec![path], stdin: Some("no-such-directory/a".into()), ..desk.options() };
    let by_name = plan(by_name).unwrap().request;
    assert_eq!((by_name.stdin.as_deref(), by_name.inputs.len()), (Some("a"), 1));
    let error = plan(Options { stdin: Some("{}".into()), ..desk.options() }).unwrap_err();
    assert!(error.to_string().contains("--glob"), "{error}");
}

#[test]
fn a_bag_without_tasks_is_refused() {
    let desk = Desk::new();
    let empty = desk.file("empty", b"\n\n");
    for options in [
        Options { each_line: Some(empty), ..desk.options() },
        Options { glob: desk.pattern("*.none"), ..desk.options() },
        Options { entries: Some(Lists::of(Vec::<String>::new())), ..desk.options() },
    ] {
        let error = plan(options).unwrap_err().to_string();
        assert!(error.starts_with("no task: "), "{error}");
    }
}

#[test]
fn options_that_cannot_work_are_refused() {
    let desk = Desk::new();
    let text = desk.file("text.wasm", b"int main(void) { return 0; }");
    let base = || desk.options();
    let zero: Vec<String> = vec!["a\0b".to_owned()];
    let entries = || Some(Lists::of(["a"]));
    for (options, expected) in [
        (Options::default(), "no program"),
        (Options { program: Some(text), ..base() }, "cannot be run"),
        (Options { program: Some("no-such.wasm".into()), ..base() }, "cannot read the program no-such.wasm"),
        (Options { program: Some(desk.0.path().into()), ..base() }, "not a regular file"),
        (Options { input: vec!["/dev/null".into()], ..base() }, "not a regular file"),
        (Options { input: vec!["no-such".into()], ..base() }, "cannot read the input no-such"),
        (Options { output_files: vec!["a[".into()], ..base() }, "no pattern of files"),
        (Options { output_files: vec!["{x}.dat".into()], ..base() }, "the output \"{x}.dat\" has {x}"),
        (Options { output_limit: Some("1G".parse().unwrap()), ..base() }, "4K to 256M"),
        (Options { work: Some(f64::NAN), ..base() }, "Mop"),
        (Options { work: Some(0.0), ..base() }, "Mop"),
        (Options { success_codes: Some(vec![]), ..base() }, "success"),
        (Options { success_codes: Some(vec![0, 256]), ..base() }, "256 is no exit code"),
        (Options { max_retries: Some(u32::MAX), ..base() }, "too many"),
        (Options { memory: Some("1K".parse().unwrap()), ..base() }, "64K"),
        (Options { glob: Some("a**b[".into()), ..base() }, "pattern"),
        (Options { args: zero.clone(), ..base() }, "zero byte"),
        (Options { entries: Some(Lists::of(zero)), ..base() }, "zero byte"),
        (Options { args: vec!["{}".into()], ..base() }, "no entries to fill it with"),
        (Options { args: vec!["{seed}".into()], ..base() }, "write {{seed}} for braces that are to stay"),
        (Options { args: vec!["{seed}".into()], entries: entries(), ..base() }, "they have {} and {index}"),
        (Options { args: vec!["{2}".into()], entries: entries(), ..base() }, "{2}, which is no field"),
        (Options { env: vec![Variable::new("A", "{x}").unwrap()], ..base() }, "the variable A has {x}"),
        (
            Options { array: Some("1".parse().unwrap()), entries: Some(Lists::of(Vec::<String>::new())), ..base() },
            "more than one source",
        ),
    ] {
        let error = plan(options).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(!error.contains('\n'), "{error:?}");
    }
}

#[test]
fn combinations_fill_their_places() {
    let desk = Desk::new();
    let lists = Lists(vec![List::Values(vec!["a".into(), "b".into()]), List::Values(vec!["1".into(), "2".into()])]);
    let args = ["{2}-{1}", "{}", "{{1}}", "{index}"].map(str::to_owned).to_vec();
    let request = plan(Options { entries: Some(lists), args, ..desk.options() }).unwrap().request;
    let filled: Vec<String> = request.args.iter().map(|arg| fill(arg, 2, &request)).collect();
    assert_eq!((request.tasks, filled.join(" | ").as_str()), (4, "1-b | b 1 | {1} | 2"));

    let table = desk.file("t.csv", b"seed,rate\n1,0.5\n2,0.25\n");
    let options = || Options { csv: Some(table.clone()), ..desk.options() };
    let request = plan(Options { args: vec!["{rate}/{seed}".into()], ..options() }).unwrap().request;
    assert_eq!(fill(&request.args[0], 1, &request), "0.25/2");
    let error = plan(Options { args: vec!["{sed}".into()], ..options() }).unwrap_err().to_string();
    assert!(error.contains("they have {}, {index}, {seed}, {rate}, {1}, {2}; write {{sed}}"), "{error}");
    let named = desk.file("bad.csv", b"learning rate\n1\n");
    let error = plan(Options { csv: Some(named), ..desk.options() }).unwrap_err().to_string();
    assert!(error.contains("\"learning rate\" cannot be the name of a field"), "{error}");
}
