use proptest::prelude::*;

use super::grid::at_most;
use super::*;
use crate::availability::available_tasks;
use crate::queue::tests::loads;
use crate::queue::{Entry, Load};

/// Twelve digits are exact; nine leave room for what the oracle itself rounds.
const ROUNDING: f64 = 1e-9;

fn slots() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(1_u32), 1 => 2_u32..=6]
}

/// A request: log2 of the horizon at the stretch it is asked at, age, log2 of the task size.
fn requests() -> impl Strategy<Value = (f64, f64, f64)> {
    (-1.0..25.0_f64, prop_oneof![Just(0.0), 0.0..1e6_f64], -3.0..37.0_f64)
}

/// What the leaf itself promises, a little generously.
fn exact(load: &Load, stretch: f64, age_s: f64, w: f64, a: f64) -> u64 {
    let (more, less) = (1.0 + ROUNDING, 1.0 - ROUNDING);
    // Ages are generous too, but those of the queue are given.
    available_tasks(load, stretch * more, load.now_s - age_s * less, w * more, a * less)
}

/// A bag's size such that it is due in 2^log_horizon seconds at this stretch.
fn size(stretch: f64, age_s: f64, log_horizon: f64) -> f64 {
    (log_horizon.exp2() + age_s) / stretch
}

/// A cell by its place in the grids, through the public lookup.
fn cell(summary: &Summary, s_index: usize, horizon: usize, column: usize) -> u64 {
    let w = HORIZONS_S[horizon] * (1.0 + 1e-12) / STRETCHES[s_index];
    summary.tasks(s_index, 0.0, w, TASK_SIZES_MOPS[column])
}

fn places() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..STRETCH_COUNT).flat_map(|s| (0..HORIZON_COUNT).flat_map(move |t| (0..TASK_SIZE_COUNT).map(move |a| (s, t, a))))
}

fn merged(parts: &[Summary]) -> Summary {
    let mut sum = Summary::empty();
    parts.iter().for_each(|part| sum.merge(part));
    sum
}

fn summaries(n: usize) -> impl Strategy<Value = Vec<Summary>> {
    prop::collection::vec(loads(slots(), 6).prop_map(|load| Summary::of_leaf(&load)), n)
}

/// Whatever arrived can be worked with, and travels on unchanged.
fn check_hostile(base: &[u8], bytes: &[u8]) {
    for base in [None, Some(base)] {
        let Some(flat) = unpack(base, bytes) else { continue };
        let summary = Summary::of_flat(&flat).unwrap();
        let mut sum = summary.clone();
        sum.merge(&summary);
        sum.reserve(50, 1 << 40, 1e18);
        assert!(places().all(|(s, t, a)| cell(&sum, s, t, a) <= CELL_MAX));
        assert_eq!(Summary::decode(&summary.encode()).as_ref(), Ok(&summary));
        assert_eq!(summary.flatten(), flat);
    }
}

#[test]
fn the_sum_has_the_largest_stretch() {
    let leaf = |stretch: f64| Summary { maximum_stretch: stretch, ..Summary::unavailable() }.flatten();
    for stretch in [0.0, 1e-6, 3e-5, 1.0] {
        let sum = report(SummaryForm::Horizons, &[&leaf(stretch), &leaf(1e-5)]);
        let expected = Summary::of_flat(&sum).unwrap().maximum_stretch;
        assert!((expected / stretch.max(1e-5) - 1.0).abs() < 1e-6, "{stretch}");
        assert_eq!(maximum_stretch(&sum), expected);
    }
    assert_eq!([maximum_stretch(&[]), maximum_stretch(&[0xff; 40]), maximum_stretch(&leaf(1.0)[..8])], [0.0; 3]);
}

#[test]
fn the_sum_has_the_longest_wait() {
    let leaf = |wait: f64| Summary { longest_wait_s: wait_s(wait), ..Summary::unavailable() };
    for wait in [0.0, 0.9, 7.0, 100.0, 1e4, 1e7, f64::INFINITY] {
        let (one, other) = (leaf(wait).flatten(), leaf(3.0).flatten());
        let sum = report(SummaryForm::Horizons, &[&one, &other]);
        let expected = wait_s(wait.max(3.0));
        assert_eq!([Summary::of_flat(&sum).unwrap().longest_wait_s, longest_wait_s(&sum)], [expected; 2], "{wait}");
        assert!(wait_s(wait) as f64 <= wait && wait_s(wait) as f64 >= 0.875 * wait.min(3e7) - 1.0, "{wait}");
    }
    assert_eq!([longest_wait_s(&[]), longest_wait_s(&[0xff; 40])], [0; 2]);
}

proptest! {
    #[test]
    fn a_cell_is_a_lower_bound_for_every_request_that_maps_to_it(
        load in loads(slots(), 8), request in requests(), s in 0_usize..STRETCH_COUNT, above in 1.0..1.5_f64,
    ) {
        let (log_horizon, age_s, log_task) = request;
        let summary = Summary::of_leaf(&load);
        // Anywhere between two samples of the stretch, and around the load's own.
        let own = stretch_at_least(summary.minimum_stretch).unwrap_or(0);
        for s_index in [s, own, (own + s % 12).min(STRETCH_COUNT - 1)] {
            let stretch = STRETCHES[s_index] * above;
            let (w, a) = (size(STRETCHES[s_index], age_s, log_horizon), log_task.exp2());
            let promised = summary.tasks(s_index, age_s, w, a);
            let exact = exact(&load, stretch, age_s, w, a);
            prop_assert!(promised <= exact, "{} > {} at {} {:?}", promised, exact, s_index, request);
        }
    }

    #[test]
    fn cells_at_the_samples_are_exact(
        load in loads(slots(), 8), t in 0..HORIZON_COUNT, column in 0..TASK_SIZE_COUNT, above in 0_usize..20,
    ) {
        let summary = Summary::of_leaf(&load);
        let s_index = (stretch_at_least(summary.minimum_stretch).unwrap_or(0) + above).min(STRETCH_COUNT - 1);
        let (stretch, a) = (STRETCHES[s_index], TASK_SIZES_MOPS[column]);
        let w = HORIZONS_S[t] / stretch;
        let promised = cell(&summary, s_index, t, column);
        let (more, less) = (1.0 + ROUNDING, 1.0 - ROUNDING);
        let low = available_tasks(&load, stretch * less, load.now_s, w * less, a * more);
        prop_assert!(promised <= exact(&load, stretch, 0.0, w, a));
        // Around the own stretch the smaller one may be infeasible: `low` is 0 then.
        prop_assert!(promised >= low, "{} < {}", promised, low);
    }

    #[test]
    fn below_its_own_stretch_a_leaf_offers_nothing(load in loads(slots(), 8)) {
        let summary = Summary::of_leaf(&load);
        for (s, t, a) in places().filter(|place| STRETCHES[place.0] < summary.minimum_stretch * (1.0 - ROUNDING)) {
            prop_assert_eq!(cell(&summary, s, t, a), 0);
        }
    }

    #[test]
    fn time_passing_keeps_the_bound_while_the_queue_is_worked_off(
        load in loads(Just(1_u32), 8), request in requests(), above in 0_usize..12, passed in 0.0..1.0_f64,
    ) {
        let (log_horizon, age_s, log_task) = request;
        let mut load = load;
        load.running_mops.clear();
        let summary = Summary::of_leaf(&load);
        let s_index = (stretch_at_least(summary.minimum_stretch).unwrap_or(0) + above).min(STRETCH_COUNT - 1);
        let stretch = STRETCHES[s_index];
        let total: f64 = load.entries.iter().map(Entry::left_mops).sum();
        let passed_s = passed * (total / load.speed_mops).max(100.0);
        // Served by earliest deadline at the stretch that is asked for.
        let mut worked = passed_s * load.speed_mops;
        let mut later = load.clone();
        later.now_s += passed_s;
        for index in load.order(stretch) {
            let entry = &mut later.entries[index];
            let done = worked.min(entry.left_mops());
            worked -= done;
            entry.left = (entry.left - done / entry.task_mops * (1.0 + 1e-12)).max(0.0);
        }
        let (w, a) = (size(stretch, age_s + passed_s, log_horizon), log_task.exp2());
        let promised = summary.tasks(s_index, age_s + passed_s, w, a);
        let exact = exact(&later, stretch, age_s + passed_s, w, a);
        prop_assert!(promised <= exact, "{} > {}", promised, exact);
    }

    #[test]
    fn merging_adds_every_cell(parts in summaries(3)) {
        let sum = merged(&parts);
        for (s, t, a) in places() {
            let expected: u64 = parts.iter().map(|part| cell(part, s, t, a)).sum();
            prop_assert_eq!(cell(&sum, s, t, a), expected);
        }
        prop_assert_eq!((sum.leaves, Some(sum.slots)), (3, parts.iter().map(|part| part.slots).max()));
        prop_assert_eq!(sum.speed_mops, parts.iter().map(|part| part.speed_mops).sum::<f64>());
        let smallest = parts.iter().map(|part| part.minimum_stretch).fold(f64::INFINITY, f64::min);
        let largest = parts.iter().map(|part| part.maximum_stretch).fold(0.0, f64::max);
        prop_assert_eq!((sum.minimum_stretch, sum.maximum_stretch), (smallest, largest));
    }

    #[test]
    fn merging_is_associative_and_commutative(
        parts in summaries(4), order in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
    ) {
        let mut parts = parts;
        parts[3] = Summary::unavailable();
        let forward = merged(&parts);
        let shuffled = merged(&order.iter().map(|&index| parts[index].clone()).collect::<Vec<_>>());
        prop_assert_eq!(&shuffled, &forward);
        let (left, right) = parts.split_at(2);
        prop_assert_eq!(&merged(&[merged(left), merged(right)]), &forward);
    }

    #[test]
    fn encoding_rounds_down_by_less_than_a_step(
        parts in prop::collection::vec(loads(Just(1_u32), 6).prop_map(|load| Summary::of_leaf(&load)), 3),
        slotted in summaries(1), single in any::<bool>(), several_slots in any::<bool>(), height in any::<u8>(),
    ) {
        let mut parts = parts;
        if several_slots {
            parts[0] = slotted[0].clone();
        }
        let mut summary = if single { parts[0].clone() } else { merged(&parts) };
        summary.height = height;
        let bytes = summary.encode();
        let read = Summary::decode(&bytes).unwrap();
        for (s, t, a) in places() {
            let (was, is) = (cell(&summary, s, t, a), cell(&read, s, t, a));
            prop_assert!(is <= was && was - is <= was >> scale::bits(height), "{} became {}", was, is);
        }
        prop_assert_eq!((read.leaves, read.height), (summary.leaves, height));
        prop_assert!(read.minimum_stretch <= summary.minimum_stretch);
        prop_assert!(read.maximum_stretch >= summary.maximum_stretch);
        prop_assert_eq!(read.encode(), bytes);
    }

    #[test]
    fn reports_through_routers_are_lower_bounds(
        leaves in prop::collection::vec(loads(slots(), 6), 1..6), request in requests(), s in 0_usize..STRETCH_COUNT,
    ) {
        let mut sum = Summary::empty();
        for load in &leaves {
            let children = [sum.flatten(), Summary::of_leaf(load).flatten()];
            let reported = report(SummaryForm::Horizons, &[&children[0], &children[1]]);
            // The way through bytes is the way through summaries.
            let children = children.map(|child| Summary::of_flat(&child).unwrap());
            prop_assert_eq!(&Summary::of_children(&[&children[0], &children[1]]).flatten(), &reported);
            sum = Summary::of_flat(&reported).unwrap();
        }
        let (log_horizon, age_s, log_task) = request;
        let own = stretch_at_least(sum.minimum_stretch).unwrap_or(0);
        for s_index in [s, own, (own + s % 12).min(STRETCH_COUNT - 1)] {
            let stretch = STRETCHES[s_index];
            let (w, a) = (size(stretch, age_s, log_horizon), log_task.exp2());
            let promised = sum.tasks(s_index, age_s, w, a);
            let exact: u64 = leaves.iter().map(|load| exact(load, stretch, age_s, w, a)).sum();
            prop_assert!(promised <= exact, "{} > {} at {} {:?}", promised, exact, s_index, request);
        }
    }

    #[test]
    fn each_level_of_a_tall_tree_loses_less_than_its_step(
        leaves in prop::collection::vec(loads(slots(), 3).prop_map(|load| Summary::of_leaf(&load)), 3),
        levels in 1_usize..60,
    ) {
        // A tree of one leaf more on each level.
        let (mut climbed, mut exact) = (leaves[0].flatten(), leaves[0].clone());
        for leaf in leaves.iter().cycle().take(levels) {
            climbed = report(SummaryForm::Horizons, &[&climbed, &leaf.flatten()]);
            exact.merge(leaf);
        }
        let read = Summary::of_flat(&climbed).unwrap();
        prop_assert_eq!((read.leaves, usize::from(read.height)), (exact.leaves, levels));
        let lost: f64 = (0..=read.height).map(|height| 0.5_f64.powi(scale::bits(height) as i32)).sum();
        for (s, t, a) in places() {
            let (was, is) = (cell(&exact, s, t, a), cell(&read, s, t, a));
            prop_assert!(is <= was && (was - is) as f64 <= was as f64 * lost, "{} became {}", was, is);
        }
    }

    #[test]
    fn differences_decode_to_the_same_bytes(
        parts in summaries(3), more in summaries(2), height in 0_u8..40, booked in 0_u64..50, can_wait: bool,
    ) {
        // The height changes the scale.
        let mut new = merged(&[&parts[1..], &more].concat());
        (new.height, new.can_wait) = (height, can_wait);
        new.reserve(50, booked, 1e4);
        let (base, new) = (merged(&parts).flatten(), new.flatten());
        for (base, new) in [(&base, &new), (&new, &base), (&base, &base)] {
            let whole = pack(None, new).unwrap();
            prop_assert_eq!(&Summary::decode(&whole).unwrap().flatten(), new);
            prop_assert!(unpack(None, &whole).is_some_and(|read| read == *new));
            prop_assert_eq!(unpack(Some(base), &whole), None);
            let difference = flat::encode(new, scaled::Scaled::of_flat(base).as_ref()).unwrap();
            prop_assert!(unpack(Some(base), &difference).is_some_and(|read| read == *new));
            prop_assert_eq!(Summary::decode(&difference), Err(DecodeError::Format));
            prop_assert_eq!(unpack(None, &difference), None);
            let (bytes, whole) = (difference.len(), whole.len());
            prop_assert!(bytes < whole + whole / 8 + 10, "{} of {}", bytes, whole);
            prop_assert!(base != new || bytes < 30, "{} bytes of nothing new", bytes);
            // The small ones travel whole all the same.
            let packed = pack(Some(base), new);
            prop_assert_eq!(packed, (new.len() > flat::WHOLE_BYTES).then_some(difference));
        }
        prop_assert_eq!(pack(None, &base[..base.len() - 1]).filter(|_| base.len() > 28), None);
    }

    #[test]
    fn damaged_bytes_never_panic(
        parts in summaries(2), changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        cut in any::<u16>(),
    ) {
        let (base, new) = (parts[0].flatten(), merged(&parts));
        let mut bytes = new.encode();
        let mut difference = pack(Some(&base), &new.flatten()).unwrap_or_default();
        for damaged in [&mut bytes, &mut difference] {
            let len = damaged.len().max(1);
            for (at, value) in &changes {
                damaged.get_mut(usize::from(*at) % len).into_iter().for_each(|byte| *byte = *value);
            }
            if cut % 2 == 0 {
                damaged.truncate(usize::from(cut) % len);
            }
        }
        check_hostile(&base, &bytes);
        check_hostile(&base, &difference);
    }

    #[test]
    fn random_bytes_never_panic(
        tail in prop::collection::vec(any::<u8>(), 0..300), difference in any::<bool>(), loose in any::<bool>(),
    ) {
        let base = Summary::unavailable().flatten();
        check_hostile(&base, &tail);
        let mut bytes = Summary::unavailable().encode();
        bytes.truncate(16);
        bytes[0] |= u8::from(difference) | u8::from(loose) << 1;
        bytes.extend(tail);
        check_hostile(&base, &bytes);
    }

    #[test]
    fn an_idle_leaf_offers_all_it_can_take(
        speed in 1.0..1e5_f64, slots in 1_u32..9, log_task in -3.0..36.0_f64, beyond in 1.0..100.0_f64,
        age_s in 0.0..1e6_f64, s in 0_usize..STRETCH_COUNT,
    ) {
        let load = Load { now_s: 0.0, speed_mops: speed, slots, preemptive: false, running_mops: vec![], entries: vec![] };
        let summary = Summary::of_leaf(&load);
        prop_assert_eq!(summary.rows(), 1);
        let a = log_task.exp2();
        // As documented: due in at least a second and eight times what a task of at least 1 Mop takes; and the
        // task, rounded up, ends within the last horizon.
        let horizon_s = (8.0 * a.max(1.0) / speed).max(1.0) * beyond;
        prop_assume!(4.0 * a.max(1.0) / speed <= HORIZONS_S[HORIZON_COUNT - 1]);
        let w = size(STRETCHES[s], age_s, (horizon_s * (1.0 + ROUNDING)).log2());
        prop_assert!(summary.tasks(s, age_s, w, a) > 0);
    }

    #[test]
    fn documented_requests_are_within_the_grids(
        log_speed in 0.0..9.966_f64, queued in prop::collection::vec((0.0..16.4_f64, 0.0..30.0_f64, 0.0..1e5_f64), 0..9),
        log_task_s in 0.0..16.4_f64, log_tasks in 0.0..30.0_f64, above in 0_usize..10, travels in any::<bool>(),
    ) {
        // Machines 100 apart in speed, whether the slowest has a tenth of the default's or the default's; tasks of a
        // second to a day, bags of up to 2^30 of them; the leaf idle, or with up to eight days of work.
        let speed_mops = 100.0 * log_speed.exp2();
        let entries: Vec<Entry> = queued
            .iter()
            .map(|(log_task_s, log_tasks, age_s)| {
                let task_mops = log_task_s.exp2() * speed_mops;
                let left = (86_400.0 / log_task_s.exp2()).floor().clamp(1.0, log_tasks.exp2());
                Entry { release_s: -age_s, application_size_mops: task_mops * log_tasks.exp2(), task_mops, left }
            })
            .collect();
        let load = Load { now_s: 0.0, speed_mops, slots: 1, preemptive: true, running_mops: vec![], entries };
        let mut summary = Summary::of_leaf(&load);
        if travels {
            summary = Summary::decode(&summary.encode()).unwrap();
        }
        let a = log_task_s.exp2() * speed_mops;
        let w = a * log_tasks.exp2();
        let own = stretch_at_least(summary.minimum_stretch).unwrap();
        // By half of then all that is queued is done, and a task four times as large.
        let queued_mops: f64 = load.entries.iter().map(Entry::left_mops).sum();
        let due_s = 2.0 * (queued_mops + 4.0 * a) / speed_mops;
        prop_assert!(due_s < HORIZONS_S[HORIZON_COUNT - 1]);
        let due = stretch_at_least(due_s / w * (1.0 + ROUNDING)).unwrap();
        let s_index = (own.max(due) + above).min(STRETCH_COUNT - 1);
        prop_assert!(summary.tasks(s_index, 0.0, w, a) > 0);
        prop_assert!(Summary::smallest_stretch(&[&summary], 1, 0.0, w, a).is_some_and(|found| found <= s_index));
    }

    #[test]
    fn smallest_stretch_is_the_first_that_suffices(
        parts in summaries(2), request in requests(), n in prop_oneof![0_u64..200, any::<u64>()],
        booked in 0_u64..500,
    ) {
        let (log_w, age_s, log_task) = request;
        let (w, a) = (log_w.exp2(), log_task.exp2());
        let mut parts = parts;
        parts[0].reserve(40, booked, a);
        let all: Vec<&Summary> = parts.iter().collect();
        let suffices = |s: &usize| parts.iter().map(|part| part.tasks(*s, age_s, w, a)).sum::<u64>() >= n;
        prop_assert_eq!(Summary::smallest_stretch(&all, n, age_s, w, a), (0..STRETCH_COUNT).find(suffices));
    }

    #[test]
    fn booking_takes_the_papers_share_off(
        parts in summaries(3), s_index in 0..STRETCH_COUNT, n in 0_u64..5000, log_task in -3.0..33.0_f64,
    ) {
        let before = merged(&parts);
        let task_mops = log_task.exp2();
        let mut after = before.clone();
        after.reserve(s_index, n, task_mops);
        for (s, t, a) in places() {
            let (was, is) = (cell(&before, s, t, a), cell(&after, s, t, a));
            prop_assert!(is <= was);
            let packed_mops = f64::from(before.slots - 1) * task_mops.max(TASK_SIZES_MOPS[a]);
            let work_mops = n as f64 * task_mops + n.min(3) as f64 * packed_mops;
            let loss = (work_mops / TASK_SIZES_MOPS[a]).ceil() as u64 + n.min(3);
            if n > 0 && s >= s_index {
                prop_assert_eq!(is, was.saturating_sub(loss));
            } else if n > 0 {
                prop_assert!(is <= was.saturating_sub(loss));
                prop_assert!(is <= was * (3 - n.min(3)) / 3);
            }
        }
        let read = Summary::decode(&after.encode()).unwrap();
        for (s, t, a) in places() {
            let (was, is) = (cell(&after, s, t, a), cell(&read, s, t, a));
            prop_assert!(is <= was, "{} became {}", was, is);
        }
        prop_assert_eq!(read.encode(), after.encode());
    }

    #[test]
    fn booking_keeps_the_lower_bound_at_and_above_the_stretch(
        leaves in prop::collection::vec(loads(prop_oneof![2 => Just(1_u32), 1 => Just(2), 1 => Just(4), 1 => Just(16)], 5), 1..4),
        above in 0_usize..14,
        log_n in 0.0..10.0_f64, log_task in 0.0..14.0_f64, log_w in 0.0..8.0_f64,
    ) {
        let parts: Vec<Summary> = leaves.iter().map(Summary::of_leaf).collect();
        let mut booked = merged(&parts);
        let largest = stretch_at_least(booked.maximum_stretch).unwrap_or(0).max(20);
        let s_index = (largest + above).min(STRETCH_COUNT - 1);
        let (task_mops, wanted) = (log_task.exp2(), log_n.exp2() as u64);
        let w = task_mops * wanted as f64 * log_w.exp2();
        // Each leaf takes what it can, in order, until all is placed.
        let mut unplaced = wanted;
        let mut later = Vec::new();
        for (load, part) in leaves.iter().zip(&parts) {
            let tasks = unplaced.min(part.tasks(s_index, 0.0, w, task_mops));
            unplaced -= tasks;
            let mut load = load.clone();
            let (release_s, left) = (load.now_s, tasks as f64);
            load.entries.push(Entry { release_s, application_size_mops: w, task_mops, left });
            later.push(load);
        }
        booked.reserve(s_index, wanted - unplaced, task_mops);
        for (s, t, a) in places().filter(|place| place.0 >= s_index) {
            let stretch = STRETCHES[s];
            let w = HORIZONS_S[t] / stretch * (1.0 + ROUNDING);
            let exact: u64 = later.iter().map(|load| exact(load, stretch, 0.0, w, TASK_SIZES_MOPS[a])).sum();
            let promised = cell(&booked, s, t, a);
            prop_assert!(promised <= exact, "{} > {} at {:?}", promised, exact, (s, t, a));
        }
    }
}

#[test]
fn the_grids_are_the_same_everywhere() {
    assert_eq!(STRETCHES[0].to_bits(), 0x3d30_0000_0000_0000);
    assert_eq!(STRETCHES[1], STRETCHES[0] * 1.5);
    // From the 34th power of 1.5 on a product is rounded: repeated multiplication, in one order, fixes how.
    assert_eq!(STRETCHES[104].to_bits(), 0x40fc_9040_830a_a888);
    assert_eq!(STRETCHES[104].floor(), 116_996.0);
    // 48 days.
    assert_eq!(HORIZONS_S[22], 4_194_304.0);
    assert_eq!(TASK_SIZES_MOPS[18], 68_719_476_736.0);
    for (index, &sample) in STRETCHES.iter().enumerate() {
        assert_eq!((at_most(&STRETCHES, sample), stretch_at_least(sample)), (Some(index), Some(index)));
        assert_eq!(at_most(&STRETCHES, sample * 1.2), Some(index));
        assert_eq!(stretch_at_least(sample / 1.2), Some(index));
    }
    assert_eq!(at_most(&STRETCHES, 0.0), None);
    assert_eq!(stretch_at_least(0.0), Some(0));
    assert_eq!(stretch_at_least(1e6), None);
    assert_eq!(at_most(&STRETCHES, 1e6), Some(104));
    assert_eq!((at_most(&STRETCHES, f64::NAN), stretch_at_least(f64::NAN)), (None, None));
}

#[test]
fn small_cases_by_hand() {
    let load =
        Load { now_s: 0.0, speed_mops: 1024.0, slots: 1, preemptive: false, running_mops: vec![], entries: vec![] };
    let idle = Summary::of_leaf(&load);
    assert_eq!((idle.minimum_stretch, idle.maximum_stretch, idle.speed_mops, idle.leaves), (0.0, 0.0, 1024.0, 1));
    // Due in 8.7 s, which counts as 8; tasks of 100 Mop count as 256.
    let w = 8.7 / STRETCHES[60];
    assert_eq!(idle.tasks(60, 0.0, w, 100.0), 32);
    assert_eq!(idle.tasks(60, 4.0, w, 256.0), 16);
    assert_eq!(idle.tasks(60, 8.0, w, 1.0), 0);
    assert_eq!(idle.tasks(60, 8.7, w, 1.0), 0);
    assert_eq!(idle.tasks(60, 0.0, w, 0.001), 8192);
    assert_eq!(idle.tasks(60, 0.0, w, 4096.0), 2);
    assert_eq!(idle.tasks(60, 0.0, w, 7e10), 0);
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(idle.tasks(60, bad, w, 1.0), 0);
        assert_eq!(idle.tasks(60, 0.0, bad, 1.0), 0);
        assert_eq!(idle.tasks(60, 0.0, w, bad), 0);
    }
    assert_eq!(idle.tasks(STRETCH_COUNT, 0.0, w, 1.0), 0);
    assert_eq!(Summary::smallest_stretch(&[&idle], 32, 0.0, w, 100.0), Some(60));
    let four = Summary::of_leaf(&Load { slots: 4, ..load.clone() });
    // Tasks of 256 Mop: 32 to a slot in 8 s.
    assert_eq!((four.speed_mops, four.tasks(60, 0.0, w, 100.0)), (4096.0, 128));
    assert_eq!(Summary::of_leaf(&Load { slots: 0, ..load }), Summary::unavailable());
    let mut sum = Summary::empty();
    sum.merge(&Summary::unavailable());
    assert_eq!(sum, Summary::unavailable());
    assert_eq!(sum.tasks(100, 0.0, 1e9, 1.0), 0);
    assert_eq!(Summary::decode(&sum.encode()), Ok(sum));
}

#[test]
fn a_summary_of_another_format_is_refused() {
    let bytes = Summary::unavailable().encode();
    assert_eq!(bytes.len(), 18, "no row costs no byte");
    for kind in (0..=u8::MAX).filter(|kind| *kind != bytes[0]) {
        let other = [&[kind], &bytes[1..]].concat();
        // Without rows no cell is loose.
        let (loose, can_wait) = (2, 4);
        let read = match kind ^ bytes[0] {
            bits if bits == can_wait => Ok(Summary { can_wait: true, ..Summary::unavailable() }),
            bits if bits & !can_wait == loose => Err(DecodeError::Damaged),
            _ => Err(DecodeError::Format),
        };
        assert_eq!(Summary::decode(&other), read);
    }
    for (at, value) in [(1, f32::NAN), (1, -1.0), (5, f32::INFINITY), (9, f32::MAX)] {
        let mut other = bytes.clone();
        other[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(Summary::decode(&other), Err(DecodeError::Range));
    }
    let crowded = [&bytes[..14], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 1, 1, 0]].concat();
    assert_eq!(Summary::decode(&crowded), Err(DecodeError::Range));
    for slots in [&[0x81, 0x20][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 1]] {
        let wide = [&bytes[..15], slots, &[0; 4]].concat();
        assert_eq!(Summary::decode(&wide), Err(DecodeError::Range), "{slots:?}");
    }
    let patient = [&bytes[..16], &[0xff, 0xff, 3], &[0; 4]].concat();
    assert_eq!(Summary::decode(&patient), Err(DecodeError::Range));
    for (idle, error) in [
        // Beyond the last class, none of one, more than any sum has, more than the leaves have slots, fewer classes than
        // announced.
        (&[1, 0x90, 3, 1][..], DecodeError::Range),
        (&[1, 0, 0], DecodeError::Range),
        (&[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], DecodeError::Range),
        (&[1, 0, 1], DecodeError::Range),
        (&[2, 0, 1], DecodeError::Damaged),
        (&[0xff, 0xff, 3, 0, 1], DecodeError::Damaged),
    ] {
        assert_eq!(Summary::decode(&[&bytes[..17], idle].concat()), Err(error), "{idle:?}");
    }
    assert_eq!(Summary::decode(&bytes[..14]), Err(DecodeError::Damaged));
    // 0 classes in two bytes instead of one.
    assert_eq!(Summary::decode(&[&bytes[..17], &[0x80, 0]].concat()), Err(DecodeError::Damaged));
    // Two bytes decide nothing that the header with nothing behind does not.
    assert_eq!(Summary::decode(&[&bytes[..], &[0; 9]].concat()), Err(DecodeError::Damaged));
    assert_eq!(Summary::decode(&vec![0; ENCODED_BYTES_MAX + 1]), Err(DecodeError::TooLong(ENCODED_BYTES_MAX + 1)));
    assert_eq!(Summary::decode(&[]), Err(DecodeError::Damaged));
}
