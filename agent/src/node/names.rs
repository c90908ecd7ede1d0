//! What machines are called that this one has to do with, as they say in listings. Names are for people: nothing is decided by them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::{MachineReport, Peer};
use idlewood_trust::identity;

use crate::output::printable;

/// Most names that are kept: those of pages that users have asked for, and of machines with tasks of this one.
const NAMES_MAX: usize = 16_384;
/// At most so often a page is asked for to learn names, and the same machine is looked for.
const ASK_EVERY: Duration = Duration::from_secs(5);
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// How long after a question about this machine its owner may still look at it.
const LOOKED_AT: Duration = Duration::from_secs(10);
/// The end of an id tells machines of one name apart.
const SUFFIX: usize = 6;

/// Names by machine.
#[derive(Debug, Default)]
pub(super) struct Names {
    me: Option<PeerId>,
    known: BTreeMap<PeerId, Box<str>>,
    /// When machines were looked for whose names are not known.
    sought: BTreeMap<PeerId, Time>,
    next: Option<Time>,
    /// Until then somebody looks at this machine.
    looked_at: Time,
}

impl Names {
    /// This machine is called so, or not at all.
    pub(super) fn set_own(&mut self, me: PeerId, name: &str) {
        self.me = Some(me);
        if !name.is_empty() {
            self.known.insert(me, name.into());
        }
    }

    /// These machines have told their names.
    pub(super) fn learn<'a>(&mut self, machines: impl Iterator<Item = &'a MachineReport>) {
        for machine in machines.filter(|machine| !machine.name.is_empty()) {
            if self.known.len() >= NAMES_MAX && !self.known.contains_key(&machine.peer) {
                let other = self.known.keys().copied().find(|known| Some(*known) != self.me);
                other.map(|other| self.known.remove(&other));
            }
            // Others decide what they tell.
            self.known.insert(machine.peer, printable(&machine.name).into());
        }
    }

    /// Somebody has asked for something in which names can be.
    pub(super) fn look(&mut self, now: Time) {
        self.looked_at = now + LOOKED_AT;
    }

    /// Where to ask for names next: at the place of a machine that has tasks of this one, or, while somebody looks, whose tasks this one
    /// has. Otherwise all machines that have tasks of a new bag would ask for the name of its submitter at the same time.
    pub(super) fn wanted(&mut self, peer: &Peer, now: Time) -> Option<u64> {
        if self.next.is_some_and(|next| next > now) {
            return None;
        }
        self.next = Some(now + ASK_EVERY);
        self.sought.retain(|_, since| *since + AGAIN_AFTER > now);
        let of_mine = peer.own_tasks_by_machine().into_keys();
        let others = (now < self.looked_at).then(|| peer.held()).into_iter().flatten().map(|held| held.submitter);
        let concerned: BTreeSet<PeerId> = of_mine.chain(others).collect();
        let is_sought = |machine: &PeerId| !self.known.contains_key(machine) && !self.sought.contains_key(machine);
        let machine = concerned.into_iter().find(is_sought)?;
        self.sought.insert(machine, now);
        Some(peer.place(machine))
    }

    /// What people call this machine, if that is known.
    pub(super) fn of(&self, machine: PeerId) -> Option<String> {
        let name = self.known.get(&machine)?;
        let is_alone = self.known.values().filter(|other| *other == name).nth(1).is_none();
        Some(told(name, machine, is_alone))
    }

    /// All names, by peer id.
    pub(super) fn all(&self) -> BTreeMap<String, String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.known.values().for_each(|name| *counts.entry(name).or_default() += 1);
        let names = self.known.iter().map(|(&machine, name)| {
            let is_alone = counts.get(&**name) == Some(&1);
            (identity::to_libp2p(machine).to_string(), told(name, machine, is_alone))
        });
        names.collect()
    }
}

/// A name; where several machines have it, with the end of the id.
fn told(name: &str, machine: PeerId, is_alone: bool) -> String {
    if is_alone {
        return name.to_owned();
    }
    let id = identity::to_libp2p(machine).to_string();
    format!("{name}.{}", &id[id.len().saturating_sub(SUFFIX)..])
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::Activity;
    use libp2p::identity::Keypair;

    use super::*;

    fn report(name: &str) -> MachineReport {
        MachineReport {
            peer: identity::peer_id(&Keypair::generate_ed25519()).expect("an Ed25519 key"),
            at: 0,
            name: name.into(),
            version: "".into(),
            activity: Activity::Idle,
            reason: None,
            slots: 1,
            speed_mops: 1.0,
            running: 0,
            waiting: 0,
        }
    }

    #[test]
    fn machines_of_one_name_are_told_apart_by_the_ends_of_their_ids() {
        let mut names = Names::default();
        let machines = [report("lab"), report("desk"), report("lab"), report("")];
        names.learn(machines.iter());
        let of = |number: usize| names.of(machines[number].peer);
        assert_eq!((of(1).as_deref(), of(3)), (Some("desk"), None));
        let id = identity::to_libp2p(machines[0].peer).to_string();
        assert_eq!(of(0), Some(format!("lab.{}", &id[id.len() - SUFFIX..])));
        assert_ne!(of(0), of(2));
        let all = names.all();
        assert_eq!((all.len(), all.get(&id).cloned()), (3, of(0)));
    }

    #[test]
    fn names_are_bounded() {
        let mut names = Names::default();
        let machines: Vec<MachineReport> = (0..NAMES_MAX as u64 + 5)
            .map(|number| {
                let mut id = [0; 32];
                id[..8].copy_from_slice(&number.to_be_bytes());
                MachineReport { peer: PeerId(id), ..report("x") }
            })
            .collect();
        names.learn(machines.iter());
        assert_eq!(names.known.len(), NAMES_MAX);
    }
}
