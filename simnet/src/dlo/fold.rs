//! FOLD on a platform: [`shares`](idlewood_scheduler::shares) of the scheduler, with capacities on edges.
//!
//! What hangs on the core, the paths between the masters, sends K numbers up an edge and is sent K rates down it. The machines of the
//! core send theirs along it to one of them, which computes and sends back: an edge of the core also carries one message each way.

use idlewood_scheduler::shares::{self, Absorption, Core, CoreNode, Ratios, Uplink, whole_tasks};

use super::platform::{Edge, Platform, Way};

/// FOLD's parts of one platform.
pub(super) struct Fold<'a> {
    platform: &'a Platform,
    ratios: Ratios,
    /// Machines of the core, parents first.
    core: Vec<usize>,
    /// (machine, the one before it, the edge between them), outward from the core.
    hanging: Vec<(usize, usize, Edge)>,
    /// Of each machine, with what hangs on it.
    absorptions: Vec<Absorption>,
}

/// What a wave ends with.
pub(super) struct Outcome {
    /// Tasks/s by machine and application.
    pub(super) rates: Vec<Vec<f64>>,
    pub(super) messages: usize,
}

impl<'a> Fold<'a> {
    pub(super) fn new(platform: &'a Platform, ways: &[Way]) -> Self {
        // A Mop is a MFLOP here.
        let ratio = |of: &super::platform::Application| of.mb * 1e6 / (of.gflop * 1e3);
        let ratios = Ratios::new(platform.applications.iter().map(ratio).collect())
            .expect("work and data of a validated platform are finite and positive");
        let core = core(platform, ways);
        let mut is_reached = vec![false; platform.machines.len()];
        core.iter().for_each(|machine| is_reached[*machine] = true);
        let neighbours = platform.neighbours();
        let (mut hanging, mut place, mut queue) = (Vec::new(), 0, core.clone());
        while let Some(&machine) = queue.get(place) {
            place += 1;
            for &(next, edge) in &neighbours[machine] {
                if !std::mem::replace(&mut is_reached[next], true) {
                    hanging.push((next, machine, edge));
                    queue.push(next);
                }
            }
        }
        let absorptions = (0..platform.machines.len()).map(|machine| own(platform, &ratios, machine)).collect();
        let mut fold = Self { platform, ratios, core, hanging, absorptions };
        for number in (0..fold.hanging.len()).rev() {
            let (machine, before, edge) = fold.hanging[number];
            let behind = fold.behind(machine, edge);
            fold.absorptions[before].add(&behind);
        }
        fold
    }

    /// Machines on the paths between the masters.
    pub(super) fn core(&self) -> &[usize] {
        &self.core
    }

    /// What is behind an edge, as far as that lets it.
    fn behind(&self, machine: usize, edge: Edge) -> Absorption {
        self.absorptions[machine].clone().through(&self.ratios, self.platform.capacity_mb_s(edge) * 1e6)
    }

    /// One wave up and down.
    pub(super) fn wave(&self) -> Outcome {
        let work = self.divide(self.solve());
        // One each way along each edge: none of them is encoded here.
        let messages = 2 * (self.hanging.len() + self.core.len() - 1);
        Outcome { rates: work.iter().map(|of| self.tasks(of)).collect(), messages }
    }

    /// Rates of the core's machines with all that hangs on them, in Mop/s.
    fn solve(&self) -> Vec<Vec<f64>> {
        let place =
            |machine: usize| self.core.iter().position(|core| *core == machine).expect("masters are in the core");
        let node = |(number, machine): (usize, &usize)| {
            let of = &self.platform.machines[*machine];
            let uplink = of.parent.filter(|_| number > 0).map(|parent| Uplink {
                parent: place(parent),
                down_bytes_s: of.down_mb_s * 1e6,
                up_bytes_s: of.up_mb_s * 1e6,
            });
            CoreNode { absorption: self.absorptions[*machine].clone(), uplink }
        };
        let applications: Vec<shares::Application> = self
            .platform
            .applications
            .iter()
            .map(|of| shares::Application {
                weight: of.weight,
                uplink_bytes_s: f64::INFINITY,
                entry: place(of.machine),
            })
            .collect();
        Core { nodes: self.core.iter().enumerate().map(node).collect() }.solve(&self.ratios, &applications)
    }

    /// Each machine divides what reaches it; returns Mop/s by machine and application.
    fn divide(&self, of_core: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let mut work = vec![vec![0.0; self.ratios.applications()]; self.platform.machines.len()];
        for (machine, of) in self.core.iter().zip(of_core) {
            work[*machine] = of;
        }
        for (machine, beyond) in self.beyond() {
            let mut parts = vec![own(self.platform, &self.ratios, machine)];
            parts.extend(beyond.iter().map(|(next, edge)| self.behind(*next, *edge)));
            let mut divided = Absorption::divide(&self.ratios, &work[machine], &parts).into_iter();
            work[machine] = divided.next().expect("the machine itself is a part");
            for ((next, _), of) in beyond.into_iter().zip(divided) {
                work[next] = of;
            }
        }
        work
    }

    /// All machines from the core outward, with those that hang on them.
    fn beyond(&self) -> Vec<(usize, Vec<(usize, Edge)>)> {
        let mut of: Vec<Vec<(usize, Edge)>> = vec![Vec::new(); self.platform.machines.len()];
        self.hanging.iter().for_each(|(machine, before, edge)| of[*before].push((*machine, *edge)));
        let outward = self.core.iter().copied().chain(self.hanging.iter().map(|(machine, ..)| *machine));
        outward.map(|machine| (machine, std::mem::take(&mut of[machine]))).collect()
    }

    fn tasks(&self, work_mops: &[f64]) -> Vec<f64> {
        self.platform.applications.iter().zip(work_mops).map(|(of, work)| work / (of.gflop * 1e3)).collect()
    }

    /// Whole tasks of so many seconds by machine and application: every machine divides what reaches it in proportion to the
    /// rates there.
    pub(super) fn whole(&self, rates: &[Vec<f64>], seconds: f64) -> Vec<Vec<u64>> {
        let count = self.ratios.applications();
        let mut sums = rates.to_vec();
        for &(machine, before, _) in self.hanging.iter().rev() {
            let of: Vec<f64> = sums[machine].clone();
            sums[before].iter_mut().zip(of).for_each(|(sum, rate)| *sum += rate);
        }
        let mut tasks = vec![vec![0; count]; rates.len()];
        for application in 0..count {
            let of_core: Vec<f64> = self.core.iter().map(|machine| sums[*machine][application]).collect();
            let all = (of_core.iter().sum::<f64>() * seconds).floor() as u64;
            for (machine, given) in self.core.iter().zip(whole_tasks(all, &of_core)) {
                tasks[*machine][application] = given;
            }
        }
        for (machine, beyond) in self.beyond() {
            for application in 0..count {
                let mut shares = vec![rates[machine][application]];
                shares.extend(beyond.iter().map(|(next, _)| sums[*next][application]));
                let divided = whole_tasks(tasks[machine][application], &shares);
                for (place, given) in [machine].into_iter().chain(beyond.iter().map(|(next, _)| *next)).zip(divided) {
                    tasks[place][application] = given;
                }
            }
        }
        tasks
    }

    /// What still runs, in tasks/s, after machines changed and before the next wave: `before` are the rates of the last one; each machine keeps to what its
    /// processor can do now, and edges carry less than before.
    pub(super) fn clipped(&self, before: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let clip = |(machine, of): (usize, &Vec<f64>)| {
            let work: Vec<f64> =
                self.platform.applications.iter().zip(of).map(|(of, rate)| rate * of.gflop * 1e3).collect();
            let own = own(self.platform, &self.ratios, machine);
            self.tasks(&Absorption::divide(&self.ratios, &work, &[own])[0])
        };
        before.iter().enumerate().map(clip).collect()
    }
}

fn own(platform: &Platform, ratios: &Ratios, machine: usize) -> Absorption {
    Absorption::of_machine(ratios, platform.machines[machine].gflop_s * 1e3, f64::INFINITY)
}

/// The machines on the paths between the masters, by number, so that parents stand first.
fn core(platform: &Platform, ways: &[Way]) -> Vec<usize> {
    let mut is_core = vec![false; platform.machines.len()];
    let Some(first) = ways.first() else { return Vec::new() };
    is_core[first.master] = true;
    ways.iter().for_each(|way| is_core[way.master] = true);
    for &(machine, before, _) in first.outward.iter().rev() {
        is_core[before] |= is_core[machine];
    }
    (0..is_core.len()).filter(|machine| is_core[*machine]).collect()
}
