//! Folders, files of single tasks and chosen outputs, between two machines.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::harness::{Grid, assert_complete, wait_for};

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("it has one")).expect("our directory");
    fs::write(path, text).expect("our directory");
}

#[test]
fn folders_and_files_of_single_tasks_go_out_and_chosen_outputs_come_back() {
    let mut grid = Grid::prepare_unstarted(2);
    for number in 0..2 {
        grid.agents[number].configure("[bags]\nnative = true\n");
        grid.run(number);
    }
    grid.wait_until_formed(2);
    let (submitter, other) = (&grid.agents[0], &grid.agents[1]);
    // Everything has to travel.
    submitter.ask(&["pause"]);
    let root = grid.root.path();
    let path = |name: &str| root.join(name).display().to_string();
    write(&root.join("tools/bin/twice.sh"), "#!/bin/sh\ncat \"$1\" \"$1\"\n");
    fs::set_permissions(root.join("tools/bin/twice.sh"), fs::Permissions::from_mode(0o755)).expect("ours");
    write(&root.join("tools/share/greeting"), "hello\n");
    for day in ["mon", "tue"] {
        write(&root.join(day).join("data.txt"), &format!("{day}\n"));
    }
    write(
        &root.join("work.sh"),
        "#!/bin/sh\nmkdir out; inputs/tools/bin/twice.sh inputs/data.txt > out/$1.txt\n\
         cat inputs/tools/share/greeting > out/greeting.log; echo scrap > scrap\n",
    );
    let submit = |options: &[&str]| {
        let always = ["submit", "--native", "--work", "50", "--max-retries", "0"];
        let (program, tools, own) = (path("work.sh"), path("tools"), path("{}/data.txt"));
        let inputs = ["--program", &program, "--input", &tools, "--input", &own];
        let tasks = ["--", "{}", ":::", "mon", "tue"];
        let bag = submitter.ask(&[&always[..], &inputs, options, &tasks].concat());
        bag["id"].as_str().expect("an id").to_owned()
    };
    let bag = submit(&["--output-files", "out/{}.txt", "--output-files", "**/*.log", "--output-limit", "10K"]);
    assert_complete(submitter, &bag, 2);
    let out = path("results");
    submitter.ask(&["bag", "get", &bag, "--out", &out]);
    for (index, day) in ["mon", "tue"].into_iter().enumerate() {
        let outputs = root.join("results").join(index.to_string()).join("outputs");
        let text = |name: &str| fs::read_to_string(outputs.join(name)).unwrap_or_default();
        assert_eq!(text(&format!("out/{day}.txt")), format!("{day}\n{day}\n"));
        assert_eq!(text("out/greeting.log"), "hello\n");
        assert!(!outputs.join("scrap").exists(), "nobody wants it");
    }

    // A pattern that matches nothing, and a limit that is too small, fail the task and say so.
    for (options, expected) in [
        (&["--output-files", "out/{}.csv"][..], "no file that matches \"out/mon.csv\""),
        (&["--output-limit", "4K", "--input", &path("large")], "--output-limit"),
    ] {
        write(&root.join("large"), &"x".repeat(10_000));
        let script = fs::read_to_string(root.join("work.sh")).expect("ours");
        write(&root.join("work.sh"), &format!("{script}[ -e inputs/large ] && cp inputs/large out/; true\n"));
        let bag = submit(options);
        assert_eq!(submitter.cli(&["bag", "wait", &bag]).code, 3);
        let out = path(&format!("results-{bag}"));
        submitter.ask(&["bag", "get", &bag, "--out", &out]);
        let results = fs::read_to_string(Path::new(&out).join("results.json")).expect("it was written");
        let results: serde_json::Value = serde_json::from_str(&results).expect("JSON");
        let error = results[0]["error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
    // Two bags in one directory only if told.
    let mixed = submitter.cli(&["bag", "get", "last", "--out", &out]);
    assert!(mixed.code == 1 && mixed.stderr.contains("--mix"), "{}", mixed.stderr);
    // Nothing of it is left where tasks run.
    assert_eq!(other.holds(), 0);
}

#[test]
fn empty_folders_go_out_and_come_back() {
    let mut grid = Grid::prepare_unstarted(2);
    for number in 0..2 {
        grid.agents[number].configure("[bags]\nnative = true\n");
        grid.run(number);
    }
    grid.wait_until_formed(2);
    let submitter = &grid.agents[0];
    submitter.ask(&["pause"]);
    let root = grid.root.path();
    let path = |name: &str| root.join(name).display().to_string();
    fs::create_dir_all(root.join("tree/results/day")).expect("our directory");
    write(&root.join("tree/data"), "1\n");
    write(
        &root.join("work.sh"),
        "#!/bin/sh\n[ -d inputs/tree/results/day ] || exit 5\n[ -e inputs/tree/data ] || exit 6\nmkdir -p left/behind; echo 2 > file\n",
    );
    let bag = |options: &[&str]| {
        let (program, tree, out) = (path("work.sh"), path("tree"), path(&format!("out-{}", options.len())));
        let always = ["submit", "--native", "--work", "50", "--max-retries", "0"];
        let inputs = ["--program", &program, "--input", &tree];
        let bag = submitter.ask(&[&always[..], &inputs, options].concat());
        let bag = bag["id"].as_str().expect("an id").to_owned();
        assert_complete(submitter, &bag, 1);
        submitter.ask(&["bag", "get", &bag, "--out", &out]);
        Path::new(&out).join("0/outputs")
    };
    let all = bag(&[]);
    assert!(all.join("left/behind").is_dir() && all.join("file").is_file());
    // Who chooses files gets these.
    let chosen = bag(&["--output-files", "file"]);
    assert!(!chosen.join("left").exists() && chosen.join("file").is_file());

    // Those of single tasks are theirs alone: a folder that is empty, one with an empty folder in it, and one without.
    fs::create_dir_all(root.join("part-a")).expect("our directory");
    fs::create_dir_all(root.join("part-b/results/day")).expect("our directory");
    write(&root.join("part-b/data"), "b");
    write(&root.join("part-c/data"), "c");
    write(&root.join("look.sh"), "#!/bin/sh\nfind inputs/ -mindepth 1 | sort\n");
    let (program, own, out) = (path("look.sh"), path("part-{}"), path("looked"));
    let options = ["--native", "--work", "50", "--max-retries", "0", "--program", &program, "--input", &own];
    let bag = submitter.ask(&[&["submit"], &options[..], &["--", "{}", ":::", "a", "b", "c"]].concat());
    let bag = bag["id"].as_str().expect("an id").to_owned();
    assert_complete(submitter, &bag, 3);
    submitter.ask(&["bag", "get", &bag, "--out", &out]);
    let seen = |task: u64| {
        let stdout = fs::read_to_string(Path::new(&out).join(format!("{task}/stdout"))).expect("it was saved");
        stdout.lines().map(|line| line.replace("inputs/", "")).collect::<Vec<_>>()
    };
    let expected = [&["part-a"][..], &["part-b", "part-b/data", "part-b/results", "part-b/results/day"]];
    assert_eq!([seen(0), seen(1), seen(2)], [expected[0], expected[1], &["part-c", "part-c/data"]]);
}

#[test]
fn an_output_over_the_limit_of_an_owner_is_had_of_another() {
    let mut grid = Grid::prepare_unstarted(2);
    grid.agents[0].configure("[bags]\nnative = true\n");
    grid.agents[1].configure("[bags]\nnative = true\n[limits]\noutput = \"4K\"\n");
    for number in 0..2 {
        grid.run(number);
    }
    grid.wait_until_formed(2);
    let (submitter, other) = (&grid.agents[0], &grid.agents[1]);
    submitter.ask(&["pause"]);
    let program = grid.root.path().join("large.sh");
    write(&program, "#!/bin/sh\nhead -c 10000 /dev/zero > large\n");
    let program = program.display().to_string();
    let submit = |retries: &str| {
        let bag =
            submitter.ask(&["submit", "--native", "--work", "50", "--max-retries", retries, "--program", &program]);
        bag["id"].as_str().expect("an id").to_owned()
    };
    // Nobody else takes it: it fails, and says whose limit it is.
    let bag = submit("0");
    assert_eq!(submitter.cli(&["bag", "wait", &bag]).code, 3);
    let out = grid.root.path().join("failed");
    submitter.ask(&["bag", "get", &bag, "--out", out.to_str().expect("ours")]);
    let results = fs::read_to_string(out.join("results.json")).expect("it was written");
    assert!(results.contains("limits.output"), "{results}");

    let failed = || {
        let listed = submitter.ask(&["machines"]);
        let machines = listed["machines"].as_array().cloned().unwrap_or_default();
        machines.iter().filter_map(|machine| machine["failed"].as_u64()).sum::<u64>()
    };
    let before = failed();
    let bag = submit("30");
    wait_for("it to fail there", || failed() > before);
    submitter.ask(&["resume"]);
    other.ask(&["pause"]);
    assert_complete(submitter, &bag, 1);
}
