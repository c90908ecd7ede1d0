//! Which machines keep a bag, and whether its own may be switched off, in words.

use idlewood_api::{Bag, Keeper};

use crate::output;

/// What `bag show` says of an open bag.
pub(super) fn description(bag: &Bag) -> Vec<(&'static str, String)> {
    if bag.state.is_closed() {
        return Vec::new();
    }
    if bag.adopted_elsewhere {
        let who = "another machine, which adopted a ticket of it and goes on as this one: this one does nothing for it any more";
        return vec![("kept by", who.to_owned())];
    }
    let off = match (bag.safe_to_switch_off, bag.stewards, bag.rounds.is_some()) {
        (true, ..) => "this machine can be switched off",
        (false, 0, _) => "the bag stands still while this machine is off",
        (false, _, true) if have(bag) > 1 => {
            "the bag stands still while this machine is off; if its disk is lost, `idlewood bag adopt` goes on from the last complete round"
        }
        (false, ..) => "do not switch this machine off yet: no other one has all that the bag needs",
    };
    let kept = match have(bag) {
        1 => "this machine alone".to_owned(),
        have => output::count(have, "machine"),
    };
    let mut pairs = vec![("kept by", format!("{kept}; {off}"))];
    if !bag.keepers.is_empty() {
        let since = bag.acting_since.as_ref().map(|since| format!(" since {}", output::when(since)));
        let keepers = bag.keepers.iter().map(|one| keeper(one, since.as_deref().unwrap_or_default()));
        pairs.push(("keepers", keepers.collect::<Vec<_>>().join("; ")));
    }
    pairs.extend(without_files(bag).map(|text| ("files", text)));
    pairs.extend(results(bag).map(|text| ("results", text)));
    let lost = bag.results_lost.as_ref();
    pairs.extend(lost.map(|tasks| ("lost", format!("results that no machine has: tasks {tasks} are computed again"))));
    pairs
}

/// Whether the results of an open bag are safe from the loss of this machine's disk.
fn results(bag: &Bag) -> Option<String> {
    let Some(kept) = &bag.results_kept else {
        let why = "on this machine alone: tasks that have ended are computed again if its disk is lost (submit --keep-results has others keep them)";
        return (bag.stewards > 0).then(|| why.to_owned());
    };
    let ended = output::count(kept.ended, "ended task");
    let elsewhere = match (have(bag), kept.safe) {
        (1, _) => "not safe yet: no other machine keeps the bag".to_owned(),
        (_, true) if kept.ended == 0 => "no task has ended yet".to_owned(),
        (_, true) => format!("safe: those of {ended} are on another machine, too"),
        (_, false) => format!("not all safe yet: those of {} of {ended} are on another machine, too", kept.elsewhere),
    };
    let room = if kept.lacks_room { "; a machine that keeps the bag has no room for more" } else { "" };
    Some(elsewhere + room)
}

/// What to do where this machine has nothing of what the bag runs, as after adopting it.
pub(super) fn without_files(bag: &Bag) -> Option<String> {
    let id = output::short_id(&bag.id);
    let stewards: Vec<&Keeper> = bag.keepers.iter().filter(|keeper| keeper.rank > 0).collect();
    let names = stewards.iter().map(|keeper| output::short_peer(&keeper.machine)).collect::<Vec<_>>().join(" or ");
    let lost = format!("`idlewood bag cancel {id}`, and submit it again");
    if !bag.files_missing || bag.state.is_closed() || bag.adopted_elsewhere {
        return None;
    }
    Some(match (stewards.is_empty(), stewards.iter().any(|keeper| keeper.heard)) {
        (true, _) => {
            format!("not here, and the ticket names no machine that keeps the bag: adopt a newer ticket, or {lost}")
        }
        (false, true) => format!("not here yet: they come from {names}"),
        (false, false) => format!(
            "not here, and no machine that keeps the bag answers: start {names}, or connect this machine to them, and the bag goes on by itself; \
             if they are lost for good, {lost}"
        ),
    })
}

/// "kept by 3 machines; this machine can be switched off", once that is so.
pub(super) fn safe(bag: &Bag) -> Option<String> {
    let is_safe = bag.safe_to_switch_off && !bag.state.is_closed();
    is_safe.then(|| format!("kept by {}; this machine can be switched off", output::count(have(bag), "machine")))
}

/// What `submit` says of a bag that it has just submitted.
pub(super) fn at_first(bag: &Bag) -> String {
    let id = output::short_id(&bag.id);
    match bag.stewards {
        0 => "kept by this machine alone: the bag stands still while it is off".to_owned(),
        stewards if bag.rounds.is_some() => {
            let others = output::count(u64::from(stewards), "other machine");
            format!(
                "kept by this machine alone until {others} keep it, too: then another can go on from the last complete round if this one's disk \
                 is lost. It stands still while this one is off"
            )
        }
        stewards => {
            let others = output::count(u64::from(stewards), "other machine");
            format!(
                "kept by this machine alone until {others} keep it, too: `idlewood bag show {id}` says when this one can be switched off"
            )
        }
    }
}

/// How many machines have all that the bag needs.
fn have(bag: &Bag) -> u64 {
    let others = bag.keepers.iter().filter(|keeper| keeper.rank > 0 && keeper.up_to_date && keeper.heard);
    1 + others.count() as u64
}

fn keeper(keeper: &Keeper, since: &str) -> String {
    let who = if keeper.rank == 0 { "this one" } else { output::short_peer(&keeper.machine) };
    let state = match (keeper.rank, keeper.heard, keeper.up_to_date) {
        (0, ..) => "",
        (_, false, _) => "does not answer",
        (_, true, false) => "is being told",
        (_, true, true) => "has all",
    };
    match (keeper.acting, state) {
        (true, "") => format!("{who} acts{since}"),
        (true, state) => format!("{who} acts{since} and {state}"),
        (false, "") => format!("{who} does not act"),
        (false, state) => format!("{who} {state}"),
    }
}

#[cfg(test)]
mod tests {
    use idlewood_api::{BagState, ResultsKept};

    use super::*;

    fn bag() -> Bag {
        let any: Bag = serde_json::from_str(include_str!("../../tests/fixtures/bag.json")).expect("it is a bag");
        let keeper = |rank, acting, up_to_date| Keeper {
            machine: format!("12D3KooW{rank}"),
            rank,
            acting,
            up_to_date,
            heard: true,
        };
        let keepers = vec![keeper(0, true, true), keeper(1, false, true), keeper(2, false, true)];
        Bag { state: BagState::Running, stewards: 2, keepers, safe_to_switch_off: true, ..any }
    }

    fn said(bag: &Bag) -> Vec<String> {
        description(bag).into_iter().map(|(name, text)| format!("{name}: {text}")).collect()
    }

    #[test]
    fn it_is_said_when_the_machine_can_be_switched_off() {
        let kept = bag();
        assert_eq!(safe(&kept).as_deref(), Some("kept by 3 machines; this machine can be switched off"));
        assert_eq!(said(&kept)[0], "kept by: 3 machines; this machine can be switched off");
        assert!(said(&kept)[1].starts_with("keepers: this one acts; "), "{:?}", said(&kept));
        let mut one_lacks = bag();
        one_lacks.keepers[2].up_to_date = false;
        assert_eq!(safe(&one_lacks).as_deref(), Some("kept by 2 machines; this machine can be switched off"));
        let alone = Bag { keepers: Vec::new(), safe_to_switch_off: false, ..bag() };
        assert_eq!((safe(&alone), said(&alone).len()), (None, 2));
        assert!(said(&alone)[0].starts_with("kept by: this machine alone; do not switch"), "{:?}", said(&alone));
        let none = Bag { stewards: 0, ..alone };
        assert_eq!(said(&none), ["kept by: this machine alone; the bag stands still while this machine is off"]);
        let over = Bag { state: BagState::Succeeded, ..bag() };
        assert_eq!((safe(&over), said(&over).len()), (None, 0));
    }

    #[test]
    fn a_machine_that_has_nothing_of_the_bag_says_who_has_it_and_what_to_do() {
        let mut adopted = Bag { files_missing: true, safe_to_switch_off: false, ..bag() };
        let last = |bag: &Bag| {
            let files = said(bag).into_iter().find(|line| line.starts_with("files: "));
            files.expect("it says where they are")
        };
        assert!(last(&adopted).starts_with("files: not here yet: they come from "), "{}", last(&adopted));
        adopted.keepers.iter_mut().for_each(|keeper| keeper.heard = keeper.rank == 0);
        let silent = last(&adopted);
        let names = adopted.keepers[1..].iter().map(|keeper| output::short_peer(&keeper.machine));
        assert!(names.collect::<Vec<_>>().iter().all(|name| silent.contains(name)), "{silent}");
        assert!(silent.contains("start ") && silent.contains("`idlewood bag cancel 0123"), "{silent}");
        adopted.keepers.truncate(1);
        assert!(last(&adopted).contains("names no machine"), "{}", last(&adopted));
        assert_eq!(without_files(&Bag { files_missing: false, ..adopted }), None);
    }

    #[test]
    fn it_is_said_whether_results_are_safe() {
        let results = |bag: &Bag| said(bag).into_iter().find(|line| line.starts_with("results: "));
        let without = results(&bag()).expect("it has stewards");
        assert!(without.contains("computed again") && without.contains("--keep-results"), "{without}");
        let kept = |elsewhere, lacks_room| Bag {
            results_kept: Some(ResultsKept { ended: 60, elsewhere, safe: elsewhere == 60, lacks_room }),
            ..bag()
        };
        let said_of = |bag: &Bag| results(bag).expect("stewards keep them");
        assert_eq!(said_of(&kept(60, false)), "results: safe: those of 60 ended tasks are on another machine, too");
        let full = said_of(&kept(40, true));
        assert!(full.contains("not all safe yet: those of 40 of 60 ended tasks") && full.contains("no room"), "{full}");
        let alone = Bag { keepers: Vec::new(), ..kept(0, false) };
        assert!(said_of(&alone).contains("not safe yet"));
        let none = ResultsKept { ended: 0, elsewhere: 0, safe: true, lacks_room: false };
        assert_eq!(said_of(&Bag { results_kept: Some(none), ..bag() }), "results: no task has ended yet");
        let adopted = Bag { results_lost: Some("3-7,9".to_owned()), ..bag() };
        let lost = said(&adopted).pop().expect("it says something");
        assert_eq!(lost, "lost: results that no machine has: tasks 3-7,9 are computed again");
    }

    #[test]
    fn it_is_said_that_another_machine_goes_on_as_this_one() {
        let elsewhere = Bag { adopted_elsewhere: true, ..bag() };
        assert!(said(&elsewhere)[0].contains("adopted a ticket"), "{:?}", said(&elsewhere));
    }
}
