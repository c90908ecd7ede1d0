//! How requests enter the tree, climb, and go down (paper §6), also while the tree is being repaired.

use idlewood_overlay::{Contact, Node, State};

use super::Peer;
use crate::bag::Request;
use crate::ledger::Hop;
use crate::message::Message;
use crate::router::CLIMBED_MAX;

/// Requests that wait for the repair of the tree at the same time; more are dropped, and issued again by their submitters.
const CUT_OFF_MAX: usize = 256;

impl Peer {
    /// A request reached this machine's leaf or router.
    pub(super) fn request(&mut self, request: Request, node: Node, climbing: bool) {
        self.executor_touched = true;
        let (bag, submitter) = (request.bag.id, request.bag.submitter.peer);
        if submitter == self.io.me.peer && !self.ledgers.contains_key(&bag) {
            // Somebody made it up: what is submitted here is known here.
            return;
        }
        if node == Node::Router && climbing && !self.overlay.hosts_router() && !self.is_alone() {
            // It was meant for a router that has moved since: where this leaf hangs now, there is one.
            self.enter(request);
            return;
        }
        if node == Node::Router && self.router.has_split(&request) {
            // Also where the router has moved since: the leaf would take what others were sent.
            return;
        }
        if node == Node::Leaf || !self.overlay.hosts_router() {
            self.executor.accept(request, &mut self.io, &self.config);
            return;
        }
        if climbing && self.overlay.depth(Node::Router).is_none() {
            // Cut off from the root while the tree is being repaired: whatever is decided here would crowd this
            // subtree, perhaps one machine.
            if self.cut_off.len() < CUT_OFF_MAX {
                self.cut_off.push((self.io.now + self.config.placement_timeout / 2, request));
            }
            return;
        }
        let (platform, now) = (self.platform(), self.io.now);
        self.router.leave_out(self.io.watch.left_out(now));
        let sent = self.router.route(request.clone(), climbing, &self.overlay, &platform, now, &self.config);
        self.publish_router_by(now);
        if sent.is_empty() {
            // The tree is being repaired and no child is known: this machine is always one that can.
            self.executor.accept(request, &mut self.io, &self.config);
        }
        for (to, message) in sent {
            self.note_hop(&to, &message);
            self.io.send(to, message);
        }
    }

    /// A request starts: at the own router, the leaf's parent, or the own leaf of a machine alone. Where there is none
    /// of them, because the tree is being repaired, the submitter will issue it again.
    pub(super) fn enter(&mut self, mut request: Request) {
        let is_above = |parent: &&Contact| parent.peer != self.io.me.peer;
        let parent = match self.overlay.depth(Node::Router) {
            Some(_) => None,
            None => self.overlay.parent(Node::Leaf).filter(is_above).cloned(),
        };
        match parent {
            Some(parent) if request.climbed < CLIMBED_MAX => {
                request.climbed += 1;
                let message = Message::Request { request, node: Node::Router, climbing: true };
                self.note_hop(&parent, &message);
                self.io.send(parent, message);
            }
            None if self.is_alone() || self.overlay.hosts_router() => self.request(request, Node::Router, true),
            Some(_) | None => {}
        }
    }

    /// Notes by which router a request of this machine leaves it.
    fn note_hop(&mut self, to: &Contact, message: &Message) {
        let Message::Request { request, node: Node::Router, climbing } = message else { return };
        if to.peer == self.io.me.peer || !self.is_entering {
            return;
        }
        let Some(ledger) = self.ledgers.get_mut(&request.bag.id) else { return };
        let is_root = self.overlay.root().is_some_and(|root| root.contact.peer == to.peer);
        let hop = Hop { router: to.peer, ranges: request.ranges.clone(), is_duty: !climbing || is_root };
        ledger.note_hops(request.number, vec![hop]);
    }

    /// Lets those go on that had to wait for the repair of the tree. What waited too long its submitter issues again.
    pub(super) fn pass_cut_off(&mut self) {
        let now = self.io.now;
        self.cut_off.retain(|(until, _)| *until > now);
        if self.cut_off.is_empty() || self.overlay.hosts_router() && self.overlay.depth(Node::Router).is_none() {
            return;
        }
        for (_, request) in std::mem::take(&mut self.cut_off) {
            self.request(request, Node::Router, true);
        }
    }

    fn is_alone(&self) -> bool {
        self.overlay.state() == State::Alone
    }

    /// Whether requests find their way: alone, and not about to join others, or with a leaf that hangs below the root.
    pub(super) fn is_attached(&self) -> bool {
        match self.overlay.state() {
            State::Alone => self.alone_until.is_none_or(|until| until <= self.io.now),
            State::Member | State::Leaving => self.overlay.depth(Node::Leaf).is_some(),
            State::Joining | State::Left => false,
        }
    }
}
