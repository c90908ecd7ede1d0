use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use idlewood_worker::{JobError, LayOutError, StartError};

use super::super::task::tests::{blobs, prepared};
use super::*;

fn rules(success_codes: &[i32]) -> Rules {
    Rules { success_codes: success_codes.to_vec(), ..Rules::never() }
}

/// A run that has ended by itself, after leaving files.
fn exited(code: u8) -> Ended {
    let (outcome, streams) = (Outcome::Exited { code }, Streams::default());
    let (wall, cpu) = (Duration::ZERO, Duration::ZERO);
    Ended {
        outcome,
        wall,
        cpu,
        output_truncated: false,
        untouched: false,
        streams,
        cut: false,
        is_merge: false,
        times: 1.0,
    }
}

#[test]
fn outputs_are_chosen_by_pattern_and_each_pattern_has_to_match() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(root.path(), 1 << 20);
    let job = Job { directory: root.path().join("attempt"), ..prepared(0).job };
    fs::create_dir_all(job.work_dir().join("out")).expect("our directory");
    fs::write(job.work_dir().join("out/a.csv"), "1,2").expect("our directory");
    fs::write(job.work_dir().join("scratch"), vec![0; 10_000]).expect("our directory");
    let of = |outputs: &[&str], output_bytes: u64, code: u8| {
        let outputs = outputs.iter().map(|text| (*text).to_owned()).collect();
        let rules = Rules { success_codes: vec![0], outputs, output_bytes, is_owners: false, says_progress: false };
        let finished = match collect(&blobs, true, Some(&job), &rules, &exited(code), 1.0).outcome {
            TaskOutcome::Finished(finished) => finished,
            other => panic!("{other:?}"),
        };
        let bytes = match &finished.content {
            Some(content) => content.bytes().to_vec(),
            None => fs::read(blobs.path(finished.output.0.into()).expect("readable").expect("kept")).expect("readable"),
        };
        let output = TaskOutput::decode(&bytes).expect("it is an output");
        (finished.success, output.files.into_keys().collect::<Vec<_>>(), output.error.unwrap_or_default())
    };
    assert_eq!(
        of(&["out/*.csv"], 5000, 0),
        (true, vec!["out/a.csv".to_owned()], String::new()),
        "the rest does not count"
    );
    let (success, files, error) = of(&["out/*.csv", "*.dat"], 5000, 0);
    assert!(!success && error.contains("no file that matches \"*.dat\"") && error.contains("\"scratch\""), "{error}");
    assert_eq!(files, ["out/a.csv"], "what is there is not lost");
    let (success, _, error) = of(&["*.dat"], 5000, 3);
    assert_eq!((success, error.as_str()), (false, ""), "it says itself that it failed");
    let (success, files, error) = of(&[], 5000, 0);
    assert!(!success && files.is_empty() && error.contains("5000") && error.contains("--output-limit"), "{error}");
    let (success, _, error) = of(&["a["], 5000, 0);
    assert!(!success && error.contains("no pattern"), "{error}");
    assert!(of(&[], OUTPUT_BYTES_MAX, 0).0);
}

/// What an owner's limit keeps from one machine, another may take.
#[test]
fn an_output_over_the_owners_limit_says_more_about_the_machine_than_about_the_task() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(root.path(), 1 << 20);
    let job = Job { directory: root.path().join("attempt"), ..prepared(0).job };
    fs::create_dir_all(job.work_dir().join("empty/folder")).expect("our directory");
    fs::write(job.work_dir().join("large"), vec![0; 10_000]).expect("our directory");
    let of = |output_bytes: u64, is_owners: bool| {
        let rules =
            Rules { success_codes: vec![0], outputs: Vec::new(), output_bytes, is_owners, says_progress: false };
        let TaskOutcome::Finished(finished) = collect(&blobs, true, Some(&job), &rules, &exited(0), 1.0).outcome else {
            panic!("it ended by itself");
        };
        let bytes = match &finished.content {
            Some(content) => content.bytes().to_vec(),
            None => fs::read(blobs.path(finished.output.0.into()).expect("readable").expect("kept")).expect("readable"),
        };
        let output = TaskOutput::decode(&bytes).expect("it is an output");
        (finished.success, finished.crashed, output.folders, output.error.unwrap_or_default())
    };
    assert_eq!(of(20_000, true), (true, false, vec!["empty/folder".to_owned()], String::new()));
    let (success, crashed, folders, error) = of(5000, true);
    assert!(!success && crashed && folders.is_empty() && error.contains("limits.output"), "{error}");
    let (success, crashed, _, error) = of(5000, false);
    assert!(!success && !crashed && error.contains("--output-limit"), "{error}");
}

/// It has no directory, and so no file.
#[test]
fn a_task_that_leaves_nothing_misses_its_outputs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(dir.path(), 10_000);
    let job = Job { directory: dir.path().join("never made"), ..prepared(1).job };
    let rules = Rules { outputs: vec!["*".to_owned()], ..rules(&[0]) };
    let untouched = Ended { untouched: true, ..exited(0) };
    assert!(collect_untouched(&blobs, &job, &rules, &untouched, 1.0).is_none());
    let collected = collect(&blobs, true, Some(&job), &rules, &untouched, 1.0);
    let TaskOutcome::Finished(Finished { success: false, content: Some(content), .. }) = collected.outcome else {
        panic!("{collected:?}")
    };
    let error = TaskOutput::decode(content.bytes()).expect("it is an output").error.expect("why");
    assert!(error.contains("it left no file at all"), "{error}");
}

#[test]
fn an_output_over_the_limit_says_so_and_is_within_it() {
    let files = BTreeMap::from([("file".to_owned(), ByteBuf::from(vec![0; 5000]))]);
    let mut output = TaskOutput { exit_code: Some(0), stdout: b"said".to_vec(), files, ..TaskOutput::default() };
    let whole = output.encode();
    let limit = whole.len() as u64;
    let within = |output_bytes| Rules { output_bytes, ..rules(&[]) };
    assert_eq!(encode_within(&mut output, &within(limit)), (whole.clone(), false));
    assert_eq!(output.error, None);
    let (bytes, is_over) = encode_within(&mut output, &within(limit - 1));
    assert!(is_over);
    assert!((bytes.len() as u64) < limit);
    let told = TaskOutput::decode(&bytes).expect("it is an output");
    let message = told.error.expect("it fails");
    assert!(
        message.contains(&whole.len().to_string())
            && message.contains(&(limit - 1).to_string())
            && message.contains("--output-limit"),
        "{message}"
    );
    assert_eq!((told.stdout, told.files.len()), (b"said".to_vec(), 0));
}

#[test]
fn whoever_is_over_a_limit_fails_with_its_name_and_what_to_change() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(dir.path(), 1 << 20);
    let error_of = |outcome: Outcome, output_truncated: bool, cut: bool| {
        let (wall, cpu, untouched) = (Duration::ZERO, Duration::ZERO, false);
        let ended = Ended {
            outcome,
            wall,
            cpu,
            output_truncated,
            untouched,
            streams: Streams::default(),
            cut,
            is_merge: false,
            times: 1.0,
        };
        let TaskOutcome::Finished(Finished { success: false, output, .. }) =
            collect(&blobs, false, None, &rules(&[0]), &ended, 1.0).outcome
        else {
            panic!("it succeeds");
        };
        let bytes = fs::read(blobs.path(Hash::from_bytes(output.0)).expect("it can be read").expect("it was kept"))
            .expect("it is there");
        TaskOutput::decode(&bytes).expect("it is an output").error.expect("it says why")
    };
    let timed_out = Outcome::TimedOut { limit: Duration::from_secs(7) };
    for (outcome, output_truncated, cut, named, change) in [
        (timed_out.clone(), false, false, "7 s", "--time-limit"),
        (timed_out, false, true, "7s", "limits.task_time"),
        (Outcome::OverDisk { limit_bytes: 3 << 20 }, false, false, "3M", "--disk"),
        (Outcome::Exited { code: 0 }, true, false, "16 MiB", "write to a file"),
    ] {
        let message = error_of(outcome, output_truncated, cut);
        assert!(message.contains(named) && message.contains(change), "{message}");
    }
}

/// Machines differ in speed, disk and memory: what fails for that is tried on another, and is no vote.
#[test]
fn what_fails_for_want_of_the_machine_is_no_fault_of_the_task() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(dir.path(), 1 << 20);
    let mut job = prepared(1).job;
    let mut crashed = |outcome: Outcome, cut: bool, fixed: Option<u64>| {
        job.fixed = fixed;
        let (wall, cpu) = (Duration::ZERO, Duration::ZERO);
        let ended = Ended {
            outcome,
            wall,
            cpu,
            output_truncated: false,
            untouched: true,
            streams: Streams::default(),
            cut,
            is_merge: false,
            times: 1.0,
        };
        match collect(&blobs, false, Some(&job), &rules(&[0]), &ended, 1.0).outcome {
            TaskOutcome::Finished(Finished { success: false, crashed, .. }) => crashed,
            other => panic!("{other:?}"),
        }
    };
    let timed_out = || Outcome::TimedOut { limit: Duration::from_secs(7) };
    assert!(crashed(timed_out(), true, None) && crashed(timed_out(), false, Some(1)));
    assert!(!crashed(timed_out(), false, None), "its bag's limit, and nobody compares");
    let over_disk = || Outcome::OverDisk { limit_bytes: 1 };
    assert!(crashed(over_disk(), true, None) && !crashed(over_disk(), false, Some(1)));
    let trapped = |message: &str| Outcome::Trapped { message: message.to_owned() };
    assert!(crashed(trapped(&format!("{NO_MEMORY}: mmap failed")), false, None));
    assert!(!crashed(trapped("aborted itself"), false, Some(1)));
    assert!(!crashed(Outcome::Invalid { message: String::new() }, false, Some(1)));
}

#[test]
fn an_output_is_pinned_until_its_record_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(dir.path(), 1000);
    let outcome = Outcome::Exited { code: 3 };
    let ended = Ended {
        outcome,
        wall: Duration::ZERO,
        cpu: Duration::from_secs(2),
        output_truncated: false,
        untouched: false,
        streams: Streams::default(),
        cut: false,
        is_merge: false,
        times: 1.0,
    };
    let collected = collect(&blobs, false, None, &rules(&[0, 3]), &ended, 10.0);
    let TaskOutcome::Finished(Finished {
        success: true,
        crashed: false,
        output,
        output_bytes,
        content: None,
        work_mops: 20.0,
        exit_code: Some(3),
        fingerprint: None,
        times: 1.0,
    }) = collected.outcome
    else {
        panic!("{collected:?}")
    };
    let hash = Hash::from_bytes(output.0);
    assert_eq!(blobs.len(hash), Some(output_bytes));
    let rest = vec![1; 1001 - output_bytes as usize];
    blobs.put_bytes(&rest).expect_err("there is no room beside what is pinned");
    drop(collected.pin);
    blobs.put_bytes(&rest).expect("nobody wanted it");
    assert_eq!(blobs.len(hash), None);
}

/// The same bytes with the same hash, in the result or as a blob.
#[test]
fn a_small_output_goes_with_its_result_and_makes_no_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(dir.path(), 10_000);
    let outcome = Outcome::Exited { code: 0 };
    let (wall, cpu) = (Duration::ZERO, Duration::ZERO);
    let ended = Ended {
        outcome,
        wall,
        cpu,
        output_truncated: false,
        untouched: false,
        streams: Streams::default(),
        cut: false,
        is_merge: false,
        times: 1.0,
    };
    let finished = |takes_small: bool| match collect(&blobs, takes_small, None, &rules(&[0]), &ended, 1.0).outcome {
        TaskOutcome::Finished(finished) => finished,
        other => panic!("{other:?}"),
    };
    let small = finished(true);
    let content = small.content.clone().expect("it is small");
    assert_eq!(
        (blake3::hash(content.bytes()), content.bytes().len() as u64),
        (small.output.0.into(), small.output_bytes)
    );
    assert_eq!((blobs.used_bytes(), blobs.len(small.output.0.into())), (0, None), "nothing is on the disk");
    let as_blob = finished(false);
    assert_eq!(blobs.len(small.output.0.into()), Some(small.output_bytes));
    assert_eq!(as_blob, Finished { content: None, ..small });

    // Where there is no room it is run again later, as with blobs.
    blobs.count_in_records(0, 10_000);
    assert!(matches!(collect(&blobs, true, None, &rules(&[0]), &ended, 1.0).outcome, TaskOutcome::NotStarted { .. }));
    let untouched = Ended { untouched: true, ..ended };
    let job = prepared(1).job;
    assert!(collect_untouched(&blobs, &job, &rules(&[0]), &untouched, 1.0).is_none());
    blobs.count_in_records(10_000, 0);
    assert!(collect_untouched(&blobs, &job, &rules(&[0]), &untouched, 1.0).is_some());
}

#[test]
fn what_no_machine_can_start_is_not_tried_again() {
    let never = |error: StartError| matches!(PrepareError::from(error), PrepareError::Never(_));
    assert!(never(StartError::TooLarge));
    assert!(never(StartError::Job(JobError::Text { what: "argument", value: "a\0".to_owned() })));
    assert!(matches!(LayOutError::Twice { name: "a".to_owned() }.into(), PrepareError::Never(_)));
    assert!(!never(StartError::Job(JobError::Path { path: PathBuf::from("/a") })));
    assert!(!never(StartError::Busy { slot: 0 }));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let blobs = blobs(dir.path(), 1000);
    let failed = not_prepared(&blobs, false, PrepareError::Never("no".to_owned()), 1.0);
    assert!(matches!(failed.outcome, TaskOutcome::Finished(Finished { success: false, .. })), "{failed:?}");
    let later = not_prepared(&blobs, false, anyhow::anyhow!("not now").into(), 1.0);
    assert!(matches!(later.outcome, TaskOutcome::NotStarted { .. }), "{later:?}");
}

#[test]
fn outputs_are_what_the_task_wrote_and_lead_nowhere() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let secret = root.path().join("key");
    fs::write(&secret, "secret").expect("our directory");
    let job = Job { directory: root.path().join("attempt"), ..prepared(0).job };
    let read = || {
        let mut output = TaskOutput::default();
        read_outputs(&job, &rules(&[0]), &mut output).expect("nothing is wrong with it");
        (String::from_utf8(output.stdout).expect("text"), output.files.len(), output.left_out)
    };
    let nothing = || (String::new(), 0, Vec::new());
    assert_eq!(read(), nothing(), "it wrote nothing");
    fs::create_dir_all(job.work_dir()).expect("our directory");
    fs::write(job.stdout_path(), "said").expect("our directory");
    fs::write(job.work_dir().join("file"), "kept").expect("our directory");
    std::os::unix::fs::symlink(&secret, job.work_dir().join("link")).expect("a link");
    assert_eq!(read(), ("said".to_owned(), 1, vec!["link".to_owned()]));
    fs::remove_file(job.stdout_path()).expect("ours");
    std::os::unix::fs::symlink(&secret, job.stdout_path()).expect("a link");
    assert_eq!(read().0, "");
    fs::rename(&job.directory, root.path().join("moved")).expect("our directory");
    std::os::unix::fs::symlink(root.path().join("moved"), &job.directory).expect("a link");
    assert_eq!(read(), nothing());
    fs::remove_file(&job.directory).expect("ours");
    fs::create_dir_all(job.work_dir()).expect("our directory");
    for number in 0..LEFT_OUT_MAX + 3 {
        std::os::unix::fs::symlink(&secret, job.work_dir().join(number.to_string())).expect("a link");
    }
    let (_, files, left_out) = read();
    assert_eq!((files, left_out.len(), left_out[LEFT_OUT_MAX].as_str()), (0, LEFT_OUT_MAX + 1, "3 more"));
}
