//! Whether a bag may queue here: what its submitter signed of it is fetched, and judged by the grid's rules and the owner's
//! wishes, before anything of it does ([`idlewood_scheduler::Effect::Authorise`]). Its manifest comes later, when this machine
//! holds tasks of it.

use idlewood_scheduler::{Approval, BagHeader, BagId, DeclineReason, Event};
use idlewood_trust::label::Label;
use idlewood_trust::{Refused, Unauthorised};
use idlewood_units::clock::wall_now;

use super::done::Done;
use super::driver::Driver;
use super::signed::{self, fits};
use super::supplies::{self, Supplies};
use crate::settings::Objection;

impl From<Objection> for DeclineReason {
    fn from(objection: Objection) -> Self {
        match objection {
            Objection::Submitter => Self::Submitter,
            Objection::Program => Self::Program,
            Objection::Native => Self::Native,
        }
    }
}

impl Supplies {
    /// Judges an authorised bag again: its submitter may have been revoked or expired since, or the owner may object.
    fn wishes(&self, label: &Label) -> Result<(), DeclineReason> {
        self.gate.standing(label.submitter)?;
        self.owners_objection(label).map_or(Ok(()), |objection| Err(objection.into()))
    }

    /// Why a bag that is here must go: its submitter was thrown out, or the owner has changed their mind. A
    /// certificate that has just expired may have been renewed elsewhere: running tasks go on.
    fn unwanted(&self, label: &Label) -> Option<DeclineReason> {
        match self.gate.standing(label.submitter) {
            Ok(()) | Err(Unauthorised::Refused(Refused::Expired)) => self.owners_objection(label).map(Into::into),
            Err(error) => Some(error.into()),
        }
    }
}

impl Driver {
    /// Stops the tasks of bags that may not be here any more, and gives them back.
    pub(super) fn withdraw_unwanted(&mut self) {
        let running = self.execution.manifests();
        let held = self.peer().held();
        let held = held.iter().filter(|held| held.waiting + held.running > 0).map(|held| held.bag);
        for bag in held {
            let label = running.get(&bag).map(|manifest| manifest.label()).or_else(|| self.shared.manifests.label(bag));
            if let Some(reason) = label.and_then(|label| self.shared.supplies.unwanted(&label)) {
                tracing::warn!(%bag, %reason, "a bag may not be here any more: its tasks stop and go back");
                self.feed(Event::Authorised { bag, verdict: Err(reason) });
            }
        }
    }

    /// A request for a bag of which nothing is here: may it queue?
    pub(super) fn authorise(&mut self, bag: BagHeader) {
        let id = bag.id;
        if let Some(label) = self.shared.manifests.label(id) {
            let verdict = if fits(&bag, &label) { self.judge(id, &label) } else { Err(DeclineReason::Forged) };
            return self.shared.events.follow_up(self.verdict(id, verdict));
        }
        let (supplies, origin) = (self.shared.supplies.clone(), supplies::origin(self.peer(), id, &bag.submitter));
        let look = async move { Done::Authorised { bag: id, label: signed::label(&supplies, &bag, &origin).await } };
        self.shared.jobs.spawn(look, Done::Authorised { bag: id, label: Err(DeclineReason::Unavailable) });
    }

    /// A bag has been looked at.
    pub(super) fn authorised(&mut self, bag: BagId, label: Result<Label, DeclineReason>) {
        let verdict = label.and_then(|label| {
            let approval = self.judge(bag, &label)?;
            self.shared.manifests.remember_label(bag, label);
            Ok(approval)
        });
        let event = self.verdict(bag, verdict);
        self.feed(event);
    }

    fn judge(&mut self, bag: BagId, label: &Label) -> Result<Approval, DeclineReason> {
        if label.memory_bytes > self.shared.memory_cap(false).0 {
            return Err(DeclineReason::Size);
        }
        self.shared.supplies.wishes(label)?;
        Ok(Approval { signed_ago: label.age(wall_now()), at_hand: self.shared.manifests.get(bag).is_some() })
    }

    fn verdict(&self, bag: BagId, verdict: Result<Approval, DeclineReason>) -> Event {
        if let Err(reason) = verdict {
            tracing::info!(%bag, %reason, "tasks of a bag do not queue here");
        }
        Event::Authorised { bag, verdict }
    }
}
