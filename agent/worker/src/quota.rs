//! How much of the processors this process may use, by the control groups that it is in.
//!
//! [`speed`](crate::speed) is measured in processor time, of which a container or a service with a quota gets less than the clock shows.

use std::fs;
use std::path::Path;

use crate::group::own_group;

/// Processors that this process and all others in its control groups may use together at a time, as a number that need not be whole; `None`:
/// all there are. By the groups of version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`); quotas of the groups above count, too.
pub fn processors() -> Option<f64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    let unified = own_group(&mounts, &own, None).and_then(|group| least(&group, of_unified));
    let separate = own_group(&mounts, &own, Some("cpu")).and_then(|group| least(&group, of_separate));
    unified.into_iter().chain(separate).reduce(f64::min)
}

/// The least of the quotas of a group and those above.
fn least(group: &Path, quota: fn(&Path) -> Option<f64>) -> Option<f64> {
    group.ancestors().filter_map(quota).filter(|processors| *processors > 0.0).reduce(f64::min)
}

fn of_unified(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

fn of_separate(group: &Path) -> Option<f64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<f64>().ok();
    Some(number("cpu.cfs_quota_us")? / number("cpu.cfs_period_us")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_quota_on_the_way_up_counts() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let group = root.path().join("user/agent");
        fs::create_dir_all(&group).expect("our directory");
        assert_eq!(least(&group, of_unified), None);
        fs::write(group.join("cpu.max"), "max 100000\n").expect("our directory");
        assert_eq!(least(&group, of_unified), None, "nobody limits it");
        fs::write(root.path().join("user/cpu.max"), "50000 100000\n").expect("our directory");
        assert_eq!(least(&group, of_unified), Some(0.5));
        fs::write(group.join("cpu.max"), "150000 100000\n").expect("our directory");
        assert_eq!(least(&group, of_unified), Some(0.5));
        fs::write(group.join("cpu.cfs_period_us"), "100000\n").expect("our directory");
        for (quota, expected) in [("-1\n", None), ("20000\n", Some(0.2)), ("", None)] {
            fs::write(group.join("cpu.cfs_quota_us"), quota).expect("our directory");
            assert_eq!(least(&group, of_separate), expected, "{quota}");
        }
    }
}
