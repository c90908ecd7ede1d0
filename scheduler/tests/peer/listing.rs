//! Questions for the machines of the grid.

use idlewood_scheduler::{About, Activity, MachineReport, MachinesPage, WhichMachines};

use super::*;

fn describes(name: &str) -> Event {
    Event::Describes(About { name: name.into(), version: "1.2".into(), reason: None })
}

fn names(page: &MachinesPage) -> Vec<&str> {
    let mut names: Vec<&str> = page.machines.iter().map(|machine| &*machine.name).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_machine_alone_lists_itself() {
    let mut host = Host::new(1);
    host.give(describes(&"\u{1b}[31mx".repeat(40)));
    host.give(Event::ListMachines { ticket: 4, first: 0 });
    let [(4, page)] = &host.listed[..] else { panic!("{:?}", host.listed) };
    assert_eq!((page.machines.len(), page.last, page.unreached), (1, u64::MAX, 0));
    let MachineReport { name, activity, slots, .. } = &page.machines[0];
    assert_eq!((*activity, *slots, name.len() <= 64), (Activity::Idle, 1, true));
    assert!(!name.contains('\u{1b}'), "{name:?}");
    // It is not on the rest of the line.
    let at = page.machines[0].at;
    host.give(Event::ListMachines { ticket: 5, first: at + 1 });
    assert!(host.listed[1].1.machines.is_empty());
}

#[test]
fn machines_list_each_other_and_what_does_not_answer_is_named() {
    let [mut host, mut other] = pair();
    host.give(describes("ada"));
    other.give(describes("grace"));
    host.give(Event::ListMachines { ticket: 7, first: 0 });
    other.give(Event::ListMachines { ticket: 7, first: 0 });
    talk(&mut host, &mut other, 1);
    for host in [&host, &other] {
        let [(7, page)] = &host.listed[..] else { panic!("{:?}", host.listed) };
        assert_eq!((names(page), page.silent.len(), page.unreached), (vec!["ada", "grace"], 0, 0));
    }

    // Without an answer the page says so, in time.
    let asker = if host.peer.overlay_view().hosts_router() { &mut host } else { &mut other };
    asker.listed.clear();
    asker.give(Event::ListMachines { ticket: 8, first: 0 });
    assert!(asker.listed.is_empty());
    asker.pass(Duration::from_secs(11));
    let (_, page) = &asker.listed[0];
    assert_eq!((page.machines.len(), page.silent.len(), page.unreached), (1, 1, 0), "{page:?}");
    assert!(page.silent[0].heard_s >= 1 && page.silent[0].heard_s < 30);
}

#[test]
fn a_machine_that_asks_too_often_is_told_so_and_strangers_are_not_heard() {
    let [mut host, mut other] = pair();
    let router = if host.peer.overlay_view().hosts_router() { &mut host } else { &mut other };
    let (me, below) = if router.peer.me().peer == PeerId([2; 32]) { (2, 3) } else { (3, 2) };
    router.sent.clear();
    let ask = |id: u64| Message::WhichMachines {
        question: WhichMachines { id, number: id as u32, first: 0, last: u64::MAX, wait_ms: 5_000 },
        node: Node::Router,
        climbing: true,
    };
    router.receive(9, ask(1));
    assert!(router.sent.is_empty(), "{me} is no neighbour of 9 in the tree");
    (0..40).for_each(|id| router.receive(below, ask(id)));
    let busy = |host: &Host| {
        let is_busy = |message: &Message| matches!(message, Message::Machines { page, .. } if page.is_busy);
        host.sent.iter().filter(|(_, message)| is_busy(message)).count()
    };
    assert_eq!(busy(router), 40 - 16);
    // After a while it may ask again.
    router.pass(Duration::from_secs(6));
    router.sent.clear();
    router.receive(below, ask(100));
    assert_eq!(busy(router), 0);
}
