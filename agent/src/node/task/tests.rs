use std::path::Path;

use idlewood_blobs::Blobs;
use idlewood_net::NetConfig;
use idlewood_net::fetch::Fetcher;
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagId, BlobId};
use idlewood_trust::Gate;
use idlewood_trust::manifest::{Input as Named, MANIFEST_VERSION, TaskOutput};
use libp2p::identity::Keypair;
use serde_bytes::ByteBuf;

use super::super::homes::Homes;
use super::*;

/// A manifest of one task.
pub(in crate::node) fn manifest() -> Manifest {
    Manifest {
        version: MANIFEST_VERSION,
        name: "bag".to_owned(),
        submitter: PeerId([1; 32]),
        nonce: 2,
        made_s: 1,
        tasks: 1,
        program: Named { name: "program.wasm".to_owned(), blob: BlobId([3; 32]), bytes: 1 },
        args: Vec::new(),
        entries: Vec::new(),
        fields: None,
        inputs: Vec::new(),
        stdin: None,
        env: BTreeMap::new(),
        memory_bytes: 1 << 20,
        disk_bytes: 1 << 20,
        time_limit_s: 60,
        speed_mops: 0,
        success_codes: vec![0],
        deterministic: false,
        native: false,
        executable: Vec::new(),
        own: Vec::new(),
        outputs: Vec::new(),
        output_bytes: None,
        folders: Vec::new(),
        own_folders: Vec::new(),
        rounds: None,
        blob: None,
        source: None,
        line: None,
    }
}

/// A task that may take so much memory, without a directory.
pub(in crate::node) fn prepared(memory_bytes: u64) -> Prepared {
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    let homes = Homes::new(nowhere.path().join("scratch"), nowhere.path().join("checkpoints"));
    let home = homes.of(BagId([1; 32])).expect("our directory");
    let manifest = Arc::new(manifest());
    let job = Job {
        program: PathBuf::new(),
        program_hash: manifest.program.blob.0,
        args: Vec::new(),
        env: Vec::new(),
        stdin: Stdin::Empty,
        inputs: None,
        directory: PathBuf::new(),
        checkpoint: None,
        memory_bytes,
        fixed: None,
        output_bytes: 0,
        disk_bytes: 0,
        time_limit: None,
        native: false,
        reach: home.reach.clone(),
    };
    Prepared { job, manifest, scratch: None, pins: Arc::default(), inputs: None, home }
}

pub(in crate::node) fn blobs(dir: &Path, quota_bytes: u64) -> Arc<Blobs> {
    Arc::new(Blobs::open(&dir.join("blobs"), quota_bytes).expect("an empty directory"))
}

#[test]
fn a_directory_goes_with_its_attempt() {
    let parent = tempfile::tempdir().expect("a temporary directory");
    let (first, second) = (parent.path().join("first"), parent.path().join("second"));
    fs::create_dir_all(first.join("work/deep")).expect("our directory");
    fs::create_dir(&second).expect("our directory");
    drop(Scratch(first));
    drop(Scratch(parent.path().join("never made")));
    let left: Vec<_> =
        fs::read_dir(parent.path()).expect("our directory").flatten().map(|entry| entry.path()).collect();
    assert_eq!(left, std::slice::from_ref(&second));
}

/// Whoever broke out of WebAssembly would have the agent read what they cannot.
/// Where a machine alone gets what tasks need.
fn supplies(dir: &Path) -> Supplies {
    let key = Keypair::generate_ed25519();
    let gate = Arc::new(Gate::open(&key, None).expect("no key to read"));
    let blobs = blobs(dir, 1 << 20);
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")];
    let (net, _) =
        idlewood_net::start(NetConfig { keypair: key, gate: gate.clone(), listen }, blobs.clone()).expect("a port");
    let fetcher = Fetcher::new(blobs.clone(), net, tokio::sync::mpsc::channel(1).0);
    let manifest_fetcher = fetcher.another();
    fs::create_dir(dir.join("scratch")).expect("our directory");
    let homes = Arc::new(Homes::new(dir.join("scratch"), dir.join("checkpoints")));
    let (reading, bags) = (Arc::default(), Arc::default());
    Supplies { blobs, fetcher, manifest_fetcher, gate, reading, bags, homes, confines_natives: false }
}

#[tokio::test]
async fn a_task_goes_on_from_what_its_submitter_signed_for_it_and_from_nothing_else() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let supplies = supplies(dir.path());
    let me = supplies.gate.me();
    let put = |bytes: &[u8]| {
        let blob = BlobId(*supplies.blobs.put_bytes(bytes).expect("there is room").as_bytes());
        Checkpoint { blob, bytes: bytes.len() as u64 }
    };
    let program = Named { name: "program.wasm".to_owned(), blob: put(b"program").blob, bytes: 7 };
    let manifest = Manifest { submitter: me, program, tasks: 9, ..manifest() };
    let submitter = Contact { peer: me, incarnation: 1, address: "".into(), nonce: None };
    let id = BagId([7; 32]);
    let header = BagHeader {
        id,
        submitter: submitter.clone(),
        tasks: 9,
        task_mops: 1.0,
        application_size_mops: 9.0,
        declared: true,
    };
    let files = BTreeMap::from([("progress".to_owned(), ByteBuf::from(b"half".to_vec()))]);
    let packed = TaskOutput { files, ..TaskOutput::default() }.encode();
    let task = |index| TaskId { bag: id, index };
    let came = put(&packed);
    let (signed, _pin) = supplies.keep_checkpoint(task(3), came, None, submitter.clone()).await.expect("it is here");
    assert_eq!(signed.bytes, came.bytes + 64);
    let begins = |index: u64, checkpoint: Checkpoint, bytes_max: u64| {
        let (known, bag, supplies) = (Arc::new(manifest.clone()), &header, &supplies);
        async move {
            let here = Origin { bag: bag.id, key: None, sources: Vec::new(), enclosed: Vec::new() };
            let came = CameWith { line: None, checkpoint: Some((checkpoint, bytes_max)) };
            let prepared = prepare(supplies, task(index), 0, bag, Some(known), came, &here).await;
            let progress = fs::read(checkpoints::path(supplies.homes.checkpoints(), task(index)).join("progress")).ok();
            assert!(prepared.result.is_ok(), "it begins in any case: {:?}", prepared.result);
            (prepared.planted, progress)
        }
    };
    let anew = (true, None);
    assert_eq!(begins(4, signed, 1 << 20).await, anew, "it is another task's");
    assert_eq!(begins(3, came, 1 << 20).await, anew, "nobody signed it");
    let other = Gate::open(&Keypair::generate_ed25519(), None).expect("no key to read");
    let forged = [other.sign_checkpoint(&id.0, 3, &packed).as_slice(), &packed].concat();
    assert_eq!(begins(3, put(&forged), 1 << 20).await, anew, "somebody else signed it");
    let elsewhere = [supplies.gate.sign_checkpoint(&[8; 32], 3, &packed).as_slice(), &packed].concat();
    assert_eq!(begins(3, put(&elsewhere), 1 << 20).await, anew, "it is of another bag");
    assert_eq!(begins(3, put(b"short"), 1 << 20).await, anew);
    assert_eq!(begins(3, signed, came.bytes - 1).await, (false, None), "it is over the owner's limit");
    assert_eq!(begins(3, signed, came.bytes).await, (false, Some(b"half".to_vec())));
    // It has been at work here since.
    assert_eq!(begins(3, came, 1 << 20).await, (false, Some(b"half".to_vec())));
}
