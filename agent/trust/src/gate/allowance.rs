//! How much one machine may say about the grid.

/// Messages about the grid that one peer may send at once, and per second in the long run: a whole set of revocations
/// takes 32 pages.
pub(super) const GOSSIP_BURST: f64 = 64.0;
const GOSSIP_PER_S: f64 = 1.0;

/// What a connected machine may still say.
#[derive(Clone, Copy, Debug)]
pub(super) struct GossipAllowance {
    messages: f64,
    /// When that was so.
    at_s: u64,
}

impl Default for GossipAllowance {
    /// That of a machine which has said nothing.
    fn default() -> Self {
        Self { messages: GOSSIP_BURST, at_s: 0 }
    }
}

impl GossipAllowance {
    /// The same amount, which grows again from this moment.
    pub(super) fn regrowing_from(self, now_s: u64) -> Self {
        Self { at_s: now_s, ..self }
    }

    /// Uses it for one more message. False: it is used up.
    pub(super) fn take(&mut self, now_s: u64) -> bool {
        let passed_s = now_s.saturating_sub(self.at_s) as f64;
        self.messages = (self.messages + passed_s * GOSSIP_PER_S).min(GOSSIP_BURST);
        self.at_s = now_s;
        if self.messages < 1.0 {
            return false;
        }
        self.messages -= 1.0;
        true
    }
}
