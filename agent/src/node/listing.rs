//! The machines of the grid, for whoever asks over the control API: pages as the machine gets them from the tree, with what is known here of
//! this machine's own tasks on each.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_api::{MachineState, MachineView, Machines};
use idlewood_overlay::PeerId;
use idlewood_scheduler::{Activity, Event, MachineReport, MachinesPage, Peer, SilentMachine};
use idlewood_trust::identity;
use idlewood_units::clock::{iso, wall_now};

use super::names::Names;
use super::shared::Shared;
use crate::handle::{MachinesQuery, Refusal, Reply, answer};
use crate::reasons;

/// Questions that may wait for their pages at a time.
const WAITING_MAX: usize = 64;

/// Who waits for pages.
#[derive(Debug, Default)]
pub(super) struct Listing {
    waiting: BTreeMap<u64, (MachinesQuery, Reply<Machines>)>,
    tickets: u64,
    names: Names,
}

impl Listing {
    /// Tells the machine what it is called.
    pub(super) fn introduce(&mut self, me: PeerId, shared: &mut Shared) {
        let name = shared.settings.get().network.name();
        self.names.set_own(me, &name);
        let version = env!("CARGO_PKG_VERSION");
        shared.events.tell(idlewood_machine::Event::Called { name: name.into(), version: version.into() });
    }

    /// Somebody wants to know which machines there are.
    pub(super) fn ask(&mut self, query: MachinesQuery, reply: Reply<Machines>, shared: &mut Shared) {
        if self.waiting.len() >= WAITING_MAX {
            let why = "too many ask for the machines of the grid at once: ask again in some seconds";
            return answer(reply, Err(Refusal::Unavailable(why.to_owned())));
        }
        self.tickets += 1;
        shared.events.tell(Event::ListMachines { ticket: self.tickets, first: query.first });
        self.waiting.insert(self.tickets, (query, reply));
    }

    /// Looks for the names of machines that this one has to do with, now and then.
    pub(super) fn look_for_names(&mut self, peer: &Peer, shared: &mut Shared) {
        if let Some(first) = self.names.wanted(peer, shared.clock.now()) {
            self.tickets += 1;
            shared.events.tell(Event::ListMachines { ticket: self.tickets, first });
        }
    }

    /// Somebody has asked for something in which names can be.
    pub(super) fn look(&mut self, shared: &Shared) {
        self.names.look(shared.clock.now());
    }

    /// What machines are called.
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// A page has come.
    pub(super) fn came(&mut self, ticket: u64, page: MachinesPage, peer: &Peer) {
        self.names.learn(page.machines.iter());
        let Some((query, reply)) = self.waiting.remove(&ticket) else { return };
        let own = peer.own_tasks_by_machine();
        let view = Told { own: &own, me: peer.me().peer, names: &self.names };
        let answered = page.machines.iter().map(|report| (report.at, view.answered(report)));
        let silent = page.silent.iter().map(|silent| (silent.at, view.silent(silent)));
        let mut machines: Vec<(u64, MachineView)> = answered.chain(silent).collect();
        machines.sort_by_key(|(at, _)| *at);
        let machines = machines.into_iter().map(|(_, machine)| machine).filter(|machine| matches(machine, &query));
        let next = page.last.checked_add(1);
        let grid_machines = peer.overlay_view().likely_count();
        // `unreached` is an estimate from the share of the line; at most the machines that were not listed.
        let told = (page.machines.len() + page.silent.len()) as u64;
        let unreached = page.unreached.min(grid_machines.saturating_sub(told));
        answer(
            reply,
            Ok(Machines {
                machines: machines.collect(),
                unreached,
                busy: page.is_busy,
                next: next.map(place),
                grid_machines,
            }),
        );
    }
}

fn matches(machine: &MachineView, query: &MachinesQuery) -> bool {
    let is_named = |pattern: &glob::Pattern| {
        machine.name.as_deref().is_some_and(|name| pattern.matches(name)) || pattern.matches(&machine.peer)
    };
    (query.states.is_empty() || query.states.contains(&machine.state)) && query.name.as_ref().is_none_or(is_named)
}

/// A place of the line, as it is told.
fn place(at: u64) -> String {
    format!("{at:016x}")
}

/// What is told of machines.
struct Told<'a> {
    own: &'a BTreeMap<PeerId, (u64, u64)>,
    me: PeerId,
    names: &'a Names,
}

impl Told<'_> {
    fn answered(&self, report: &MachineReport) -> MachineView {
        let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let state = match report.activity {
            Activity::Idle => MachineState::Idle,
            Activity::Working => MachineState::Working,
            Activity::Suspended => MachineState::Suspended,
        };
        let queued = u64::from(report.running).saturating_add(report.waiting);
        MachineView {
            name: said(&report.name),
            reason: report.reason.as_deref().map(reasons::text_of_code),
            reason_code: report.reason.as_deref().map(str::to_owned),
            slots: Some(report.slots),
            running: Some(report.running),
            waiting: Some(report.waiting),
            load: Some(queued as f64 / f64::from(report.slots)),
            speed_mops: Some(report.speed_mops),
            version: said(&report.version),
            ..self.bare((report.peer, report.at), state, Duration::ZERO)
        }
    }

    fn silent(&self, silent: &SilentMachine) -> MachineView {
        self.bare((silent.peer, silent.at), MachineState::Silent, Duration::from_secs(u64::from(silent.heard_s)))
    }

    fn bare(&self, (peer, at): (PeerId, u64), state: MachineState, seen_ago: Duration) -> MachineView {
        let (tasks, failed) = self.own.get(&peer).copied().unwrap_or_default();
        MachineView {
            peer: identity::to_libp2p(peer).to_string(),
            name: self.names.of(peer),
            state,
            reason: None,
            reason_code: None,
            slots: None,
            running: None,
            waiting: None,
            load: None,
            speed_mops: None,
            version: None,
            last_seen: iso(wall_now() - seen_ago),
            tasks,
            failed,
            this_machine: peer == self.me,
            place: place(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reason: Option<&str>) -> MachineReport {
        MachineReport {
            peer: PeerId([1; 32]),
            at: 3,
            name: "lab-pc".into(),
            version: "1.2".into(),
            activity: Activity::Suspended,
            reason: reason.map(Into::into),
            slots: 4,
            speed_mops: 1000.0,
            running: 2,
            waiting: 6,
        }
    }

    #[test]
    fn a_machine_is_told_with_this_machines_own_tasks_and_found_by_state_and_name() {
        let own = BTreeMap::from([(PeerId([1; 32]), (5, 2))]);
        let names = Names::default();
        let told = Told { own: &own, me: PeerId([9; 32]), names: &names };
        let machine = told.answered(&report(Some("on_battery")));
        assert_eq!((machine.tasks, machine.failed, machine.load, machine.this_machine), (5, 2, Some(2.0), false));
        assert_eq!(
            (machine.reason.as_deref(), machine.reason_code.as_deref()),
            (Some("on battery"), Some("on_battery"))
        );
        let silent = told.silent(&SilentMachine { peer: PeerId([9; 32]), at: 1, heard_s: 7 });
        assert_eq!(
            (silent.state, silent.slots, silent.this_machine, silent.tasks),
            (MachineState::Silent, None, true, 0)
        );
        let query = |states: &[MachineState], name: Option<&str>| MachinesQuery {
            first: 0,
            states: states.to_vec(),
            name: name.map(|name| glob::Pattern::new(name).expect("a pattern")),
        };
        for (states, name, found) in [
            (&[][..], None, true),
            (&[MachineState::Suspended], Some("lab-*"), true),
            (&[MachineState::Idle], None, false),
            (&[], Some("desk-*"), false),
            (&[], Some("12D3KooW*"), true),
        ] {
            assert_eq!(matches(&machine, &query(states, name)), found, "{states:?} {name:?}");
        }
        assert!(!matches(&silent, &query(&[], Some("lab-*"))));
    }

    #[test]
    fn a_reason_that_this_version_does_not_know_is_told_as_it_is() {
        let own = BTreeMap::new();
        let names = Names::default();
        let told = Told { own: &own, me: PeerId([9; 32]), names: &names };
        assert_eq!(told.answered(&report(Some("moon_is_full"))).reason.as_deref(), Some("moon is full"));
        assert_eq!(told.answered(&report(Some("in_use"))).reason.as_deref(), Some("in use by its owner"));
    }
}
