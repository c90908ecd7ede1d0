//! The scheduler's mathematics as a whole, through its public modules: leaves report, a tree of routers adds the
//! reports, the root chooses a stretch, routers split, leaves queue. What the summaries promise must hold.

use idlewood_scheduler::queue::{Entry, Load};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::split::{Demand, choose, split_ranges, split_tasks};
use idlewood_scheduler::stretch::{max_stretch, max_stretch_exact, meets_deadlines};
use idlewood_scheduler::summary::{STRETCHES, Summary};
use proptest::prelude::*;

/// A balanced tree over leaves, each node with the summary it last reported.
enum Tree {
    Leaf { load: Load, summary: Summary },
    Router { children: Box<[Tree; 2]>, summaries: [Summary; 2] },
}

/// A new bag, released now.
#[derive(Clone, Copy, Debug)]
struct Bag {
    tasks: u64,
    task_mops: f64,
    size_mops: f64,
}

impl Tree {
    fn new(mut leaves: Vec<Load>) -> Self {
        if leaves.len() == 1 {
            let load = leaves.remove(0);
            return Self::Leaf { summary: Summary::of_leaf(&load), load };
        }
        let right = leaves.split_off(leaves.len() / 2);
        let children = Box::new([Self::new(leaves), Self::new(right)]);
        let summaries = [children[0].report(), children[1].report()];
        Self::Router { children, summaries }
    }

    /// What this node tells its parent; every message is encoded and decoded.
    fn report(&self) -> Summary {
        let summary = match self {
            Self::Leaf { summary, .. } => summary.clone(),
            Self::Router { summaries, .. } => {
                let mut sum = summaries[0].clone();
                sum.merge(&summaries[1]);
                sum
            }
        };
        Summary::decode(&summary.encode()).unwrap()
    }

    /// Reports anew from the leaves up.
    fn refresh(&mut self) {
        match self {
            Self::Leaf { load, summary } => *summary = Summary::of_leaf(load),
            Self::Router { children, summaries } => {
                for (child, summary) in children.iter_mut().zip(summaries) {
                    child.refresh();
                    *summary = child.report();
                }
            }
        }
    }

    /// Places these tasks from here down. Returns the index of the largest stretch that a router on the way chose;
    /// `None` where one found none.
    fn place(&mut self, bag: &Bag, ranges: &IntervalSet) -> Option<usize> {
        match self {
            Self::Leaf { load, .. } => {
                let left = ranges.len() as f64;
                let (application_size_mops, task_mops) = (bag.size_mops, bag.task_mops);
                load.entries.push(Entry { release_s: load.now_s, application_size_mops, task_mops, left });
                Some(0)
            }
            Self::Router { children, summaries } => {
                let both = [&summaries[0], &summaries[1]];
                let request = Demand {
                    tasks: ranges.len(),
                    task_mops: bag.task_mops,
                    application_size_mops: bag.size_mops,
                    age_s: 0.0,
                };
                let s_index = choose(&both, &request, 1.0, 0.0, true).s_index;
                let parts = split_tasks(&both, &request, s_index);
                let mut largest = s_index;
                for (side, part) in split_ranges(ranges.clone(), &parts).into_iter().enumerate() {
                    if let Some(s_index) = s_index {
                        summaries[side].reserve(s_index, part.len(), bag.task_mops);
                    }
                    if !part.is_empty() {
                        let below = children[side].place(bag, &part);
                        largest = largest.zip(below).map(|(here, below)| here.max(below));
                    }
                }
                largest
            }
        }
    }

    fn loads<'a>(&'a self, found: &mut Vec<&'a Load>) {
        match self {
            Self::Leaf { load, .. } => found.push(load),
            Self::Router { children, .. } => children.iter().for_each(|child| child.loads(found)),
        }
    }

    fn largest_stretch(&self) -> f64 {
        let mut loads = Vec::new();
        self.loads(&mut loads);
        loads.iter().map(|load| max_stretch_exact(load)).fold(0.0, f64::max)
    }

    fn tasks(&self) -> f64 {
        let mut loads = Vec::new();
        self.loads(&mut loads);
        loads.iter().flat_map(|load| &load.entries).map(|entry| entry.left).sum()
    }
}

fn leaves() -> impl Strategy<Value = Vec<Load>> {
    let leaf = (10_u32..30, prop_oneof![3 => Just(1_u32), 1 => 2_u32..5], prop::option::of(0.0..1e5_f64)).prop_map(
        |(speed, slots, running)| Load {
            now_s: 1e4,
            speed_mops: f64::from(speed) * 100.0,
            slots,
            preemptive: running.is_none(),
            running_mops: running.into_iter().collect(),
            entries: vec![],
        },
    );
    prop::collection::vec(leaf, 2..20)
}

fn bags() -> impl Strategy<Value = Vec<Bag>> {
    let bag = (0.0..12.0_f64, 5.0..17.0_f64, 1.0..8.0_f64).prop_map(|(log_tasks, log_task, whole)| {
        let (tasks, task_mops) = (log_tasks.exp2() as u64, log_task.exp2());
        Bag { tasks, task_mops, size_mops: tasks as f64 * task_mops * whole }
    });
    prop::collection::vec(bag, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_bag_exceeds_the_stretch_promised_by_fresh_summaries(leaves in leaves(), bags in bags()) {
        let mut tree = Tree::new(leaves);
        let mut placed = 0.0;
        for bag in bags {
            tree.refresh();
            let before = tree.largest_stretch();
            // No leaf is asked for a stretch below its own: what others must bear already is not this bag's doing.
            let s_index = tree.place(&bag, &IntervalSet::from(0..bag.tasks));
            placed += bag.tasks as f64;
            prop_assert_eq!(tree.tasks(), placed);
            if let Some(s_index) = s_index {
                let promised = STRETCHES[s_index].max(before);
                prop_assert!(tree.largest_stretch() <= promised * (1.0 + 1e-9), "more than {}", promised);
            }
        }
    }

    #[test]
    fn stale_summaries_lose_no_task(leaves in leaves(), bags in bags()) {
        let mut tree = Tree::new(leaves);
        let mut placed = 0.0;
        for bag in bags {
            tree.place(&bag, &IntervalSet::from(0..bag.tasks));
            placed += bag.tasks as f64;
            prop_assert_eq!(tree.tasks(), placed);
        }
    }

    #[test]
    fn bookings_keep_what_single_slots_promise(leaves in leaves(), bags in bags()) {
        let mut leaves = leaves;
        leaves.iter_mut().for_each(|leaf| leaf.slots = 1);
        let mut tree = Tree::new(leaves);
        // Bookings are lower bounds at and above the largest stretch that was booked; below, estimates.
        let mut highest = 0;
        for bag in bags {
            let Some(s_index) = tree.place(&bag, &IntervalSet::from(0..bag.tasks)) else { break };
            highest = highest.max(s_index);
            let promised = STRETCHES[highest];
            prop_assert!(tree.largest_stretch() <= promised * (1.0 + 1e-9), "more than {}", promised);
        }
    }

    #[test]
    fn both_stretch_methods_agree_on_what_a_grid_queues(leaves in leaves(), bags in bags()) {
        let mut tree = Tree::new(leaves);
        for bag in bags {
            tree.place(&bag, &IntervalSet::from(0..bag.tasks));
        }
        let mut loads = Vec::new();
        tree.loads(&mut loads);
        for load in loads {
            let (exact, searched) = (max_stretch_exact(load), max_stretch(load, 1e-6));
            prop_assert!(meets_deadlines(load, exact));
            prop_assert!((exact - searched).abs() <= 1.01e-6 * exact, "{} and {}", exact, searched);
        }
    }
}
