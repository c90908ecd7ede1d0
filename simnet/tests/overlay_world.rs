//! The world of overlays alone: it is deterministic, its shortcuts change nothing, its faults do what their names say.

use std::time::Duration;

use idlewood_overlay::{Node, State, Time};
use idlewood_simnet::condition::Pause;
use idlewood_simnet::network::Quality;
use idlewood_simnet::overlay::{Memory, Settings, Step, Watch, Wire, World, paths};

const WAVE: Duration = Duration::from_secs(2);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn grown(hosts: u32, seed: u64) -> World {
    let mut world = World::new(Settings::new(hosts, seed));
    world.grow(hosts, WAVE, |_| {});
    world
}

/// Runs until no link and no count is wrong.
#[track_caller]
fn settle(world: &mut World, bound: Duration) -> Duration {
    let start = world.now();
    let mut watch = Watch::new(world);
    while watch.wrong_counts > 0 {
        match world.step(start + bound) {
            Some(Step::Handled(host)) => watch.update(world, host),
            Some(_) => {}
            None => panic!("{} of {} are wrong after {bound:?}", watch.wrong_counts, world.up().len()),
        }
    }
    assert_eq!(Watch::new(world).wrong_counts, 0, "the running count differs from a fresh one");
    world.now().since(start)
}

#[test]
fn a_grid_grows_into_the_true_tree() {
    for hosts in [1, 2, 3, 60] {
        let mut world = grown(hosts, 4);
        settle(&mut world, seconds(60));
        let paths = paths(&world);
        assert_eq!((paths.leaves, paths.available), (hosts.into(), hosts.into()));
    }
}

#[test]
fn both_wires_give_the_same_trace_and_the_same_traffic() {
    let run = |wire, seed| {
        let quality = Quality { loss_percent: 2.0, duplicate_percent: 1.0, ..Quality::default() };
        let mut world = World::new(Settings { wire, quality, ..Settings::new(80, seed) });
        world.grow(80, WAVE, |_| {});
        (0..20).for_each(|host| world.crash(host));
        (20..30).for_each(|host| world.leave(host));
        world.run_until(world.now() + seconds(30));
        (0..10).for_each(|host| world.start(host, Memory::Kept));
        world.run_until(world.now() + seconds(30));
        (world.trace_hash(), world.traffic().clone(), world.events())
    };
    let bytes = run(Wire::Bytes, 1);
    assert_eq!(bytes, run(Wire::Sizes, 1));
    assert_ne!(bytes.0, run(Wire::Sizes, 2).0);
    let kinds: Vec<_> = bytes.1.kinds().map(|(kind, _)| kind).collect();
    for kind in ["Ping", "Ack", "Find", "Found", "Report", "ReportAck", "RootChanged", "Dead", "Leave"] {
        assert!(kinds.contains(&kind), "no {kind} was sent: {kinds:?}");
    }
}

#[test]
fn crashed_machines_leave_the_tree_and_come_back() {
    let mut world = grown(60, 1);
    settle(&mut world, seconds(60));
    (0..20).for_each(|host| world.crash(host));
    assert!(paths(&world).available < 40);
    assert!(settle(&mut world, seconds(120)) > seconds(1));
    let incarnation = world.overlay(30).expect("it is up").me().incarnation;
    world.crash(30);
    for host in (0..20).chain([30]) {
        world.start(host, Memory::Kept);
    }
    settle(&mut world, seconds(120));
    assert!(world.overlay(30).expect("it is up").me().incarnation > incarnation);
}

#[test]
fn a_leaving_machine_goes_down_by_itself() {
    let mut world = grown(20, 1);
    settle(&mut world, seconds(60));
    world.leave(3);
    assert!(!world.is_up(3) && world.overlay(3).is_some());
    world.run_until(world.now() + seconds(5));
    assert!(world.overlay(3).is_none());
    settle(&mut world, seconds(10));
}

#[test]
fn machines_come_back_with_the_memory_they_are_given() {
    let mut world = grown(4, 1);
    world.run_until(world.now() + seconds(20));
    let me = |world: &World| world.overlay(2).expect("it is up").me().clone();
    let before = me(&world);
    world.jump_clock(2, -3_600_000_000);
    let mut restart = |memory| {
        world.crash(2);
        world.start_through(2, memory, None);
        me(&world)
    };
    assert_eq!(restart(Memory::Kept).incarnation, before.incarnation + 1);
    let stale = restart(Memory::Stale);
    assert_eq!((stale.peer, stale.incarnation), (before.peer, before.incarnation));
    let lost = restart(Memory::Lost);
    assert!(lost.peer == before.peer && lost.incarnation < before.incarnation, "{lost:?} after {before:?}");
    assert_ne!(restart(Memory::Stranger).peer, before.peer);
}

#[test]
fn a_stranger_gets_no_messages_of_its_predecessor() {
    let mut world = grown(10, 1);
    settle(&mut world, seconds(60));
    world.crash(4);
    world.start(4, Memory::Stranger);
    let in_vain = world.traffic().in_vain;
    settle(&mut world, seconds(60));
    assert!(world.traffic().in_vain > in_vain);
    assert_eq!(world.overlay(4).expect("it is up").counters().forged_sender, 0);
}

#[test]
fn a_shut_lid_stops_everything_but_the_clock() {
    for pause in [Pause::Lose, Pause::Queue] {
        let mut world = grown(20, 2);
        settle(&mut world, seconds(60));
        world.pause(7, pause);
        let (messages, in_vain) = (world.messages(7), world.traffic().in_vain);
        world.run_until(world.now() + seconds(60));
        assert_eq!(world.messages(7), messages);
        assert_eq!(world.traffic().in_vain > in_vain, pause == Pause::Lose, "{pause:?}");
        assert!(Watch::new(&world).wrong_links > 0, "nobody noticed");
        world.resume(7);
        world.run_until(world.now() + Duration::from_millis(1));
        assert!(world.messages(7) > messages);
        settle(&mut world, seconds(120));
    }
}

#[test]
fn a_paused_machine_can_crash() {
    let mut world = grown(6, 2);
    world.pause(3, Pause::Queue);
    world.run_until(world.now() + seconds(5));
    world.crash(3);
    world.start(3, Memory::Kept);
    settle(&mut world, seconds(120));
}

#[test]
fn a_slow_machine_answers_late() {
    let mut world = grown(2, 3);
    settle(&mut world, seconds(60));
    let sent_in_a_minute = |world: &mut World| {
        let sent = |world: &World| world.traffic().kinds().map(|(_, count)| count.count).sum::<u64>();
        let before = sent(world);
        world.run_until(world.now() + seconds(60));
        sent(world) - before
    };
    world.slow_down(0, Duration::from_millis(900));
    let slow = sent_in_a_minute(&mut world);
    world.slow_down(0, Duration::ZERO);
    sent_in_a_minute(&mut world);
    assert!(slow > sent_in_a_minute(&mut world), "nobody had to ask twice");
}

#[test]
fn a_leap_of_the_clock_makes_deadlines_due() {
    let mut world = grown(2, 3);
    settle(&mut world, seconds(60));
    let messages = world.messages(0);
    let now = world.now();
    world.jump_clock(0, 20_000_000);
    world.run_until(now + Duration::from_millis(1));
    assert!(world.messages(0) > messages, "after 20 s there is a heartbeat to send");
    settle(&mut world, seconds(60));
}

#[test]
fn a_partition_in_one_direction_is_noticed_and_heals() {
    let mut world = grown(30, 5);
    settle(&mut world, seconds(60));
    (0..15).for_each(|host| world.network_mut().put_into(1, host));
    world.network_mut().cut(1, 0);
    world.run_until(world.now() + seconds(60));
    assert!(world.traffic().lost > 0 && Watch::new(&world).wrong_links > 0);
    world.network_mut().heal();
    settle(&mut world, seconds(120));
}

#[test]
fn a_planned_event_comes_in_time() {
    let mut world = World::new(Settings::new(2, 1));
    world.plan(Time::ZERO + seconds(3), 1, 77);
    world.plan(Time::ZERO + seconds(2), 0, 78);
    assert_eq!(world.step(Time::ZERO + seconds(1)), None);
    assert_eq!(world.step(Time::MAX), Some(Step::Planned { host: 0, code: 78 }));
    assert_eq!(world.now(), Time::ZERO + seconds(2));
    assert_eq!(world.step(Time::MAX), Some(Step::Planned { host: 1, code: 77 }));
}

#[test]
fn a_machine_alone_is_the_grid() {
    let world = grown(1, 1);
    let overlay = world.overlay(0).expect("it is up");
    assert_eq!((overlay.state(), overlay.parent(Node::Leaf), world.traffic().total().count), (State::Alone, None, 0));
}
