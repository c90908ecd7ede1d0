//! A stretch per submitter: what a bag's deadline is computed from on a machine that has other bags of its submitter (ours;
//! the paper knows no submitters; docs/adr/0017).
//!
//! A bag that is split into k pieces would have k deadlines, each as early as that of a bag of its own. So what a submitter
//! has here at the same time is one application: a bag that comes while others of its submitter are here weighs what the
//! submitter has here with it. With [`PerSubmitter::Line`] these stand in a line of their own, the smallest first, and each
//! weighs as much as it and those before it do together: the last is due when the whole would be, and a small bag does not
//! wait for a large one of the same user.
//!
//! Nobody here knows what the submitter has on other machines. But what is here tells: a bag of n tasks has one on each of N
//! machines with probability n/N where it is small, and on all of them where it is not, so that the sum of the *effective*
//! sizes a·max(n, N) of what is here is, in the mean over machines, the sum of all n·a. The bag itself, which is here for
//! certain, counts with n·a, and never for less than its own effective size.
//!
//! What was counted stays counted when one of them ends: else the rest would be overdue. Of a bag that was here before counts
//! the share that is not finished here, so that a user who submits one bag after the other loses nothing.
//!
//! Left out: asking the submitter, who could say anything; bags that ended between two lives of this machine; who submits
//! under several names.

use super::Executor;
use super::held::Held;
use crate::bag::BagId;
use crate::config::PerSubmitter;

impl Held {
    /// What decides the place in the line: size, then the first to come.
    fn place(&self) -> (f64, i64, BagId) {
        (self.bag.application_size_mops, self.released.as_micros(), self.bag.id)
    }

    /// What of its size is still to be done, judged by its tasks here.
    fn open_mops(&self) -> f64 {
        let open = self.unfinished().len() as f64;
        let all = open + self.finished.0 as f64;
        if all > 0.0 { self.bag.application_size_mops * open / all } else { 0.0 }
    }
}

impl Executor {
    /// A bag is new here: it and the others of its submitter weigh more from now on.
    pub(super) fn weigh(&mut self, new: BagId) {
        let rule = self.per_submitter;
        let Some((submitter, place, size_mops)) =
            self.held.get(&new).map(|held| (held.bag.submitter.peer, held.place(), held.bag.application_size_mops))
        else {
            return;
        };
        let mut with_mops = 0.0;
        for held in self.held.values_mut().filter(|held| held.bag.id != new && held.bag.submitter.peer == submitter) {
            let is_before = held.place() < place;
            let (weighs_on_new, weighs_on_it) = match rule {
                PerSubmitter::Off => (false, false),
                PerSubmitter::Line => (is_before, !is_before),
            };
            if weighs_on_new {
                with_mops += held.open_mops();
            }
            if weighs_on_it {
                held.with_mops += size_mops;
            }
        }
        if let Some(held) = self.held.get_mut(&new) {
            held.with_mops = with_mops;
        }
    }
}
