//! What settings say of the machine's peer.

use std::time::Duration;

use idlewood_scheduler::Config;
use idlewood_units::ByteSize;

use super::Settings;

/// How long a bag lasts before others are asked to keep it, where its owner wants tickets of bags, which are of use once others keep it.
/// Our choice.
const APPOINT_FOR_TICKETS: Duration = Duration::from_secs(2);

impl Settings {
    /// The peer's settings as these say, but for what a machine measures or `idlewood run` is told: slots, speed, and whether there is a
    /// grid.
    pub fn peer(&self) -> Config {
        let shipped = Config::default();
        let (uplink, downlink) = self.limits.rates_now(false);
        let kb_s =
            |rate: Option<ByteSize>| rate.map_or(0, |rate| u32::try_from(rate.0 / 1000).unwrap_or(u32::MAX).max(1));
        Config {
            slots: self.limits.slots.get(),
            vacate_after: self.owner.vacate.0,
            submitter_work_max: self.bags.work_per_submitter.0,
            stewards: self.submit.stewards.get(),
            kept_bags_max: self.limits.keep.get(),
            // What else this machine has on its disk, its own results among it, takes the rest.
            kept_result_bytes_max: self.limits.disk.0 / 4,
            // The other half is for what else this machine keeps.
            undrained_bytes_max: (self.limits.disk.0 / 2).max(1),
            endless_share: f64::from(self.bags.endless_share.get()) / 100.0,
            uplink_kb_s: kb_s(uplink),
            downlink_kb_s: kb_s(downlink),
            appoint_after: self.submit.tickets.as_ref().map_or(shipped.appoint_after, |_| APPOINT_FOR_TICKETS),
            ..shipped
        }
    }
}
