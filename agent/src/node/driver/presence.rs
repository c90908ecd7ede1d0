//! This machine in its grid: joining, being away or asleep, leaving in good order, and the end of the agent.

use std::time::Duration;

use anyhow::Context as _;
use idlewood_net::NetHandle;
use idlewood_overlay::Contact;
use idlewood_scheduler::Event;
use idlewood_sensing::suspend::Suspend;
use libp2p::Multiaddr;
use tokio::time::Instant;

use super::Driver;
use crate::control::Control;
use crate::node::done::Done;
use crate::node::shared::Shared;

/// Longest that leaving the grid may take.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(2500);
/// Longest that everything from the signal on may take. Five seconds are promised, and the runtime takes up to one of
/// them for threads that still block.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);
/// Between two tries to reach an agent to join through.
const BOOTSTRAP_INTERVAL: Duration = Duration::from_secs(2);

impl Driver {
    /// Tells the peer whom to join through: at once who is known by name, and the others when they have answered.
    pub(super) fn join_grid(&mut self) {
        for address in self.bootstrap.clone() {
            let net = self.shared.net.clone();
            let dialling = async move { Done::Bootstrapped(dial(&net, address).await) };
            self.shared.jobs.spawn(dialling, Done::Bootstrapped(None));
        }
        self.tell_contacts();
    }

    /// Everybody known by name: those that the user named, administrators, and the neighbours, of the last run while there
    /// are none.
    fn tell_contacts(&mut self) {
        if self.shared.gate().is_alone() {
            return;
        }
        let told = self.bootstrap.iter().filter_map(idlewood_net::named_contact).chain(self.shared.gate().contacts());
        let contacts: Vec<Contact> = told.chain(self.neighbours.contacts()).collect();
        for contact in contacts {
            self.feed(Event::Bootstrap(contact));
        }
    }

    /// After an absence the peer asks those it knew, and looks its place up anew.
    pub(super) fn notice_absence(&mut self) {
        if let Some(away) = self.absence.look(self.shared.clock.now()) {
            tracing::info!(away_s = away.as_secs(), "this agent did not run for a while; finding its place again");
            self.tell_contacts();
        }
    }

    /// Leaves the grid while the machine sleeps. Tasks just stop with it, and go on where they were.
    pub(super) fn suspend(&mut self, suspend: Suspend) {
        match suspend {
            Suspend::Soon(lock) => {
                if self.sleep.begin(lock, Instant::now()) {
                    tracing::info!("this machine is about to sleep; leaving the grid");
                    self.neighbours.save(self.machine.peer().overlay_view().neighbours());
                    self.feed(Event::Leave);
                }
            }
            Suspend::Over => {
                if self.sleep.end() {
                    tracing::info!("this machine is awake; joining the grid again");
                    self.left = false;
                    self.feed(Event::Return);
                }
            }
        }
    }

    async fn leave(&mut self, until: Instant) {
        self.feed(Event::Leave);
        self.end_turn();
        while !self.left && Instant::now() < until {
            let deadline = self.deadline().map_or(until, |deadline| deadline.min(until));
            tokio::select! {
                Some(result) = self.store_events.recv() => self.committed(result),
                Some(event) = self.net_events.recv() => self.net_event(event),
                () = tokio::time::sleep_until(deadline) => self.feed(Event::DeadlineReached),
            }
            self.end_turn();
        }
    }

    /// Leaves the grid in good order and ends everything, within [`SHUTDOWN_TIMEOUT`].
    ///
    /// # Errors
    /// When the store was beyond use.
    pub(in crate::node) async fn shut_down(mut self, control: Control) -> anyhow::Result<()> {
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        tracing::info!("leaving the grid");
        // Nothing starts any more, and what runs is gone at once; it runs again after the restart, or elsewhere.
        for pool in [&self.workers, &self.measurer] {
            pool.freeze();
            for place in 0..pool.slots() {
                pool.take_back(place);
                pool.stop(place);
            }
        }
        self.commands.close();
        while self.commands.try_recv().is_ok() {
            // Whoever asked is told that the agent ends, by losing the way for the answer.
        }
        self.submitting.clear();
        self.leave(until.min(Instant::now() + LEAVE_TIMEOUT)).await;
        self.feed(idlewood_machine::Event::Closing);

        let Self { shared, workers, measurer, work, measuring, store, store_events, mut net_events, fatal, .. } = self;
        let Shared { jobs, answers, net, .. } = shared;
        // Nobody takes results any more: the writer must not wait for that.
        drop(store_events);
        let closing = tokio::task::spawn_blocking(move || store.close());
        let pools = tokio::task::spawn_blocking(move || {
            workers.shutdown();
            measurer.shutdown();
            // What they ran in can be removed now.
            drop((work, measuring));
        });
        let events = async { while net_events.recv().await.is_some() {} };
        let jobs = async { tokio::join!(jobs.shutdown(), answers.shutdown()) };
        let all = async { tokio::join!(closing, pools, jobs, control.shutdown(), net.shutdown(), events) };
        match tokio::time::timeout_at(until, all).await {
            Ok((closed, ended, ..)) => {
                closed.context("the last writes failed")?;
                ended.context("the workers could not be ended")?;
            }
            // What was acknowledged is on disk, and workers die with the agent.
            Err(_) => tracing::warn!("not everything ended in time; it is left behind"),
        }
        match fatal {
            Some(error) => Err(error).context("the store cannot be used any more; start the agent again"),
            None => Ok(()),
        }
    }
}

/// Dials an agent until it answers.
async fn dial(net: &NetHandle, address: Multiaddr) -> Option<Contact> {
    loop {
        match net.dial(address.clone()).await {
            Ok(peer) => {
                return Some(Contact { peer, incarnation: 0, address: address.to_string().into(), nonce: None });
            }
            Err(idlewood_net::DialError::Oneself(_) | idlewood_net::DialError::Closed) => return None,
            Err(error) => tracing::warn!(%error, "cannot join through this agent yet"),
        }
        tokio::time::sleep(BOOTSTRAP_INTERVAL).await;
    }
}
