//! What a manifest says of a task of an application in rounds: its program, and its place among the rounds.

use std::num::NonZeroU64;

use idlewood_scheduler::rounds::{FILL_MAX, Part, Plan};

use super::{Input, Manifest};

impl Manifest {
    /// The program that a task runs.
    pub fn program_of(&self, index: u64) -> &Input {
        let merge = self.rounds.as_ref().and_then(|rounds| rounds.merge.as_ref());
        merge.filter(|_| self.is_merge(index)).unwrap_or(&self.program)
    }

    /// Whether a task merges the results of others.
    pub fn is_merge(&self, index: u64) -> bool {
        self.rounds.as_ref().is_some_and(|rounds| matches!(rounds.plan.part(index), Part::Merge { .. }))
    }

    /// Whether a task begins with outputs of others.
    pub fn needs_start(&self, index: u64) -> bool {
        self.rounds.as_ref().is_some_and(|rounds| !rounds.plan.first().contains(&index))
    }

    /// This manifest for a task that does so many iterations, and has as much longer for them.
    pub fn with_iterations(&self, iterations: NonZeroU64) -> Self {
        let mut of_task = self.clone();
        if let Some(rounds) = &mut of_task.rounds {
            let before = std::mem::replace(&mut rounds.iterations, iterations.get()).max(1);
            let times = iterations.get().div_ceil(before).min(FILL_MAX);
            of_task.time_limit_s = of_task.time_limit_s.saturating_mul(times);
        }
        of_task
    }

    /// How many times the iterations of others a task with this manifest does ([`Self::with_iterations`]).
    pub fn times_filled(&self) -> f64 {
        let filled = self.rounds.as_ref().and_then(|rounds| Some((rounds.iterations, rounds.plan.fill?.get())));
        filled.map_or(1.0, |(iterations, usual)| iterations as f64 / usual as f64)
    }

    /// The environment of a task that says its place among the rounds.
    pub fn round_variables(&self, index: u64) -> Vec<(&'static str, u64)> {
        let Some(rounds) = &self.rounds else { return Vec::new() };
        let of_task =
            [("IDLEWOOD_ROUND", "round"), ("IDLEWOOD_PROCESS", "process"), ("IDLEWOOD_ITERATIONS", "iterations")];
        let of_task = of_task.into_iter().filter_map(|(variable, name)| Some((variable, rounds.value(index, name)?)));
        let Plan { processes, rounds: count, .. } = rounds.plan;
        of_task.chain([("IDLEWOOD_ROUNDS", count), ("IDLEWOOD_PROCESSES", processes)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::BlobId;

    use super::super::tests::manifest;
    use super::super::{Entry, MANIFEST_VERSION_ROUNDS, OwnInput, Rounds};
    use super::*;

    fn in_rounds() -> Manifest {
        let plan = Plan {
            processes: 2,
            rounds: 3,
            rounds_min: 0,
            merges: true,
            is_asynchronous: false,
            fill: None,
            at_once: false,
        };
        let merge = Input { name: "merge.wasm".to_owned(), blob: BlobId([8; 32]), bytes: 1 };
        let rounds = Rounds { plan, merge: Some(merge), iterations: 50, until: None };
        Manifest { version: MANIFEST_VERSION_ROUNDS, tasks: plan.tasks(), rounds: Some(rounds), ..manifest() }
    }

    #[test]
    fn tasks_in_rounds_have_the_entries_of_their_processes_and_merges_their_program() {
        let manifest = in_rounds();
        assert_eq!(Manifest::decode(&manifest.encode()).expect("it is sound"), manifest);
        let names = [0, 1, 2, 4, 8].map(|index| (manifest.entry(index).text, manifest.program_of(index).name.clone()));
        let (program, merge) = ("program.wasm".to_owned(), "merge.wasm".to_owned());
        let expected = [("a", &program), ("b", &program), ("", &merge), ("b", &program), ("", &merge)];
        assert_eq!(names, expected.map(|(entry, program)| (entry.to_owned(), program.clone())));
        assert_eq!(manifest.fill("{process} {round} {iterations} {index} {other}", 4), "1 1 50 4 {other}");
        assert_eq!(manifest.fill("{process} {iterations}", 2), "{process} 50", "a merge is of no process");
        assert_eq!(manifest.round_variables(4)[..2], [("IDLEWOOD_ROUND", 1), ("IDLEWOOD_PROCESS", 1)]);
        assert_eq!([0, 1, 2, 3].map(|index| manifest.needs_start(index)), [false, false, true, true]);
        assert_ne!(manifest.input_hash(0), manifest.input_hash(3), "each round has random numbers of its own");
        assert!(manifest.blobs().any(|input| input.name == "merge.wasm"));
    }

    #[test]
    fn a_task_that_fills_its_time_is_told_of_more_iterations_and_has_longer() {
        let mut manifest = in_rounds();
        manifest.rounds.as_mut().expect("it has some").plan.fill = NonZeroU64::new(50);
        let of_task = manifest.with_iterations(NonZeroU64::new(80).expect("it is not 0"));
        assert_eq!((manifest.times_filled(), of_task.times_filled()), (1.0, 1.6));
        assert_eq!(of_task.fill("{process} {iterations}", 4), "1 80");
        assert!(of_task.round_variables(4).contains(&("IDLEWOOD_ITERATIONS", 80)));
        assert_eq!(of_task.time_limit_s, 2 * manifest.time_limit_s);
    }

    #[test]
    fn rounds_that_no_machine_can_run_are_refused() {
        type Change = fn(&mut Manifest);
        let changes: [(&str, Change); 9] = [
            ("files of single tasks", |it| {
                let input = Input { name: "own".to_owned(), ..it.inputs[0].clone() };
                it.own.push(OwnInput { task: 0, input });
            }),
            ("an older version", |it| it.version = 1),
            ("an entry for each task", |it| it.entries = vec![Entry::default(); 9]),
            ("too many tasks", |it| it.tasks += 1),
            ("no iteration", |it| it.rounds.as_mut().expect("it has some").iterations = 0),
            ("no merge", |it| it.rounds.as_mut().expect("it has some").merge = None),
            ("a file outside", |it| it.rounds.as_mut().expect("it has some").until = Some("../x".to_owned())),
            ("another number to fill", |it| {
                it.rounds.as_mut().expect("it has some").plan.fill = NonZeroU64::new(49);
            }),
            ("a taken name", |it| it.inputs[0].name = "state".to_owned()),
        ];
        for (what, change) in changes {
            let mut manifest = in_rounds();
            change(&mut manifest);
            assert!(manifest.validate().is_err(), "{what}");
        }
    }
}
