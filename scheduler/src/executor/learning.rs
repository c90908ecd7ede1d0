//! How long programs take here: what ended tasks show of a program corrects what is expected of its other bags and tasks on this machine
//! ([`crate::factors`]), and so the queue, what the leaf's summary offers, and which begun tasks are late.
//!
//! Only times are corrected. Deadlines follow from sizes as submitters say them, which are the same on all machines: a program that is
//! slow here must not bring its bag another turn here than elsewhere. Sizes that are far from the truth are corrected by `rating`.
//!
//! Left out: bags submitted here, whose work was measured on this very machine.

use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
use crate::bag::{BagId, BlobId};

/// A factor that has moved by less is not news. Our choice: else each end of a task would change the order and the summary.
const NEWS: f64 = 0.05;
/// A worker's first task of a program takes longer, since the program is fetched and compiled meanwhile: a second or so, ten on a slow link. Tasks
/// that are shorter than this tell nothing of those that follow. Our choice.
const START_UP_MAX: Duration = Duration::from_secs(60);

impl Executor {
    /// The driver says what a bag runs.
    pub(super) fn runs(&mut self, bag: BagId, program: Option<BlobId>) {
        let Some((held, program)) = self.bags.get_mut(&bag).zip(program) else { return };
        held.program = Some(program);
        self.corrects(program, self.factors.of(program));
    }

    /// A task succeeded here, the first of its program on its worker or a later one, after so many times the iterations of others. How long it ran is
    /// learned, and not how much it computed: that is next to nothing where a task waits for something.
    pub(super) fn learn(&mut self, running: &Running, times: f64, is_first: bool, now: Time) {
        let ran = running.active(now);
        if is_first && ran < START_UP_MAX {
            return;
        }
        let Some(held) = self.bags.get(&running.task.bag) else { return };
        let Some(program) = held.program else { return };
        let done_mops = running.done_mops(self.speed_mops, now);
        let factor = self.factors.note(program, done_mops / times / held.bag.task_mops);
        self.corrects(program, factor);
    }

    /// Slots are faster or slower by the clock from now on. Submitters who prefer machines by their speeds are told at once.
    pub(crate) fn change_speed(&mut self, speed_mops: f64, now: Time) {
        self.places.count_work(self.speed_mops, now);
        self.speed_mops = speed_mops;
        for held in self.bags.values_mut().filter(|held| held.says_capacity()) {
            held.updates.send_holding_now(now);
        }
        self.order_stale = true;
        self.changed = true;
    }

    /// All bags that run a program are expected to take so many times what was said.
    fn corrects(&mut self, program: BlobId, factor: f64) {
        let is_news = |held: &HeldBag| held.program == Some(program) && (factor / held.factor - 1.0).abs() > NEWS;
        let bags: Vec<BagId> = self.bags.values().filter(|held| is_news(held)).map(|held| held.bag.id).collect();
        for bag in bags {
            if let Some(held) = self.bags.get_mut(&bag) {
                held.factor = factor;
                self.order_stale = true;
                self.changed = true;
            }
        }
    }
}
