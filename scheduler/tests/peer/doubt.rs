//! A router drops what it is handed: the machines above and below leave it out (docs/adr/0026).

use super::*;

/// The machines of one grid; their messages are encoded and decoded.
struct Grid {
    hosts: Vec<Host>,
    /// The machine whose router drops what is handed to it.
    dropper: Option<PeerId>,
    /// Requests and `Ask`s that it dropped.
    dropped: u32,
    /// Tickets that all routers sent back.
    tickets: u32,
    bags: u8,
}

fn is_for_a_router(message: &Message) -> bool {
    matches!(message, Message::Request { node: Node::Router, .. } | Message::Ask { node: Node::Router, .. })
}

impl Grid {
    fn new(size: u8) -> Self {
        let mut hosts: Vec<Host> = (0..size).map(|number| Host::new(10 + number)).collect();
        hosts[1..].iter_mut().for_each(|host| host.give(Event::Bootstrap(contact(10))));
        let mut grid = Self { hosts, dropper: None, dropped: 0, tickets: 0, bags: 0 };
        grid.run(30);
        assert!(grid.hosts.iter().all(|host| host.peer.overlay_view().depth(Node::Leaf).is_some()));
        grid
    }

    fn run(&mut self, seconds: u32) {
        for _ in 0..seconds * 10 {
            let mut letters = Vec::new();
            for host in &mut self.hosts {
                host.pass(Duration::from_millis(100));
                let from = host.peer.me().peer;
                letters.extend(host.sent.drain(..).map(|(to, message)| (from, to.peer, message)));
            }
            letters.into_iter().for_each(|(from, to, message)| self.deliver(from, to, &message));
        }
    }

    fn deliver(&mut self, from: PeerId, to: PeerId, message: &Message) {
        self.tickets += u32::from(matches!(message, Message::Ticket { .. }));
        if self.dropper == Some(to) && is_for_a_router(message) {
            self.dropped += 1;
            return;
        }
        // Messages that do not decode are lost.
        let Ok(message) = Message::decode(&message.encode()) else { return };
        let host = self.hosts.iter_mut().find(|host| host.peer.me().peer == to);
        host.expect("a machine of the grid").receive(from.0[0], message);
    }

    fn host(&mut self, peer: PeerId) -> &mut Host {
        self.hosts.iter_mut().find(|host| host.peer.me().peer == peer).expect("a machine of the grid")
    }

    fn submit(&mut self, peer: PeerId, tasks: u64) -> BagId {
        self.bags += 1;
        let id = BagId([self.bags; 32]);
        self.host(peer).give(Event::Submitted(Submission { id, ..submission(tasks, 1e6) }));
        id
    }

    /// For `seconds`, one machine after the other submits a bag that is work for all.
    fn be_busy(&mut self, seconds: u32) {
        for round in 0..seconds / 4 {
            let submitter = self.hosts[round as usize % self.hosts.len()].peer.me().peer;
            self.submit(submitter, 3 * self.hosts.len() as u64);
            self.run(4);
        }
    }

    /// A machine whose router has a parent and two routers as children; the machine of that parent, and those of the children.
    fn in_between(&self) -> (PeerId, PeerId, Vec<PeerId>) {
        self.hosts
            .iter()
            .find_map(|host| {
                let (me, view) = (host.peer.me().peer, host.peer.overlay_view());
                let above = view.parent(Node::Router)?.peer;
                let children = view.children().into_iter().flatten();
                let below: Vec<_> = children.filter(|child| child.node == Node::Router).collect();
                (below.len() == 2).then(|| (me, above, below.iter().map(|child| child.contact.peer).collect()))
            })
            .expect("a grid that is large enough")
    }

    /// The routers that each machine leaves out.
    fn left_out(&self) -> BTreeMap<PeerId, Vec<PeerId>> {
        let of = |host: &Host| (host.peer.me().peer, host.peer.left_out());
        self.hosts.iter().map(of).filter(|(_, left_out)| !left_out.is_empty()).collect()
    }
}

#[test]
fn machines_above_and_below_leave_out_a_dropping_router_within_a_minute() {
    let mut grid = Grid::new(16);
    let (dropper, above, below) = grid.in_between();
    grid.dropper = Some(dropper);
    grid.be_busy(60);
    let left_out = grid.left_out();
    for peer in below.iter().chain([&above]) {
        assert_eq!(left_out.get(peer), Some(&vec![dropper]), "{peer:?}: {left_out:?}");
    }
    assert!(left_out.values().all(|routers| *routers == [dropper]), "nobody else is blamed: {left_out:?}");
    assert!(grid.dropped > 0);

    // A bag submitted below the dropper is then placed at once, also on machines that are not below.
    let bag = grid.submit(below[0], 64);
    let dropped = grid.dropped;
    grid.run(3);
    let view = grid.host(below[0]).peer.bag(bag).expect("a bag");
    assert_eq!((view.placed, view.reissued, grid.dropped), (64, 0, dropped), "{view:?}");
    let placements = grid.host(below[0]).peer.placements(bag);
    assert!(placements.iter().any(|(executor, _)| executor.peer == above), "{placements:?}");
}

#[test]
fn honest_routers_are_not_left_out_and_tickets_are_few() {
    let mut grid = Grid::new(16);
    let handed = grid.tickets;
    grid.be_busy(60);
    assert_eq!(grid.left_out(), BTreeMap::new());
    // Sixteen machines have fifteen links between routers on different machines at most, and as many of leaves.
    let most = 2 * 30 * 60 / 5;
    assert!((1..most).contains(&(grid.tickets - handed)), "{}", grid.tickets);
}

/// The stranger sends requests that a router refuses, or has split already, through a machine that hands them over.
#[test]
fn invented_requests_have_no_honest_router_left_out() {
    let mut grid = Grid::new(16);
    let (router, above, below) = grid.in_between();
    let mut long = Path::default();
    (0..256).for_each(|_| long = long.down(Side::Left));
    for round in 0..12 {
        let sent = |number, path: &Path, climbing| {
            let message = forged(number, |request| {
                request.bag = bag(11);
                (request.ranges, request.path) = (IntervalSet::from(0..60), path.clone());
            });
            let Message::Request { request, .. } = message else { unreachable!() };
            Message::Request { request, node: Node::Router, climbing }
        };
        grid.host(above).receive(9, sent(100 + round, &long, false));
        // The same one again and again.
        grid.host(above).receive(9, sent(1, &Path::default(), false));
        below.iter().for_each(|&peer| grid.host(peer).receive(9, sent(2, &Path::default(), true)));
        grid.run(11);
        let handed = grid.left_out();
        assert!(handed.values().all(|routers| !routers.contains(&router)), "{handed:?}");
    }
}
