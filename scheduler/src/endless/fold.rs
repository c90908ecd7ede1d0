//! The wave up and down the tree, on one machine: what each part of the tree would do for each endless bag goes up, the rates that
//! the root computes from that come down.
//!
//! All of it is soft state. What a node says is said again when it changed by more than [`CHANGE_MIN`], when whom it is said to is
//! another, and every [`REFRESH`]; a child that has not answered a table is told it again soon, and one that says again what it said before is told its
//! rates, since it may have taken another parent for a while and missed them. A child that is gone is an entry less. Each
//! node divides no more than its children can do, so that rates stay feasible while the next wave is under way.
//!
//! A table comes from the parent, and replaces whatever was there before, unless it is an older one of the same root. Numbers of a
//! table are carried over to the next one by bag; what a part would do for a bag that is new in it is bounded from below by what it would
//! do for the bags with the next ratios, until the part says it itself.

use std::time::Duration;

use idlewood_overlay::{Contact, Node, PeerId, Time};

use super::root::{Root, best_rates, grant};
use super::{EndlessBag, Grant, Limit, Stamp};
use crate::bag::BagId;
use crate::io::Io;
use crate::message::Message;
use crate::shares::{Absorption, Ratios};

/// A number that changed by less, relative to itself, is not said again before [`REFRESH`].
const CHANGE_MIN: f64 = 0.02;
/// A work or a ratio in the table stands while the announced one is within this share of it: another table costs a message on each edge.
const TABLE_CHANGE_MIN: f64 = 0.05;
/// Ratios of so many bytes for a Mop and less are alike: a fast machine fetches some kilobytes a second for them.
const RATIO_MIN: f64 = 1.0;
/// Everything is said again after so long, which repairs what was lost. Our choice: with half of it the wave was an eighth of the traffic of an
/// idle grid (docs/lab/shares.md).
const REFRESH: Duration = Duration::from_secs(60);
/// A table that was not answered is told again after so long; and a child that does not repeat what it says is told its rates so much later than
/// it should have.
const UNANSWERED: Duration = Duration::from_secs(2);
/// Least time between two messages on one edge, and between two solutions of the root's. Our choice: a wave over a tree of a
/// million machines then takes some seconds.
const SPACING: Duration = Duration::from_millis(100);
/// What a leaf can do changes as often as finite bags begin and end there; what it says of itself stands for so long at least. Our choice: its
/// slots are never idle for that, only its part of each bag is a little off.
const CAPACITY_FOR: Duration = Duration::from_secs(10);
/// A table that nobody has repeated for so long is forgotten.
const TABLE_FOR: Duration = Duration::from_secs(200);

/// Where this machine stands in the tree.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Place {
    pub(crate) is_root: bool,
    pub(crate) hosts_router: bool,
    /// The parents of the leaf and of the router.
    pub(crate) parents: [Option<Contact>; 2],
    /// The children of the router.
    pub(crate) children: [Option<(Contact, Node)>; 2],
}

fn number(node: Node) -> usize {
    match node {
        Node::Leaf => 0,
        Node::Router => 1,
    }
}

/// What this machine's leaf can do for endless bags.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Capacity {
    pub(crate) speed_mops: f64,
    /// Infinite where it is not limited.
    pub(crate) link_bytes_s: f64,
}

/// Numbers that were sent to one peer.
#[derive(Debug)]
struct Sent {
    to: PeerId,
    stamp: Stamp,
    numbers: Vec<f64>,
    at: Time,
}

impl Sent {
    /// When these numbers have to be sent instead.
    fn next(&self, to: PeerId, stamp: Stamp, numbers: &[f64], refresh: Duration) -> Time {
        let has_changed = self.stamp != stamp || differ(&self.numbers, numbers);
        if self.to != to {
            Time::ZERO
        } else if has_changed {
            self.at + SPACING
        } else {
            self.at + refresh
        }
    }
}

/// Whether some number has changed so much that it is said again.
fn differ(before: &[f64], now: &[f64]) -> bool {
    before.iter().zip(now).any(|(before, now)| (before - now).abs() > CHANGE_MIN * before.max(*now))
}

/// A child of this machine's router.
#[derive(Debug)]
struct Child {
    contact: Contact,
    node: Node,
    absorption: Vec<f64>,
    /// Whether it has said so of the present table.
    is_current: bool,
    /// Whether it has said again what is known of it, and so may not have what it was told.
    asks: bool,
    told: Option<Sent>,
}

/// The table, in numbers.
#[derive(Debug)]
struct Table {
    stamp: Stamp,
    bags: Vec<EndlessBag>,
    ratios: Ratios,
    /// When the parent last repeated it.
    heard: Time,
}

impl Table {
    fn new(stamp: Stamp, bags: Vec<EndlessBag>, heard: Time) -> Self {
        let ratios = Ratios::new(bags.iter().map(EndlessBag::ratio).collect());
        let none = || Ratios::new(vec![0.0; bags.len()]).expect("zeros are ratios");
        Self { stamp, ratios: ratios.unwrap_or_else(|_| none()), bags, heard }
    }

    fn position(&self, bag: BagId) -> Option<usize> {
        self.bags.iter().position(|known| known.bag == bag)
    }

    /// Rates by the table before, by bag; 0 for one that is new.
    fn carried_over(&self, before: &Self, rates: &[f64]) -> Vec<f64> {
        let of = |bag: &EndlessBag| before.position(bag.bag).and_then(|place| rates.get(place)).copied().unwrap_or(0.0);
        self.bags.iter().map(of).collect()
    }

    /// What a part would do for each bag at least, by what it said of the table before: bytes grow with the ratio, work falls.
    fn bounded(&self, before: &Self, work: &[f64]) -> Vec<f64> {
        let known: Vec<(f64, f64)> = before.bags.iter().map(EndlessBag::ratio).zip(work.iter().copied()).collect();
        let of = |bag: &EndlessBag| {
            let ratio = bag.ratio();
            let bounds = known.iter().map(|&(other, work)| if other >= ratio { work } else { work * other / ratio });
            bounds.fold(0.0, f64::max)
        };
        self.bags.iter().map(of).collect()
    }
}

/// The state of one machine in the wave.
#[derive(Debug)]
pub(crate) struct Fold {
    table: Table,
    root: Root,
    place: Place,
    capacity: Capacity,
    /// From when on it may be another one.
    capacity_changes: Time,
    children: [Option<Child>; 2],
    /// What the leaf and the router said last.
    sent: [Option<Sent>; 2],
    /// The parent of the leaf or of the router speaks of a table, and this machine, which was just started, has none: it says so.
    asks_for_table: [bool; 2],
    /// Mop/s of each bag for the leaf and for the router.
    rates: [Vec<f64>; 2],
    /// What the root solved last, and when it may solve again.
    solved: Option<(Vec<f64>, Vec<EndlessBag>)>,
    solves_from: Time,
    touched: bool,
    deadline: Option<Time>,
}

impl Fold {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(Stamp::default(), Vec::new(), Time::ZERO),
            root: Root::default(),
            place: Place::default(),
            capacity: Capacity::default(),
            capacity_changes: Time::ZERO,
            children: [None, None],
            sent: [None, None],
            asks_for_table: [false, false],
            rates: [Vec::new(), Vec::new()],
            solved: None,
            solves_from: Time::ZERO,
            touched: false,
            deadline: None,
        }
    }

    /// Whether there is, or was just now, any endless bag on the grid, as far as this machine knows.
    pub(crate) fn is_active(&self) -> bool {
        !self.table.bags.is_empty() || !self.root.is_empty() || self.touched
    }

    /// When [`Self::settle`] has timed work.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.touched { Some(Time::ZERO) } else { self.deadline }
    }

    /// The bags that share the grid, and this leaf's rate of each in Mop/s: no more than it can do, also while what was said to it is of
    /// other ratios or another capacity.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (&EndlessBag, f64)> {
        let rates = &self.rates[0];
        let is_of_table = rates.len() == self.table.bags.len();
        let load = if is_of_table { self.of_leaf().load(&self.table.ratios, rates) } else { 0.0 };
        let scale = load.max(1.0).recip();
        self.table.bags.iter().zip(rates.iter().map(move |rate| rate * scale))
    }

    /// A machine announces a bag to this one, which is root. Returns the answer, unless the bag is over or not known; to whom it goes; and whether that
    /// is the machine that spoke.
    pub(crate) fn announced(&mut self, bag: EndlessBag, from: PeerId, now: Time) -> Option<(Contact, bool, Grant)> {
        let id = bag.bag;
        let submitter = self.root.announced(bag, from, now);
        self.touched = true;
        let (submitter, by_submitter) = submitter?;
        let ahead = self.root.ahead(id)?;
        let limit = if ahead > 0 { Limit::Waits } else { Limit::Machines };
        let unknown = Grant { ahead, work_mops: 0.0, alone_mops: 0.0, grid_mops: 0.0, limit };
        let granted = self.table.position(id).filter(|_| ahead == 0).map(|number| {
            let rates = &self.rates[usize::from(self.place.hosts_router)];
            grant(&self.table.bags, &self.table.ratios, &self.whole(), rates, number)
        });
        Some((submitter, by_submitter, granted.unwrap_or(unknown)))
    }

    /// A child says what it would do for each bag alone.
    pub(crate) fn absorbs(&mut self, from: PeerId, node: Node, stamp: Stamp, work: Vec<f64>) {
        let is_it = |child: &&mut Child| child.contact.peer == from && child.node == node;
        let Some(child) = self.children.iter_mut().flatten().find(is_it) else { return };
        self.touched = true;
        if stamp == self.table.stamp && work.len() == self.table.bags.len() {
            child.asks = child.is_current && !differ(&child.absorption, &work);
            (child.absorption, child.is_current) = (work, true);
        } else {
            // It has another table: it is told this one.
            let never = || Sent { to: from, stamp: Stamp::default(), numbers: Vec::new(), at: Time::ZERO };
            child.told.get_or_insert_with(never).stamp = Stamp::default();
            child.is_current = false;
        }
    }

    /// The parent says the rates of this machine's leaf or router, and the table where it is new.
    pub(crate) fn shared(
        &mut self,
        from: PeerId,
        node: Node,
        (stamp, table): (Stamp, Option<Vec<EndlessBag>>),
        rates: Vec<f64>,
        now: Time,
    ) {
        let is_parent = self.place.parents[number(node)].as_ref().is_some_and(|parent| parent.peer == from);
        if !is_parent || self.place.is_root && node == Node::Router {
            return;
        }
        self.touched = true;
        // Where the leaf hangs below another router than its machine's, that router is further down: its table is the older one.
        let is_from_above = !self.place.is_root && (node == Node::Router || !self.place.hosts_router);
        let is_older = stamp.1 == self.table.stamp.1 && stamp.0 < self.table.stamp.0;
        match table {
            Some(bags) if stamp != self.table.stamp && !is_older && is_from_above => {
                self.replace(stamp, bags, now);
            }
            _ if stamp != self.table.stamp => {
                // It says its table once it sees that this one is another.
                self.sent[number(node)] = None;
                self.asks_for_table[number(node)] = self.table.bags.is_empty();
                return;
            }
            Some(_) => {
                // A parent that says the table again has not heard what this node would do: it took the node for a child anew, or the answer
                // was lost.
                self.sent[number(node)] = None;
                self.table.heard = now;
            }
            None => self.table.heard = now,
        }
        if rates.len() == self.table.bags.len() {
            self.rates[number(node)] = rates;
        }
    }

    fn replace(&mut self, stamp: Stamp, bags: Vec<EndlessBag>, now: Time) {
        let table = Table::new(stamp, bags, now);
        for child in self.children.iter_mut().flatten() {
            (child.absorption, child.is_current) = (table.bounded(&self.table, &child.absorption), false);
        }
        for rates in &mut self.rates {
            *rates = table.carried_over(&self.table, rates);
        }
        self.table = table;
    }

    /// What the router's children do together; on a machine alone, its leaf.
    fn whole(&self) -> Absorption {
        let mut whole = Absorption::none(&self.table.ratios);
        if self.place.hosts_router {
            let children = self.children.iter().flatten();
            children.for_each(|child| whole.add(&Absorption::of_work(child.absorption.clone())));
        } else {
            whole.add(&self.of_leaf());
        }
        whole
    }

    fn of_leaf(&self) -> Absorption {
        Absorption::of_machine(&self.table.ratios, self.capacity.speed_mops, self.capacity.link_bytes_s)
    }

    /// Does everything that follows from what was heard, from another place in the tree or another capacity, and from the time. Returns
    /// whether the shares of this leaf may have changed.
    pub(crate) fn settle(&mut self, place: Place, capacity: Capacity, io: &mut Io) -> bool {
        let now = io.now;
        let is_due = self.touched || self.deadline.is_some_and(|deadline| deadline <= now);
        let changes = capacity != self.capacity;
        let may_change = self.capacity_changes <= now;
        if !is_due && place == self.place && !(changes && may_change) {
            if changes {
                self.deadline = self.deadline.into_iter().chain([self.capacity_changes]).min();
            }
            return false;
        }
        self.take_place(place, now);
        if changes && may_change {
            (self.capacity, self.capacity_changes) = (capacity, now + CAPACITY_FOR);
        }
        (self.touched, self.deadline) = (false, None);
        if self.place.is_root {
            self.tend_table(io);
        } else if self.table.heard + TABLE_FOR <= now && !self.table.bags.is_empty() {
            self.replace(Stamp::default(), Vec::new(), now);
        }
        let mut due: Option<Time> = (!self.table.bags.is_empty()).then(|| self.table.heard + TABLE_FOR);
        due = if self.place.is_root { self.root.forgets_at() } else { due };
        if changes && !may_change {
            due = due.into_iter().chain([self.capacity_changes]).min();
        }
        let own = io.me.peer;
        let of_leaf = self.of_leaf().work_mops().to_vec();
        for child in self.children.iter_mut().flatten().filter(|child| child.node == Node::Leaf) {
            if child.contact.peer == own {
                (child.absorption, child.is_current) = (of_leaf.clone(), true);
            }
        }
        due = due.into_iter().chain(self.report(Node::Leaf, of_leaf, io)).min();
        if self.place.hosts_router {
            let whole = self.whole().work_mops().to_vec();
            due = due.into_iter().chain(self.report(Node::Router, whole, io)).min();
        }
        if self.place.is_root {
            due = due.into_iter().chain(self.solve(now)).min();
        }
        if self.place.hosts_router {
            due = due.into_iter().chain(self.divide(io)).min();
        }
        self.deadline = due;
        true
    }

    /// This machine stands there now: what it hears is judged by that.
    pub(crate) fn take_place(&mut self, place: Place, now: Time) {
        if place == self.place {
            return;
        }
        self.touched = true;
        self.solved = None;
        match (self.place.is_root, place.is_root) {
            (false, true) => self.root.take_over(&self.table.bags, now),
            (true, false) => {
                self.root.step_down();
                self.table.heard = now;
            }
            _ => {}
        }
        let none = vec![0.0; self.table.bags.len()];
        for (slot, child) in self.children.iter_mut().zip(&place.children) {
            let is_same = slot
                .as_ref()
                .zip(child.as_ref())
                .is_some_and(|(known, (contact, node))| known.contact.peer == contact.peer && known.node == *node);
            if let (true, Some(known), Some((contact, _))) = (is_same, slot.as_mut(), child) {
                if known.contact.incarnation != contact.incarnation {
                    // It was started again, and has forgotten the table.
                    (known.is_current, known.told) = (false, None);
                }
                known.contact = contact.clone();
                continue;
            }
            *slot = child.clone().map(|(contact, node)| {
                let (absorption, is_current, asks, told) = (none.clone(), false, false, None);
                Child { contact, node, absorption, is_current, asks, told }
            });
        }
        self.place = place;
    }

    /// The root's table has the bags whose turn it is. It is another one where these are others, or their sizes have changed.
    fn tend_table(&mut self, io: &Io) {
        self.root.forget_silent(io.now);
        let sharing = self.root.sharing();
        let near = |one: f64, other: f64| (one - other).abs() <= TABLE_CHANGE_MIN * one.max(other);
        let alike = |one: f64, other: f64| near(one, other) || one.max(other) <= RATIO_MIN;
        let is_same = |(known, bag): (&EndlessBag, &EndlessBag)| {
            known.bag == bag.bag
                && known.submitter == bag.submitter
                && near(known.task_mops, bag.task_mops)
                && alike(known.ratio(), bag.ratio())
        };
        if self.table.bags.len() == sharing.len() && self.table.bags.iter().zip(&sharing).all(is_same) {
            for (known, bag) in self.table.bags.iter_mut().zip(sharing) {
                let EndlessBag { task_mops, task_bytes, .. } = *known;
                *known = EndlessBag { task_mops, task_bytes, ..bag };
            }
            self.table.heard = io.now;
            return;
        }
        // By the wall clock numbers rise from one life of a machine to the next.
        let number = u64::try_from(io.wall(io.now).0).unwrap_or(0).max(self.table.stamp.0.wrapping_add(1));
        self.replace(Stamp(number, Some(io.me.peer)), sharing, io.now);
    }

    /// Says to the node's parent what the node would do for each bag, if that is due. Returns when it is next.
    fn report(&mut self, node: Node, work: Vec<f64>, io: &mut Io) -> Option<Time> {
        let parent = self.place.parents[number(node)].as_ref().filter(|parent| parent.peer != io.me.peer)?;
        let asks = std::mem::take(&mut self.asks_for_table[number(node)]);
        if self.table.bags.is_empty() && !asks {
            return None;
        }
        let (to, stamp) = (parent.peer, self.table.stamp);
        let sent = &mut self.sent[number(node)];
        if let Some(next) = sent.as_ref().map(|sent| sent.next(to, stamp, &work, REFRESH)).filter(|next| *next > io.now)
        {
            return Some(next);
        }
        *sent = Some(Sent { to, stamp, numbers: work.clone(), at: io.now });
        io.send(parent.clone(), Message::Absorbs { node, stamp, work_mops: work });
        (!asks).then_some(io.now + REFRESH)
    }

    /// The root computes the rates anew, where anything has changed that they depend on. Returns when it may next, if it has to.
    fn solve(&mut self, now: Time) -> Option<Time> {
        let whole = self.whole();
        let is_solved =
            self.solved.as_ref().is_some_and(|(work, bags)| work == whole.work_mops() && *bags == self.table.bags);
        if is_solved {
            return None;
        }
        if self.solves_from > now {
            return Some(self.solves_from);
        }
        self.solves_from = now + SPACING;
        let rates = best_rates(&self.table.bags, &self.table.ratios, &whole);
        self.rates[usize::from(self.place.hosts_router)] = rates;
        self.solved = Some((whole.work_mops().to_vec(), self.table.bags.clone()));
        None
    }

    /// Divides the router's rates among its children, and says them theirs where that is due. Returns when it is next.
    fn divide(&mut self, io: &mut Io) -> Option<Time> {
        let Table { stamp, bags, ratios, .. } = &self.table;
        let parts: Vec<Absorption> =
            self.children.iter().flatten().map(|child| Absorption::of_work(child.absorption.clone())).collect();
        let divided = Absorption::divide(ratios, &self.rates[1], &parts);
        let mut due: Option<Time> = None;
        for (child, rates) in self.children.iter_mut().flatten().zip(divided) {
            if child.contact.peer == io.me.peer {
                self.rates[number(child.node)] = rates;
                continue;
            }
            if bags.is_empty() && child.told.as_ref().is_none_or(|told| told.stamp == *stamp) {
                continue;
            }
            let to = child.contact.peer;
            let refresh = if child.is_current { REFRESH + UNANSWERED } else { UNANSWERED };
            let again = if child.asks { SPACING } else { refresh };
            let is_other = child.told.as_ref().is_none_or(|told| told.to != to || told.stamp != *stamp);
            let next = child.told.as_ref().map(|told| told.next(to, *stamp, &rates, again));
            if let Some(next) = next.filter(|next| *next > io.now) {
                due = due.into_iter().chain([next]).min();
                continue;
            }
            let table = (is_other || !child.is_current).then(|| bags.clone());
            child.told = Some(Sent { to, stamp: *stamp, numbers: rates.clone(), at: io.now });
            let message = Message::Shares { node: child.node, stamp: *stamp, table, work_mops: rates };
            io.send(child.contact.clone(), message);
            child.asks = false;
            due = due.into_iter().chain([io.now + refresh]).min();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::WallTime;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::Standing;
    use super::*;
    use crate::peer::Effect;

    fn contact(number: u8) -> Contact {
        Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None }
    }

    fn bag(number: u8, weight: f64, ratio: f64) -> EndlessBag {
        EndlessBag {
            bag: BagId([number; 32]),
            submitter: contact(number),
            weight,
            task_mops: 10.0,
            task_bytes: 10.0 * ratio,
            uplink_bytes_s: 0.0,
            standing: if number.is_multiple_of(5) { Standing::Idle } else { Standing::Active },
            waited_s: 0,
        }
    }

    /// Machine 1 as root of two children, as a child of machine 9, or alone.
    fn place(kind: u8) -> Place {
        let children = [Some((contact(2), Node::Leaf)), Some((contact(3), Node::Router))];
        match kind % 3 {
            0 => Place { is_root: true, hosts_router: true, parents: [Some(contact(3)), None], children },
            1 => {
                let parents = [Some(contact(1)), Some(contact(9))];
                let children = [Some((contact(1), Node::Leaf)), Some((contact(3), Node::Router))];
                Place { is_root: false, hosts_router: true, parents, children }
            }
            _ => Place { is_root: true, ..Place::default() },
        }
    }

    #[derive(Clone, Debug)]
    enum Said {
        Announced(u8, f64, f64),
        Absorbs(u8, bool, Vec<f64>),
        Shares(bool, u64, Option<Vec<(f64, f64)>>, Vec<f64>),
        Moves(u8),
        Waits(u64),
    }

    fn said() -> impl Strategy<Value = Said> {
        let rate = || prop_oneof![Just(0.0), 0.0..1e6_f64, Just(1e15)];
        let ratio = || prop_oneof![Just(0.0), 1e-6..1e9_f64];
        let table = vec((1e-3..1e3_f64, ratio()), 0..6);
        prop_oneof![
            (0_u8..40, 1e-3..1e3_f64, ratio()).prop_map(|(bag, weight, ratio)| Said::Announced(bag, weight, ratio)),
            (2_u8..4, any::<bool>(), vec(rate(), 0..6)).prop_map(|(of, node, work)| Said::Absorbs(of, node, work)),
            (any::<bool>(), 0_u64..6, proptest::option::of(table), vec(rate(), 0..6))
                .prop_map(|(node, number, table, rates)| Said::Shares(node, number, table, rates)),
            any::<u8>().prop_map(Said::Moves),
            (0_u64..40_000).prop_map(Said::Waits),
        ]
    }

    /// A child that took another machine for its parent for a while has missed what it was told meanwhile, and says to this one what it said before.
    #[test]
    fn a_child_that_repeats_what_it_said_is_told_its_rates_again() {
        let mut io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(1));
        let (mut fold, capacity) = (Fold::new(), Capacity { speed_mops: 1000.0, link_bytes_s: f64::INFINITY });
        fold.take_place(place(0), io.now);
        drop(fold.announced(bag(1, 1.0, 0.0), contact(1).peer, io.now));
        let mut told = |fold: &mut Fold, wait: Duration| {
            io.now += wait;
            fold.settle(place(0), capacity, &mut io);
            let to_leaf = |effect| match effect {
                Effect::Send { message: Message::Shares { node: Node::Leaf, work_mops, .. }, .. } => Some(work_mops),
                _ => None,
            };
            io.effects.drain(..).filter_map(to_leaf).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut fold, Duration::ZERO).len(), 1, "the table");
        let stamp = fold.table.stamp;
        let says = |fold: &mut Fold| fold.absorbs(contact(2).peer, Node::Leaf, stamp, vec![500.0]);
        says(&mut fold);
        let second = Duration::from_secs(1);
        let rates = told(&mut fold, second);
        assert_eq!(rates.len(), 1, "its rates");
        assert_eq!(told(&mut fold, second), [] as [Vec<f64>; 0]);
        says(&mut fold);
        assert_eq!(told(&mut fold, second), rates);
        assert_eq!(told(&mut fold, second), [] as [Vec<f64>; 0]);
    }

    /// The table in each message to the leaf that hangs below this machine.
    fn tables_for_leaf(fold: &mut Fold, place: Place, wait: Duration, io: &mut Io) -> Vec<Option<usize>> {
        io.now += wait;
        fold.settle(place, Capacity { speed_mops: 1000.0, link_bytes_s: f64::INFINITY }, io);
        let to_leaf = |effect| match effect {
            Effect::Send { message: Message::Shares { node: Node::Leaf, table, .. }, .. } => {
                Some(table.map(|table| table.len()))
            }
            _ => None,
        };
        io.effects.drain(..).filter_map(to_leaf).collect()
    }

    #[test]
    fn a_child_that_was_started_again_is_told_the_table_at_once() {
        let mut io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(1));
        let mut fold = Fold::new();
        fold.take_place(place(0), io.now);
        drop(fold.announced(bag(1, 1.0, 0.0), contact(1).peer, io.now));
        let second = Duration::from_secs(1);
        assert_eq!(tables_for_leaf(&mut fold, place(0), second, &mut io), [Some(1)]);
        fold.absorbs(contact(2).peer, Node::Leaf, fold.table.stamp, vec![500.0]);
        assert_eq!(tables_for_leaf(&mut fold, place(0), second, &mut io), [None], "its rates");
        assert_eq!(tables_for_leaf(&mut fold, place(0), second, &mut io), []);
        let started_again = || {
            let again = Contact { incarnation: 2, ..contact(2) };
            Place { children: [Some((again, Node::Leaf)), Some((contact(3), Node::Router))], ..place(0) }
        };
        assert_eq!(tables_for_leaf(&mut fold, started_again(), second, &mut io), [Some(1)]);
    }

    /// Its parent may not have noticed that it was started again.
    #[test]
    fn a_child_without_the_table_that_hears_of_rates_says_that_it_has_none() {
        let mut io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(2));
        let mut fold = Fold::new();
        let below = || Place { parents: [Some(contact(1)), None], ..Place::default() };
        let capacity = Capacity { speed_mops: 1000.0, link_bytes_s: f64::INFINITY };
        fold.settle(below(), capacity, &mut io);
        io.effects.clear();
        let stamp = Stamp(7, Some(contact(1).peer));
        let mut hears = |fold: &mut Fold, table| {
            io.now += Duration::from_secs(1);
            fold.shared(contact(1).peer, Node::Leaf, (stamp, table), vec![500.0], io.now);
            fold.settle(below(), capacity, &mut io);
            let said = io.effects.drain(..).filter_map(|effect| match effect {
                Effect::Send { message: Message::Absorbs { stamp, work_mops, .. }, .. } => Some((stamp, work_mops)),
                _ => None,
            });
            said.collect::<Vec<_>>()
        };
        assert_eq!(hears(&mut fold, None), [(Stamp::default(), vec![])]);
        assert_eq!(hears(&mut fold, Some(vec![bag(1, 1.0, 0.0)])), [(stamp, vec![1000.0])]);
        // The parent that hears of none tells it.
        let mut parent = Fold::new();
        let mut io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(1));
        parent.take_place(place(0), io.now);
        drop(parent.announced(bag(1, 1.0, 0.0), contact(1).peer, io.now));
        let second = Duration::from_secs(1);
        assert_eq!(tables_for_leaf(&mut parent, place(0), second, &mut io), [Some(1)]);
        parent.absorbs(contact(2).peer, Node::Leaf, parent.table.stamp, vec![500.0]);
        tables_for_leaf(&mut parent, place(0), second, &mut io);
        parent.absorbs(contact(2).peer, Node::Leaf, Stamp::default(), Vec::new());
        assert_eq!(tables_for_leaf(&mut parent, place(0), second, &mut io), [Some(1)]);
    }

    proptest! {
        /// Whatever others say, in whatever order: what this machine does and passes on can be done, and it comes to rest.
        #[test]
        fn nothing_that_others_say_breaks_a_machine(all in vec(said(), 1..60)) {
            let mut io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(1));
            let mut fold = Fold::new();
            let mut kind = 0;
            let capacity = Capacity { speed_mops: 1000.0, link_bytes_s: 1e6 };
            for said in all {
                let now = io.now;
                let node = |leaf: bool| if leaf { Node::Leaf } else { Node::Router };
                fold.take_place(place(kind), now);
                match said {
                    Said::Announced(number, weight, ratio) => {
                        // Some of them are passed on by another machine.
                        let from = PeerId([number & !1; 32]);
                        drop(fold.announced(bag(number, weight, ratio), from, now));
                    }
                    Said::Absorbs(of, leaf, mut work) => {
                        work.resize(fold.table.bags.len(), 1.0);
                        fold.absorbs(contact(of).peer, node(leaf), fold.table.stamp, work);
                    }
                    Said::Shares(leaf, number, table, mut rates) => {
                        let table: Option<Vec<EndlessBag>> = table.map(|table| {
                            let bags = table.into_iter().enumerate();
                            bags.map(|(number, (weight, ratio))| bag(number as u8, weight, ratio)).collect()
                        });
                        rates.resize(table.as_ref().map_or(fold.table.bags.len(), Vec::len), 1.0);
                        let stamp = Stamp(number, Some(contact(9).peer));
                        fold.shared(contact(9).peer, node(leaf), (stamp, table), rates, now);
                    }
                    Said::Moves(to) => kind = to,
                    Said::Waits(millis) => io.now = now + Duration::from_millis(millis),
                }
                fold.settle(place(kind), capacity, &mut io);
                prop_assert!(!fold.settle(place(kind), capacity, &mut io), "it is at rest");
                prop_assert!(fold.deadline().is_none_or(|deadline| deadline > io.now), "it wants to be woken at once");
                let leaf = fold.of_leaf();
                let own: Vec<f64> = fold.shares().map(|(_, rate)| rate).collect();
                prop_assert!(own.len() == fold.table.bags.len() || fold.rates[0].is_empty());
                if own.len() == fold.table.bags.len() {
                    prop_assert!(leaf.load(&fold.table.ratios, &own) <= 1.0 + 1e-6, "{own:?} of {leaf:?}");
                }
                for effect in io.effects.drain(..) {
                    let Effect::Send { message, .. } = effect else { continue };
                    prop_assert!(Message::decode(&message.encode()).is_ok(), "{message:?}");
                }
            }
        }
    }
}
