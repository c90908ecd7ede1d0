//! The paper's own availability summary (`SummaryForm::Paper`), beside the paper's text: Algorithm 3 evaluated at the samples, task by
//! task and in time, the nearest sample (§5.2), what a router takes off (§5.3), Algorithm 4 and the split (§6), and the bytes that travel.

use std::fmt::Write;

use idlewood_scheduler::queue::{Entry, Load};
use idlewood_scheduler::split::{Demand, choose, split_tasks};
use idlewood_scheduler::summary::{
    PAPERS_APPLICATION_SIZES_MOPS, PAPERS_STRETCH_COUNT, PAPERS_TASK_SIZES_MOPS, STRETCH_COUNT, STRETCHES, Summary,
    SummaryForm, pack, report, unpack, unpack_papers,
};
use proptest::prelude::*;

/// A bag in the queue, as the paper has it: r_i, w_i, a_i, N_i.
#[derive(Clone, Copy, Debug)]
struct Bag {
    r: f64,
    w: f64,
    a: f64,
    n: u32,
}

/// A node of the paper's: one processor of speed s, whose running task has some work left.
#[derive(Clone, Debug)]
struct Node {
    now: f64,
    s: f64,
    rest: f64,
    queue: Vec<Bag>,
}

impl Node {
    fn load(&self) -> Load {
        let entry = |bag: &Bag| Entry {
            release_s: bag.r,
            application_size_mops: bag.w,
            task_mops: bag.a,
            left: f64::from(bag.n),
        };
        Load {
            now_s: self.now,
            speed_mops: self.s,
            slots: 1,
            preemptive: false,
            running_mops: if self.rest > 0.0 { vec![self.rest] } else { vec![] },
            entries: self.queue.iter().map(entry).collect(),
        }
    }

    /// The queue by deadlines d = r + S·w.
    fn by_deadline(&self, stretch: f64) -> Vec<Bag> {
        let mut bags: Vec<Bag> = self.queue.iter().copied().filter(|bag| bag.n > 0).collect();
        bags.sort_by(|one, other| (one.r + stretch * one.w).total_cmp(&(other.r + stretch * other.w)));
        bags
    }

    /// Algorithm 1.
    fn meets_deadlines(&self, stretch: f64) -> bool {
        let mut e = self.now + self.rest / self.s;
        self.by_deadline(stretch).iter().all(|bag| {
            e += f64::from(bag.n) * bag.a / self.s;
            e <= bag.r + stretch * bag.w
        })
    }

    /// Algorithm 2, to nine digits.
    fn max_stretch(&self) -> f64 {
        let (mut least, mut most) = (0.0, 1.0);
        while !self.meets_deadlines(most) {
            (least, most) = (most, 2.0 * most);
        }
        for _ in 0..200 {
            let middle = f64::midpoint(least, most);
            if self.meets_deadlines(middle) { most = middle } else { least = middle }
        }
        most
    }

    /// "It discards from its actual task queue the tasks that will be processed at time r" (§5.1), one after the other in the order in which
    /// the node works; the one that is being processed then is its running task.
    fn at(&self, r: f64, order: &[Bag]) -> Self {
        let mut e = self.now + self.rest / self.s;
        let mut queue = order.to_vec();
        for bag in &mut queue {
            while bag.n > 0 && e < r {
                bag.n -= 1;
                e += bag.a / self.s;
            }
        }
        Self { now: r, rest: (e - r).max(0.0) * self.s, queue, s: self.s }
    }

    /// Algorithm 3 on the queue at r, which is `now` here: flops available for a new application.
    fn available(&self, stretch: f64, w: f64) -> f64 {
        let bags = self.by_deadline(stretch);
        let begin = self.now + self.rest / self.s;
        let deadline = |bag: &Bag| bag.r + stretch * bag.w;
        let seconds = |bag: &Bag| f64::from(bag.n) * bag.a / self.s;
        // The latest starts x, from the last bag on.
        let mut x = vec![f64::INFINITY; bags.len() + 1];
        for i in (0..bags.len()).rev() {
            x[i] = deadline(&bags[i]).min(x[i + 1]) - seconds(&bags[i]);
        }
        if x[0] < begin {
            return 0.0;
        }
        let d_new = self.now + stretch * w;
        let k = bags.iter().take_while(|bag| deadline(bag) < d_new).count();
        let e_k = begin + bags[..k].iter().map(seconds).sum::<f64>();
        ((d_new.min(x[k]) - e_k) * self.s).max(0.0)
    }
}

fn nodes() -> impl Strategy<Value = Node> {
    let bag = (0.0..600.0_f64, 16.0..34.0_f64, 10.0..20.0_f64, 1_u32..40);
    let rest = prop_oneof![Just(0.0), 0.0..3e5_f64];
    (0.0..1e6_f64, 500.0..4000.0_f64, rest, prop::collection::vec(bag, 0..6)).prop_map(|(now, s, rest, bags)| Node {
        now,
        s,
        rest,
        queue: bags
            .into_iter()
            .map(|(age, log_w, log_a, n)| Bag { r: now - age, w: log_w.exp2(), a: log_a.exp2(), n })
            .collect(),
    })
}

/// The powers of 2 from one to another.
fn powers(from: i32, to: i32) -> Vec<f64> {
    (from..=to).map(|power| 2_f64.powi(power)).collect()
}

/// The sample nearest to a value.
fn nearest(samples: &[f64], value: f64) -> f64 {
    *samples.iter().min_by(|one, other| (*one - value).abs().total_cmp(&(*other - value).abs())).unwrap()
}

fn cells() -> impl Iterator<Item = (usize, f64, f64)> {
    let line = |s| PAPERS_APPLICATION_SIZES_MOPS.into_iter().map(move |w| (s, w));
    let lines = (0..STRETCH_COUNT).flat_map(line);
    lines.flat_map(|(s, w)| PAPERS_TASK_SIZES_MOPS.into_iter().map(move |a| (s, w, a)))
}

fn summary(node: &Node, ahead: f64) -> Summary {
    Summary::of_leaf_at(&node.load(), node.now + ahead)
}

#[test]
fn sizes_are_sampled_at_powers_of_two_and_stretches_by_two_thirds() {
    assert_eq!(PAPERS_APPLICATION_SIZES_MOPS.as_slice(), powers(14, 36));
    assert_eq!(PAPERS_TASK_SIZES_MOPS.as_slice(), powers(10, 28));
    for (above, stretch) in STRETCHES.iter().skip(1).zip(STRETCHES) {
        assert!((stretch / above * 1.5 - 1.0).abs() < 1e-12);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_leaf_samples_algorithm_3(node in nodes(), ahead in prop_oneof![Just(0.0), 0.001..300.0_f64]) {
        let own = node.max_stretch();
        // Where two bags change places at the leaf's own stretch both orders are right.
        let order = node.by_deadline(own * (1.0 + 1e-9));
        let same = |other: f64| node.by_deadline(own * other).iter().zip(&order).all(|(one, two)| one.w == two.w);
        prop_assume!(own < 1e-12 || same(1.0 - 1e-9));
        let then = node.at(node.now + ahead, &order);
        let summary = summary(&node, ahead);
        let exact = |s: usize, w: f64, a: f64, more: f64| {
            let h = then.available(STRETCHES[s] * (1.0 + more), w * (1.0 + more)) * (1.0 + more);
            (h / a + 1e-9 * more.signum()).floor().max(0.0) as u64
        };
        let first = cells().find(|&(s, w, a)| summary.tasks(s, 0.0, w, a) > 0).map(|cell| cell.0);
        let last = first.map_or(STRETCH_COUNT, |first| first + PAPERS_STRETCH_COUNT - 1);
        for (s, w, a) in cells() {
            let promised = summary.tasks(s, 0.0, w, a);
            let at = s.min(last);
            let (low, high) = (exact(at, w, a, -1e-8), exact(at, w, a, 1e-8));
            prop_assert!((low..=high).contains(&promised), "{} is not {} to {} at {:?}", promised, low, high, (s, w, a));
        }
    }

    #[test]
    fn requests_find_the_nearest_sample(
        node in nodes(), log_w in 10.0..40.0_f64, log_a in 6.0..32.0_f64, age in 0.0..1e5_f64, s in 0..STRETCH_COUNT,
    ) {
        let summary = summary(&node, 100.0);
        let (w, a) = (log_w.exp2(), log_a.exp2());
        let (line, column) = (nearest(&powers(14, 36), w), nearest(&powers(10, 28), a));
        for s in (s % 7..STRETCH_COUNT).step_by(7) {
            // There is one release time: that is the nearest for all ages.
            prop_assert_eq!(summary.tasks(s, age, w, a), summary.tasks(s, 0.0, line, column));
        }
    }

    #[test]
    fn matrices_are_added_and_the_sum_has_as_many_stretches(one in nodes(), other in nodes(), ahead in 0.0..300.0_f64) {
        let parts = [summary(&one, ahead), summary(&other, 300.0 - ahead)];
        let sum = Summary::of_children(&[&parts[0], &parts[1]]);
        let first = parts.iter().flat_map(|part| cells().find(|&(s, w, a)| part.tasks(s, 0.0, w, a) > 0)).map(|cell| cell.0);
        let end = first.min().unwrap_or(0) + PAPERS_STRETCH_COUNT;
        for (s, w, a) in cells() {
            let of_parts: u64 = parts.iter().map(|part| part.tasks(s.min(end - 1), 0.0, w, a)).sum();
            prop_assert_eq!(sum.tasks(s, 0.0, w, a), of_parts);
        }
        prop_assert!(sum.rows() <= PAPERS_STRETCH_COUNT);
        // The forms that machines keep and send lose no more than rounding, a 128th each time.
        let flat = report(SummaryForm::Paper, &[&parts[0].flatten(), &parts[1].flatten()]);
        let bytes = pack(None, &flat).unwrap();
        prop_assert_eq!(unpack_papers(None, &bytes), Some(flat.clone()));
        let read = Summary::of_flat(&flat).unwrap();
        for (s, w, a) in cells() {
            let (was, is) = (sum.tasks(s, 0.0, w, a), read.tasks(s, 0.0, w, a));
            prop_assert!(is <= was && is as f64 >= (was as f64 * (1.0 - 2.0 / 128.0)).floor() - 1.0, "{} is {}", was, is);
        }
        // Agents read neither a whole nor a difference; and the paper's peers do not read what agents say.
        prop_assert_eq!(unpack(None, &bytes), None);
        let ours = Summary::of_leaf(&one.load()).flatten();
        prop_assert_eq!(unpack(Some(&ours), &bytes), None);
        prop_assert_eq!(unpack_papers(None, &pack(None, &ours).unwrap()), None);
        let mixed = Summary::of_flat(&report(SummaryForm::Horizons, &[&ours, &flat])).unwrap();
        let alone = Summary::of_flat(&report(SummaryForm::Horizons, &[&ours, &Summary::unavailable().flatten()])).unwrap();
        prop_assert_eq!(mixed, alone);
    }

    #[test]
    fn booking_takes_the_papers_share_off_every_stretch(
        parts in prop::collection::vec(nodes(), 1..3), n in 0_u64..3000, log_a in 6.0..32.0_f64, s_index in 0..STRETCH_COUNT,
    ) {
        let parts: Vec<Summary> = parts.iter().map(|node| summary(node, 60.0)).collect();
        let before = Summary::of_children(&parts.iter().collect::<Vec<_>>());
        let mut after = before.clone();
        let a_new = log_a.exp2();
        after.reserve(s_index, n, a_new);
        let similar = nearest(&powers(10, 28), a_new);
        for (s, w, a) in cells() {
            let loss = if a == similar { n } else { (n as f64 * a_new / a).ceil() as u64 };
            prop_assert_eq!(after.tasks(s, 0.0, w, a), before.tasks(s, 0.0, w, a).saturating_sub(loss));
        }
    }

    #[test]
    fn the_smallest_sample_that_suffices_is_chosen_and_else_the_largest(
        parts in prop::collection::vec(nodes(), 2), n in prop_oneof![1_u64..5000, 1_u64..1 << 40], booked in 0_u64..500,
        log_w in 14.0..36.0_f64, log_a in 10.0..20.0_f64,
    ) {
        let mut parts: Vec<Summary> = parts.iter().map(|node| summary(node, 60.0)).collect();
        let (w, a) = (log_w.exp2(), log_a.exp2());
        parts[0].reserve(0, booked, a);
        let children: Vec<&Summary> = parts.iter().collect();
        let demand = Demand { tasks: n, task_mops: a, application_size_mops: w, age_s: 0.0 };
        let available = |s: usize| parts.iter().map(|part| part.tasks(s, 0.0, w, a)).collect::<Vec<_>>();
        let suffices = |s: &usize| available(*s).iter().sum::<u64>() >= n;
        let chosen = (0..STRETCH_COUNT).find(suffices).unwrap_or(STRETCH_COUNT - 1);
        let decision = choose(&children, &demand, 2.0, STRETCHES[chosen] / 2.0, false);
        prop_assert_eq!((decision.s_index, decision.good_enough), (Some(chosen), true));
        prop_assert!(!choose(&children, &demand, 2.0, STRETCHES[chosen] / 2.1, false).good_enough);
        // Shares are proportional to n_j(S), also where that is less than is asked for.
        let shares = split_tasks(&children, &demand, Some(chosen));
        prop_assert_eq!(shares.iter().sum::<u64>(), n);
        let available = available(chosen);
        let sum = available.iter().sum::<u64>();
        prop_assume!(sum > 0);
        for (share, of) in shares.iter().zip(available) {
            let difference = (u128::from(*share) * u128::from(sum)).abs_diff(u128::from(n) * u128::from(of));
            prop_assert!(difference < u128::from(sum));
        }
    }
}

/// A change here is a change of the format, which only machines of one simulation share.
#[test]
fn the_papers_summaries_keep_their_bytes() {
    let bag = |r, w, a, n| Bag { r, w, a, n };
    let busy = Node { now: 1000.0, s: 1000.0, rest: 5e4, queue: vec![bag(0.0, 3e7, 6e4, 20), bag(900.0, 1e7, 1e5, 4)] };
    let idle = Node { now: 1000.0, s: 3000.0, rest: 0.0, queue: vec![] };
    let leaves = [summary(&busy, 200.0), summary(&idle, 200.0)];
    let sum = Summary::of_children(&[&leaves[0], &leaves[1]]);
    let mut text = String::new();
    for (name, summary) in [("busy", &leaves[0]), ("idle", &leaves[1]), ("sum", &sum)] {
        let bytes = summary.encode();
        writeln!(text, "{name}: {} bytes", bytes.len()).unwrap();
        for line in bytes.chunks(40) {
            line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
    }
    insta::assert_snapshot!(text);
}
