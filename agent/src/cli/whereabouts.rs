//! Which machines run nothing of a bag, why, and where in the tree they are: the second half of `idlewood bag explain`.
//!
//! The agent knows which machines have declined the bag; what all others do, they say themselves (`idlewood machines`). The tree is the
//! trie over the machines' places on the line (docs/design/overlay.md), so that whoever has the list has the tree.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Context as _;
use idlewood_api::client::Client;
use idlewood_api::{BagDetail, MachineState, MachineView, MachinesWanted};
use serde::Serialize;

use super::machines;
use crate::output::{self, count};

/// Machines that are asked what they do, unless the user wants to hear of all. Our choice: eight pages, which take milliseconds each in
/// a local network, and 23 s together where machines are 50 ms apart (docs/adr/0047).
const ASKED_MAX: usize = 1000;
/// Places in the tree that are named for each reason.
const NAMED_MAX: usize = 6;

/// The machines on which nothing of a bag runs, by reason.
#[derive(Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub(super) struct Whereabouts {
    /// Machines that were asked what they do.
    asked: u64,
    /// Machines of the grid, as the root counts them.
    grid_machines: u64,
    /// About how many others did not answer, since machines that know of them did not.
    unreached: u64,
    /// The reasons, that of most machines first.
    excluded: Vec<Excluded>,
}

/// The machines on which nothing of a bag runs for one reason.
#[derive(Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
struct Excluded {
    /// The reason for programs: the code of a bound or of a machine's reason, `silent`, or `other_work`.
    code: String,
    /// The same for people.
    reason: String,
    /// How many machines.
    machines: u64,
    /// Where they are: the largest parts of the tree in which all are excluded for this reason.
    places: Vec<Place>,
}

/// A part of the tree.
#[derive(Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
struct Place {
    /// Peer id of the machine, or of the one whose router has these machines below it.
    machine: String,
    /// What that machine is called; null where that is not known.
    name: Option<String>,
    /// Levels below the root of the tree; 0 is the whole grid. Null where only a part of the grid's machines was asked or reached, of
    /// which the tree is not known.
    level: Option<u32>,
    /// Machines in it.
    machines: u64,
}

/// Asks the machines of the grid, all of them or the first thousand.
pub(super) fn of(client: &Client, bag: &BagDetail, all: bool) -> anyhow::Result<Whereabouts> {
    let most = if all { usize::MAX } else { ASKED_MAX };
    let mut wanted = MachinesWanted::default();
    let (mut asked, mut unreached) = (Vec::new(), 0);
    let grid_machines = loop {
        let page = machines::page(client, &wanted)?;
        asked.extend(page.machines);
        unreached += page.unreached;
        wanted.after = page.next;
        if wanted.after.is_none() || asked.len() >= most || page.busy {
            break page.grid_machines;
        }
    };
    Whereabouts::new(bag, asked, grid_machines, unreached)
}

/// A machine, and its place on the line.
type Placed = (u64, MachineView);

impl Whereabouts {
    /// # Errors
    /// Where a machine's place is no number.
    fn new(bag: &BagDetail, machines: Vec<MachineView>, grid_machines: u64, unreached: u64) -> anyhow::Result<Self> {
        let asked = machines.len() as u64;
        let place = |machine: MachineView| {
            let place = u64::from_str_radix(&machine.place, 16);
            Ok((place.with_context(|| format!("machine {} has no place in the tree", machine.peer))?, machine))
        };
        let mut machines = machines.into_iter().map(place).collect::<anyhow::Result<Vec<Placed>>>()?;
        machines.sort_by_key(|(place, _)| *place);
        let mut excluded = excluded(bag, &machines);
        if asked < grid_machines || unreached > 0 {
            // What is the whole of a part may not be the whole.
            excluded.iter_mut().flat_map(|excluded| &mut excluded.places).for_each(|place| place.level = None);
        }
        Ok(Self { asked, grid_machines, unreached, excluded })
    }
}

/// Why nothing of the bag runs on a machine: a code, and words.
fn why(machine: &MachineView, bag: &BagDetail) -> Option<(String, String)> {
    let told = |code: &str, reason: &str| Some((code.to_owned(), reason.to_owned()));
    if machine.state == MachineState::Silent {
        return told("silent", "no answer");
    }
    if let Some(declining) = bag.declining.iter().find(|declining| declining.peer == machine.peer) {
        return told(&declining.code, &declining.reason);
    }
    match (machine.state, &machine.reason_code, &machine.reason) {
        (MachineState::Suspended, Some(code), Some(reason)) => told(code, reason),
        (MachineState::Suspended, ..) => told("suspended", "it begins no tasks"),
        (MachineState::Working, ..) if !bag.placements.iter().any(|placement| placement.peer == machine.peer) => {
            told("other_work", "it has tasks of other bags")
        }
        _ => None,
    }
}

/// Those of these machines, in the order of the line, that are excluded, by reason.
fn excluded(bag: &BagDetail, machines: &[Placed]) -> Vec<Excluded> {
    let whys: Vec<_> = machines.iter().map(|(_, machine)| why(machine, bag)).collect();
    let mut reasons: BTreeMap<&(String, String), u64> = BTreeMap::new();
    whys.iter().flatten().for_each(|why| *reasons.entry(why).or_default() += 1);
    let of_reason = |(why, machines_of): (&(String, String), u64)| {
        let mut places = Vec::new();
        let belongs: Vec<bool> = whys.iter().map(|other| other.as_ref() == Some(why)).collect();
        parts(machines, &belongs, 0, &mut places);
        places.sort_by_key(|place| Reverse(place.machines));
        Excluded { code: why.0.clone(), reason: why.1.clone(), machines: machines_of, places }
    };
    let mut excluded: Vec<Excluded> = reasons.into_iter().map(of_reason).collect();
    excluded.sort_by_key(|excluded| Reverse(excluded.machines));
    excluded
}

/// The largest subtrees of these machines, in the order of the line, all of which belong.
fn parts(machines: &[Placed], belongs: &[bool], level: u32, places: &mut Vec<Place>) {
    if !belongs.contains(&true) {
        return;
    }
    let router = router(machines);
    if belongs.iter().all(|belongs| *belongs) {
        // A router is on the machine before the gap in its middle, and a machine alone is a leaf.
        let (_, machine) = &machines[router.saturating_sub(1)];
        places.push(Place {
            machine: machine.peer.clone(),
            name: machine.name.clone(),
            level: Some(level),
            machines: machines.len() as u64,
        });
        return;
    }
    let (left, right) = machines.split_at(router);
    let (belongs_left, belongs_right) = belongs.split_at(router);
    parts(left, belongs_left, level + 1, places);
    parts(right, belongs_right, level + 1, places);
}

/// How many of these machines are left of the gap of the router above them all: where their places first differ in a bit.
fn router(machines: &[Placed]) -> usize {
    let differ = machines.first().zip(machines.last()).map_or(0, |((first, _), (last, _))| first ^ last);
    let bit = differ.checked_ilog2().map_or(0, |bit| 1_u64 << bit);
    // Several at one place do not happen: it has 64 bits.
    machines.iter().position(|(place, _)| place & bit != 0).filter(|at| *at > 0).unwrap_or(machines.len().div_ceil(2))
}

/// Writes them for people.
pub(super) fn write(whereabouts: &Whereabouts, out: &mut impl Write) -> io::Result<()> {
    let Whereabouts { asked, grid_machines, unreached, .. } = whereabouts;
    let mut first = "where ";
    for Excluded { reason, machines, places, .. } in &whereabouts.excluded {
        let mut named: Vec<String> = places.iter().take(NAMED_MAX).map(|at| place(at, *asked)).collect();
        let rest = &places[named.len()..];
        if !rest.is_empty() {
            let machines = rest.iter().map(|place| place.machines).sum();
            named.push(format!("{} in {}", count(machines, "other machine"), count(rest.len() as u64, "other place")));
        }
        let reason = output::printable(reason);
        output::paragraph(out, first, &format!("{}, {reason}: {}", count(*machines, "machine"), named.join(", ")))?;
        first = "      ";
    }
    if *unreached > 0 {
        let about = count(*unreached, "other machine");
        output::paragraph(out, first, &format!("about {about} did not answer, and may be there all the same"))?;
    } else if asked < grid_machines && !whereabouts.excluded.is_empty() {
        let all = if *asked >= ASKED_MAX as u64 { "; -v asks all" } else { "" };
        output::paragraph(out, first, &format!("of the first {asked} machines of about {grid_machines}{all}"))?;
    }
    Ok(())
}

/// Where so many machines were asked.
fn place(place: &Place, asked: u64) -> String {
    let name = output::machine(place.name.as_deref(), &place.machine);
    match (place.machines, place.level) {
        (1, _) => name,
        (_, Some(0)) => "the whole tree".to_owned(),
        (machines, Some(level)) => format!("all {machines} below the router of {name} (level {level})"),
        (machines, None) if machines == asked => format!("all {machines} that were asked"),
        (machines, None) => format!("all {machines} that were asked below the router of {name}"),
    }
}

#[cfg(test)]
mod tests {
    use idlewood_api::{Bag, Declining, Placement};

    use super::*;

    fn machine(number: u64, place: u64, state: MachineState) -> MachineView {
        MachineView {
            peer: format!("peer-{number}"),
            name: Some(format!("lab-{number}")),
            state,
            reason: (state == MachineState::Suspended).then(|| "in use by its owner".to_owned()),
            reason_code: (state == MachineState::Suspended).then(|| "in_use".to_owned()),
            slots: None,
            running: None,
            waiting: None,
            load: None,
            speed_mops: None,
            version: None,
            last_seen: String::new(),
            tasks: 0,
            failed: 0,
            this_machine: false,
            place: format!("{:016x}", place << 60),
        }
    }

    fn bag(declining: &[u64], placed: &[u64]) -> BagDetail {
        let bag: Bag = serde_json::from_str(include_str!("../../tests/fixtures/bag.json")).expect("it is a bag");
        let declining = declining.iter().map(|number| Declining {
            peer: format!("peer-{number}"),
            code: "declined_native".to_owned(),
            reason: "no native programs".to_owned(),
        });
        let placed =
            placed.iter().map(|number| Placement { peer: format!("peer-{number}"), tasks: 1, left_alone_s: None });
        BagDetail {
            bag,
            program: String::new(),
            args: Vec::new(),
            placements: placed.collect(),
            declining: declining.collect(),
        }
    }

    fn text(whereabouts: &Whereabouts) -> String {
        let mut out = Vec::new();
        write(whereabouts, &mut out).expect("memory takes it");
        String::from_utf8(out).expect("it is text")
    }

    fn told(bag: &BagDetail, machines: Vec<MachineView>) -> String {
        let asked = machines.len() as u64;
        text(&Whereabouts::new(bag, machines, asked, 0).expect("they have places"))
    }

    /// Places of four bits: the tree is ((0000 0001) 0100) ((1000 1001) (1110 1111)).
    #[test]
    fn whole_subtrees_are_told_by_their_router_and_other_machines_by_name() {
        use MachineState::{Idle, Silent, Suspended, Working};
        let states = [Suspended, Idle, Suspended, Suspended, Suspended, Suspended, Suspended];
        let line = [0b0000, 0b0001, 0b0100, 0b1000, 0b1001, 0b1110, 0b1111];
        let of = |states: [MachineState; 7]| {
            let machines = (1..).zip(line).zip(states).map(|((number, place), state)| machine(number, place, state));
            // In any order: it is the place that counts.
            let mut machines: Vec<MachineView> = machines.collect();
            machines.reverse();
            machines
        };
        assert_eq!(
            told(&bag(&[], &[]), of(states)),
            "where 6 machines, in use by its owner: all 4 below the router of lab-5 (level 1), lab-1, lab-3\n"
        );
        assert_eq!(told(&bag(&[], &[]), of([Suspended; 7])), "where 7 machines, in use by its owner: the whole tree\n");
        assert_eq!(told(&bag(&[], &[]), of([Idle; 7])), "");
        let states = [Working, Working, Idle, Idle, Silent, Suspended, Suspended];
        assert_eq!(
            told(&bag(&[6, 7], &[1]), of(states)),
            "where 2 machines, no native programs: all 2 below the router of lab-6 (level 2)\n      \
             1 machine, it has tasks of other bags: lab-2\n      1 machine, no answer: lab-5\n"
        );
    }

    #[test]
    fn of_a_part_of_the_machines_nothing_is_said_of_the_whole_tree() {
        let suspended = |number: u64| MachineView {
            place: format!("{:016x}", number << 50),
            ..machine(number, 0, MachineState::Suspended)
        };
        let first =
            Whereabouts::new(&bag(&[], &[]), (0..1000).map(suspended).collect(), 5000, 0).expect("they have places");
        assert_eq!(
            text(&first),
            "where 1000 machines, in use by its owner: all 1000 that were asked\n      \
             of the first 1000 machines of about 5000; -v asks all\n"
        );
        let json = serde_json::to_value(&first).expect("it is JSON");
        assert_eq!((json["asked"].as_u64(), json["grid_machines"].as_u64()), (Some(1000), Some(5000)));
        let place = &json["excluded"][0]["places"][0];
        assert_eq!((place["machines"].as_u64(), &place["level"]), (Some(1000), &serde_json::Value::Null));
        // The tree is (0000 0100) (1000 1100).
        let states = [MachineState::Idle, MachineState::Idle, MachineState::Suspended, MachineState::Suspended];
        let line = (1..).zip([0b0000, 0b0100, 0b1000, 0b1100]).zip(states);
        let machines = line.map(|((number, place), state)| machine(number, place, state)).collect();
        let some = Whereabouts::new(&bag(&[], &[]), machines, 7, 3).expect("they have places");
        let without = MachineView { place: "-".to_owned(), ..machine(9, 0, MachineState::Idle) };
        let error = Whereabouts::new(&bag(&[], &[]), vec![without], 1, 0).expect_err("it has no place");
        assert_eq!(error.to_string(), "machine peer-9 has no place in the tree");
        assert_eq!(
            text(&some),
            "where 2 machines, in use by its owner: all 2 that were asked below the router of lab-3\n      \
             about 3 other machines did not answer, and may be there all the same\n"
        );
    }

    /// As many machines are told as are excluded, whatever the tree is like.
    #[test]
    fn each_excluded_machine_is_in_one_place() {
        let mut machines: Vec<Placed> = (0..200_u64)
            .map(|number| {
                let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let state = if place % 3 == 0 { MachineState::Idle } else { MachineState::Suspended };
                (place, machine(number, 0, state))
            })
            .collect();
        machines.sort_by_key(|(place, _)| *place);
        let excluded = excluded(&bag(&[], &[]), &machines);
        let suspended = machines.iter().filter(|(_, machine)| machine.state == MachineState::Suspended).count() as u64;
        assert_eq!((excluded.len(), excluded[0].machines), (1, suspended));
        assert_eq!(excluded[0].places.iter().map(|place| place.machines).sum::<u64>(), suspended);
        assert!(excluded[0].places.windows(2).all(|two| two[0].machines >= two[1].machines));
    }
}
