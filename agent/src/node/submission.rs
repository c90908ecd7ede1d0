//! Taking a bag: its manifest is made, everything is kept durably, then the peer gets it.

use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagId, Event, Submission};
use idlewood_trust::envelope::{self, Envelope};
use idlewood_trust::manifest::{MANIFEST_BYTES_MAX, MANIFEST_VERSION, Manifest};
use idlewood_trust::{Gate, now_s};

use super::driver::{Done, Driver};
use super::pin::Pin;
use crate::handle::{Refusal, Reply, answer};

/// Submissions that are checked and kept at the same time.
const ACCEPTING_MAX: usize = 64;

/// A submission whose manifest, program and inputs are durable.
#[derive(Debug)]
pub(super) struct Accepted {
    submission: Submission,
    manifest: Arc<Manifest>,
    /// They stay until the bag's record keeps them.
    pins: Vec<Pin>,
}

impl Driver {
    /// Makes the manifest and keeps everything durably, beside the loop.
    pub(super) fn submit(&mut self, request: idlewood_api::SubmitRequest, reply: Reply<idlewood_api::Bag>) {
        if self.accepting >= ACCEPTING_MAX {
            let why = format!("{ACCEPTING_MAX} submissions are being taken already: submit it again in a moment");
            return answer(reply, Err(Refusal::Unavailable(why)));
        }
        if request.native && request.work_mops.is_none() && !self.supplies.confines_natives {
            let why = "no native program can be confined on this machine (idlewood doctor says why), so that the first task \
                       cannot show how long one takes: say it with --work";
            return answer(reply, Err(Refusal::Conflict(why.to_owned())));
        }
        self.accepting += 1;
        let (blobs, gate, me) = (self.supplies.blobs.clone(), self.gate.clone(), self.peer().me().peer);
        let take = async move {
            let result = tokio::task::spawn_blocking(move || accept(&blobs, &gate, me, request)).await;
            let result =
                result.unwrap_or_else(|error| Err(Refusal::Unavailable(format!("the bag could not be kept: {error}"))));
            Done::Accepted { result: result.map(Box::new), reply }
        };
        self.jobs.spawn(take, Done::AcceptLost);
    }

    /// Hands the bag to the peer; whoever submitted it hears of it when that is durable too.
    pub(super) fn accepted(&mut self, result: Result<Box<Accepted>, Refusal>, reply: Reply<idlewood_api::Bag>) {
        self.accepting -= 1;
        let Accepted { submission, manifest, pins } = match result {
            Ok(accepted) => *accepted,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        if let Err(error) = self.peer().check(&submission) {
            return answer(reply, Err(Refusal::Invalid(error.to_string())));
        }
        self.pins.learn(submission.id, Some(&manifest));
        drop(pins);
        self.manifests.remember(submission.id, manifest);
        self.submitting.insert(submission.id, reply);
        self.feed(Event::Submitted(submission));
    }

    /// The submission of a bag is durable: whoever submitted it may know.
    pub(super) fn answer_submission(&mut self, bag: BagId) {
        let Some(reply) = self.submitting.remove(&bag) else { return };
        let gone = || Refusal::Unavailable("the bag was given up meanwhile".to_owned());
        answer(reply, self.peer().bag(bag).map(|view| self.bag_view(&view)).ok_or_else(gone));
    }
}

/// Blocks.
fn accept(
    blobs: &Arc<Blobs>,
    gate: &Gate,
    submitter: PeerId,
    request: idlewood_api::SubmitRequest,
) -> Result<Accepted, Refusal> {
    let mut manifest = Manifest {
        version: MANIFEST_VERSION,
        name: request.name,
        submitter,
        nonce: rand::random(),
        made_s: now_s(),
        tasks: request.tasks,
        program: request.program,
        args: request.args,
        entries: request.entries,
        inputs: request.inputs,
        stdin: request.stdin,
        env: request.env,
        memory_bytes: request.memory_bytes,
        disk_bytes: request.disk_bytes,
        time_limit_s: request.time_limit_s,
        success_codes: request.success_codes,
        deterministic: request.deterministic || request.replication.quorum > 1,
        native: request.native,
        blob: None,
    };
    manifest.validate().map_err(|error| Refusal::Invalid(error.to_string()))?;
    let bytes = manifest.encode();
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(Refusal::Invalid("the list of entries is too long: submit it as several bags".to_owned()));
    }
    let envelope = Envelope::of(&manifest, &bytes);
    let signed = gate.sign_bag(envelope.encode()).map_err(|_| {
        let role = gate.role();
        Refusal::Conflict(format!("this machine is a {role} of its grid: only submitters and admins submit bags"))
    })?;
    let signed = signed.encode();
    let id = envelope::id(&signed);
    let mut pins = Vec::from([id.0, envelope.manifest.0].map(|hash| Pin::new(blobs, Hash::from_bytes(hash))));
    let unavailable = |error: BlobError| Refusal::Unavailable(error.to_string());
    for input in manifest.blobs() {
        let hash = Hash::from_bytes(input.blob.0);
        pins.push(Pin::new(blobs, hash));
        if blobs.len(hash).is_none() {
            return Err(Refusal::Invalid(format!("{} was not uploaded: upload it, then submit again", input.name)));
        }
        blobs.make_durable(hash).map_err(unavailable)?;
    }
    blobs.put_durable(&bytes).map_err(unavailable)?;
    blobs.put_durable(&signed).map_err(unavailable)?;
    manifest.blob = Some(envelope.manifest);
    let submission = Submission {
        id,
        tasks: request.tasks,
        task_mops: request.work_mops,
        retries_max: request.retries_max,
        replication: request.replication,
    };
    Ok(Accepted { submission, manifest: Arc::new(manifest), pins })
}
