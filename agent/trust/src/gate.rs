//! The gate of a running agent: admission of peers, and issuing of invitations, renewals and revocations.
//!
//! The network asks it about every connection, before it reads anything else of that connection. The network's async
//! tasks and the control API share it; its lock is held while files are written, which is rare.
//!
//! In parts: `issuing` (invitations and renewals), `gossip` (revocations, administrators and renewed certificates,
//! exchanged by connected machines), `bags` (whose bags may run).
//!
//! A machine without a grid has a gate, too: of a grid that no other machine can join, whose key was never written
//! down.

mod allowance;
mod bags;
mod gossip;
mod issuing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, Nonce, PeerId};
use idlewood_scheduler::DeclineReason;
use libp2p::Multiaddr;
use libp2p::identity::{Keypair, ed25519};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::certificate::{Certificate, Chain, Refused, Role, Terms};
use super::key::GridKeyError;
use super::membership::{Membership, MembershipError};
use super::revocation::Revocation;
use super::unix_time::now_s;
use super::{address, canonical, key, message};
use crate::identity;
use allowance::GossipAllowance;

/// Longest time between a machine's admission and its connection being reported.
const ON_ITS_WAY_S: u64 = 60;

/// Totals since the start: how handshakes ended, and revocations that were ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Admissions {
    /// Machines admitted.
    pub admitted: u64,
    /// Machines without a certificate, or with a forged or stolen one.
    pub strangers: u64,
    /// Machines of another grid, or that do not speak this protocol.
    pub wrong_grid: u64,
    /// Machines whose certificate had expired, or expired while they were connected.
    pub expired: u64,
    /// Machines that were revoked.
    pub revoked: u64,
    /// Handshakes that timed out or broke off.
    pub unfinished: u64,
    /// Connections refused at once: too many failures from their address lately.
    pub held_off: u64,
    /// Machines that joined the grid through this one.
    pub joined: u64,
    /// Machines that asked to join without a valid invitation.
    pub uninvited: u64,
    /// Machines that refused this one.
    pub refused_by_others: u64,
    /// Revocations of administrators by other administrators: ignored, since only the grid's key ends one.
    pub revoked_in_vain: u64,
}

/// An event that `Admissions` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A machine was admitted.
    Admitted,
    /// A machine was refused, and why.
    Refused(Refused),
    /// A machine belongs to another grid.
    WrongGrid,
    /// A machine did not complete the handshake.
    Unfinished,
    /// A connection was refused for its address.
    HeldOff,
    /// A machine joined the grid.
    Joined,
    /// Another machine refused this one, and why.
    RefusedByOther(Refused),
    /// An administrator revoked another.
    RevokedInVain,
}

#[derive(Debug, Default)]
struct Counters {
    admitted: AtomicU64,
    strangers: AtomicU64,
    wrong_grid: AtomicU64,
    expired: AtomicU64,
    revoked: AtomicU64,
    unfinished: AtomicU64,
    held_off: AtomicU64,
    joined: AtomicU64,
    uninvited: AtomicU64,
    refused_by_others: AtomicU64,
    /// The latest refusal by another machine, as a code; 0 once a machine has admitted this one since.
    refused_as: AtomicU8,
    revoked_in_vain: AtomicU64,
}

/// Why an administrative command failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// There is no grid.
    #[error("this machine belongs to no grid: `idlewood grid create` makes one, `idlewood grid join` joins one")]
    NoGrid,
    /// The machine is no administrator.
    #[error("this machine is {0} of its grid: only an admin can do that")]
    NotAdmin(Role),
    /// The machine's certificate is not valid any more.
    #[error("this machine's certificate is not valid any more: {0}")]
    Invalid(Refused),
    /// Only the grid's key makes and revokes administrators.
    #[error("only the machine that made the grid can invite or revoke admins: the grid's key is there")]
    NoGridKey,
    /// The grid's key cannot be used.
    #[error(transparent)]
    Key(#[from] GridKeyError),
    /// The invitation's numbers are out of range.
    #[error("{0}")]
    Terms(&'static str),
    /// The command names this machine.
    #[error("this is the machine's own id; `idlewood grid leave` leaves the grid")]
    Oneself,
    /// The machine was revoked before.
    #[error("it is revoked already")]
    RevokedAlready,
    /// The change cannot be written.
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

/// Why tasks of a bag must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorised {
    /// Unsigned, signed by another machine, or changed since.
    #[error("the bag is not signed by its submitter")]
    Signature,
    /// The submitter is a member only.
    #[error("its submitter is a member of the grid that may not submit bags: an admin can invite it as a submitter")]
    Role,
    /// The submitter is no machine of the grid.
    #[error("its submitter is not a machine of the grid: {0}")]
    Refused(Refused),
}

impl From<Unauthorised> for DeclineReason {
    fn from(error: Unauthorised) -> Self {
        match error {
            Unauthorised::Signature => Self::Forged,
            Unauthorised::Role => Self::Role,
            Unauthorised::Refused(_) => Self::Stranger,
        }
    }
}

/// The terms of an invitation.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Role of the machines that join.
    pub role: Role,
    /// How long the invitation is valid.
    pub valid: Duration,
    /// How many machines may join with it.
    pub uses: u32,
    /// How long their certificates are valid; renewals extend that.
    pub lifetime: Duration,
}

/// A machine that was admitted.
#[derive(Debug)]
struct Admitted {
    chain: Chain,
    digest: [u8; 16],
    since_s: u64,
    gossip: GossipAllowance,
}

#[derive(Debug)]
struct State {
    /// None: the machine is alone.
    membership: Option<Membership>,
    /// The machine's own chain; without a grid, one that is never shown.
    chain: Chain,
    grid_key: Option<ed25519::Keypair>,
    admitted: BTreeMap<PeerId, Admitted>,
    /// Submitters whose bags were authorised, each with the chain that entitled it.
    submitters: BTreeMap<PeerId, Chain>,
    /// Revocations to be passed on to connected machines.
    unspread: Vec<Revocation>,
    /// Whether the renewed certificate is to be shown to connected machines.
    renewed: bool,
    renewal_tried_s: u64,
    /// Renewals asked for so far: administrators take turns.
    renewals: usize,
    /// Addresses of this machine.
    addresses: Vec<Multiaddr>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Gate {
    grid: GridId,
    me: PeerId,
    machine: ed25519::Keypair,
    state: Mutex<State>,
    counters: Counters,
    changed: Notify,
}

/// An administrator to ask for a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewFrom {
    /// Its id.
    pub peer: PeerId,
    /// Its address.
    pub address: String,
}

impl Gate {
    /// The gate of a machine of a grid, or of a machine without one.
    ///
    /// # Errors
    /// When the grid's key is here and cannot be read.
    pub fn open(machine: &Keypair, membership: Option<Membership>) -> Result<Self, GridKeyError> {
        let me = identity::peer_id(machine).expect("machines have Ed25519 keys");
        let machine = machine.clone().try_into_ed25519().expect("machines have Ed25519 keys");
        let mut grid_key = None;
        let chain = match &membership {
            Some(membership) => {
                if key::is_sealed(&membership.directory)? == Some(false) {
                    grid_key = Some(key::load(&membership.directory, membership.grid(), None)?);
                }
                membership.chain.clone()
            }
            None => {
                let key = ed25519::Keypair::generate();
                let terms = Terms {
                    grid: canonical::grid_id(&key.public().to_bytes()),
                    peer: me,
                    role: Role::Submitter,
                    issued_s: 0,
                    expires_s: u64::MAX,
                    nonce: [0; 16],
                };
                Chain { own: Certificate::issue(terms, &key), admin: None }
            }
        };
        let grid = chain.own.terms.grid;
        let state = State {
            membership,
            chain,
            grid_key,
            admitted: BTreeMap::new(),
            submitters: BTreeMap::new(),
            unspread: Vec::new(),
            renewed: false,
            renewal_tried_s: 0,
            renewals: 0,
            addresses: Vec::new(),
        };
        let (state, counters, changed) = (Mutex::new(state), Counters::default(), Notify::new());
        Ok(Self { grid, me, machine, state, counters, changed })
    }

    /// The grid; without one, an id that is new with every start.
    pub fn grid(&self) -> GridId {
        self.grid
    }

    /// This machine.
    pub fn me(&self) -> PeerId {
        self.me
    }

    /// Whether there is no grid.
    pub fn is_alone(&self) -> bool {
        self.state().membership.is_none()
    }

    /// The machine's role; without a grid, all rights but inviting.
    pub fn role(&self) -> Role {
        self.state().chain.own.terms.role
    }

    /// The grid's name; none without a grid.
    pub fn name(&self) -> Option<String> {
        self.state().membership.as_ref().map(|membership| membership.name.clone())
    }

    /// When this machine's certificate expires, in seconds of Unix time.
    pub fn expires_s(&self) -> u64 {
        self.state().chain.expires_s()
    }

    /// Totals since the start.
    pub fn admissions(&self) -> Admissions {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Admissions {
            admitted: read(&counters.admitted),
            strangers: read(&counters.strangers),
            wrong_grid: read(&counters.wrong_grid),
            expired: read(&counters.expired),
            revoked: read(&counters.revoked),
            unfinished: read(&counters.unfinished),
            held_off: read(&counters.held_off),
            joined: read(&counters.joined),
            uninvited: read(&counters.uninvited),
            refused_by_others: read(&counters.refused_by_others),
            revoked_in_vain: read(&counters.revoked_in_vain),
        }
    }

    /// Counts how an admission ended.
    pub fn count(&self, outcome: Outcome) {
        let counters = &self.counters;
        let counter = match outcome {
            Outcome::Admitted => &counters.admitted,
            Outcome::WrongGrid | Outcome::Refused(Refused::WrongGrid) => &counters.wrong_grid,
            Outcome::Refused(Refused::Malformed | Refused::Forged | Refused::NotTheirs) => &counters.strangers,
            Outcome::Refused(Refused::Expired) => &counters.expired,
            Outcome::Refused(Refused::Revoked) => &counters.revoked,
            Outcome::Refused(Refused::NotInvited | Refused::CannotIssue) => &counters.uninvited,
            Outcome::Unfinished => &counters.unfinished,
            Outcome::HeldOff => &counters.held_off,
            Outcome::Joined => &counters.joined,
            Outcome::RefusedByOther(_) => &counters.refused_by_others,
            Outcome::RevokedInVain => &counters.revoked_in_vain,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let refused_as = match outcome {
            Outcome::Admitted => 0,
            Outcome::RefusedByOther(refused) => refused as u8,
            _ => return,
        };
        if counters.refused_as.swap(refused_as, Ordering::Relaxed) != refused_as
            && let Outcome::RefusedByOther(refused) = outcome
        {
            tracing::warn!("another machine does not let this one in: {refused}");
        }
    }

    /// Why another machine refused this one last; none once a machine has admitted it since.
    pub fn refused_as(&self) -> Option<Refused> {
        Refused::from_code(self.counters.refused_as.load(Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- admission ----

    /// The handshake message of this machine.
    pub fn hello(&self) -> message::Hello {
        let state = self.state();
        message::Hello { chain: state.chain.encode(), digest: state.digest() }
    }

    /// Admits `peer`, whose key the transport has checked, on its handshake message.
    ///
    /// # Errors
    /// The reason for refusing it.
    pub fn admit(&self, peer: PeerId, hello: &message::Hello) -> Result<(), Refused> {
        self.admit_at(peer, hello, now_s())
    }

    fn admit_at(&self, peer: PeerId, hello: &message::Hello, now_s: u64) -> Result<(), Refused> {
        let chain = Chain::decode(&hello.chain)?;
        let mut state = self.state();
        chain.verify(self.grid, peer, now_s, |peer, role| state.is_revoked(peer, role))?;
        let digest = hello.digest;
        let before = state.admitted.get(&peer).map(|before| before.gossip);
        let gossip = before.unwrap_or_default().regrowing_from(now_s);
        state.admitted.insert(peer, Admitted { chain, digest, since_s: now_s, gossip });
        Ok(())
    }

    /// Why an admitted machine must be disconnected now, if it must.
    pub fn objection(&self, peer: PeerId) -> Option<Refused> {
        self.objection_at(peer, now_s())
    }

    fn objection_at(&self, peer: PeerId, now_s: u64) -> Option<Refused> {
        let state = self.state();
        let Some(admitted) = state.admitted.get(&peer) else { return Some(Refused::Malformed) };
        admitted.chain.still_valid(now_s, |peer, role| state.is_revoked(peer, role)).err()
    }

    /// The role of a connected machine.
    #[cfg(any(test, feature = "testing"))]
    pub fn role_of(&self, peer: PeerId) -> Option<Role> {
        self.state().admitted.get(&peer).map(|admitted| admitted.chain.own.terms.role)
    }

    /// The nonce in the certificate of this machine, or of one that is connected.
    pub fn nonce_of(&self, peer: PeerId) -> Option<Nonce> {
        let state = self.state();
        if peer == self.me() {
            return Some(state.chain.own.terms.nonce);
        }
        state.admitted.get(&peer).map(|admitted| admitted.chain.own.terms.nonce)
    }

    /// Forgets machines that are not connected, except recently admitted ones, whose connection is still being set up.
    pub fn keep(&self, is_connected: impl Fn(PeerId) -> bool) {
        let now_s = now_s();
        self.state().admitted.retain(|peer, admitted| is_connected(*peer) || now_s < admitted.since_s + ON_ITS_WAY_S);
    }

    // ---- addresses ----

    /// Adds an address at which this agent can be reached.
    pub fn listens_on(&self, address: &Multiaddr) {
        self.state().addresses.push(address.clone());
    }

    /// Removes such an address.
    pub fn listens_no_more_on(&self, address: &Multiaddr) {
        self.state().addresses.retain(|other| other != address);
    }

    /// Administrators through which this machine can join its grid.
    pub fn contacts(&self) -> Vec<Contact> {
        let state = self.state();
        let Some(membership) = &state.membership else { return Vec::new() };
        let reachable = membership.admins.iter().filter(|(_, admin)| !admin.address.is_empty());
        reachable
            .map(|(peer, admin)| Contact {
                peer: *peer,
                incarnation: 0,
                address: admin.address.as_str().into(),
                nonce: None,
            })
            .collect()
    }

    /// The machines that are connected.
    pub fn connected(&self) -> Vec<PeerId> {
        self.state().admitted.keys().copied().collect()
    }
}

impl State {
    fn is_revoked(&self, peer: PeerId, role: Role) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.revocations.revokes(peer, role))
    }

    /// A machine's role as far as this machine knows.
    fn known_role(&self, peer: PeerId) -> Role {
        let is_known = self.membership.as_ref().is_some_and(|membership| membership.admins.contains_key(&peer));
        let own = Some(&self.chain).filter(|chain| chain.own.terms.peer == peer);
        let chain = own.or_else(|| Some(&self.admitted.get(&peer)?.chain));
        if is_known { Role::Admin } else { chain.map_or(Role::Member, |chain| chain.own.terms.role) }
    }

    /// Whether the grid's key is here and usable without a passphrase.
    fn has_open_grid_key(&self) -> Result<bool, GateError> {
        let Some(membership) = &self.membership else { return Ok(false) };
        Ok(self.grid_key.is_some() || key::is_sealed(&membership.directory)? == Some(false))
    }

    /// Opens the grid's key until the agent ends.
    fn open_grid_key(&mut self, grid: GridId, passphrase: Option<&[u8]>) -> Result<(), GateError> {
        let Some(membership) = &self.membership else { return Err(GateError::NoGrid) };
        if self.grid_key.is_none() {
            if key::is_sealed(&membership.directory)?.is_none() {
                return Err(GateError::NoGridKey);
            }
            self.grid_key = Some(key::load(&membership.directory, grid, passphrase)?);
        }
        Ok(())
    }

    fn check_admin(&self, gate: &Gate, now_s: u64) -> Result<(), GateError> {
        if self.membership.is_none() {
            return Err(GateError::NoGrid);
        }
        let role = self.chain.own.terms.role;
        if role != Role::Admin {
            return Err(GateError::NotAdmin(role));
        }
        self.chain
            .verify(gate.grid, gate.me, now_s, |peer, role| self.is_revoked(peer, role))
            .map_err(GateError::Invalid)
    }

    /// Addresses to announce: loopback ones only if there are no others.
    fn reachable_at(&self) -> impl Iterator<Item = String> {
        let is_far = |address: &Multiaddr| address::parse(address).is_ok_and(|(socket, _)| !socket.ip().is_loopback());
        let some_are_far = self.addresses.iter().any(is_far);
        let reachable = self.addresses.iter().filter(move |address| !some_are_far || is_far(address));
        reachable.map(ToString::to_string)
    }
}

#[cfg(any(test, feature = "testing"))]
impl Gate {
    /// The gate of a machine certified by `signer`: the grid's key, or, with its certificate, an administrator.
    pub fn certified(
        machine: &Keypair,
        terms: Terms,
        signer: &ed25519::Keypair,
        admin: Option<Certificate>,
        state_dir: &std::path::Path,
    ) -> Self {
        let chain = Chain { own: Certificate::issue(terms, signer), admin };
        Self::open(machine, Some(Membership::for_tests(state_dir, chain).unwrap())).unwrap()
    }
}

#[cfg(test)]
mod tests;
