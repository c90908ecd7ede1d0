//! The gate of a running agent: whom it lets in, whom it invites, renews and revokes, and what it tells of that.
//!
//! The network asks it about every connection, before anything else of that connection is read. It is shared between
//! the network's tasks and the control API; a lock is held while files are written, which is rare.
//!
//! A machine without a grid has a gate too: of a grid that nobody else can join, whose key was never written down.

use std::collections::BTreeMap;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blake3::Hash;
use idlewood_overlay::{Contact, GridId, PeerId};
use libp2p::Multiaddr;
use libp2p::identity::{Keypair, ed25519};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::certificate::{Certificate, Chain, Refused, Role, Terms};
use super::invitation::{ADDRESSES_MAX, Invitation};
use super::membership::{Admin, INVITATIONS_MAX, Invited, Membership, MembershipError, USES_MAX, fits_invitation};
use super::revocation::{Revocation, Revocations};
use super::signed::SignedManifest;
use super::{GridKeyError, canonical, key, message};
use crate::identity;
use crate::net::parse_address;

/// Longest lifetime of a certificate and of an invitation.
const SPAN_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Between two tries to renew: a twentieth of the lifetime, within these.
const RENEWAL_RETRY_S: (u64, u64) = (1, 3_600);

/// Messages about the grid that one peer may send at once, and how many it may send per second in the long run: a whole
/// set of revocations comes in 32 pages.
const GOSSIP_BURST: f64 = 64.0;
const GOSSIP_PER_S: f64 = 1.0;

/// How long after it was admitted a connection is a connection at the latest.
const ON_ITS_WAY_S: u64 = 60;

/// How connections ended before anything but the handshake was read; totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admissions {
    /// Let in.
    pub admitted: u64,
    /// Showed no certificate, or a forged or stolen one.
    pub strangers: u64,
    /// Of another grid, or do not speak this protocol at all.
    pub wrong_grid: u64,
    /// Showed a certificate that has expired, or still had it when it did.
    pub expired: u64,
    /// Revoked.
    pub revoked: u64,
    /// Did not say in time who they are, or broke off.
    pub unfinished: u64,
    /// Turned away unheard: too many failures from their address lately.
    pub held_off: u64,
    /// Joined the grid through this machine.
    pub joined: u64,
    /// Asked to join without a valid invitation.
    pub uninvited: u64,
    /// Did not let this machine in.
    pub refused_by_others: u64,
}

/// Which of them grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Refused(Refused),
    WrongGrid,
    Unfinished,
    HeldOff,
    Joined,
    RefusedByOther,
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
}

/// Why an owner's wish concerning the grid is not granted. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// There is no grid.
    #[error("this machine belongs to no grid: `idlewood grid create` makes one, `idlewood grid join` joins one")]
    NoGrid,
    /// It may not.
    #[error("this machine is {0} of its grid: only an admin can do that")]
    NotAdmin(Role),
    /// Its certificate is not valid any more.
    #[error("this machine's certificate is not valid any more: {0}")]
    Invalid(Refused),
    /// Only the grid's key makes administrators.
    #[error("only the machine that made the grid can invite admins: the grid's key is there")]
    NoGridKey,
    /// The grid's key.
    #[error(transparent)]
    Key(#[from] GridKeyError),
    /// It cannot be invited anybody with such numbers.
    #[error("{0}")]
    Terms(&'static str),
    /// It is this machine.
    #[error("this is the machine's own id; `idlewood grid leave` leaves the grid")]
    Oneself,
    /// It was revoked before.
    #[error("it is revoked already")]
    RevokedAlready,
    /// It cannot be written down.
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

/// Why tasks of a bag must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorised {
    /// Unsigned, signed by somebody else, or changed since.
    #[error("the bag is not signed by its submitter")]
    Signature,
    /// It is a member only.
    #[error("its submitter is a member of the grid that may not submit bags: an admin can invite it as a submitter")]
    Role,
    /// It is no machine of the grid.
    #[error("its submitter is not a machine of the grid: {0}")]
    Refused(Refused),
}

/// What an invitation grants.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// What whoever joins may do.
    pub role: Role,
    /// How long the invitation is good.
    pub valid: Duration,
    /// How many machines may join with it.
    pub uses: u32,
    /// How long their certificates are valid; they are renewed on the way.
    pub lifetime: Duration,
}

/// What is known of a machine that was let in.
#[derive(Debug)]
struct Admitted {
    chain: Chain,
    digest: [u8; 16],
    since_s: u64,
    gossip_left: f64,
    gossip_at_s: u64,
}

#[derive(Debug)]
struct State {
    /// None: the machine is alone.
    membership: Option<Membership>,
    /// That of the membership; of a machine alone, one that nobody sees.
    chain: Chain,
    grid_key: Option<ed25519::Keypair>,
    admitted: BTreeMap<PeerId, Admitted>,
    /// Revocations that are to be passed on.
    news: Vec<Revocation>,
    /// Whether the certificate is to be shown to those that are connected.
    renewed: bool,
    renewal_tried_s: u64,
    /// Administrators are asked one after the other.
    renewals: usize,
    /// Where this machine listens.
    addresses: Vec<Multiaddr>,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    grid: GridId,
    me: PeerId,
    machine: ed25519::Keypair,
    state: Mutex<State>,
    counters: Counters,
    changed: Notify,
}

/// What a certificate is renewed by: whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RenewFrom {
    pub(crate) peer: PeerId,
    pub(crate) address: String,
}

impl Gate {
    /// The gate of a machine of a grid, or of one that is alone.
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
            news: Vec::new(),
            renewed: false,
            renewal_tried_s: 0,
            renewals: 0,
            addresses: Vec::new(),
        };
        let (state, counters, changed) = (Mutex::new(state), Counters::default(), Notify::new());
        Ok(Self { grid, me, machine, state, counters, changed })
    }

    /// The grid; that of a machine alone is new with every start.
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

    /// What the machine may do; one that is alone, everything but invite.
    pub fn role(&self) -> Role {
        self.state().chain.own.terms.role
    }

    /// What people call the grid; none where there is none.
    pub fn name(&self) -> Option<String> {
        self.state().membership.as_ref().map(|membership| membership.name.clone())
    }

    /// Until when this machine's certificate is valid, in seconds of Unix time.
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
        }
    }

    pub(crate) fn count(&self, outcome: Outcome) {
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
            Outcome::RefusedByOther => &counters.refused_by_others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- who comes ----

    /// What this machine shows to others.
    pub(crate) fn hello(&self) -> message::Hello {
        let state = self.state();
        message::Hello { chain: state.chain.encode(), digest: state.digest() }
    }

    /// Lets the machine `peer`, whose key the transport has checked, in by what it shows.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn admit(&self, peer: PeerId, hello: &message::Hello) -> Result<(), Refused> {
        self.admit_at(peer, hello, now_s())
    }

    fn admit_at(&self, peer: PeerId, hello: &message::Hello, now_s: u64) -> Result<(), Refused> {
        let chain = Chain::decode(&hello.chain)?;
        let mut state = self.state();
        chain.verify(self.grid, peer, now_s, |peer| state.is_revoked(peer))?;
        let digest = hello.digest;
        let gossip_left = state.admitted.get(&peer).map_or(GOSSIP_BURST, |before| before.gossip_left);
        state.admitted.insert(peer, Admitted { chain, digest, since_s: now_s, gossip_left, gossip_at_s: now_s });
        Ok(())
    }

    /// Why a machine that was let in must go now, if it must.
    pub(crate) fn objection(&self, peer: PeerId) -> Option<Refused> {
        self.objection_at(peer, now_s())
    }

    fn objection_at(&self, peer: PeerId, now_s: u64) -> Option<Refused> {
        let state = self.state();
        let Some(admitted) = state.admitted.get(&peer) else { return Some(Refused::Malformed) };
        admitted.chain.still_valid(now_s, |peer| state.is_revoked(peer)).err()
    }

    /// What a machine that is connected may do.
    pub fn role_of(&self, peer: PeerId) -> Option<Role> {
        self.state().admitted.get(&peer).map(|admitted| admitted.chain.own.terms.role)
    }

    /// Forgets machines that are not connected, except those that were let in just now: theirs is on its way.
    pub(crate) fn keep(&self, is_connected: impl Fn(PeerId) -> bool) {
        let now_s = now_s();
        self.state().admitted.retain(|peer, admitted| is_connected(*peer) || now_s < admitted.since_s + ON_ITS_WAY_S);
    }

    // ---- invitations ----

    /// Makes an invitation. The passphrase opens the grid's key, which administrators need, until the agent ends.
    ///
    /// # Errors
    /// When this machine may not invite, the numbers make no sense, or it cannot be written down.
    pub fn invite(&self, offer: Offer, passphrase: Option<&[u8]>) -> Result<Invitation, GateError> {
        self.invite_at(offer, passphrase, now_s())
    }

    fn invite_at(&self, offer: Offer, passphrase: Option<&[u8]>, now_s: u64) -> Result<Invitation, GateError> {
        let Offer { role, valid, uses, lifetime } = offer;
        if !(1..=USES_MAX).contains(&uses) {
            return Err(GateError::Terms("an invitation is good for 1 to 10000 machines"));
        }
        for span in [valid, lifetime] {
            if span < Duration::from_secs(1) || span > SPAN_MAX {
                return Err(GateError::Terms("invitations and certificates are valid for a second to ten years"));
            }
        }
        let mut state = self.state();
        state.check_admin(self, now_s)?;
        let State { membership: Some(membership), grid_key, .. } = &mut *state else { return Err(GateError::NoGrid) };
        if role == Role::Admin && grid_key.is_none() {
            if key::is_sealed(&membership.directory)?.is_none() {
                return Err(GateError::NoGridKey);
            }
            *grid_key = Some(key::load(&membership.directory, self.grid, passphrase)?);
        }
        membership.invitations.retain(|invited| invited.expires_s > now_s);
        if membership.invitations.len() >= INVITATIONS_MAX {
            return Err(GateError::Terms("too many invitations are open: wait until some have expired"));
        }
        let secret: [u8; 16] = rand::random();
        let expires_s = now_s + valid.as_secs();
        membership.invitations.push(Invited {
            secret_hash: *blake3::hash(&secret).as_bytes(),
            role,
            expires_s,
            uses,
            lifetime_s: lifetime.as_secs(),
            guests: Vec::new(),
        });
        if let Err(error) = membership.save_invitations() {
            membership.invitations.pop();
            return Err(error.into());
        }
        let addresses = state.reachable_at().filter(|address| fits_invitation(address));
        let addresses = addresses.take(ADDRESSES_MAX).collect();
        Ok(Invitation { grid: self.grid, issuer: self.me, addresses, secret, role, expires_s, uses })
    }

    /// Certifies a machine that shows the secret of an invitation; it is written down that it was used before the
    /// certificate exists. Blocks for the disk.
    ///
    /// # Errors
    /// [`Refused::NotInvited`], [`Refused::Revoked`] or [`Refused::CannotIssue`].
    pub(crate) fn welcome(&self, guest: PeerId, secret: &[u8]) -> Result<message::Welcome, Refused> {
        self.welcome_at(guest, secret, now_s())
    }

    fn welcome_at(&self, guest: PeerId, secret: &[u8], now_s: u64) -> Result<message::Welcome, Refused> {
        let mut state = self.state();
        if state.is_revoked(guest) {
            return Err(Refused::Revoked);
        }
        let secret_hash = blake3::hash(secret);
        let membership = state.membership.as_ref().ok_or(Refused::NotInvited)?;
        // Hashes are compared in constant time.
        let is_it = |invited: &Invited| Hash::from_bytes(invited.secret_hash) == secret_hash;
        let position = membership.invitations.iter().position(is_it).ok_or(Refused::NotInvited)?;
        let invited = &membership.invitations[position];
        let is_new = !invited.guests.contains(&guest);
        if invited.expires_s <= now_s || (is_new && invited.guests.len() >= invited.uses as usize) {
            return Err(Refused::NotInvited);
        }
        let (role, lifetime_s, name) = (invited.role, invited.lifetime_s, membership.name.clone());
        let chain = state.issue(self, guest, role, lifetime_s, self.nonce(guest), now_s)?;
        let issuer = state.chain.own.encode();
        if is_new && let Some(membership) = &mut state.membership {
            membership.invitations[position].guests.push(guest);
            if let Err(error) = membership.save_invitations() {
                warn!(%error, "a machine cannot join: that the invitation was used cannot be written down");
                membership.invitations[position].guests.pop();
                return Err(Refused::CannotIssue);
            }
        }
        info!(machine = %identity::to_libp2p(guest), %role, "joined the grid by an invitation of this machine");
        Ok(message::Welcome { chain: chain.encode(), issuer, name })
    }

    /// The nonce of a machine: always the same from this issuer, and not to be foreseen without its key.
    fn nonce(&self, guest: PeerId) -> [u8; 16] {
        let secret = blake3::derive_key("idlewood 2026 position nonces v1", &self.machine.to_bytes());
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&blake3::keyed_hash(&secret, &guest.0).as_bytes()[..16]);
        nonce
    }

    // ---- renewal ----

    /// Whom to ask for a new certificate now; none while the present one is in its first half.
    pub(crate) fn wants_renewal(&self) -> Option<RenewFrom> {
        self.wants_renewal_at(now_s())
    }

    fn wants_renewal_at(&self, now_s: u64) -> Option<RenewFrom> {
        let mut state = self.state();
        let membership = state.membership.as_ref()?;
        // The chain ends with its administrator's certificate.
        let issued_s = state.chain.own.terms.issued_s;
        let lifetime_s = state.chain.expires_s().saturating_sub(issued_s);
        let retry_s = (lifetime_s / 20).clamp(RENEWAL_RETRY_S.0, RENEWAL_RETRY_S.1);
        let is_due = now_s >= issued_s + lifetime_s / 2 && now_s >= state.renewal_tried_s.saturating_add(retry_s);
        if !is_due || membership.admins.is_empty() {
            return None;
        }
        let place = state.renewals % membership.admins.len();
        let (peer, admin) = membership.admins.iter().nth(place)?;
        let from = RenewFrom { peer: *peer, address: admin.address.clone() };
        state.renewals += 1;
        state.renewal_tried_s = now_s;
        Some(from)
    }

    /// A new certificate for a machine that is connected, with the role, nonce and lifetime of its present one.
    fn renew(&self, peer: PeerId, now_s: u64) -> Result<Chain, Refused> {
        let state = self.state();
        let admitted = state.admitted.get(&peer).ok_or(Refused::NotInvited)?;
        admitted.chain.verify(self.grid, peer, now_s, |peer| state.is_revoked(peer))?;
        let Terms { role, issued_s, expires_s, nonce, .. } = admitted.chain.own.terms;
        state.issue(self, peer, role, expires_s - issued_s, nonce, now_s)
    }

    /// Takes the answer to a request for renewal.
    pub(crate) fn renewed(&self, answer: &[u8]) {
        let chain = match message::Renewal::decode(answer) {
            Ok(message::Renewal(Ok(chain))) => chain,
            Ok(message::Renewal(Err(refused))) => {
                warn!(%refused, "an administrator does not renew this machine's certificate");
                return;
            }
            Err(error) => {
                debug!(%error, "an answer to a request for renewal");
                return;
            }
        };
        if let Err(error) = self.adopt(&chain, now_s()) {
            warn!(%error, "a renewed certificate cannot be used");
        }
    }

    fn adopt(&self, bytes: &[u8], now_s: u64) -> anyhow::Result<()> {
        let chain = Chain::decode(bytes)?;
        let mut state = self.state();
        chain.verify(self.grid, self.me, now_s, |peer| state.is_revoked(peer))?;
        let (new, old) = (&chain.own.terms, &state.chain.own.terms);
        anyhow::ensure!((new.role, new.nonce) == (old.role, old.nonce), "it is not the old one renewed");
        anyhow::ensure!(chain.expires_s() > state.chain.expires_s(), "it does not last longer");
        let Some(membership) = &mut state.membership else { return Ok(()) };
        let old = std::mem::replace(&mut membership.chain, chain.clone());
        if let Err(error) = membership.save() {
            membership.chain = old;
            return Err(error.into());
        }
        info!(expires_s = chain.expires_s(), "this machine's certificate is renewed");
        state.chain = chain;
        state.renewed = true;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    // ---- revocation ----

    /// Revokes a machine for good.
    ///
    /// # Errors
    /// When this machine may not, or it cannot be written down.
    pub fn revoke(&self, peer: PeerId) -> Result<(), GateError> {
        self.revoke_at(peer, now_s())
    }

    fn revoke_at(&self, peer: PeerId, now_s: u64) -> Result<(), GateError> {
        if peer == self.me {
            return Err(GateError::Oneself);
        }
        let mut state = self.state();
        state.check_admin(self, now_s)?;
        if state.is_revoked(peer) {
            return Err(GateError::RevokedAlready);
        }
        let admin = Some(state.chain.own.clone());
        let revocation = Revocation::issue(self.grid, peer, now_s, &self.machine, admin);
        state.take_revocations(vec![revocation])?;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    // ---- what machines tell each other ----

    /// Waits until [`Gate::news`] has something, or somebody may have to go.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What everybody who is connected should hear, as messages.
    pub(crate) fn news(&self) -> Vec<Vec<u8>> {
        let mut state = self.state();
        let mut messages: Vec<Vec<u8>> = message::pages(std::mem::take(&mut state.news).iter(), Vec::new());
        if std::mem::take(&mut state.renewed) {
            messages.push(message::Gossip::Certificate(state.chain.encode()).encode());
        }
        messages
    }

    /// What `peer`, who has just been let in, lacks: everything, where its digest differs.
    pub(crate) fn lacks(&self, peer: PeerId) -> Vec<Vec<u8>> {
        let state = self.state();
        let digest = state.digest();
        let Some(membership) = &state.membership else { return Vec::new() };
        let mut admins = Vec::new();
        // Where an administrator listens may be new while all else is not.
        if state.chain.own.terms.role == Role::Admin
            && let Some(address) = state.reachable_at().next()
        {
            admins.push((state.chain.own.encode(), address));
        }
        if state.admitted.get(&peer).is_none_or(|admitted| admitted.digest == digest) {
            return message::pages(iter::empty(), admins);
        }
        admins.extend(membership.admins.values().map(|it| (it.certificate.encode(), it.address.clone())));
        message::pages(membership.revocations.iter(), admins)
    }

    /// Takes a message about the grid from a machine that is connected; what is answered. Blocks for the disk.
    ///
    /// # Errors
    /// When it makes no sense, or too many came.
    pub(crate) fn hear(&self, from: PeerId, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        self.hear_at(from, bytes, now_s())
    }

    fn hear_at(&self, from: PeerId, bytes: &[u8], now_s: u64) -> Result<Vec<u8>, Refused> {
        if !self.state().may_gossip(from, now_s) {
            return Err(Refused::CannotIssue);
        }
        match message::Gossip::decode(bytes)? {
            message::Gossip::News { revocations, admins } => {
                self.hear_news(from, revocations, admins)?;
                Ok(Vec::new())
            }
            message::Gossip::Certificate(chain) => {
                let digest = self.state().admitted.get(&from).map(|admitted| admitted.digest).unwrap_or_default();
                self.admit_at(from, &message::Hello { chain, digest }, now_s)?;
                Ok(Vec::new())
            }
            message::Gossip::Renew => {
                let renewed = self.renew(from, now_s);
                if let Ok(chain) = &renewed {
                    info!(machine = %identity::to_libp2p(from), until_s = chain.expires_s(), "certificate renewed");
                }
                Ok(message::Renewal(renewed.map(|chain| chain.encode())).encode())
            }
        }
    }

    fn hear_news(
        &self,
        from: PeerId,
        revocations: Vec<Revocation>,
        admins: Vec<(Certificate, String)>,
    ) -> Result<(), Refused> {
        let mut state = self.state();
        let mut news = Vec::new();
        for revocation in revocations {
            if state.is_revoked(revocation.peer) {
                continue;
            }
            revocation.verify(self.grid)?;
            // Whoever was revoked has nothing to say any more.
            if state.is_revoked(PeerId(revocation.issuer)) {
                continue;
            }
            news.push(revocation);
        }
        for (certificate, address) in admins {
            let peer = certificate.terms.peer;
            certificate.verify_admin(self.grid)?;
            if state.is_revoked(peer) || address.parse::<Multiaddr>().is_err() || !fits_invitation(&address) {
                continue;
            }
            // Where an administrator listens it knows best itself.
            let Some(membership) = &mut state.membership else { continue };
            let known = membership.admins.get(&peer);
            if known.is_none_or(|known| from == peer && known.address != address) {
                membership.remember_admin(peer, Admin { certificate, address });
                if let Err(error) = membership.save() {
                    warn!(%error, "what is known of administrators cannot be kept");
                }
            }
        }
        if news.is_empty() {
            return Ok(());
        }
        for revocation in &news {
            info!(machine = %identity::to_libp2p(revocation.peer), "revoked from the grid");
        }
        if let Err(error) = state.take_revocations(news) {
            warn!(%error, "revocations cannot be kept; they count until this agent ends");
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    // ---- bags ----

    /// Signs a manifest of this machine.
    ///
    /// # Errors
    /// When this machine may not submit.
    pub fn sign_manifest(&self, manifest: Vec<u8>) -> Result<SignedManifest, Unauthorised> {
        let state = self.state();
        if state.chain.own.terms.role < Role::Submitter {
            return Err(Unauthorised::Role);
        }
        Ok(SignedManifest::sign(manifest, state.chain.encode(), &self.machine))
    }

    /// Whether tasks of this manifest may run here: its submitter signed it, and may submit. Where the certificate in it has
    /// expired since, the one counts by which the submitter is connected now.
    ///
    /// # Errors
    /// Why not.
    pub fn authorise(&self, signed: &SignedManifest, submitter: PeerId) -> Result<(), Unauthorised> {
        self.authorise_at(signed, submitter, now_s())
    }

    fn authorise_at(&self, signed: &SignedManifest, submitter: PeerId, now_s: u64) -> Result<(), Unauthorised> {
        if !signed.is_signed_by(submitter) {
            return Err(Unauthorised::Signature);
        }
        // Its own bags are its own business, also those from before it joined a grid.
        if submitter == self.me {
            return Ok(());
        }
        let state = self.state();
        let is_revoked = |peer| state.is_revoked(peer);
        let judge =
            |chain: &Chain| chain.verify(self.grid, submitter, now_s, is_revoked).map(|()| chain.own.terms.role);
        let shown = Chain::decode(&signed.chain).map_err(Refused::from).and_then(|chain| judge(&chain));
        let role = match (shown, state.admitted.get(&submitter)) {
            (Err(_), Some(admitted)) => judge(&admitted.chain),
            (shown, _) => shown,
        };
        match role {
            Ok(Role::Submitter | Role::Admin) => Ok(()),
            Ok(Role::Member) => Err(Unauthorised::Role),
            Err(refused) => Err(Unauthorised::Refused(refused)),
        }
    }

    /// Whether a machine was revoked.
    pub fn is_revoked(&self, peer: PeerId) -> bool {
        self.state().is_revoked(peer)
    }

    // ---- addresses ----

    /// This agent can be reached here.
    pub(crate) fn listens_on(&self, address: &Multiaddr) {
        self.state().addresses.push(address.clone());
    }

    /// It cannot be any more.
    pub(crate) fn listens_no_more_on(&self, address: &Multiaddr) {
        self.state().addresses.retain(|other| other != address);
    }

    /// Administrators that this machine can join its grid through.
    pub fn contacts(&self) -> Vec<Contact> {
        let state = self.state();
        let Some(membership) = &state.membership else { return Vec::new() };
        let reachable = membership.admins.iter().filter(|(_, admin)| !admin.address.is_empty());
        reachable
            .map(|(peer, admin)| Contact { peer: *peer, incarnation: 0, address: admin.address.as_str().into() })
            .collect()
    }

    /// The machines that are connected.
    pub fn connected(&self) -> Vec<PeerId> {
        self.state().admitted.keys().copied().collect()
    }
}

impl State {
    fn is_revoked(&self, peer: PeerId) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.revocations.contains(peer))
    }

    fn check_admin(&self, gate: &Gate, now_s: u64) -> Result<(), GateError> {
        if self.membership.is_none() {
            return Err(GateError::NoGrid);
        }
        let role = self.chain.own.terms.role;
        if role != Role::Admin {
            return Err(GateError::NotAdmin(role));
        }
        self.chain.verify(gate.grid, gate.me, now_s, |peer| self.is_revoked(peer)).map_err(GateError::Invalid)
    }

    /// Signs a certificate: with the grid's key for administrators, with this machine's for the others.
    fn issue(
        &self,
        gate: &Gate,
        peer: PeerId,
        role: Role,
        lifetime_s: u64,
        nonce: [u8; 16],
        now_s: u64,
    ) -> Result<Chain, Refused> {
        if self.check_admin(gate, now_s).is_err() {
            return Err(Refused::CannotIssue);
        }
        let mut terms =
            Terms { grid: gate.grid, peer, role, issued_s: now_s, expires_s: now_s.saturating_add(lifetime_s), nonce };
        if role == Role::Admin {
            let key = self.grid_key.as_ref().ok_or(Refused::CannotIssue)?;
            return Ok(Chain { own: Certificate::issue(terms, key), admin: None });
        }
        let admin = self.chain.own.clone();
        terms.expires_s = terms.expires_s.min(admin.terms.expires_s);
        Ok(Chain { own: Certificate::issue(terms, &gate.machine), admin: Some(admin) })
    }

    /// Adds verified revocations, and writes them down.
    fn take_revocations(&mut self, revocations: Vec<Revocation>) -> Result<(), MembershipError> {
        let Some(membership) = &mut self.membership else { return Ok(()) };
        for revocation in revocations {
            membership.admins.remove(&revocation.peer);
            if membership.revocations.insert(revocation.clone()) {
                self.news.push(revocation);
            }
        }
        membership.save_revocations()?;
        membership.save()
    }

    /// Equal where the same machines are revoked and the same administrators known.
    fn digest(&self) -> [u8; 16] {
        let none = Revocations::default();
        let mut hasher = blake3::Hasher::new();
        let revocations = self.membership.as_ref().map_or(&none, |membership| &membership.revocations);
        hasher.update(&revocations.digest());
        let mut admins: Vec<PeerId> =
            self.membership.iter().flat_map(|membership| membership.admins.keys().copied()).collect();
        if self.chain.own.terms.role == Role::Admin {
            admins.push(self.chain.own.terms.peer);
        }
        admins.sort_unstable();
        for peer in admins.iter().take(super::membership::ADMINS_MAX) {
            hasher.update(&peer.0);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest
    }

    /// Addresses for others: loopback ones only where there are no others.
    fn reachable_at(&self) -> impl Iterator<Item = String> {
        let is_far = |address: &Multiaddr| parse_address(address).is_ok_and(|(socket, _)| !socket.ip().is_loopback());
        let some_are_far = self.addresses.iter().any(is_far);
        let reachable = self.addresses.iter().filter(move |address| !some_are_far || is_far(address));
        reachable.map(ToString::to_string)
    }

    /// Whether one more message about the grid is taken from `peer` now.
    fn may_gossip(&mut self, peer: PeerId, now_s: u64) -> bool {
        let Some(admitted) = self.admitted.get_mut(&peer) else { return false };
        let passed_s = now_s.saturating_sub(admitted.gossip_at_s) as f64;
        admitted.gossip_left = (admitted.gossip_left + passed_s * GOSSIP_PER_S).min(GOSSIP_BURST);
        admitted.gossip_at_s = now_s;
        if admitted.gossip_left < 1.0 {
            return false;
        }
        admitted.gossip_left -= 1.0;
        true
    }
}

/// Seconds of Unix time.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
impl Gate {
    /// The gate of a machine that `signer` has certified: the grid's key, or, with its certificate, an administrator.
    pub(crate) fn certified(
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
#[path = "gate_tests.rs"]
mod tests;
