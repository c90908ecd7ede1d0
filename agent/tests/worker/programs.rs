//! The programs that come with idlewood, and the cost of running them.

use super::*;

#[test]
fn tiles_from_workers_equal_the_native_render() {
    let mut setup = Setup::new(1);
    for seed in 0..5 {
        // Small enough for an unoptimised native render; edge tiles are cut.
        let picture = Picture { width: 150, height: 100, tile: 64, samples: 2, ..Picture::demo(seed) };
        let mut canvas = Canvas::new(picture.clone()).unwrap();
        for index in 0..picture.tiles() {
            let mut job = setup.job("tile", &[]);
            job.args.extend(picture.args());
            job.env = vec![("IDLEWOOD_TASK_INDEX".to_owned(), index.to_string())];
            let ended = setup.run(&job);
            let (code, stdout, stderr) = exited(&job, &ended);
            assert_eq!((code, stderr.as_str()), (0, ""));
            assert!(stdout.starts_with(&format!("tile {index} of 6: ")) && stdout.lines().count() == 1, "{stdout}");
            let tile = fs::read(job.work_dir().join("tile.rgb")).unwrap();
            assert!(tile == picture.render(index).unwrap(), "seed {seed}, tile {index}");
            canvas.place(index, &tile).unwrap();
        }
        assert_eq!(canvas.missing().next(), None);
    }
}

#[test]
fn the_tile_program_refuses_nonsense() {
    let mut setup = Setup::new(1);
    for args in [
        &["--width", "0"][..],
        &["--index", "256"],
        &["--index"],
        &["--nonsense", "1"],
        &["--index", "0", "--x", "1e5"],
        &["--index", "0", "--x", "-"],
        &["--index", "0", "--x", "0.1234567890123456"],
        &[],
    ] {
        let job = setup.job("tile", args);
        let ended = setup.run(&job);
        let (code, stdout, stderr) = exited(&job, &ended);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}");
        assert!(stderr.starts_with("tile: "), "{args:?}: {stderr}");
    }
}

/// The committed modules are what their sources compile to.
#[test]
fn the_committed_modules_can_be_rebuilt() {
    let version = Command::new("clang").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if !version.contains("clang version 14.") || !Path::new("/usr/lib/wasm32-wasi/libc.a").exists() {
        idlewood_testing::missing(&format!("clang 14 and wasi-libc (see agent/tasks/build.sh), found {version:?}"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new(tasks_dir().join("build.sh")).arg(dir.path()).status().unwrap();
    assert!(status.success());
    for name in ["chance", "evolve", "hoard", "noop", "pareto", "probe", "spin", "tile"] {
        let file = format!("{name}/{name}.wasm");
        let (built, committed) =
            (fs::read(dir.path().join(&file)).unwrap(), fs::read(tasks_dir().join(&file)).unwrap());
        assert!(built == committed, "{name}: run agent/tasks/build.sh and commit the result");
    }
}

/// Figures for the documentation: `cargo test --release --test worker -- --ignored --nocapture overhead`.
#[test]
#[ignore = "a measurement"]
fn overhead() {
    let mut setup = Setup::new(1);
    let job = setup.job("tile", &["--index", "0"]);
    println!("tile.wasm, compiled: {:?}", setup.run(&job).compile);
    let dir = std::mem::replace(&mut setup.dir, tempfile::tempdir().unwrap());
    drop(setup);
    let mut setup = Setup::in_dir(1, dir);
    setup.tasks = 1_000_000;
    let job = setup.job("tile", &["--index", "0"]);
    let begin = Instant::now();
    let ended = setup.run(&job);
    println!("tile.wasm, from disk in a new worker: {:?}, all in all {:?}", ended.compile, begin.elapsed());
    for program in ["noop", "probe"] {
        let mut jobs: Vec<Job> = (0..2001).map(|_| setup.job(program, &["exit", "0"])).collect();
        setup.run(&jobs.pop().unwrap());
        let worker = setup.only_pid();
        let (begin, ours, theirs) = (Instant::now(), thread_ticks(), ticks_of(worker));
        let mut cpu = Duration::ZERO;
        for job in &jobs {
            setup.pool.start(0, job).unwrap();
            let WorkerEvent::Ended { cpu: one, .. } = setup.events.blocking_recv().unwrap();
            cpu += one;
        }
        let per_task = |ticks: u64| Duration::from_millis(ticks * 10) / 2000;
        println!(
            "{program}: {:?} wall per task; CPU: {:?} reported, {:?} worker, {:?} agent",
            begin.elapsed() / 2000,
            cpu / 2000,
            per_task(ticks_of(worker) - theirs),
            per_task(thread_ticks() - ours),
        );
    }
    for seed in 0..5 {
        let mut cpu = Vec::new();
        let mut iterations = 0;
        let picture = Picture::demo(seed);
        let mut canvas = Canvas::new(picture.clone()).unwrap();
        for index in 0..256 {
            let mut job = setup.job("tile", &["--index", &index.to_string()]);
            job.args.extend(picture.args());
            let ended = setup.run(&job);
            let stdout = exited(&job, &ended).1;
            iterations += stdout.split(' ').rev().nth(1).unwrap().parse::<u64>().unwrap();
            cpu.push(ended.cpu);
            canvas.place(index, &fs::read(job.work_dir().join("tile.rgb")).unwrap()).unwrap();
        }
        cpu.sort();
        let total: Duration = cpu.iter().sum();
        println!(
            "region {seed}: {total:?} in all, {iterations} iterations; tiles {:?} to {:?}, median {:?}",
            cpu[0], cpu[255], cpu[128]
        );
        let path = std::env::temp_dir().join(format!("idlewood-region-{seed}.png"));
        canvas.write_png(fs::File::create(path).unwrap()).unwrap();
    }
}

/// Processor time of this process.
fn thread_ticks() -> u64 {
    ticks_of(std::process::id())
}
