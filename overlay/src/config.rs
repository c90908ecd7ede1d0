//! What can be tuned, with the source of every default.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes of a report besides its payload, about what they are in CBOR.
const REPORT_BYTES: u64 = 48;
/// Tenths of the rate limit that each of a router's two children gets; the rest is for everything but payloads.
const SHARE_TENTHS: u64 = 4;

/// Timings and bounds of the overlay. All peers of a grid should use the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A neighbour, parent or child that was silent for so long is pinged. 100 to 600,000 ms, default 5,000: the
    /// prototype's; five times as often in the upper tree gained nothing there.
    pub heartbeat_ms: u64,
    /// Spread of the heartbeat and of all slower periods, so that peers do not march in step. 0 to 50 %, default 5:
    /// the prototype's.
    pub jitter_percent: u64,
    /// Shortest wait for an answer before the next try; a try waits for as long as answers took on that path
    /// (RFC 6298), the last one twice as long, within these bounds. 10 ms to `probe_timeout_ms_max`, default 250: the
    /// prototype's.
    pub probe_timeout_ms_min: u64,
    /// Longest wait for an answer before the next try. Up to 60,000 ms, default 4,000: twice the longest round trip
    /// between homes; the prototype's 1,000 took machines for dead that were further away (docs/adr/0036).
    pub probe_timeout_ms_max: u64,
    /// Tries before a peer counts as crashed. 1 to 10, default 4: with the prototype's 3, where 5 % of all messages are
    /// lost, several times as many deaths were false (docs/adr/0036).
    pub probe_tries: u32,
    /// Neighbours kept on either side of the line. 2 to 32, default 8: the prototype's.
    pub leaf_set_side_len: usize,
    /// A child that was silent for so long is unlinked. At least two heartbeats with their spread and
    /// `probe_timeout_ms_max`, default 15,000 ms: three heartbeats.
    pub child_lease_ms: u64,
    /// Wait before a refused report is tried again; doubles while it goes on being refused, up to the heartbeat.
    /// 10 ms to `heartbeat_ms`, default 300: the prototype's (crash repair p99 11.3 → 8.2 s).
    pub nack_retry_ms: u64,
    /// Reports on one link are at least so far apart, however much changes. 0 to `nack_retry_ms`, default 50:
    /// our guess.
    pub report_spacing_ms: u64,
    /// Members of the leaf set that are not next to us are pinged after so long a silence, and sparse finger buckets
    /// are filled so often. At least `heartbeat_ms`, default 60,000: the prototype's 30,000 cost a tenth of all
    /// messages of a quiet grid without a visible gain (docs/adr/0006).
    pub exchange_ms: u64,
    /// Period of the look-up of the own key when nothing changes; after a change next to us it begins at a second
    /// and doubles up to this. At least 1,000 ms, default 60,000: the prototype's.
    pub lookup_ms: u64,
    /// For so long, no other peer's claim makes a peer that crashed or left count as alive. At least `heartbeat_ms`,
    /// default 60,000: the prototype's.
    pub tombstone_ms: u64,
    /// Lost peers that are remembered, to heal partitions. 1 to 4,096, default 64: the prototype's.
    pub graveyard_len: usize,
    /// Period of probing lost peers. At least `heartbeat_ms`, default 30,000: the prototype's.
    pub graveyard_probe_ms: u64,
    /// Fingers kept for each length of prefix shared with us. 1 to 16, default 3: a quarter less memory than the
    /// prototype's 4 for as many messages of a look-up.
    pub fingers_per_bucket: usize,
    /// How long a leaving peer repeats its farewell to peers that missed it. 0 to 60,000 ms, default 1,000: the
    /// prototype's.
    pub leave_linger_ms: u64,
    /// Average rate at which a parent receives from its children: each of the two has two fifths of it for its reports.
    /// At least 100 B/s, default 10,000: the paper's (§5.3), where each child has all of it.
    pub report_rate_bytes_per_s: u64,
    /// A parent pushes changes of the root to a child at most so often. 10 to 600,000 ms, default 1,000: our guess.
    pub root_push_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            heartbeat_ms: 5_000,
            jitter_percent: 5,
            probe_timeout_ms_min: 250,
            probe_timeout_ms_max: 4_000,
            probe_tries: 4,
            leaf_set_side_len: 8,
            child_lease_ms: 15_000,
            nack_retry_ms: 300,
            report_spacing_ms: 50,
            exchange_ms: 60_000,
            lookup_ms: 60_000,
            tombstone_ms: 60_000,
            graveyard_len: 64,
            graveyard_probe_ms: 30_000,
            fingers_per_bucket: 3,
            leave_linger_ms: 1_000,
            report_rate_bytes_per_s: 10_000,
            root_push_ms: 1_000,
        }
    }
}

impl Config {
    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// A sentence that names the field and says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        let day_ms = 86_400_000;
        let ranges = [
            ("heartbeat_ms", self.heartbeat_ms, 100, 600_000),
            ("jitter_percent", self.jitter_percent, 0, 50),
            ("probe_timeout_ms_max", self.probe_timeout_ms_max, 10, 60_000),
            ("probe_timeout_ms_min", self.probe_timeout_ms_min, 10, self.probe_timeout_ms_max),
            ("probe_tries", u64::from(self.probe_tries), 1, 10),
            ("leaf_set_side_len", self.leaf_set_side_len as u64, 2, 32),
            ("child_lease_ms", self.child_lease_ms, self.child_lease_ms_min(), day_ms),
            ("nack_retry_ms", self.nack_retry_ms, 10, self.heartbeat_ms),
            ("report_spacing_ms", self.report_spacing_ms, 0, self.nack_retry_ms),
            ("exchange_ms", self.exchange_ms, self.heartbeat_ms, day_ms),
            ("lookup_ms", self.lookup_ms, 1_000, day_ms),
            ("tombstone_ms", self.tombstone_ms, self.heartbeat_ms, day_ms),
            ("graveyard_len", self.graveyard_len as u64, 1, 4_096),
            ("graveyard_probe_ms", self.graveyard_probe_ms, self.heartbeat_ms, day_ms),
            ("fingers_per_bucket", self.fingers_per_bucket as u64, 1, 16),
            ("leave_linger_ms", self.leave_linger_ms, 0, 60_000),
            ("report_rate_bytes_per_s", self.report_rate_bytes_per_s, 100, 1 << 40),
            ("root_push_ms", self.root_push_ms, 10, 600_000),
        ];
        for (name, value, low, high) in ranges {
            if value < low || value > high {
                return Err(format!("{name} = {value} is out of range: write a value from {low} to {high}"));
            }
        }
        Ok(())
    }

    /// The shortest `child_lease_ms` that [`Self::validate`] allows: two reports are a heartbeat and a round trip apart,
    /// and one of them may be lost.
    pub fn child_lease_ms_min(&self) -> u64 {
        let heartbeat_ms_max = self.heartbeat_ms.saturating_mul(100 + self.jitter_percent) / 100;
        heartbeat_ms_max.saturating_mul(2).saturating_add(self.probe_timeout_ms_max)
    }

    /// The shortest and the longest wait for an answer.
    pub(crate) fn probe_timeouts(&self) -> (Duration, Duration) {
        (Duration::from_millis(self.probe_timeout_ms_min), Duration::from_millis(self.probe_timeout_ms_max))
    }

    /// How long a payload of so many bytes occupies a child's share of its parent's rate limit.
    pub(crate) fn payload_spacing(&self, bytes: usize) -> Duration {
        let bytes = (bytes as u64).saturating_add(REPORT_BYTES);
        Duration::from_micros(bytes.saturating_mul(10_000_000 / SHARE_TENTHS) / self.report_rate_bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_a_refusal_names_the_field() {
        assert_eq!(Config::default().validate(), Ok(()));
        let config = Config { child_lease_ms: 5_000, ..Config::default() };
        assert!(config.validate().unwrap_err().starts_with("child_lease_ms = 5000 is out of range"));
    }
}
