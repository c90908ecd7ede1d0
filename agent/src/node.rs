//! The agent: everything around the peer of this machine, put together.
//!
//! One task (the loop, `driver`) owns the machine and its parts; network, store, workers, control API and owner's probe reach it
//! over bounded channels. No decision of the protocol is made here.

mod absence;
mod addresses;
mod appointments;
mod authorise;
mod bag_views;
mod begun;
mod checkpoints;
mod done;
mod driver;
mod ended;
mod endless;
mod endless_view;
mod execution;
mod given_results;
mod homes;
mod jobs;
mod keeping;
mod kept_files;
mod lines;
mod listing;
mod live;
mod live_output;
mod manifests;
mod measuring;
mod names;
mod neighbours;
mod notify;
mod open_files;
mod outputs;
mod owner;
mod packing;
mod pause;
mod pin;
mod pins;
mod presence;
mod processor;
mod progress;
mod readings;
mod receipts;
mod reclaim;
mod release;
mod rerun;
mod results;
mod scratch;
mod sent;
mod shared;
mod signed;
mod signed_start;
mod start;
mod starts;
mod storage;
mod submission;
mod submissions;
mod supplies;
mod task;
mod tasks;
mod traffic;
mod views;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use idlewood_blobs::Blobs;
use idlewood_machine::Machine;
use idlewood_net::NetConfig;
use idlewood_net::fetch::Fetcher;
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagId, Config, Peer, Record, RecordError, Seed};
use idlewood_sensing::{Probe, Watch, suspend};
use idlewood_store::{Opened, StateLock, Store};
use idlewood_trust::{Gate, Membership, identity};
use idlewood_units::clock::{Clock, wall_now};
use idlewood_worker::{Pool, PoolConfig, gaps, group_gap, native_gap, quota, speed};
use libp2p::Multiaddr;
use tokio::sync::mpsc;

use self::driver::{Driver, Sources};
use self::endless::EndlessOrders;
use self::execution::Execution;
use self::homes::Homes;
use self::keeping::Keeping;
use self::lines::Lines;
use self::listing::Listing;
use self::live::Live;
use self::measuring::Measuring;
use self::notify::NotifyFiles;
use self::outputs::Outputs;
use self::owner::Owner;
use self::packing::Packing;
use self::pause::PauseFile;
use self::presence::Presence;
use self::shared::Shared;
use self::starts::Starts;
use self::storage::Storage;
use self::submissions::Submissions;
use self::supplies::Supplies;
use self::traffic::Traffic;
use crate::control;
use crate::handle::NodeHandle;
use crate::settings::Current;

/// Questions and events that may wait for the driver.
const COMMANDS_MAX: usize = 256;
/// Pieces of blobs that may wait until the driver has told the machine of them.
const PIECES_MAX: usize = 64;

/// What `idlewood run` was told.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Where this instance keeps everything.
    pub state_dir: PathBuf,
    /// Where to listen; loopback only without a grid. None: where the settings say.
    pub listen: Vec<Multiaddr>,
    /// Agents to join through. None: those of the settings.
    pub bootstrap: Vec<Multiaddr>,
    /// The owner's settings.
    pub config: PathBuf,
    /// Tasks at the same time, where the settings do not count.
    pub slots: Option<u32>,
    /// Speed of a slot in Mop/s, where it is not to be measured.
    pub speed_mops: Option<f64>,
    /// The owner counts as present while this file exists; nothing else is sensed of input and processor use then.
    pub owner_probe: Option<PathBuf>,
    /// How long a submitter trusts an executor that it does not hear from.
    pub lease: Option<Duration>,
    /// How long a bag lasts before other machines are asked to keep it.
    pub appoint_after: Option<Duration>,
    /// How long the keepers of a bag before this machine are silent until it acts, for each rank.
    pub steward_silence: Option<Duration>,
    /// Port of the control API on 127.0.0.1; 0 picks a free one.
    pub control_port: u16,
}

impl RunOptions {
    /// The same for a machine that belongs to no grid: it joins nobody, and listens on loopback only.
    pub fn without_grid(mut self) -> Self {
        self.bootstrap.clear();
        self.listen.retain(addresses::is_loopback);
        self
    }
}

/// How an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// For good.
    Over,
    /// Somebody wants it to start anew.
    Restarts,
    /// The same, and its machine has left its grid: with [`RunOptions::without_grid`].
    LeftGrid,
}

/// Runs the agent until SIGINT or SIGTERM, or until it is to start anew; leaves the grid in good order.
///
/// # Errors
/// When it cannot start: nothing is left running then. Each error is a sentence that says what to do.
pub async fn run(options: RunOptions) -> anyhow::Result<Ended> {
    // Nothing of what the agent keeps is anybody else's to read.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let settings = Current::load(options.config.clone())?;
    let directory = prepare_directory(&options.state_dir)?;
    let lock = StateLock::acquire(&directory)?;
    release::claim(&directory)?;
    // Not before: another agent may have been at work here.
    let scratch = scratch::begin(&directory).with_context(|| cannot_use(&directory))?;
    let keypair = identity::load_or_create(&directory)?;
    let Some(id) = identity::peer_id(&keypair) else {
        bail!("the identity key in {} is not an Ed25519 key; move it away to get a new one", directory.display())
    };
    let gate = Arc::new(Gate::open(&keypair, Membership::load(&directory, &keypair)?)?);
    let listen = addresses::to_listen_on(options.listen, &settings.get().network, gate.is_alone());
    let listen = addresses::resolve_all(listen).await?;
    let bootstrap = addresses::to_join_through(options.bootstrap, &settings.get().network, gate.is_alone());
    match gate.name() {
        Some(name) => tracing::info!(%name, role = %gate.role(), "machine of a grid"),
        None if bootstrap.is_empty() => {
            tracing::info!(
                "no grid: this agent is alone; `idlewood grid create` makes one, `idlewood grid join` joins one"
            );
        }
        None => bail!(
            "this machine belongs to no grid, so that nobody can be joined: `idlewood grid create` makes one, `idlewood grid \
             join` joins one"
        ),
    }
    let grid = gate.grid();
    let blobs = Arc::new(Blobs::open(&directory.join("blobs"), settings.get().limits.disk.0)?);
    let mut opened = Store::open(&lock)?;
    let slots = options.slots.unwrap_or(settings.get().limits.slots.get());
    let sees_speed = options.speed_mops.is_none();
    let (kernel_mops, speed_mops) = match options.speed_mops {
        Some(speed_mops) => (speed_mops, speed_mops),
        None => {
            tokio::task::spawn_blocking({
                let directory = directory.clone();
                move || speeds(&directory, slots)
            })
            .await?
        }
    };
    open_files::raise();
    let net_config = NetConfig { keypair, gate: gate.clone(), listen: listen.clone() };
    let (net, mut net_events) = idlewood_net::start(net_config, blobs.clone())?;
    let address = addresses::first(&mut net_events, &listen).await?;
    let is_far = |contact: &Contact| contact.address.parse().is_ok_and(|to| !addresses::is_loopback(&to));
    if addresses::is_loopback(&address) && gate.contacts().iter().any(is_far) {
        tracing::warn!(
            "the grid is on the network and this agent on loopback: start it with --listen \
             0.0.0.0:4001, or write network.listen in the settings"
        );
    }
    tracing::info!(%address, peer = %identity::to_libp2p(id), "listening");

    let neighbours = neighbours::Neighbours::load(&directory);
    let expects_grid =
        !gate.is_alone() && (!bootstrap.is_empty() || !neighbours.contacts().is_empty() || !gate.contacts().is_empty());
    let mut config = Config { slots, speed_mops, expects_grid, ..settings.get().peer() };
    config.lease = options.lease.unwrap_or(config.lease);
    config.appoint_after = options.appoint_after.unwrap_or(config.appoint_after);
    config.steward_silence = options.steward_silence.unwrap_or(config.steward_silence);
    let clock = Clock::start();
    let wall = wall_now();
    let me = Contact {
        peer: id,
        incarnation: u64::try_from(wall.0 / 1000).unwrap_or(0),
        address: address.to_string().into(),
        nonce: gate.nonce_of(id).map(Box::new),
    };
    let records = read_records(std::mem::take(&mut opened.records))?;
    tell_losses(&opened, &records);
    tell_given_up(id, &records);
    let seed = Seed { chance: rand::random(), bags: gate.bag_secret() };
    let pins = pins::Pins::restore(&blobs, seed, &records);
    let peer = Peer::restore(config.clone(), grid, me, seed, clock.now(), wall, records)
        .with_context(|| "the agent's settings make no sense")?;

    let (worker_sender, worker_events) = mpsc::channel(idlewood_machine::JOBS_MAX * config.places() as usize);
    let (measure_sender, measure_events) = mpsc::channel(4);
    let strict = settings.get().limits.strict_sandbox;
    let checkpoints = directory.join("checkpoints");
    check_sandbox(&[scratch.clone(), checkpoints.clone()], strict)?;
    let confines_natives = confines_natives(strict, settings.get().bags.native);
    let pool = |slots: usize, events| {
        let cache_dir = directory.join("modules");
        let config = PoolConfig { command: worker_command()?, slots, cache_dir, strict, events };
        Pool::new(config).map_err(anyhow::Error::from)
    };
    let workers = pool(config.places() as usize, worker_sender)?;
    let measurer = pool(1, measure_sender)?;
    let (piece_sender, pieces) = mpsc::channel(PIECES_MAX);
    let fetcher = Fetcher::new(blobs.clone(), net.clone(), piece_sender);
    let manifest_fetcher = fetcher.another();
    let supplies = Supplies {
        blobs: blobs.clone(),
        fetcher,
        manifest_fetcher,
        reading: Arc::default(),
        gate: gate.clone(),
        bags: Arc::new(Mutex::new(settings.get().bags.clone())),
        homes: Arc::new(Homes::new(scratch, checkpoints)),
        confines_natives,
    };
    let questions = net.questions().context("the network is asked for its questions once")?;
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let handle = NodeHandle::new(commands);
    let control = control::start(&directory, options.control_port, handle, blobs, gate, net.clone()).await?;
    // Ends with the driver, which holds the other end.
    let (suspend_sender, suspends) = mpsc::channel(4);
    let following = tokio::spawn(suspend::follow(suspend_sender));
    let lines = Lines::open(&directory).with_context(|| cannot_use(&directory))?;
    let pause = PauseFile::new(directory.join("pause"));
    let probe = options.owner_probe.map_or(Probe::Sources, Probe::File);
    let heartbeat = Duration::from_millis(config.overlay.heartbeat_ms);
    let mut driver = Driver {
        machine: Machine::new(peer, &config, kernel_mops, settings.get().into(), clock.now()),
        sources: Sources {
            net: net_events,
            store: opened.results,
            workers: worker_events,
            measurer: measure_events,
            commands: command_receiver,
            suspends,
            pieces,
            questions,
        },
        execution: Execution::new(workers),
        measuring: Measuring::new(measurer),
        outputs: Outputs::default(),
        live: Live::new(),
        owner: Owner::new(Watch::start(probe), pause, sees_speed, clock.now()),
        submissions: Submissions::default(),
        storage: Storage::new(opened.store, pins),
        packing: Packing::default(),
        starts: Starts::default(),
        keeping: Keeping::new(directory.clone()),
        presence: Presence::new(address, neighbours, bootstrap, heartbeat, clock.now()),
        traffic: Traffic::default(),
        notify: NotifyFiles::new(&directory),
        listing: Listing::default(),
        endless: EndlessOrders::default(),
        shared: Shared::new(clock, config, kernel_mops, settings, net, supplies, lines),
    };
    endless::restore(driver.storage.pins_mut(), driver.machine.peer(), &mut driver.shared);
    let ran = driver.run().await;
    let end = match (driver.presence.restarts(), driver.presence.leaves_grid()) {
        (_, true) => Ended::LeftGrid,
        (true, false) => Ended::Restarts,
        (false, false) => Ended::Over,
    };
    let ended = driver.shut_down(control).await;
    following.abort();
    ended?;
    if end == Ended::LeftGrid {
        // The state directory is still locked: nobody else writes there.
        Membership::leave(&directory)
            .with_context(|| "the grid was left, but this machine's membership is still there")?;
        tracing::info!("this machine belongs to no grid any more");
    }
    ran.map(|()| end)
}

/// Says what stays open to workers on this machine; refuses to start where the owner asked that nothing does.
fn check_sandbox(directories: &[PathBuf], strict: bool) -> anyhow::Result<()> {
    for gap in gaps(directories) {
        let remedy = gap.remedy;
        anyhow::ensure!(!strict, "{}; {remedy}, or write strict_sandbox = false in the settings", gap.what);
        tracing::warn!(remedy, "the sandbox around tasks is incomplete: {}", gap.what);
    }
    Ok(())
}

/// Whether native programs can run here at all: with all that confines other programs, and under the strict sandbox in
/// namespaces of their own. What is missing is said where somebody `wants` them to run.
fn confines_natives(strict: bool, wants: bool) -> bool {
    let (files_and_calls, namespaces) = (gaps(&[]), native_gap());
    let confines = files_and_calls.is_empty() && !(strict && namespaces.is_some());
    for gap in files_and_calls.into_iter().chain(namespaces).filter(|_| wants) {
        let remedy = gap.remedy;
        if confines {
            tracing::warn!(remedy, "the sandbox around native programs is incomplete: {}", gap.what);
        } else {
            tracing::warn!(remedy, "no native programs run here: {}", gap.what);
        }
    }
    if let Some(gap) = group_gap().filter(|_| confines && wants) {
        tracing::info!(remedy = gap.remedy, "{}", gap.what);
    }
    confines
}

fn cannot_use(directory: &Path) -> String {
    format!("cannot use the state directory {}: choose another with --state-dir", directory.display())
}

/// Creates and checks the state directory, readable by its user only.
fn prepare_directory(directory: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let fix = || cannot_use(directory);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(fix)?;
    let directory = directory.canonicalize().with_context(fix)?;
    let mode = std::fs::metadata(&directory).with_context(fix)?.permissions().mode();
    if mode & 0o1002 == 0o1002 && !is_the_agents(&directory).with_context(fix)? {
        bail!(
            "{} is for everybody, as /tmp is, and has files that are not the agent's: choose another directory with --state-dir, \
             as one below it",
            directory.display()
        );
    }
    if mode & 0o077 != 0 {
        tracing::warn!(directory = %directory.display(), "others could read the state directory; now its user alone can");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).with_context(fix)?;
    }
    Ok(directory)
}

/// Whether nothing is in a directory but what this user's agent, or its owner, put there: the settings alone before it was one's.
fn is_the_agents(directory: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let was_used = directory.join(identity::IDENTITY_FILE).exists();
    let user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.metadata()?.uid() != user || !(was_used || entry.file_name() == "config.toml") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The speed of a core while it computes, and of each of so many slots by the clock, which is lower where the system gives the agent less than
/// a core for each. Blocks.
fn speeds(directory: &Path, slots: u32) -> (f64, f64) {
    let kernel_mops = measured_speed(directory);
    let Some(processors) = quota::processors() else { return (kernel_mops, kernel_mops) };
    let share = (processors / f64::from(slots.max(1))).min(1.0);
    if share < 1.0 {
        tracing::info!(
            processors,
            slots,
            share,
            "the system limits this agent's use of the processors: its slots are slower by that"
        );
    }
    (kernel_mops, kernel_mops * share)
}

/// The speed of one core, measured at the first start. Blocks.
fn measured_speed(directory: &Path) -> f64 {
    let path = directory.join("speed.json");
    speed::load(&path).unwrap_or_else(|| {
        tracing::info!("measuring this machine's speed, about two seconds");
        let speed_mops = speed::measure();
        if let Err(error) = speed::save(&path, speed_mops) {
            tracing::warn!(%error, "the measured speed could not be kept; it is measured again next time");
        }
        speed_mops
    })
}

/// All records that can be read.
///
/// # Errors
/// When a newer idlewood wrote some: to go on without them would lose them.
fn read_records(stored: Vec<(Vec<u8>, Vec<u8>)>) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::with_capacity(stored.len());
    for (_, value) in stored {
        match Record::decode(&value) {
            Ok(record) => records.push(record),
            Err(error @ RecordError::Version(_)) => {
                let told = "the store was written by a newer idlewood, and nothing of it was changed: install that release or a later one \
                            again, or start anew with another --state-dir";
                return Err(error).context(told);
            }
            Err(error) => tracing::warn!(%error, "a stored record cannot be read and is left out"),
        }
    }
    Ok(records)
}

/// Where the store has lost something, the bags that it may concern.
fn tell_losses(opened: &Opened, records: &[Record]) {
    let mut concerned: BTreeSet<BagId> =
        opened.damaged.iter().filter_map(|key| key.get(1..33)?.try_into().ok().map(BagId)).collect();
    if opened.commits_lost > 0 {
        // Which ones they were is gone with them: whatever was not over may have had more.
        concerned.extend(records.iter().filter_map(|record| match record {
            Record::Bag { bag, closed: None, .. } | Record::Held { bag, .. } | Record::Outbox { bag, .. } => {
                Some(bag.id)
            }
            _ => None,
        }));
        let known: BTreeSet<BagId> = records
            .iter()
            .filter_map(|record| match record {
                Record::Bag { bag, .. } => Some(bag.id),
                _ => None,
            })
            .collect();
        concerned.extend(records.iter().filter_map(|record| match record {
            Record::Done { bag, .. } | Record::Placed { bag, .. } if !known.contains(bag) => Some(*bag),
            _ => None,
        }));
    }
    for bag in concerned {
        tracing::error!(
            bag = %hex::encode(bag.0),
            "the store may have lost something of this bag: what is missing of it is run again; submit it again if `idlewood bag \
             show` does not know it"
        );
    }
}

/// Names the bags that end since they were submitted under an identity that this machine does not have any more.
fn tell_given_up(id: PeerId, records: &[Record]) {
    let is_kept = |of: BagId| {
        records.iter().any(|record| matches!(record, Record::Kept { acting, .. } if acting.appointment.bag == of))
    };
    for record in records {
        if let Record::Bag { bag, closed: None, .. } = record
            && bag.submitter.peer != id
            && !is_kept(bag.id)
        {
            tracing::error!(
                bag = %hex::encode(bag.id.0), identity = %identity::to_libp2p(bag.submitter.peer),
                "this bag is given up: it was submitted under another identity, which this machine does not have any more; \
                 `idlewood bag get` fetches the results that are here; submit it again"
            );
        }
    }
}

/// The command that starts a worker: this very program.
fn worker_command() -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("cannot find the program's own file")?;
    Ok(vec![program.into_os_string(), "worker".into()])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn where_part_of_the_sandbox_is_missing_a_strict_owner_has_no_agent() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::write(root.path().join("file"), "").expect("ours");
        let impossible = [root.path().join("file/under")];
        let refusal = check_sandbox(&impossible, true).expect_err("it cannot be confined to that").to_string();
        assert!(refusal.contains("cannot be created") && refusal.contains("strict_sandbox = false"), "{refusal}");
        check_sandbox(&impossible, false).expect("it is told, and the agent runs");
    }

    #[test]
    fn a_state_directory_that_others_can_read_is_closed() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("state");
        std::fs::create_dir(&directory).expect("ours");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).expect("ours");
        prepare_directory(&directory).expect("it is ours");
        let mode = std::fs::metadata(&directory).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    /// As /tmp is: whoever runs as root there would close it to everybody.
    #[test]
    fn a_directory_for_everybody_is_not_closed_to_them() {
        let root = tempfile::tempdir().expect("a directory");
        let open = |name: &str| {
            let directory = root.path().join(name);
            std::fs::create_dir(&directory).expect("ours");
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1777)).expect("ours");
            directory
        };
        let mode = |directory: &Path| std::fs::metadata(directory).expect("it is there").permissions().mode() & 0o7777;
        let everybodys = open("everybodys");
        std::fs::write(everybodys.join("somebody's"), "").expect("ours");
        let refusal = prepare_directory(&everybodys).expect_err("it is everybody's").to_string();
        assert!(refusal.contains("--state-dir"), "{refusal}");
        assert_eq!(mode(&everybodys), 0o1777);
        assert!(!everybodys.join("scratch").exists(), "nothing is left there");
        // A file system that is the agent's alone begins like that.
        let own = open("own");
        std::fs::write(own.join("config.toml"), "").expect("ours");
        prepare_directory(&own).expect("only the settings are in it");
        assert_eq!(mode(&own) & 0o777, 0o700);
        let used = open("used");
        for name in [identity::IDENTITY_FILE, "agent.log"] {
            std::fs::write(used.join(name), "").expect("ours");
        }
        prepare_directory(&used).expect("an agent has it");
    }

    #[test]
    fn a_record_of_a_newer_idlewood_prevents_the_start() {
        let record = Record::Incarnation(1);
        let stored = |change: fn(&mut Vec<u8>)| {
            let mut value = record.encode();
            change(&mut value);
            read_records(vec![(record.key().to_bytes(), value)])
        };
        assert_eq!(stored(|_| {}).expect("it is readable"), std::slice::from_ref(&record));
        assert_eq!(stored(|value| value.truncate(2)).expect("it is left out"), []);
        let error = format!("{:#}", stored(|value| value[0] = 99).expect_err("it is newer"));
        assert!(error.contains("newer idlewood") && error.contains("update it"), "{error}");
    }
}
