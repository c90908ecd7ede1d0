//! Taking a bag: its manifest is made and signed, and everything is kept durably, before the peer gets it (`submissions`).

use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BAG_TASKS_MAX, Conditions, Enclosed, Endless, Submission};
use idlewood_trust::envelope::{self, Envelope};
use idlewood_trust::manifest::{MANIFEST_BYTES_MAX, MANIFEST_VERSION, Manifest, Source};
use idlewood_trust::{Gate, now_s};

use super::notify::NotifyFiles;
use super::pin::Pin;
use crate::chosen;
use crate::handle::Refusal;

/// A submission whose manifest, program and inputs are durable.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) submission: Submission,
    pub(super) manifest: Arc<Manifest>,
    /// They stay until the bag's record keeps them.
    pub(super) pins: Vec<Pin>,
}

/// Makes the manifest of a bag, signs its envelope, and keeps everything durably. Blocks.
///
/// # Errors
/// Why there is no such bag; nothing of it is kept for long.
pub(super) fn accept(
    blobs: &Arc<Blobs>,
    gate: &Gate,
    submitter: PeerId,
    speed_mops: f64,
    request: idlewood_api::SubmitRequest,
    conditions: Conditions,
    notify: &NotifyFiles,
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
        fields: request.fields,
        inputs: request.inputs,
        stdin: request.stdin,
        env: request.env,
        memory_bytes: request.memory_bytes,
        disk_bytes: request.disk_bytes,
        time_limit_s: request.time_limit_s,
        speed_mops: speed_mops as u64,
        success_codes: request.success_codes,
        deterministic: request.deterministic || request.replication.quorum > 1,
        native: request.native,
        executable: request.executable,
        own: request.own,
        outputs: request.outputs,
        output_bytes: request.output_bytes,
        folders: request.folders,
        own_folders: request.own_folders,
        rounds: request.rounds,
        blob: None,
        source: request.endless.map(|endless| endless.source),
        line: None,
    };
    manifest.version = manifest.needed_version();
    if let Some(Err(why)) = manifest.outputs.iter().map(|text| chosen::pattern(text)).find(Result::is_err) {
        return Err(Refusal::Invalid(why));
    }
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
    if let Some(command) = &request.notify {
        notify.keep(id, command).map_err(|error| Refusal::Unavailable(format!("--notify cannot be kept: {error}")))?;
    }
    let submission = Submission {
        id,
        envelope: Enclosed::of(&signed),
        manifest: Enclosed::of(&bytes),
        tasks: request.tasks,
        task_mops: request.work_mops,
        retries_max: request.retries_max,
        replication: request.replication,
        stewards: request.stewards,
        keep_results: request.keep_results,
        conditions,
        endless: request.endless.map(|endless| Endless {
            weight: endless.share,
            task_bytes: 0.0,
            tasks: if matches!(endless.source, Source::Range { .. }) { BAG_TASKS_MAX } else { 0 },
        }),
    };
    Ok(Accepted { submission, manifest: Arc::new(manifest), pins })
}
