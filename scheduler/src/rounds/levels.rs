//! On which machine a process goes on that waits for no other: by its level, which is the work that it has to do until the application's end.
//!
//! The level algorithm (Horvath, Lam and Sethi 1977) gives the fastest processor to whoever has the most left to do, at each moment; it ends
//! first of all where processes can be moved at any time. Here they move at ends of rounds alone, and one is due at a time. So a process gets a
//! slot as fast as that of its rank: one that is ahead of the others leaves the fast slot on which it got ahead to one that is behind. Where
//! each goes where its round ends first (Algorithm 2), whoever has a fast slot keeps it, and the application ends with the process whose slots
//! were slow.
//!
//! A process moves only if that saves more than a tenth of the time, if it leaves a slot that is faster than it needs by more than a tenth, or
//! if its own machine is busy for more than a tenth of its round. It waits for a slot of another machine only if all free ones are too slow and
//! the wait saves more than a tenth: the process that has that slot would have to wait, or go elsewhere, in turn.

use super::homes::{Due, Home, Machine, slots};
use super::mapping::Slot;
use super::remap::WORTH_MOVING_SHARE;

/// Where each of these processes goes on; none where no machine is known. `left_mops`: what each has to do until the application's end, this
/// round included, in Mop. `others_mops`: the same of processes that are not due. `transfer_s`: to bring a state to another machine, in seconds.
pub fn homes_by_level(
    due: &[Due],
    left_mops: &[f64],
    others_mops: impl Iterator<Item = f64> + Clone,
    machines: &[Machine],
    transfer_s: f64,
) -> Vec<Option<Home>> {
    let mut homes = vec![None; due.len()];
    let (mut slots, _) = slots(machines);
    let speed = |slot: &Slot| machines[slot.machine].speed_mops;
    let mut speeds: Vec<f64> = slots.iter().map(speed).collect();
    speeds.sort_by(|one, other| other.total_cmp(one));
    let Some(&slowest) = speeds.last() else { return homes };
    let mut order: Vec<usize> = (0..due.len()).collect();
    order.sort_by(|&one, &other| left_mops[other].total_cmp(&left_mops[one]));
    for (place, &process) in order.iter().enumerate() {
        let it = &due[process];
        // All beyond the last slot are alike.
        let ahead = others_mops.clone().filter(|other| *other > left_mops[process]).take(speeds.len());
        let rank = place + ahead.count();
        let needed_mops = speeds.get(rank).copied().unwrap_or(slowest);
        let Some(slot) = chosen(it, needed_mops, &slots, machines, transfer_s) else { continue };
        let begins_s = slots[slot].free_s;
        let ends_s = end_s(it, &slots[slot], machines, transfer_s);
        slots[slot].free_s = ends_s;
        homes[process] = Some(Home { machine: slots[slot].machine, begins_s, ends_s, iterations: 1 });
    }
    homes
}

/// When a process would end on a slot, its transfer included.
fn end_s(due: &Due, slot: &Slot, machines: &[Machine], transfer_s: f64) -> f64 {
    let transfer_s = if due.home.is_some_and(|home| home != slot.machine) { transfer_s } else { 0.0 };
    slot.free_s + transfer_s + due.work_mops / machines[slot.machine].speed_mops
}

/// The slot for a process that needs this speed.
fn chosen(due: &Due, needed_mops: f64, slots: &[Slot], machines: &[Machine], transfer_s: f64) -> Option<usize> {
    let speed = |slot: usize| machines[slots[slot].machine].speed_mops;
    let end_s = |slot: usize| end_s(due, &slots[slot], machines, transfer_s);
    let at_home = |slot: usize| due.home == Some(slots[slot].machine);
    let earliest = |slots: &mut dyn Iterator<Item = usize>| {
        slots.min_by(|&one, &other| end_s(one).total_cmp(&end_s(other)).then_with(|| at_home(other).cmp(&at_home(one))))
    };
    let is_free = |&slot: &usize| slots[slot].free_s <= 0.0;
    let free = || (0..slots.len()).filter(is_free);
    let home = earliest(&mut (0..slots.len()).filter(|&slot| at_home(slot)));
    let is_enough = |slot: usize| speed(slot) >= WORTH_MOVING_SHARE * needed_mops;
    // The slowest free slot that is fast enough; else the one that ends it first.
    let enough = free()
        .filter(|&slot| is_enough(slot))
        .min_by(|&one, &other| speed(one).total_cmp(&speed(other)).then_with(|| at_home(other).cmp(&at_home(one))));
    let now = match (enough.or_else(|| earliest(&mut free())), home) {
        // It waits at home for up to a tenth of its round, which is enough for a merge.
        (Some(best), Some(home)) if slots[home].free_s <= (1.0 - WORTH_MOVING_SHARE) * due.work_mops / speed(home) => {
            let saves = end_s(best) < WORTH_MOVING_SHARE * end_s(home);
            let frees = is_enough(best)
                && speed(best) < WORTH_MOVING_SHARE * speed(home)
                && transfer_s < (1.0 - WORTH_MOVING_SHARE) * due.work_mops / speed(home);
            Some(if saves || frees { best } else { home })
        }
        (best, _) => best,
    };
    let later = earliest(&mut (0..slots.len()).filter(|slot| !is_free(slot)));
    match (now, later) {
        (Some(now), Some(later)) => {
            let is_worth_it = !is_enough(now) && end_s(later) < WORTH_MOVING_SHARE * end_s(now);
            Some(if is_worth_it { later } else { now })
        }
        (None, Some(later)) => {
            Some(home.filter(|&home| end_s(later) >= WORTH_MOVING_SHARE * end_s(home)).unwrap_or(later))
        }
        (now, None) => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(speed_mops: f64, busy_s: &[f64]) -> Machine {
        Machine { speed_mops, slots: 1, busy_s: busy_s.to_vec() }
    }

    /// The machine of one process of 1,000 Mop in each of so many rounds, and when it begins.
    fn chosen(rounds: u32, home: usize, others_mops: &[f64], machines: &[Machine]) -> (usize, f64) {
        let due = Due { work_mops: 1000.0, home: Some(home) };
        let left_mops = 1000.0 * f64::from(rounds);
        let home = homes_by_level(&[due], &[left_mops], others_mops.iter().copied(), machines, 0.1)[0]
            .expect("there is a machine");
        (home.machine, home.begins_s)
    }

    #[test]
    fn whoever_is_ahead_leaves_the_fast_slot_to_whoever_is_behind() {
        let machines = [machine(200.0, &[]), machine(100.0, &[5.0]), machine(100.0, &[])];
        // The other process has more left to do, and less.
        assert_eq!(chosen(2, 0, &[2500.0], &machines), (2, 0.0));
        assert_eq!(chosen(2, 0, &[1500.0], &machines), (0, 0.0));
        // A slot that is faster by less than a tenth is not worth leaving.
        let alike = [machine(109.0, &[]), machine(100.0, &[])];
        assert_eq!(chosen(2, 0, &[2500.0], &alike), (0, 0.0));
    }

    #[test]
    fn whoever_is_behind_waits_for_a_faster_slot_if_that_saves_a_tenth() {
        let behind = |busy_s: f64| chosen(9, 1, &[1000.0], &[machine(200.0, &[busy_s]), machine(100.0, &[])]);
        assert_eq!(behind(3.0), (0, 3.0));
        assert_eq!(behind(4.5), (1, 0.0));
        // One that is not behind goes on at once.
        let ahead = chosen(9, 1, &[10_000.0], &[machine(200.0, &[3.0]), machine(100.0, &[])]);
        assert_eq!(ahead, (1, 0.0));
    }

    #[test]
    fn where_all_slots_are_busy_it_waits_at_home_unless_another_ends_it_a_tenth_sooner() {
        let waits = |busy_s: f64| chosen(2, 1, &[500.0], &[machine(100.0, &[busy_s]), machine(100.0, &[10.0])]);
        assert_eq!(waits(9.0), (1, 10.0));
        assert_eq!(waits(2.0), (0, 2.0));
        assert!(homes_by_level(&[Due { work_mops: 1.0, home: None }], &[1.0], std::iter::empty(), &[], 0.0) == [None]);
    }

    /// Two processes of ten rounds on two machines, of which one is twice as fast, and a third, idle one, as slow as the other: both
    /// end at about the same time. Where each goes where its round ends first, one has the fast machine for all rounds.
    #[test]
    fn processes_that_are_alike_end_together() {
        let (speeds, work_mops) = ([200.0, 100.0, 100.0], 1000.0);
        let (mut free_s, mut left, mut home, mut at_s) = ([0.0_f64; 3], [10_u32; 2], [0, 1], [0.0, 0.0]);
        let mut ends_s = [0.0; 2];
        while left != [0, 0] {
            let it = if left[1] == 0 || left[0] > 0 && at_s[0] <= at_s[1] { 0 } else { 1 };
            let now = at_s[it];
            // A round that has begun is still to be done.
            let left_mops = |process: usize| f64::from(left[process] + u32::from(at_s[process] > now)) * work_mops;
            let machines: Vec<Machine> = (0..3)
                .map(|number| {
                    let busy_s = (free_s[number] - now).max(0.0);
                    machine(speeds[number], if busy_s > 0.0 { std::slice::from_ref(&busy_s) } else { &[] })
                })
                .collect();
            let due = Due { work_mops, home: Some(home[it]) };
            let other = Some(left_mops(1 - it)).filter(|left| *left > 0.0).into_iter();
            let chosen =
                homes_by_level(&[due], &[left_mops(it)], other, &machines, 0.0)[0].expect("there is a machine");
            at_s[it] = now + chosen.ends_s;
            (free_s[chosen.machine], home[it], ends_s[it]) = (at_s[it], chosen.machine, at_s[it]);
            left[it] -= 1;
        }
        // 20,000 Mop at 300 Mop/s take 67 s; one that keeps the slow machine takes 100 s.
        let last_s = ends_s[0].max(ends_s[1]);
        assert!(last_s <= 80.0, "{ends_s:?}");
    }
}
