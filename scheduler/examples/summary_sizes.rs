//! Prints how large encoded summaries are, how much the rounding takes off, and how long coding takes.
#![allow(clippy::disallowed_methods, reason = "a measurement")]
use std::time::Instant;

use idlewood_scheduler::queue::{Entry, Load};
use idlewood_scheduler::split::{Demand, choose, split_tasks};
use idlewood_scheduler::stretch::max_stretch_exact;
use idlewood_scheduler::summary::{
    HORIZON_COUNT, HORIZONS_S, STRETCH_COUNT, STRETCHES, Summary, TASK_SIZE_COUNT, TASK_SIZES_MOPS, pack, unpack,
};

struct Rng(u64);
impl Rng {
    fn unit(&mut self) -> f64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / 2_f64.powi(64)
    }
    fn log(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }
}

#[derive(Clone)]
struct Grid {
    leaves: Vec<Load>,
    now_s: f64,
}

struct Kind {
    name: &'static str,
    tasks: (f64, f64),
    task_s: (f64, f64),
    speeds: (f64, f64),
    /// Time between two submissions, as a multiple of what the submitted takes.
    pressure: f64,
}

impl Grid {
    fn new(count: usize, kind: &Kind, rng: &mut Rng) -> Self {
        let leaves = (0..count)
            .map(|_| Load {
                now_s: 0.0,
                speed_mops: (rng.log(kind.speeds.0, kind.speeds.1) * 100.0).round() / 100.0,
                slots: 1,
                preemptive: true,
                running_mops: vec![],
                entries: vec![],
            })
            .collect();
        Self { leaves, now_s: 0.0 }
    }
    fn advance(&mut self, index: usize, seconds: f64) {
        let load = &mut self.leaves[index];
        let stretch = max_stretch_exact(load);
        let mut work = seconds * load.speed_mops;
        for at in load.order(stretch) {
            let entry = &mut load.entries[at];
            let done = work.min(entry.left_mops());
            work -= done;
            entry.left = (entry.left - done / entry.task_mops).max(0.0);
        }
        load.entries.retain(|entry| entry.left > 1e-9);
        load.now_s += seconds;
    }
    fn advance_all(&mut self, seconds: f64) {
        for index in 0..self.leaves.len() {
            self.advance(index, seconds);
        }
        self.now_s += seconds;
    }
    fn summaries(&self) -> Vec<Summary> {
        self.leaves.iter().map(Summary::of_leaf).collect()
    }
    fn submit(&mut self, tasks: u64, task_mops: f64) {
        let parts = self.summaries();
        let w = task_mops * (tasks.max(self.leaves.len() as u64)) as f64;
        self.place(&parts, 0, tasks, task_mops, w);
    }
    fn place(&mut self, parts: &[Summary], first: usize, tasks: u64, task_mops: f64, w: f64) {
        if tasks == 0 {
            return;
        }
        if parts.len() == 1 {
            let load = &mut self.leaves[first];
            load.entries.push(Entry { release_s: load.now_s, application_size_mops: w, task_mops, left: tasks as f64 });
            return;
        }
        let (left, right) = parts.split_at(parts.len() / 2);
        let sums = [exact(left), exact(right)];
        let both = [&sums[0], &sums[1]];
        let request = Demand { tasks, task_mops, application_size_mops: w, age_s: 0.0 };
        let s_index = choose(&both, &request, 1.0, 0.0, true).s_index;
        let split = split_tasks(&both, &request, s_index);
        self.place(left, first, split[0], task_mops, w);
        self.place(right, first + left.len(), split[1], task_mops, w);
    }
}

fn exact(parts: &[Summary]) -> Summary {
    let mut sum = Summary::empty();
    parts.iter().for_each(|part| sum.merge(part));
    sum
}

/// Through a balanced tree, encoded and decoded on every link; all encoded reports by level.
fn tree(parts: &[Summary], levels: &mut Vec<Vec<usize>>) -> (Summary, usize) {
    let (sum, level) = if parts.len() == 1 {
        (parts[0].clone(), 0)
    } else {
        let (left, right) = parts.split_at(parts.len() / 2);
        let ((sum, one), (other, two)) = (tree(left, levels), tree(right, levels));
        (Summary::of_children(&[&sum, &other]), one.max(two) + 1)
    };
    let bytes = sum.encode();
    if levels.len() <= level {
        levels.resize(level + 1, Vec::new());
    }
    levels[level].push(bytes.len());
    (Summary::decode(&bytes).unwrap(), level)
}

fn cell(summary: &Summary, s: usize, t: usize, a: usize) -> u64 {
    summary.tasks(s, 0.0, HORIZONS_S[t] * (1.0 + 1e-12) / STRETCHES[s], TASK_SIZES_MOPS[a])
}

/// Mean and largest relative loss over cells that are not 0.
fn loss(exact: &Summary, coded: &Summary) -> (f64, f64) {
    let (mut sum, mut count, mut worst) = (0.0, 0.0, 0.0_f64);
    for s in 0..STRETCH_COUNT {
        for t in 0..HORIZON_COUNT {
            for a in 0..TASK_SIZE_COUNT {
                let (e, c) = (cell(exact, s, t, a), cell(coded, s, t, a));
                assert!(c <= e);
                if e > 0 {
                    let l = (e - c) as f64 / e as f64;
                    sum += l;
                    count += 1.0;
                    worst = worst.max(l);
                }
            }
        }
    }
    (sum / f64::max(count, 1.0) * 100.0, worst * 100.0)
}

/// What rounding on every level costs high up: each level merges random pairs of the one below, and in the tall tree
/// every other level takes one child from three levels further down.
fn heights(parts: &[Summary], rng: &mut Rng) {
    for is_tall in [false, true] {
        let decoded = |summary: &Summary| Summary::decode(&summary.encode()).unwrap();
        let mut levels = vec![parts.iter().map(|part| (part.clone(), decoded(part))).collect::<Vec<_>>()];
        for level in 1..=if is_tall { 28 } else { 20 } {
            let lower = if is_tall && level % 2 == 0 && level > 3 { level - 4 } else { level - 1 };
            let mut next = Vec::new();
            for _ in 0..64 {
                let mut pick = |from: usize| &levels[from][(rng.unit() * levels[from].len() as f64) as usize];
                let ((exact, coded), (other, other_coded)) = (pick(level - 1), pick(lower));
                let exact = Summary::of_children(&[exact, other]);
                next.push((exact, decoded(&Summary::of_children(&[coded, other_coded]))));
            }
            if [10, 14, 20, 28].contains(&level) {
                let losses: Vec<_> = next.iter().take(8).map(|(exact, coded)| loss(exact, coded)).collect();
                let mean = losses.iter().map(|loss| loss.0).sum::<f64>() / losses.len() as f64;
                let worst = losses.iter().map(|loss| loss.1).fold(0.0, f64::max);
                let sizes = quantiles(next.iter().map(|(_, coded)| coded.encode().len()).collect());
                println!(
                    "    {level} levels, {} leaves: loss mean {mean:.2} % worst cell {worst:.2} %; {sizes} B",
                    next[0].0.leaves
                );
            }
            levels.push(next);
        }
    }
}

fn quantiles(mut values: Vec<usize>) -> String {
    values.sort_unstable();
    let at = |q: f64| values[((values.len() - 1) as f64 * q) as usize];
    format!("min {} median {} p90 {} max {}", at(0.0), at(0.5), at(0.9), at(1.0))
}

fn main() {
    let kinds = [
        Kind {
            name: "paper: 30,000-240,000 Mop, 10 N tasks",
            tasks: (10.0, 10.0),
            task_s: (15.0, 120.0),
            speeds: (1000.0, 3000.0),
            pressure: 0.35,
        },
        Kind {
            name: "heavy: 1 to 10 N tasks, 10 s to 1 h",
            tasks: (0.0, 10.0),
            task_s: (10.0, 3600.0),
            speeds: (1000.0, 3000.0),
            pressure: 0.1,
        },
        Kind {
            name: "wide: 1 to 10 N tasks, 1 s to 1 day, speeds 100 apart",
            tasks: (0.0, 10.0),
            task_s: (1.0, 86400.0),
            speeds: (200.0, 20000.0),
            pressure: 0.03,
        },
    ];
    let seeds = std::env::var("IDLEWOOD_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for kind in
        kinds.iter().filter(|kind| wanted.is_empty() || wanted.iter().any(|name| kind.name.starts_with(name.as_str())))
    {
        println!("## {}", kind.name);
        let mut sizes = Vec::new();
        for seed in 0..seeds {
            let count = 1000;
            let mut rng = Rng(seed);
            let mut grid = Grid::new(count, kind, &mut rng);
            let speed: f64 = grid.leaves.iter().map(|leaf| leaf.speed_mops).sum();
            let mut submitted = 0;
            loop {
                let bags: std::collections::BTreeSet<u64> = grid
                    .leaves
                    .iter()
                    .flat_map(|l| l.entries.iter().map(|e| e.application_size_mops.to_bits()))
                    .collect();
                if bags.len() >= 100 || submitted > 400 {
                    println!(
                        "seed {seed}: {} bags in queues, {} a leaf; {submitted} submitted",
                        bags.len(),
                        grid.leaves.iter().map(|l| l.entries.len()).sum::<usize>() / count
                    );
                    break;
                }
                let tasks = if kind.tasks.0 == 0.0 {
                    rng.log(1.0, kind.tasks.1 * count as f64)
                } else {
                    rng.log(kind.tasks.0 * 0.5, kind.tasks.1 * 2.0) * count as f64
                } as u64;
                let task_mops = rng.log(kind.task_s.0, kind.task_s.1) * 2000.0;
                grid.submit(tasks.max(1), task_mops);
                submitted += 1;
                grid.advance_all(kind.pressure * tasks.max(1) as f64 * task_mops / speed);
            }
            let parts = grid.summaries();
            let whole = exact(&parts);
            let mut levels = Vec::new();
            let (root, _) = tree(&parts, &mut levels);
            let bytes = root.encode();
            sizes.push(bytes.len());
            println!(
                "  rows {} -> {}; encoded {} B direct {} B; loss mean, worst % {:?}",
                whole.rows(),
                root.rows(),
                bytes.len(),
                whole.encode().len(),
                loss(&whole, &root)
            );
            for (level, sizes) in levels.into_iter().enumerate() {
                println!("    level {level}: {}", quantiles(sizes));
            }
            if seeds > 1 {
                continue;
            }
            heights(&parts, &mut rng);
            // Updates of the root's child-to-be: some leaves refresh.
            for (name, share, seconds) in [
                ("1 leaf after 30 s", 0.001, 30.0),
                ("33 leaves after 30 s", 0.033, 30.0),
                ("all after 1 s", 1.0, 1.0),
                ("all after 30 s", 1.0, 30.0),
            ] {
                let mut later = grid.clone();
                for index in 0..count {
                    if (index as f64) < share * count as f64 {
                        later.advance(index * 7919 % count, seconds);
                    }
                }
                let (new, _) = tree(&later.summaries(), &mut Vec::new());
                let flat = new.flatten();
                let d = pack(Some(&whole.flatten()), &flat);
                if let Some(d) = &d {
                    assert_eq!(unpack(Some(&whole.flatten()), d).as_ref(), Some(&flat));
                }
                println!("    update, {name}: {:?} of {}", d.map(|d| d.len()), new.encode().len());
            }
            let mut later = grid.clone();
            later.submit(count as u64 * 3, kind.task_s.0 * 4000.0);
            let new = tree(&later.summaries(), &mut Vec::new()).0;
            let d = pack(Some(&whole.flatten()), &new.flatten());
            println!("    update, a new bag for all: {:?} of {}", d.map(|d| d.len()), new.encode().len());
            let start = Instant::now();
            for _ in 0..50 {
                std::hint::black_box(whole.encode());
            }
            let encode = start.elapsed() / 50;
            let start = Instant::now();
            for _ in 0..50 {
                std::hint::black_box(Summary::decode(&bytes).unwrap());
            }
            println!("    encode {encode:?} decode {:?}", start.elapsed() / 50);
        }
        println!("whole at the root over {seeds} seeds: {}", quantiles(sizes));
    }
}
