//! This machine in its grid: joining, being away or asleep, and having left.

use std::time::Duration;

use idlewood_net::NetHandle;
use idlewood_overlay::{Contact, Time};
use idlewood_scheduler::{Event, Peer};
use idlewood_sensing::suspend::{Sleep, Suspend};
use libp2p::Multiaddr;
use tokio::time::Instant;

use super::absence::Absence;
use super::addresses;
use super::done::Done;
use super::neighbours::Neighbours;
use super::shared::Shared;

/// Between two tries to reach an agent to join through.
const BOOTSTRAP_INTERVAL: Duration = Duration::from_secs(2);

/// So many claims between two looks that this incarnation is over are not those of a crash of its own. Our choice.
const RISEN_OFTEN: u64 = 3;

/// What this machine knows of its place in the grid beside what its peer knows.
pub(super) struct Presence {
    listen: Multiaddr,
    neighbours: Neighbours,
    bootstrap: Vec<Multiaddr>,
    absence: Absence,
    sleep: Sleep,
    left: bool,
    /// The machine has finished, as it was told, or is to start anew.
    ends: bool,
    restarts: bool,
    leaves_grid: bool,
    /// How often others had called this incarnation over when that was last looked at, and whether they did so often since.
    risen: u64,
    lives_twice: bool,
}

impl Presence {
    /// Whoever is silent for longer than a `heartbeat` is asked whether it lives.
    pub(super) fn new(
        listen: Multiaddr,
        neighbours: Neighbours,
        bootstrap: Vec<Multiaddr>,
        heartbeat: Duration,
        now: Time,
    ) -> Self {
        let absence = Absence::new(now, heartbeat);
        Self {
            listen,
            neighbours,
            bootstrap,
            absence,
            sleep: Sleep::default(),
            left: false,
            ends: false,
            restarts: false,
            leaves_grid: false,
            risen: 0,
            lives_twice: false,
        }
    }

    /// Where this agent listens.
    pub(super) fn listen(&self) -> &Multiaddr {
        &self.listen
    }

    /// Whether the machine has left the grid.
    pub(super) fn has_left(&self) -> bool {
        self.left
    }

    /// The machine has finished, as it was told.
    pub(super) fn end(&mut self) {
        self.ends = true;
    }

    /// The agent ends and starts anew.
    pub(super) fn restart(&mut self) {
        (self.ends, self.restarts) = (true, true);
    }

    /// The same, and this machine belongs to no grid then.
    pub(super) fn leave_grid(&mut self) {
        self.restart();
        self.leaves_grid = true;
    }

    /// Whether the agent is to forget its grid once it has ended.
    pub(super) fn leaves_grid(&self) -> bool {
        self.leaves_grid
    }

    /// Whether the agent ends.
    pub(super) fn ends(&self) -> bool {
        self.ends
    }

    /// Whether it starts anew then.
    pub(super) fn restarts(&self) -> bool {
        self.restarts
    }

    /// Looks whether another machine runs under this one's identity: the two take each other for over again and again.
    pub(super) fn look_for_twin(&mut self, peer: &Peer) {
        let risen = peer.overlay_view().counters().risen;
        let lives_twice = risen - self.risen >= RISEN_OFTEN;
        self.risen = risen;
        if lives_twice && !self.lives_twice {
            tracing::error!(
                "another machine seems to run under this one's identity, as after `idlewood bag adopt` while this one is not lost: \
                 end one of the two"
            );
        }
        self.lives_twice = lives_twice;
    }

    /// Whether another machine seems to run under this one's identity.
    pub(super) fn lives_twice(&self) -> bool {
        self.lives_twice
    }

    /// Tells the peer whom to join through: at once who is known by name, and the others when they have answered.
    pub(super) fn join(&self, shared: &mut Shared) {
        for address in self.bootstrap.clone() {
            let net = shared.net.clone();
            let dialling = async move { Done::Bootstrapped(dial(&net, address).await) };
            shared.jobs.spawn(dialling, Done::Bootstrapped(None));
        }
        self.tell_contacts(shared);
    }

    /// Everybody known by name: those that the user named, administrators, and the neighbours, of the last run while there
    /// are none.
    fn tell_contacts(&self, shared: &mut Shared) {
        if shared.gate().is_alone() {
            return;
        }
        let told = self.bootstrap.iter().filter_map(idlewood_net::named_contact).chain(shared.gate().contacts());
        for contact in told.chain(self.neighbours.contacts()) {
            shared.events.tell(Event::Bootstrap(contact));
        }
    }

    /// After an absence the peer asks those it knew, and looks its place up anew.
    pub(super) fn notice_absence(&mut self, shared: &mut Shared) {
        if let Some(away) = self.absence.look(shared.clock.now()) {
            tracing::info!(away_s = away.as_secs(), "this agent did not run for a while; finding its place again");
            self.tell_contacts(shared);
        }
    }

    /// Keeps who the neighbours are, for the next run.
    pub(super) fn save_neighbours(&mut self, peer: &Peer) {
        self.neighbours.save(peer.overlay_view().neighbours());
    }

    /// Leaves the grid while the machine sleeps. Tasks just stop with it, and go on where they were.
    pub(super) fn suspend(&mut self, suspend: Suspend, peer: &Peer, shared: &mut Shared) {
        match suspend {
            Suspend::Soon(lock) => {
                if self.sleep.begin(lock, Instant::now()) {
                    tracing::info!("this machine is about to sleep; leaving the grid");
                    self.save_neighbours(peer);
                    shared.events.tell(Event::Leave);
                }
            }
            Suspend::Over => {
                if self.sleep.end() {
                    tracing::info!("this machine is awake; joining the grid again");
                    self.left = false;
                    shared.events.tell(Event::Return);
                }
            }
        }
    }

    /// When the machine may sleep though it has not left the grid, if it waits for that.
    pub(super) fn release_at(&self) -> Option<Instant> {
        self.sleep.release_at()
    }

    /// Lets the machine sleep.
    pub(super) fn release(&mut self) {
        self.sleep.release();
    }

    /// The machine has left the grid: it may sleep.
    pub(super) fn note_left(&mut self) {
        self.left = true;
        self.sleep.release();
    }
}

/// Dials an agent until it answers, on each address that its name has at that time.
async fn dial(net: &NetHandle, named: Multiaddr) -> Option<Contact> {
    loop {
        let found = addresses::resolve(&named).await;
        let found = found.inspect_err(|error| tracing::warn!(%named, %error, "this machine is not known by name yet"));
        for address in found.unwrap_or_default() {
            match net.dial(address.clone()).await {
                Ok(peer) => {
                    return Some(Contact { peer, incarnation: 0, address: address.to_string().into(), nonce: None });
                }
                Err(idlewood_net::DialError::Oneself(_) | idlewood_net::DialError::Closed) => return None,
                Err(error) => tracing::warn!(%error, "cannot join through this agent yet"),
            }
        }
        tokio::time::sleep(BOOTSTRAP_INTERVAL).await;
    }
}
