//! Applications in rounds: from the options of a submission to the rounds of its manifest.

use std::num::NonZeroU64;

use idlewood_scheduler::rounds::Plan;
use idlewood_trust::manifest::{Entry, Input, Rounds};
use idlewood_units::TASKS_MAX;

use super::error::SubmitError;
use super::files;
use super::mode::Mode;
use super::options::Options;

/// Iterations of a process in a round where the user says nothing: it does what it does once.
const ITERATIONS_DEFAULT: u64 = 1;

/// The rounds that the options ask for, with this program that merges; `None`: it is a plain bag.
///
/// # Errors
/// There are no such rounds, or the options say other things of rounds than how many.
pub(super) fn rounds(
    options: &Options,
    entries: &[Entry],
    merge: Option<Input>,
) -> Result<Option<Rounds>, SubmitError> {
    let Some(rounds) = options.rounds else {
        let of_rounds = [
            ("--iterations", options.iterations.is_some()),
            ("--fill", options.fill),
            ("--at-once", options.at_once),
            ("--mode", options.mode.is_some()),
            ("--merge", options.merge.is_some()),
            ("--until", options.until.is_some()),
            ("--at-least-rounds", options.at_least_rounds.is_some()),
        ];
        return match of_rounds.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => wrong(format!("{option} is for applications in rounds: say how many with --rounds")),
            None => Ok(None),
        };
    };
    if rounds == 0 {
        return wrong("0 rounds do nothing: --rounds takes 1 or more".to_owned());
    }
    if options.iterations == Some(0) {
        return wrong("0 iterations do nothing: --iterations takes 1 or more".to_owned());
    }
    if options.replicas.unwrap_or(1) > 1 {
        let why = "machines do not vote on tasks of an application in rounds";
        return wrong(format!("{why}: leave out --replicas"));
    }
    if options.endless {
        return wrong("an application in rounds has an end: leave out --endless, or --rounds".to_owned());
    }
    if options.input.iter().any(|path| files::template(path).is_some()) {
        return wrong("a process has the file of its entry as its own: write --glob 'part-*.dat' instead of an --input with places".to_owned());
    }
    if options.until.is_some() && options.merge.is_none() {
        return wrong(
            "--until names a file that the merge leaves: give the program that merges, too (--merge)".to_owned(),
        );
    }
    if options.at_least_rounds.is_some() && options.until.is_none() {
        return wrong("--at-least-rounds goes with --until, which may end the application early".to_owned());
    }
    let iterations = options.iterations.unwrap_or(ITERATIONS_DEFAULT);
    if options.fill && iterations == 1 {
        return wrong(
            "--fill gives processes more iterations than others: split a round into several (--iterations 100)"
                .to_owned(),
        );
    }
    let plan = Plan {
        processes: entries.len().max(1) as u64,
        rounds,
        rounds_min: options.at_least_rounds.unwrap_or(0),
        merges: merge.is_some(),
        is_asynchronous: options.mode.unwrap_or_default() == Mode::Async,
        fill: NonZeroU64::new(iterations).filter(|_| options.fill),
        at_once: options.at_once,
    };
    if let Some(flaw) = plan.flaw().or_else(|| plan.check_at_once(options.work, options.max_running).err()) {
        return wrong(flaw);
    }
    let tasks = plan.tasks();
    if tasks > TASKS_MAX {
        let processes = plan.processes;
        return wrong(format!("{processes} processes in {rounds} rounds are {tasks} tasks: {TASKS_MAX} at most"));
    }
    Ok(Some(Rounds { plan, merge, iterations, until: options.until.clone() }))
}

/// What the user may have forgotten: nothing tells the program how many iterations it is to do.
pub(super) fn doubt(options: &Options, rounds: Option<&Rounds>) -> Option<String> {
    let is_told = options.args.iter().chain(options.env.iter().map(|variable| &variable.value));
    let is_told = is_told.into_iter().any(|text| text.contains("{iterations}"));
    let iterations = options.iterations.filter(|_| rounds.is_some() && !is_told)?;
    Some(format!(
        "no argument has {{iterations}}: the program does {iterations} of them in a round only if it reads IDLEWOOD_ITERATIONS"
    ))
}

fn wrong<T>(sentence: String) -> Result<T, SubmitError> {
    Err(SubmitError::Value(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_make_no_sense_are_refused_with_what_to_do() {
        type Change = fn(&mut Options);
        let changes: [(&str, Change); 15] = [
            ("0 rounds do nothing", |it| it.rounds = Some(0)),
            ("0 iterations do nothing", |it| it.iterations = Some(0)),
            ("leave out --replicas", |it| it.replicas = Some(3)),
            ("leave out --endless", |it| it.endless = true),
            ("--glob 'part-*.dat'", |it| it.input = vec!["part-{}.dat".into()]),
            ("the program that merges", |it| it.until = Some("converged".into())),
            ("more iterations than others", |it| it.fill = true),
            ("leave out --fill", |it| (it.fill, it.iterations, it.mode) = (true, Some(9), Some(Mode::Async))),
            ("--fill is for applications in rounds", |it| (it.rounds, it.fill) = (None, true)),
            ("--at-once is for applications in rounds", |it| (it.rounds, it.at_once) = (None, true)),
            ("say how much work", |it| it.at_once = true),
            ("leave out --at-once", |it| (it.at_once, it.work, it.mode) = (true, Some(9.0), Some(Mode::Async))),
            ("raise --max-running", |it| (it.at_once, it.work, it.max_running) = (true, Some(9.0), Some(1))),
            ("goes with --until", |it| it.at_least_rounds = Some(1)),
            ("say how many with --rounds", |it| (it.rounds, it.iterations) = (None, Some(5))),
        ];
        let entries = vec![Entry::default(); 2];
        for (expected, change) in changes {
            let mut options = Options { rounds: Some(3), ..Options::default() };
            assert!(matches!(rounds(&options, &entries, None), Ok(Some(_))));
            change(&mut options);
            let error = rounds(&options, &entries, None).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        let options = Options { rounds: Some(1_000_000), ..Options::default() };
        let merge = Input { name: "merge.wasm".to_owned(), blob: idlewood_scheduler::BlobId([8; 32]), bytes: 1 };
        let error = rounds(&options, &vec![Entry::default(); 10_000], Some(merge)).expect_err("too many").to_string();
        assert!(error.contains("10000 processes in 1000000 rounds"), "{error}");
    }
}
