//! Bandwidth-centric rates (Beaumont, Carter, Ferrante, Legrand and Robert 2002): what a tree does of a single application. A machine serves itself
//! first and then its children by descending bandwidth.

use idlewood_scheduler::shares::Task;

use super::platform::{Platform, Rates};

/// Tasks/s of each machine where all of them have this one kind of task: as many as possible.
pub(super) fn rates(platform: &Platform, task: Task) -> Vec<f64> {
    let children = by_bandwidth(platform);
    let speed = |machine: usize| platform.machines[machine].mflop_s / task.mop;
    let link = |machine: usize| platform.machines[machine].mb_s * 1e6 / task.bytes;
    // What each subtree would do if nothing limited what reaches it.
    let mut most: Vec<f64> = (0..platform.machines.len()).map(speed).collect();
    for machine in (0..platform.machines.len()).rev() {
        let mut free = 1.0_f64;
        for &child in &children[machine] {
            let share = (most[child] / link(child)).min(free);
            most[machine] += share * link(child);
            free -= share;
        }
    }
    let mut rates = vec![0.0; platform.machines.len()];
    let mut reaching = vec![0.0; platform.machines.len()];
    reaching[0] = most[0];
    for machine in 0..platform.machines.len() {
        rates[machine] = reaching[machine].min(speed(machine));
        let (mut left, mut free) = (reaching[machine] - rates[machine], 1.0_f64);
        for &child in &children[machine] {
            reaching[child] = left.min(most[child]).min(free * link(child));
            left -= reaching[child];
            free -= reaching[child] / link(child);
        }
    }
    rates
}

/// Children of each machine, the largest bandwidth first.
pub(super) fn by_bandwidth(platform: &Platform) -> Vec<Vec<usize>> {
    let mut children = platform.children();
    let bandwidth = |machine: &usize| platform.machines[*machine].mb_s;
    children.iter_mut().for_each(|of| of.sort_by(|one, other| bandwidth(other).total_cmp(&bandwidth(one))));
    children
}

/// ω_k tasks of each application, as one (§4.3).
pub(super) fn macro_task(platform: &Platform) -> Task {
    let mut sum = Task { mop: 0.0, bytes: 0.0 };
    for of in &platform.applications {
        sum.mop += of.weight * of.mflop;
        sum.bytes += of.weight * of.mb * 1e6;
    }
    sum
}

/// Rates of CGBC: bandwidth-centric ones of the macro-task.
pub(super) fn coarse_grain(platform: &Platform) -> Rates {
    let of_machine = |rate: &f64| platform.applications.iter().map(|of| of.weight * rate).collect();
    rates(platform, macro_task(platform)).iter().map(of_machine).collect()
}
