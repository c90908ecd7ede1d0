//! How this peer passes requests on: into the tree, up, and down (paper §6), also while the tree is being repaired.

use idlewood_overlay::{Contact, Node, PeerId, State};

use super::{Peer, contact_of};
use crate::bag::Request;
use crate::ledger::Hop;
use crate::message::Message;
use crate::router::{CLIMBED_MAX, Origin};

/// Most requests that wait for the repair of the tree; further ones are dropped, and issued again by their submitters.
const CUT_OFF_MAX: usize = 256;

impl Peer {
    /// A request reached this machine's leaf or router.
    pub(super) fn request(&mut self, request: Request, node: Node, climbing: bool) {
        self.executor_touched = true;
        let (bag, submitter) = (request.bag.id, request.bag.submitter.peer);
        if submitter == self.io.me.peer && !self.ledgers.contains_key(&bag) {
            // The request is invented: this peer knows all bags that it submitted.
            return;
        }
        if node == Node::Router && climbing && !self.overlay.hosts_router() && !self.is_alone() {
            // It was meant for a router that has moved to another machine: send it to this leaf's parent.
            self.enter(request);
            return;
        }
        if node == Node::Router && self.router.has_split(&request) {
            // A repetition. Even where the router has moved since, the leaf must not take tasks that were sent to others.
            return;
        }
        if node == Node::Leaf || !self.overlay.hosts_router() {
            self.executor.accept(request, &mut self.io, &self.config);
            return;
        }
        if climbing && self.overlay.depth(Node::Router).is_none() {
            // Cut off from the root: splitting the request now would crowd it into this subtree, perhaps one machine.
            if self.cut_off.len() < CUT_OFF_MAX {
                self.cut_off.push((self.io.now + self.config.placement_timeout / 2, request));
            }
            return;
        }
        let (platform, now) = (self.platform(), self.io.now);
        self.router.leave_out(self.io.left_out());
        let origin = if climbing { Origin::Below { up: self.way_up(Node::Router).cloned() } } else { Origin::Above };
        let sent = self.router.route(request.clone(), origin, &self.overlay, &platform, now, &self.config);
        self.publish_router_by(now);
        if sent.is_empty() {
            // The tree is being repaired and the router knows no child: this machine's own leaf takes the request.
            self.executor.accept(request, &mut self.io, &self.config);
        }
        for (to, message) in sent {
            self.note_hop(&to, &message);
            self.io.hand_over(to, message);
        }
    }

    /// Sends a request on its first hop: to this machine's router, its leaf's parent, or, on a machine alone, its leaf.
    /// While the tree is being repaired there may be none: the request is dropped, and its submitter issues it again.
    pub(super) fn enter(&mut self, mut request: Request) {
        let is_above = |parent: &&Contact| parent.peer != self.io.me.peer;
        let parent = match self.overlay.depth(Node::Router) {
            Some(_) => None,
            None => self.way_up(Node::Leaf).filter(is_above).cloned(),
        };
        match parent {
            Some(parent) if request.climbed < CLIMBED_MAX => {
                request.climbed += 1;
                let message = Message::Request { request, node: Node::Router, climbing: true };
                self.note_hop(&parent, &message);
                self.io.hand_over(parent, message);
            }
            None if self.is_alone() || self.overlay.hosts_router() => self.request(request, Node::Router, true),
            Some(_) | None => {}
        }
    }

    /// Notes the router to which a request submitted here leaves this machine.
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

    /// The router that requests climb to from this node: its parent, or, while that is left out, the router at the other end of its
    /// span, or the root. `None` if all are left out.
    pub(super) fn way_up(&self, node: Node) -> Option<&Contact> {
        let parent = self.overlay.parent(node)?;
        let span = self.overlay.span(node);
        // The gaps on both sides of a span are those of routers above it.
        let before = span.and_then(|span| span.lo.as_deref());
        let after = span.and_then(|span| span.ro.as_ref().map(|_| &*span.r));
        let root = self.overlay.root().map(|root| &*root.contact);
        let others = before.into_iter().chain(after).chain(root);
        std::iter::once(parent).chain(others).find(|router| !self.io.leaves_out(router.peer))
    }

    /// Whether requests that this machine sends up are lost: by their losses, or because all routers above are left out.
    pub(super) fn is_way_up_lost(&self) -> bool {
        let node = if self.overlay.depth(Node::Router).is_some() { Node::Router } else { Node::Leaf };
        self.io.watch.is_way_up_lost(self.io.now) || self.overlay.parent(node).is_some() && self.way_up(node).is_none()
    }

    /// Doubted routers that requests of this machine go through, if their addresses are known.
    pub(super) fn doubted(&self) -> Vec<Contact> {
        let children = self.overlay.children().into_iter().flatten().filter(|child| child.node == Node::Router);
        let parents = [Node::Router, Node::Leaf].into_iter().filter_map(|node| self.overlay.parent(node));
        let root = self.overlay.root().map(|root| &*root.contact);
        let mut doubted: Vec<Contact> = Vec::new();
        for contact in children.map(|child| child.contact).chain(parents).chain(root) {
            let is_new = contact.peer != self.io.me.peer && doubted.iter().all(|known| known.peer != contact.peer);
            let is_in_doubt = self.io.watch.is_doubted(contact.peer) || self.io.watch.is_way_up_doubted();
            if is_new && is_in_doubt && !self.io.leaves_out(contact.peer) {
                doubted.push(contact.clone());
            }
        }
        doubted
    }

    /// A message for the own router arrived: its ticket goes back to the machine that handed it over.
    pub(super) fn send_back(&mut self, ticket: u32, from: PeerId) {
        if ticket != 0 && from != self.io.me.peer {
            self.io.send(contact_of(&self.certified, from), Message::Ticket { ticket });
        }
    }

    /// Passes on the requests that waited for the repair of the tree, once it is repaired; those that waited too long are
    /// dropped, since their submitters issue them again.
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

    /// Whether requests issued now find machines: this peer is alone and not about to join a grid, or its leaf hangs below
    /// the root.
    pub(super) fn is_attached(&self) -> bool {
        match self.overlay.state() {
            State::Alone => self.alone_until.is_none_or(|until| until <= self.io.now),
            State::Member | State::Leaving => self.overlay.depth(Node::Leaf).is_some(),
            State::Joining | State::Left => false,
        }
    }
}
