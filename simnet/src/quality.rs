//! How links behave.

/// Behaviour of all links alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// One way, in microseconds.
    pub latency_us: u64,
    /// Spread of the latency, ± microseconds, at most the latency.
    pub jitter_us: u64,
    /// Messages lost, in percent.
    pub loss_percent: f64,
    /// Messages that arrive twice, each copy with a latency of its own, in percent.
    pub duplicate_percent: f64,
    /// Messages that are held back, in percent.
    pub reorder_percent: f64,
    /// How long they are held back at most, in microseconds.
    pub reorder_us: u64,
}

impl Default for Quality {
    /// 50 ms (the paper's) ± 10 % and nothing wrong.
    fn default() -> Self {
        Self {
            latency_us: 50_000,
            jitter_us: 5_000,
            loss_percent: 0.0,
            duplicate_percent: 0.0,
            reorder_percent: 0.0,
            reorder_us: 0,
        }
    }
}
