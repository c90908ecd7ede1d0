//! Whether a bag may queue here: what its submitter signed of it is fetched, and judged by the grid's rules and the owner's
//! wishes, before anything of it does ([`idlewood_machine::Effect::Authorise`]). Its manifest comes later, when this machine
//! holds tasks of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::Blobs;
use idlewood_scheduler::{Approval, BagHeader, BagId, DeclineReason, Enclosed, Event, Peer};
use idlewood_trust::label::Label;
use idlewood_trust::manifest::{Manifest, Source};
use idlewood_trust::{Refused, Unauthorised};
use idlewood_units::clock::wall_now;

use super::done::Done;
use super::shared::Shared;
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

/// Stops the tasks of bags that may not be here any more, and gives them back. Workers run tasks of bags with these manifests.
pub(super) fn withdraw_unwanted(running: &BTreeMap<BagId, Arc<Manifest>>, peer: &Peer, shared: &mut Shared) {
    let held = peer.held();
    let held = held.iter().filter(|held| held.waiting + held.running > 0).map(|held| held.bag);
    for bag in held {
        let label = running.get(&bag).map(|manifest| manifest.label()).or_else(|| shared.manifests.label(bag));
        if let Some(reason) = label.and_then(|label| unwanted(&shared.supplies, &label)) {
            tracing::warn!(%bag, %reason, "a bag may not be here any more: its tasks stop and go back");
            shared.events.tell(Event::Authorised { bag, verdict: Err(reason) });
        }
    }
}

/// A request for a bag of which nothing is here: may it queue?
pub(super) fn authorise(bag: BagHeader, envelope: Enclosed, peer: &Peer, shared: &mut Shared) {
    let id = bag.id;
    if let Some(label) = shared.manifests.label(id) {
        let verdict = if fits(&bag, &label) { judge(id, &label, shared) } else { Err(DeclineReason::Forged) };
        return shared.events.follow_up(told(id, verdict));
    }
    let (supplies, mut origin) = (shared.supplies.clone(), supplies::origin(peer, id, &bag.submitter));
    origin.enclosed.push(envelope);
    let look = async move { Done::Authorised { bag: id, label: signed::label(&supplies, &bag, &origin).await } };
    shared.jobs.spawn(look, Done::Authorised { bag: id, label: Err(DeclineReason::Unavailable) });
}

/// A bag has been looked at.
pub(super) fn authorised(bag: BagId, label: Result<Label, DeclineReason>, shared: &mut Shared) {
    let verdict = label.and_then(|label| {
        let approval = judge(bag, &label, shared)?;
        shared.manifests.remember_label(bag, label);
        Ok(approval)
    });
    shared.events.tell(told(bag, verdict));
}

fn judge(bag: BagId, label: &Label, shared: &mut Shared) -> Result<Approval, DeclineReason> {
    if label.memory_bytes > shared.memory_cap(false).0 {
        return Err(DeclineReason::Size);
    }
    wishes(&shared.supplies, label)?;
    let at_hand = shared.manifests.get(bag).is_some_and(|manifest| are_here(&manifest, &shared.supplies.blobs));
    Ok(Approval { signed_ago: label.age(wall_now()), at_hand, program: Some(label.program) })
}

/// Whether nothing that any task of a bag needs has to be fetched, which takes the bag's key.
fn are_here(manifest: &Manifest, blobs: &Blobs) -> bool {
    let come_with_tasks = manifest.source == Some(Source::Files);
    !come_with_tasks && manifest.blobs().all(|input| blobs.len(Hash::from_bytes(input.blob.0)).is_some())
}

/// What the machine hears of a verdict.
fn told(bag: BagId, verdict: Result<Approval, DeclineReason>) -> Event {
    if let Err(reason) = verdict {
        tracing::info!(%bag, %reason, "tasks of a bag do not queue here");
    }
    Event::Authorised { bag, verdict }
}

/// Judges an authorised bag again: its submitter may have been revoked or expired since, or the owner may object.
fn wishes(supplies: &Supplies, label: &Label) -> Result<(), DeclineReason> {
    supplies.gate.standing(label.submitter)?;
    supplies.owners_objection(label).map_or(Ok(()), |objection| Err(objection.into()))
}

/// Why a bag that is here must go: its submitter was thrown out, or the owner has changed their mind. A certificate that has just
/// expired may have been renewed elsewhere: running tasks go on.
fn unwanted(supplies: &Supplies, label: &Label) -> Option<DeclineReason> {
    match supplies.gate.standing(label.submitter) {
        Ok(()) | Err(Unauthorised::Refused(Refused::Expired)) => supplies.owners_objection(label).map(Into::into),
        Err(error) => Some(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::BlobId;
    use idlewood_trust::manifest::Input;

    use super::super::task::tests::manifest;
    use super::*;

    #[test]
    fn a_bag_is_at_hand_where_nothing_has_to_be_fetched_for_any_task() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let blobs = Blobs::open(&root.path().join("blobs"), 1 << 20).expect("an empty directory");
        let kept = |bytes: &[u8]| BlobId(*blobs.put_bytes(bytes).expect("there is room").as_bytes());
        let input = |blob| Input { name: "input".to_owned(), blob, bytes: 1 };
        let bag = Manifest { program: input(kept(b"program")), ..manifest() };
        assert!(are_here(&bag, &blobs));
        let with = |blob| Manifest { inputs: vec![input(blob)], ..bag.clone() };
        assert!(are_here(&with(kept(b"input")), &blobs));
        assert!(!are_here(&with(BlobId([7; 32])), &blobs), "an input");
        assert!(!are_here(&Manifest { program: input(BlobId([7; 32])), ..bag.clone() }, &blobs), "the program");
        assert!(!are_here(&Manifest { source: Some(Source::Files), ..bag }, &blobs), "files that come with tasks");
    }
}
