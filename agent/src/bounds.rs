//! What decides how many tasks of a bag run, in words: who or what keeps them from running, and what would end that.
//!
//! What holds is found out by `idlewood_machine::explain`.

use idlewood_machine::explain::Bound;
use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::{Awaited, BagId, DeclineReason};
use idlewood_trust::identity;

use crate::output::{self, count};
use crate::reasons;

/// What the words need besides the bound.
pub(crate) struct Around<'a> {
    /// This machine.
    pub(crate) me: PeerId,
    /// Machines of the grid.
    pub(crate) machines: u64,
    /// What would change the judgement on this machine's owner.
    pub(crate) owner_change: Option<String>,
    /// When that judgement ends by itself, as ISO 8601.
    pub(crate) owner_ends_at: Option<String>,
    /// Why others refuse this machine.
    pub(crate) refused: Option<String>,
    /// A bag's name, if it is of this machine.
    pub(crate) name: &'a dyn Fn(BagId) -> Option<String>,
    /// What a machine is called, if that is known.
    pub(crate) machine: &'a dyn Fn(PeerId) -> Option<String>,
    /// A time as ISO 8601.
    pub(crate) at: &'a dyn Fn(Time) -> String,
}

/// Says a bound in words.
pub(crate) fn told(bound: &Bound, around: &Around) -> idlewood_api::Bound {
    let tasks = |number| count(number, "task");
    let others = |number| count(number, "machine");
    let (code, sentence, machines, concerned, ends) = match bound {
        Bound::Runs { tasks: number, machines } => {
            let are = if *number == 1 { "is" } else { "are" };
            let on = if *machines == 1 { "1 machine that works" } else { &format!("{machines} machines that work") };
            ("runs", format!("{} {are} on {on}", tasks(*number)), Some(*machines), Some(*number), None)
        }
        Bound::NoRoom { tasks: number } => {
            let has = if *number == 1 { "1 task has" } else { &format!("{number} tasks have") };
            let sentence = format!(
                "this machine's disk has no room for results: {has} ended, and other machines keep what came of it"
            );
            let ends = "room on its disk, or a larger limits.disk: `idlewood bag rm` removes bags with their results, \
                        `idlewood clean` what nothing needs";
            ("no_room", sentence, Some(1), Some(*number), Some(ends.to_owned()))
        }
        Bound::Measures => {
            let sentence = "its first task runs on this machine, which shows how long a task takes".to_owned();
            ("measures", sentence, Some(1), Some(1), Some("that task ends, or has run for a minute".to_owned()))
        }
        Bound::MeasuresOthers { bags } => {
            let sentence = format!("the first tasks of {} submitted here run before its own", count(*bags, "bag"));
            (
                "measures_others",
                sentence,
                Some(1),
                None,
                Some("they end; --work makes a first task unnecessary".to_owned()),
            )
        }
        Bound::Owner { reason, tasks: number } => {
            let sentence = format!("this machine: {}; {} for it", reasons::text(reason), wait(*number));
            (reason.code(), sentence, Some(1), Some(*number), around.owner_change.clone())
        }
        Bound::Memory { wanted_bytes, limit_bytes, tasks: number } => {
            let [wanted, limit] = [*wanted_bytes, *limit_bytes].map(output::bytes);
            let sentence =
                format!("a task may take {wanted}, and this machine gives {limit} to all; {} for it", wait(*number));
            let ends = "a larger limits.memory, or the bag submitted again with less --memory".to_owned();
            ("memory", sentence, Some(1), Some(*number), Some(ends))
        }
        Bound::Joining => {
            let why =
                around.refused.as_ref().map_or_else(String::new, |why| format!(", since others refuse it: {why}"));
            let ends =
                "this machine reaches another one of its grid; `idlewood doctor` says what is in the way".to_owned();
            ("joining", format!("this machine has no place in its grid yet{why}"), Some(1), None, Some(ends))
        }
        Bound::FewMachines { quorum, machines } => {
            let sentence = format!("{quorum} machines have to say the same, and the grid has {}", others(*machines));
            (
                "few_machines",
                sentence,
                Some(*machines),
                None,
                Some(format!("{} more join", others(u64::from(*quorum) - machines))),
            )
        }
        Bound::NobodyWorks { machines, tasks: number } => {
            let held = if *number > 0 { format!("; {} there", wait(*number)) } else { String::new() };
            let others = if *machines == 1 {
                "the other machine takes"
            } else {
                &format!("none of the {machines} other machines takes")
            };
            let not = if *machines == 1 { " no" } else { "" };
            let sentence = format!("{others}{not} work: owners are there, or have paused{held}");
            let ends = "an owner leaves or resumes; `idlewood machines` says what each does".to_owned();
            ("nobody_works", sentence, Some(*machines), Some(*number), Some(ends))
        }
        Bound::Declined { reason, declines } => {
            let (code, ends) = declined(*reason);
            let whose = machine(declines.last, around);
            let everybody = *reason == DeclineReason::Size && declines.machines >= around.machines;
            let sentence = if everybody {
                format!("no machine of the grid is large enough: {reason}")
            } else {
                let decline = if declines.machines == 1 { "declines" } else { "decline" };
                format!("{} {decline}: {reason} (last {whose})", others(declines.machines))
            };
            (code, sentence, Some(declines.machines), None, Some(ends.to_owned()))
        }
        Bound::Pauses { tasks: number, .. } => {
            let sentence = format!(
                "{} failed, and {} tried again in a moment",
                tasks(*number),
                if *number == 1 { "is" } else { "are" }
            );
            ("pauses", sentence, None, Some(*number), None)
        }
        Bound::Unheard { tasks: number, ago } => {
            let ago = output::duration(ago.as_secs_f64());
            let were = if *number == 1 { "was" } else { "were" };
            let sentence = format!(
                "nobody answers: {} {were} sent {ago} ago, and no machine says that it has any",
                tasks(*number)
            );
            (
                "nobody_answers",
                sentence,
                None,
                Some(*number),
                Some("a machine answers; otherwise they are sent another way".to_owned()),
            )
        }
        Bound::Undecided { tasks: number } => {
            let sentence = format!("machines do not say the same of {}, and no other can be asked", tasks(*number));
            ("undecided", sentence, None, Some(*number), Some("more machines join".to_owned()))
        }
        Bound::Behind { before, tasks: number, waiting } => {
            let sentence =
                format!("{} on this machine behind {} of {}", wait(*waiting), tasks(*number), queue(before, around));
            ("behind", sentence, Some(1), Some(*waiting), Some("those end, or another machine has room".to_owned()))
        }
        Bound::Held { tasks: number } => {
            let sentence = format!("you hold it: {} to go, and none begins", tasks(*number));
            ("held", sentence, None, Some(*number), Some("`idlewood bag release`".to_owned()))
        }
        Bound::After { bags } => {
            let (sentence, ends) = after(bags, around);
            ("held", sentence, None, None, Some(ends))
        }
        Bound::Full { most, tasks: number } => {
            let sentence = format!("--max-running {most}: so many are handed out, and {}", wait(*number));
            ("full", sentence, None, Some(*number), Some("one of them ends".to_owned()))
        }
        Bound::OnTheWay { tasks: number } => {
            ("on_the_way", format!("{} on the way to machines", be(*number)), None, Some(*number), None)
        }
    };
    let ends_at = match bound {
        Bound::Pauses { until: Some(until), .. } => Some((around.at)(*until)),
        Bound::Owner { .. } => around.owner_ends_at.clone(),
        _ => None,
    };
    idlewood_api::Bound { code: code.to_owned(), sentence, machines, tasks: concerned, ends, ends_at }
}

/// `1 task waits`, `2 tasks wait`.
fn wait(tasks: u64) -> String {
    format!("{} {}", count(tasks, "task"), if tasks == 1 { "waits" } else { "wait" })
}

/// `1 task is`, `2 tasks are`.
fn be(tasks: u64) -> String {
    format!("{} {}", count(tasks, "task"), if tasks == 1 { "is" } else { "are" })
}

/// A machine by its name, or by the end of its id.
fn machine(machine: PeerId, around: &Around) -> String {
    let id = || output::short_peer(&identity::to_libp2p(machine).to_string()).to_owned();
    (around.machine)(machine).unwrap_or_else(id)
}

/// `bag 0123456789ab (night run)`, `2 bags: ...`.
fn queue(before: &[(BagId, PeerId)], around: &Around) -> String {
    let one = |&(bag, whose): &(BagId, PeerId)| {
        let id = hex::encode(bag.0);
        let owner = match (around.name)(bag) {
            Some(name) => name,
            None if whose == around.me => "of this machine".to_owned(),
            None => format!("of machine {}", machine(whose, around)),
        };
        format!("{} ({owner})", output::short_id(&id))
    };
    let named: Vec<String> = before.iter().take(QUEUE_NAMED).map(one).collect();
    let more =
        if before.len() > QUEUE_NAMED { format!(" and {} more", before.len() - QUEUE_NAMED) } else { String::new() };
    format!("{} {}{more}", if before.len() == 1 { "bag" } else { "bags" }, named.join(", "))
}

/// Why a bag waits for these others, and what would end that. Those that cannot succeed by themselves come first.
fn after(bags: &[(BagId, Awaited)], around: &Around) -> (String, String) {
    let stuck: Vec<_> = bags.iter().filter(|(_, why)| *why != Awaited::Open).collect();
    let named = |&(bag, why): &(BagId, Awaited)| {
        let hex = hex::encode(bag.0);
        let id = output::short_id(&hex);
        let name = (around.name)(bag).map(|name| format!(" ({name})")).unwrap_or_default();
        match why {
            Awaited::Open => format!("bag {id}{name}"),
            Awaited::Failed => format!("bag {id}{name}, which failed"),
            Awaited::Cancelled => format!("bag {id}{name}, which was cancelled"),
            Awaited::Unknown => format!("bag {id}, which is not here any more"),
        }
    };
    let shown: Vec<String> = if stuck.is_empty() {
        bags.iter().take(QUEUE_NAMED).map(named).collect()
    } else {
        stuck.iter().take(QUEUE_NAMED).map(|bag| named(bag)).collect()
    };
    let more = bags.len() - shown.len();
    let comma = if stuck.is_empty() { "" } else { "," };
    let more = if more > 0 { format!("{comma} and {}", count(more as u64, "other bag")) } else { String::new() };
    let ends = match stuck.first() {
        None if bags.len() == 1 => "it has succeeded; `idlewood bag release` does not wait for it".to_owned(),
        None => "they have succeeded; `idlewood bag release` does not wait for them".to_owned(),
        Some((bag, Awaited::Failed)) => {
            let hex = hex::encode(bag.0);
            format!(
                "its failed tasks succeed (`idlewood bag rerun --failed {}`), or `idlewood bag release`",
                output::short_id(&hex)
            )
        }
        Some(_) => "`idlewood bag release`".to_owned(),
    };
    (format!("it waits for {}{more}", shown.join(", ")), ends)
}

/// Bags before one that are named.
const QUEUE_NAMED: usize = 3;

/// The code of a reason for which machines decline.
pub(crate) fn code_of(reason: DeclineReason) -> &'static str {
    declined(reason).0
}

/// The code of a reason for which machines decline, and what would end that.
fn declined(reason: DeclineReason) -> (&'static str, &'static str) {
    match reason {
        DeclineReason::Unavailable => {
            ("declined_unavailable", "what the bag consists of can be fetched from this machine")
        }
        DeclineReason::Forged => ("declined_forged", "the bag is submitted again"),
        DeclineReason::Role => {
            ("declined_role", "this machine joins as a submitter (`idlewood grid invite --role submitter`)")
        }
        DeclineReason::Stranger => ("declined_stranger", "this machine has a valid certificate (`idlewood grid show`)"),
        DeclineReason::Submitter => {
            ("declined_submitter", "their owners allow this machine (bags.allow_submitters, bags.deny_submitters)")
        }
        DeclineReason::Program => {
            ("declined_program", "their owners allow the program (bags.allow_programs, bags.deny_programs)")
        }
        DeclineReason::Native => ("declined_native", "their owners let native programs run (bags.native)"),
        DeclineReason::Size => {
            ("declined_memory", "a larger limits.memory there, or the bag submitted again with less --memory")
        }
        DeclineReason::Quota => ("declined_quota", "earlier tasks of this machine end there (bags.work_per_submitter)"),
        DeclineReason::Copy => ("declined_copy", "the machine that has begun it ends it"),
        DeclineReason::Later => ("declined_later", "another machine begins it"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use idlewood_machine::policy::Reason;
    use idlewood_scheduler::Declines;

    use super::*;

    fn say(bound: &Bound) -> idlewood_api::Bound {
        let around = Around {
            me: PeerId([1; 32]),
            machines: 3,
            owner_change: Some("the owner leaves".to_owned()),
            owner_ends_at: Some("at 9".to_owned()),
            refused: None,
            name: &|bag| (bag == BagId([2; 32])).then(|| "night run".to_owned()),
            machine: &|_| None,
            at: &|time| format!("at {}", time.as_secs_f64()),
        };
        told(bound, &around)
    }

    #[test]
    fn every_bound_says_whom_it_concerns_and_what_ends_it() {
        let last = PeerId([9; 32]);
        let declined = |reason, machines| Bound::Declined { reason, declines: Declines { tasks: 7, machines, last } };
        for (bound, code, sentence, machines, ends) in [
            (Bound::Runs { tasks: 1, machines: 1 }, "runs", "1 task is on 1 machine that works", Some(1), None),
            (
                Bound::Owner { reason: Reason::OwnerPresent, tasks: 2 },
                "owner_present",
                "this machine: owner is present; 2 tasks wait for it",
                Some(1),
                Some("the owner leaves"),
            ),
            (
                Bound::NoRoom { tasks: 1 },
                "no_room",
                "this machine's disk has no room for results: 1 task has ended, and other machines keep what came of it",
                Some(1),
                Some(
                    "room on its disk, or a larger limits.disk: `idlewood bag rm` removes bags with their results, \
                     `idlewood clean` what nothing needs",
                ),
            ),
            (
                Bound::Memory { wanted_bytes: 2 << 30, limit_bytes: 1 << 30, tasks: 1 },
                "memory",
                "a task may take 2.0 GiB, and this machine gives 1.0 GiB to all; 1 task waits for it",
                Some(1),
                Some("a larger limits.memory, or the bag submitted again with less --memory"),
            ),
            (
                Bound::FewMachines { quorum: 3, machines: 1 },
                "few_machines",
                "3 machines have to say the same, and the grid has 1 machine",
                Some(1),
                Some("2 machines more join"),
            ),
            (
                Bound::NobodyWorks { machines: 1, tasks: 0 },
                "nobody_works",
                "the other machine takes no work: owners are there, or have paused",
                Some(1),
                Some("an owner leaves or resumes; `idlewood machines` says what each does"),
            ),
            (
                Bound::NobodyWorks { machines: 2, tasks: 4 },
                "nobody_works",
                "none of the 2 other machines takes work: owners are there, or have paused; 4 tasks wait there",
                Some(2),
                Some("an owner leaves or resumes; `idlewood machines` says what each does"),
            ),
            (
                declined(DeclineReason::Size, 3),
                "declined_memory",
                "no machine of the grid is large enough: a task needs more memory than there is for tasks here",
                Some(3),
                Some("a larger limits.memory there, or the bag submitted again with less --memory"),
            ),
            (
                Bound::Behind { before: vec![(BagId([2; 32]), PeerId([1; 32]))], tasks: 5, waiting: 2 },
                "behind",
                "2 tasks wait on this machine behind 5 tasks of bag 020202020202 (night run)",
                Some(1),
                Some("those end, or another machine has room"),
            ),
            (
                Bound::Held { tasks: 4 },
                "held",
                "you hold it: 4 tasks to go, and none begins",
                None,
                Some("`idlewood bag release`"),
            ),
            (
                Bound::After { bags: vec![(BagId([2; 32]), Awaited::Open), (BagId([3; 32]), Awaited::Open)] },
                "held",
                "it waits for bag 020202020202 (night run), bag 030303030303",
                None,
                Some("they have succeeded; `idlewood bag release` does not wait for them"),
            ),
            (
                Bound::After { bags: vec![(BagId([3; 32]), Awaited::Open), (BagId([2; 32]), Awaited::Failed)] },
                "held",
                "it waits for bag 020202020202 (night run), which failed, and 1 other bag",
                None,
                Some(
                    "its failed tasks succeed (`idlewood bag rerun --failed 020202020202`), or `idlewood bag release`",
                ),
            ),
            (
                Bound::After { bags: vec![(BagId([2; 32]), Awaited::Open)] },
                "held",
                "it waits for bag 020202020202 (night run)",
                None,
                Some("it has succeeded; `idlewood bag release` does not wait for it"),
            ),
            (
                Bound::Full { most: 3, tasks: 1 },
                "full",
                "--max-running 3: so many are handed out, and 1 task waits",
                None,
                Some("one of them ends"),
            ),
            (
                Bound::Unheard { tasks: 9, ago: Duration::from_secs(12) },
                "nobody_answers",
                "nobody answers: 9 tasks were sent 12s ago, and no machine says that it has any",
                None,
                Some("a machine answers; otherwise they are sent another way"),
            ),
        ] {
            let said = say(&bound);
            assert_eq!((said.code.as_str(), said.sentence.as_str()), (code, sentence));
            assert_eq!((said.machines, said.ends.as_deref()), (machines, ends), "{code}");
        }
        let quota = say(&declined(DeclineReason::Quota, 2));
        assert!(
            quota
                .sentence
                .starts_with("2 machines decline: its submitter has as much work here as one may have (last ")
        );
        let pauses = say(&Bound::Pauses { tasks: 1, until: Some(Time::ZERO + Duration::from_secs(3)) });
        assert_eq!((pauses.ends_at.as_deref(), pauses.ends), (Some("at 3"), None));
        let owner = say(&Bound::Owner { reason: Reason::OutsideHours, tasks: 1 });
        assert_eq!(owner.ends_at.as_deref(), Some("at 9"));
        let stranger = say(&Bound::Behind { before: vec![(BagId([3; 32]), last); 5], tasks: 5, waiting: 1 });
        assert!(
            stranger.sentence.contains("(of machine ") && stranger.sentence.ends_with(" and 2 more"),
            "{}",
            stranger.sentence
        );
    }
}
