//! Which machines the gate admits, invites, renews and revokes.

use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::membership::Admin;
use super::super::message::{First, Gossip, Hello};
use super::super::signed::SignedBag;
use super::allowance::GOSSIP_BURST;
use super::*;

const NOW_S: u64 = 1_800_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// A machine with its state directory.
struct Machine {
    key: Keypair,
    dir: TempDir,
    gate: Gate,
}

impl Machine {
    /// A machine that makes a grid.
    fn creator(passphrase: Option<&[u8]>) -> Self {
        let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
        let membership = Membership::create(dir.path(), &key, "lab", passphrase, NOW_S).unwrap();
        let gate = Gate::open(&key, Some(membership)).unwrap();
        Self { key, dir, gate }
    }

    /// A machine that joined by an invitation of `issuer`.
    fn guest(issuer: &Machine, role: Role, now_s: u64) -> Self {
        let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
        let invitation = issuer.gate.invite_at(offer(role, 1), None, now_s).unwrap();
        let me = identity::peer_id(&key).unwrap();
        let welcome = issuer.gate.welcome_at(me, &invitation.secret, now_s).unwrap();
        let chain = Chain::decode(&welcome.chain).unwrap();
        let certificate = Certificate::decode(&welcome.issuer).unwrap();
        let admin = Admin { certificate, address: "/ip4/127.0.0.1/tcp/1".to_owned() };
        let membership = Membership::join(dir.path(), &welcome.name, chain, (issuer.peer(), admin)).unwrap();
        let gate = Gate::open(&key, Some(membership)).unwrap();
        Self { key, dir, gate }
    }

    /// This machine after a restart of its agent.
    fn restarted(self) -> Self {
        let Self { key, dir, gate } = self;
        drop(gate);
        let membership = Membership::load(dir.path(), &key).unwrap().expect("it has a grid");
        let gate = Gate::open(&key, Some(membership)).unwrap();
        Self { key, dir, gate }
    }

    fn peer(&self) -> PeerId {
        self.gate.me
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("grid").join(name)
    }
}

fn offer(role: Role, uses: u32) -> Offer {
    Offer { role, valid: 7 * DAY, uses, lifetime: 30 * DAY }
}

fn an_admin(creator: &Machine) -> Admin {
    Admin { certificate: creator.gate.state().chain.own.clone(), address: "/ip4/127.0.0.1/tcp/1".to_owned() }
}

fn any_peer() -> PeerId {
    identity::peer_id(&Keypair::generate_ed25519()).unwrap()
}

/// Both admit each other.
fn meet(one: &Machine, other: &Machine, now_s: u64) -> [Result<(), Refused>; 2] {
    let admitted = one.gate.admit_at(other.peer(), &other.gate.hello(), now_s);
    [admitted, other.gate.admit_at(one.peer(), &one.gate.hello(), now_s)]
}

/// Each sends the other what it lacks, until neither lacks anything.
fn gossip(one: &Machine, other: &Machine, now_s: u64) {
    for (from, to) in [(one, other), (other, one)] {
        for gossip in from.gate.lacks(to.peer()) {
            assert_eq!(to.gate.hear_at(from.peer(), &gossip, now_s), Ok(Vec::new()));
        }
    }
}

#[test]
fn machines_of_one_grid_meet_and_others_do_not() {
    let admin = Machine::creator(None);
    let member = Machine::guest(&admin, Role::Member, NOW_S);
    let submitter = Machine::guest(&admin, Role::Submitter, NOW_S);
    assert_eq!(meet(&admin, &member, NOW_S), [Ok(()); 2]);
    assert_eq!(meet(&submitter, &member, NOW_S), [Ok(()); 2]);
    assert_eq!(admin.gate.role_of(member.peer()), Some(Role::Member));
    assert_eq!(member.gate.role_of(submitter.peer()), Some(Role::Submitter));

    let other = Machine::creator(None);
    assert_eq!(meet(&other, &member, NOW_S), [Err(Refused::WrongGrid); 2]);
    assert_eq!(member.gate.admit_at(any_peer(), &admin.gate.hello(), NOW_S), Err(Refused::NotTheirs));
    let nothing = Hello { chain: Vec::new(), digest: [0; 16] };
    assert_eq!(member.gate.admit_at(any_peer(), &nothing, NOW_S), Err(Refused::Malformed));
    let late = NOW_S + 30 * 86_400;
    assert_eq!(meet(&admin, &member, late - 1), [Ok(()); 2]);
    assert_eq!(meet(&admin, &member, late), [Err(Refused::Expired), Ok(())]);
    assert_eq!(admin.gate.objection_at(member.peer(), late), Some(Refused::Expired), "while it is connected");
    assert_eq!(admin.gate.objection_at(member.peer(), late - 1), None);
    assert_eq!(admin.gate.objection_at(any_peer(), NOW_S), Some(Refused::Malformed), "was never let in");

    let alone = Gate::open(&Keypair::generate_ed25519(), None).unwrap();
    assert!(alone.is_alone() && alone.admit_at(member.peer(), &member.gate.hello(), NOW_S).is_err());
    assert!(matches!(alone.invite_at(offer(Role::Member, 1), None, NOW_S), Err(GateError::NoGrid)));
}

#[test]
fn an_invitation_is_good_for_its_uses_across_restarts() {
    let admin = Machine::creator(None);
    let invitation = admin.gate.invite_at(offer(Role::Member, 2), None, NOW_S).unwrap();
    let (first, second, third) = (any_peer(), any_peer(), any_peer());
    let welcome = |admin: &Machine, guest, now_s| admin.gate.welcome_at(guest, &invitation.secret, now_s);
    assert!(welcome(&admin, first, NOW_S).is_ok());
    let admin = admin.restarted();
    assert!(welcome(&admin, first, NOW_S).is_ok(), "the answer may have been lost");
    assert!(welcome(&admin, second, NOW_S).is_ok());
    let admin = admin.restarted();
    assert_eq!(welcome(&admin, third, NOW_S).unwrap_err(), Refused::NotInvited);
    assert!(welcome(&admin, second, NOW_S).is_ok());
    assert_eq!(welcome(&admin, first, invitation.expires_s).unwrap_err(), Refused::NotInvited, "expired");
    assert_eq!(admin.gate.welcome_at(first, &[0; 16], NOW_S).unwrap_err(), Refused::NotInvited);
    assert_eq!(admin.gate.welcome_at(first, &[], NOW_S).unwrap_err(), Refused::NotInvited);
    // The secret is not in the file.
    let file = std::fs::read(admin.file("invitations")).unwrap();
    assert!(!file.windows(16).any(|window| window == invitation.secret));
}

#[test]
fn a_use_that_cannot_be_written_down_gives_no_certificate() {
    let admin = Machine::creator(None);
    let invitation = admin.gate.invite_at(offer(Role::Member, 1), None, NOW_S).unwrap();
    std::fs::remove_dir_all(admin.dir.path().join("grid")).unwrap();
    assert_eq!(admin.gate.welcome_at(any_peer(), &invitation.secret, NOW_S).unwrap_err(), Refused::CannotIssue);
    std::fs::create_dir(admin.dir.path().join("grid")).unwrap();
    assert!(admin.gate.welcome_at(any_peer(), &invitation.secret, NOW_S).is_ok(), "it was not counted");
}

#[test]
fn only_admins_invite_and_only_the_grids_key_makes_admins() {
    let creator = Machine::creator(None);
    let submitter = Machine::guest(&creator, Role::Submitter, NOW_S);
    let invite = |machine: &Machine, role| machine.gate.invite_at(offer(role, 1), None, NOW_S);
    assert!(matches!(invite(&submitter, Role::Member), Err(GateError::NotAdmin(Role::Submitter))));
    assert!(matches!(submitter.gate.revoke_at(creator.peer(), None, NOW_S), Err(GateError::NotAdmin(_))));
    let admin = Machine::guest(&creator, Role::Admin, NOW_S);
    assert!(matches!(invite(&admin, Role::Admin), Err(GateError::NoGridKey)));
    let member = Machine::guest(&admin, Role::Member, NOW_S);
    assert_eq!(meet(&submitter, &member, NOW_S), [Ok(()); 2], "certified by different administrators");
    assert!(matches!(
        admin.gate.invite_at(offer(Role::Member, 1), None, NOW_S + 31 * 86_400),
        Err(GateError::Invalid(Refused::Expired))
    ));
    assert!(matches!(creator.gate.invite_at(offer(Role::Member, 0), None, NOW_S), Err(GateError::Terms(_))));
    let forever = Offer { lifetime: Duration::MAX, ..offer(Role::Member, 1) };
    assert!(matches!(creator.gate.invite_at(forever, None, NOW_S), Err(GateError::Terms(_))));
}

#[test]
fn a_sealed_key_makes_admins_once_it_is_opened() {
    let creator = Machine::creator(Some(b"secret"));
    let invite = |role, passphrase| creator.gate.invite_at(offer(role, 1), passphrase, NOW_S);
    assert!(invite(Role::Submitter, None).is_ok(), "its own key does");
    assert!(matches!(invite(Role::Admin, None), Err(GateError::Key(GridKeyError::Sealed))));
    assert!(matches!(invite(Role::Admin, Some(b"guess")), Err(GateError::Key(GridKeyError::WrongPassphrase))));
    let invitation = invite(Role::Admin, Some(b"secret")).unwrap();
    assert!(creator.gate.welcome_at(any_peer(), &invitation.secret, NOW_S).is_ok());
    let creator = creator.restarted();
    let again = creator.gate.welcome_at(any_peer(), &invitation.secret, NOW_S);
    assert!(again.is_err_and(|refused| refused == Refused::NotInvited), "used");
}

#[test]
fn no_certificate_outlives_its_issuer() {
    let creator = Machine::creator(None);
    let admin = Machine::guest(&creator, Role::Admin, NOW_S);
    let later = NOW_S + 20 * 86_400;
    let member = Machine::guest(&admin, Role::Member, later);
    assert_eq!(member.gate.expires_s(), NOW_S + 30 * 86_400);
}

#[test]
fn a_machine_keeps_its_nonce_and_cannot_foresee_it() {
    let creator = Machine::creator(None);
    let guest = any_peer();
    let nonce = || {
        let invitation = creator.gate.invite_at(offer(Role::Member, 1), None, NOW_S).unwrap();
        let welcome = creator.gate.welcome_at(guest, &invitation.secret, NOW_S).unwrap();
        Chain::decode(&welcome.chain).unwrap().own.terms.nonce
    };
    assert_eq!(nonce(), nonce(), "a second invitation does not give another place");
    assert_ne!(creator.gate.nonce(guest), Machine::creator(None).gate.nonce(guest));
    assert_ne!(creator.gate.nonce(guest), creator.gate.nonce(any_peer()));
}

#[test]
fn certificates_are_renewed_by_any_admin_in_their_second_half() {
    let creator = Machine::creator(None);
    let admin = Machine::guest(&creator, Role::Admin, NOW_S);
    let member = Machine::guest(&admin, Role::Submitter, NOW_S);
    assert_eq!(creator.gate.wants_renewal_at(NOW_S + 30 * 86_400), None, "knows nobody to ask, and has years");
    let half = NOW_S + 15 * 86_400;
    assert_eq!(member.gate.wants_renewal_at(half - 1), None);
    assert_eq!(member.gate.wants_renewal_at(half).map(|from| from.peer), Some(admin.peer()));
    assert_eq!(member.gate.wants_renewal_at(half + 1), None, "asked just now");

    // The other administrator renews it; the member heard of it from the first.
    assert_eq!(meet(&member, &creator, half), [Ok(()); 2]);
    creator.gate.listens_on(&"/ip4/127.0.0.1/tcp/4001".parse().unwrap());
    gossip(&creator, &member, half);
    let asked: Vec<PeerId> = (1..5_u64)
        .filter_map(|number| member.gate.wants_renewal_at(half + number * 4_000))
        .map(|from| from.peer)
        .collect();
    assert!(asked.contains(&creator.peer()) && asked.contains(&admin.peer()), "one after the other");
    let nonce = member.gate.state().chain.own.terms.nonce;
    let answer = creator.gate.hear_at(member.peer(), &Gossip::Renew.encode(), half).unwrap();
    let message::Renewal(renewed) = message::Renewal::decode(&answer).unwrap();
    member.gate.adopt(&renewed.unwrap(), half).unwrap();
    let member = member.restarted();
    let terms = member.gate.state().chain.own.terms.clone();
    assert_eq!((terms.role, terms.nonce, terms.issued_s), (Role::Submitter, nonce, half));
    assert_eq!(terms.expires_s, half + 30 * 86_400);
    assert_eq!(member.gate.wants_renewal_at(half + 86_400), None);

    // The renewed certificate is shown to machines that admitted it by the old one.
    let gossip = Gossip::Certificate(member.gate.hello().chain).encode();
    creator.gate.hear_at(member.peer(), &gossip, half).unwrap();
    assert_eq!(creator.gate.objection_at(member.peer(), NOW_S + 31 * 86_400), None);
    let foreign = Gossip::Certificate(admin.gate.hello().chain).encode();
    assert_eq!(creator.gate.hear_at(member.peer(), &foreign, half), Err(Refused::NotTheirs));

    // It keeps its place on the line for as long as it is connected.
    assert_eq!(creator.gate.nonce_of(member.peer()), Some(nonce));
    assert_eq!((member.gate.nonce_of(member.peer()), member.gate.nonce_of(any_peer())), (Some(nonce), None));
    let elsewhere = {
        let state = creator.gate.state();
        state.issue(&creator.gate, member.peer(), Role::Submitter, 31 * 86_400, [9; 16], half).unwrap().encode()
    };
    let gossip = Gossip::Certificate(elsewhere).encode();
    assert_eq!(creator.gate.hear_at(member.peer(), &gossip, half), Err(Refused::NotTheirs));
    assert_eq!(creator.gate.nonce_of(member.peer()), Some(nonce));
}

#[test]
fn a_machine_adopts_only_its_own_renewed_certificate() {
    let creator = Machine::creator(None);
    let member = Machine::guest(&creator, Role::Member, NOW_S);
    let old = member.gate.hello().chain;
    assert!(member.gate.adopt(&old, NOW_S).is_err(), "lasts no longer");
    let issue = |role, nonce| {
        let state = creator.gate.state();
        state.issue(&creator.gate, member.peer(), role, 31 * 86_400, nonce, NOW_S + 1).unwrap().encode()
    };
    let nonce = member.gate.state().chain.own.terms.nonce;
    assert!(member.gate.adopt(&issue(Role::Submitter, nonce), NOW_S).is_err(), "another role");
    assert!(member.gate.adopt(&issue(Role::Member, [9; 16]), NOW_S).is_err(), "another place");
    assert!(member.gate.adopt(&creator.gate.hello().chain, NOW_S).is_err(), "another machine's");
    assert!(member.gate.adopt(&issue(Role::Member, nonce), NOW_S).is_ok());
    // A machine that is no administrator renews none.
    let other = Machine::guest(&creator, Role::Submitter, NOW_S);
    assert_eq!(meet(&member, &other, NOW_S + 1), [Ok(()); 2]);
    let answer = other.gate.hear_at(member.peer(), &Gossip::Renew.encode(), NOW_S).unwrap();
    assert_eq!(message::Renewal::decode(&answer).unwrap(), message::Renewal(Err(Refused::CannotIssue)));
}

#[test]
fn a_revocation_spreads_and_survives_restarts() {
    let creator = Machine::creator(None);
    let bad = Machine::guest(&creator, Role::Submitter, NOW_S);
    let [near, far] = [(); 2].map(|()| Machine::guest(&creator, Role::Member, NOW_S));
    for other in [&creator, &near, &far] {
        assert_eq!(meet(&bad, other, NOW_S), [Ok(()); 2]);
    }
    assert_eq!(meet(&creator, &near, NOW_S), [Ok(()); 2]);
    creator.gate.revoke_at(bad.peer(), None, NOW_S).unwrap();
    assert!(matches!(creator.gate.revoke_at(bad.peer(), None, NOW_S), Err(GateError::RevokedAlready)));
    assert!(matches!(creator.gate.revoke_at(creator.peer(), None, NOW_S), Err(GateError::Oneself)));
    assert_eq!(creator.gate.objection_at(bad.peer(), NOW_S), Some(Refused::Revoked), "while it is connected");
    // Connected machines hear of it at once, and pass it on.
    let pending_gossip = creator.gate.pending_gossip();
    assert_eq!((pending_gossip.len(), creator.gate.pending_gossip().len()), (1, 0));
    near.gate.hear_at(creator.peer(), &pending_gossip[0], NOW_S).unwrap();
    assert_eq!(near.gate.pending_gossip(), pending_gossip, "passed on once");
    near.gate.hear_at(creator.peer(), &pending_gossip[0], NOW_S).unwrap();
    assert_eq!(near.gate.pending_gossip(), Vec::<Vec<u8>>::new(), "it was known");

    // Other machines hear of it when they connect to one that knows.
    let (near, far) = (near.restarted(), far.restarted());
    assert_eq!(far.gate.admit_at(bad.peer(), &bad.gate.hello(), NOW_S), Ok(()));
    assert_eq!(meet(&near, &far, NOW_S), [Ok(()); 2]);
    gossip(&near, &far, NOW_S);
    let far = far.restarted();
    for other in [&creator.restarted(), &near, &far] {
        assert_eq!(other.gate.admit_at(bad.peer(), &bad.gate.hello(), NOW_S), Err(Refused::Revoked));
    }
    assert_eq!(meet(&near, &far, NOW_S), [Ok(()); 2]);
    assert_eq!(near.gate.lacks(far.peer()), Vec::<Vec<u8>>::new(), "they know the same");
}

#[test]
fn a_revoked_machine_neither_joins_nor_revokes_nor_renews() {
    let creator = Machine::creator(None);
    let admin = Machine::guest(&creator, Role::Admin, NOW_S);
    let member = Machine::guest(&admin, Role::Member, NOW_S);
    assert_eq!(meet(&creator, &member, NOW_S), [Ok(()); 2]);
    assert_eq!(meet(&creator, &admin, NOW_S), [Ok(()); 2]);
    creator.gate.revoke_at(admin.peer(), None, NOW_S).unwrap();
    assert_eq!(creator.gate.objection_at(member.peer(), NOW_S), Some(Refused::Revoked), "what it certified falls too");
    let invitation = creator.gate.invite_at(offer(Role::Member, 5), None, NOW_S).unwrap();
    assert_eq!(creator.gate.welcome_at(admin.peer(), &invitation.secret, NOW_S).unwrap_err(), Refused::Revoked);
    // The administrator has not heard of its own revocation, and revokes a machine.
    let victim = any_peer();
    admin.gate.revoke_at(victim, None, NOW_S).unwrap();
    let other = Machine::guest(&creator, Role::Member, NOW_S);
    assert_eq!(meet(&creator, &other, NOW_S), [Ok(()); 2]);
    creator.gate.hear_at(other.peer(), &admin.gate.pending_gossip()[0], NOW_S).unwrap();
    assert!(!creator.gate.state().is_revoked(victim, Role::Member), "a revoked administrator has nothing to say");
    let answer = creator.gate.hear_at(member.peer(), &Gossip::Renew.encode(), NOW_S).unwrap();
    assert_eq!(message::Renewal::decode(&answer).unwrap(), message::Renewal(Err(Refused::Revoked)));
}

#[test]
fn administrators_are_revoked_by_the_grids_key_alone() {
    let creator = Machine::creator(None);
    let [bad, good] = [(); 2].map(|()| Machine::guest(&creator, Role::Admin, NOW_S));
    let member = Machine::guest(&good, Role::Member, NOW_S);
    for other in [&creator, &good, &member] {
        assert_eq!(meet(&bad, other, NOW_S), [Ok(()); 2]);
    }
    assert_eq!(meet(&creator, &member, NOW_S), [Ok(()); 2]);
    assert!(matches!(bad.gate.revoke_at(creator.peer(), None, NOW_S), Err(GateError::NoGridKey)));
    assert!(matches!(bad.gate.revoke_at(good.peer(), None, NOW_S), Err(GateError::NoGridKey)));
    // Made by hand, so that it revokes itself, too.
    let own = bad.gate.state().chain.own.clone();
    let key = bad.key.clone().try_into_ed25519().unwrap();
    let by_hand = |peer| Revocation::issue(creator.gate.grid, peer, NOW_S, &key, Some(own.clone()));
    let revocations = [&creator, &good, &bad].map(|machine| by_hand(machine.peer())).to_vec();
    let gossip = Gossip::Known { revocations, admins: Vec::new() }.encode();
    for other in [&creator, &good, &member] {
        other.gate.hear_at(bad.peer(), &gossip, NOW_S).unwrap();
    }
    assert_eq!(member.gate.admissions().revoked_in_vain, 3, "it is counted");
    for machine in [&creator, &good] {
        assert_eq!(member.gate.admit_at(machine.peer(), &machine.gate.hello(), NOW_S), Ok(()));
    }
    assert_eq!(creator.gate.objection_at(member.peer(), NOW_S), None, "what a good one certified stands");
    creator.gate.pending_gossip();
    // It need not even be known as an administrator.
    let creator = creator.restarted();
    assert_eq!(meet(&creator, &member, NOW_S), [Ok(()); 2]);
    creator.gate.state().membership.as_mut().unwrap().admins.clear();
    creator.gate.revoke_at(bad.peer(), None, NOW_S).unwrap();
    assert!(matches!(creator.gate.revoke_at(bad.peer(), None, NOW_S), Err(GateError::RevokedAlready)));
    member.gate.hear_at(creator.peer(), &creator.gate.pending_gossip()[0], NOW_S).unwrap();
    let member = member.restarted();
    assert_eq!(member.gate.admit_at(bad.peer(), &bad.gate.hello(), NOW_S), Err(Refused::Revoked));
    assert_eq!(creator.gate.admit_at(bad.peer(), &bad.gate.hello(), NOW_S), Err(Refused::Revoked));
}

#[test]
fn a_sealed_key_revokes_administrators_with_its_passphrase() {
    let creator = Machine::creator(Some(b"open"));
    let invitation = creator.gate.invite_at(offer(Role::Admin, 1), Some(b"open"), NOW_S).unwrap();
    let admin = any_peer();
    creator.gate.welcome_at(admin, &invitation.secret, NOW_S).unwrap();
    let creator = creator.restarted();
    let known = an_admin(&creator);
    creator.gate.state().membership.as_mut().unwrap().admins.insert(admin, known);
    assert!(matches!(creator.gate.revoke_at(admin, None, NOW_S), Err(GateError::Key(_))));
    creator.gate.state().membership.as_mut().unwrap().admins.clear();
    assert!(matches!(creator.gate.revoke_at(admin, Some(b"shut"), NOW_S), Err(GateError::Key(_))));
    creator.gate.revoke_at(admin, Some(b"open"), NOW_S).unwrap();
    assert!(creator.gate.state().is_revoked(admin, Role::Admin));
}

#[test]
fn nothing_is_renewed_before_it_is_due() {
    let creator = Machine::creator(None);
    let admin = Machine::guest(&creator, Role::Admin, NOW_S);
    let member = Machine::guest(&admin, Role::Member, NOW_S);
    assert_eq!(meet(&creator, &member, NOW_S), [Ok(()); 2]);
    let half = 15 * 86_400;
    for (after_s, is_due) in [(0, false), (half - 2 * 86_400, false), (half, true)] {
        let answer = creator.gate.hear_at(member.peer(), &Gossip::Renew.encode(), NOW_S + after_s).unwrap();
        assert_eq!(message::Renewal::decode(&answer).unwrap().0.is_ok(), is_due, "after {after_s} s");
    }
}

#[test]
fn forged_and_excessive_gossip_is_refused() {
    let creator = Machine::creator(None);
    let member = Machine::guest(&creator, Role::Member, NOW_S);
    assert_eq!(meet(&creator, &member, NOW_S), [Ok(()); 2]);
    let victim = any_peer();
    let key = member.key.clone().try_into_ed25519().unwrap();
    let own = member.gate.state().chain.own.clone();
    for admin in [None, Some(own)] {
        let forged = Revocation::issue(creator.gate.grid, victim, NOW_S, &key, admin);
        let gossip = Gossip::Known { revocations: vec![forged], admins: Vec::new() }.encode();
        assert_eq!(creator.gate.hear_at(member.peer(), &gossip, NOW_S), Err(Refused::Forged));
    }
    let own = member.gate.state().chain.own.clone();
    let gossip = Gossip::Known { revocations: Vec::new(), admins: vec![(own, "/ip4/127.0.0.1/tcp/1".into())] }.encode();
    assert_eq!(creator.gate.hear_at(member.peer(), &gossip, NOW_S), Err(Refused::Forged), "it is no administrator");
    assert!(!creator.gate.state().is_revoked(victim, Role::Member));
    assert_eq!(creator.gate.hear_at(member.peer(), &[0; 100_000], NOW_S), Err(Refused::Malformed));
    assert!(creator.gate.hear_at(any_peer(), &Gossip::Renew.encode(), NOW_S).is_err(), "is not connected");

    let ask = |now_s| creator.gate.hear_at(member.peer(), &Gossip::Renew.encode(), now_s).is_ok();
    let taken = (0..200).filter(|_| ask(NOW_S)).count();
    assert!((1..=GOSSIP_BURST as usize).contains(&taken), "{taken}");
    assert!(ask(NOW_S + 2) && ask(NOW_S + 2) && !ask(NOW_S + 2), "one a second");
}

#[test]
fn a_grid_is_kept_privately_and_left_without_its_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let creator = Machine::creator(None);
    for name in ["membership", "revocations", "invitations", "grid.key"] {
        let mode = std::fs::metadata(creator.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let load = |machine: &Machine, key: &Keypair| Membership::load(machine.dir.path(), key);
    assert!(matches!(load(&creator, &Keypair::generate_ed25519()), Err(MembershipError::OtherMachine(_))));
    for name in ["membership", "revocations", "invitations"] {
        let path = creator.file(name);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(matches!(load(&creator, &creator.key), Err(MembershipError::Damaged(_))), "{name}");
        std::fs::write(&path, &good).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(load(&creator, &creator.key), Err(MembershipError::Exposed(_))), "{name}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::remove_file(creator.file("revocations")).unwrap();
    assert!(matches!(load(&creator, &creator.key), Err(MembershipError::Damaged(_))), "who was thrown out stays out");
    let again = Membership::create(creator.dir.path(), &creator.key, "x", None, NOW_S);
    assert!(matches!(again, Err(MembershipError::Already(name)) if name == "lab"));

    let kept = Membership::leave(creator.dir.path()).unwrap().expect("the key was here");
    assert!(kept.exists() && !creator.file("grid.key").exists());
    assert!(load(&creator, &creator.key).unwrap().is_none());
    assert!(matches!(Membership::leave(creator.dir.path()), Err(MembershipError::None)));
    assert!(Membership::create(creator.dir.path(), &creator.key, "again", None, NOW_S).is_ok());
    for name in ["", "a\nb", &"n".repeat(65)] {
        let made = Membership::create(tempfile::tempdir().unwrap().path(), &creator.key, name, None, NOW_S);
        assert!(matches!(made, Err(MembershipError::Name)), "{name:?}");
    }
}

#[test]
fn administrators_are_remembered_at_the_address_they_announce() {
    let creator = Machine::creator(None);
    let member = Machine::guest(&creator, Role::Member, NOW_S);
    let stranger = Machine::guest(&creator, Role::Member, NOW_S);
    assert_eq!(meet(&creator, &member, NOW_S), [Ok(()); 2]);
    assert_eq!(meet(&stranger, &member, NOW_S), [Ok(()); 2]);
    for address in ["/ip4/127.0.0.1/tcp/4001", "/ip4/192.0.2.7/tcp/4001"] {
        creator.gate.listens_on(&address.parse().unwrap());
    }
    gossip(&creator, &member, NOW_S);
    let address = |member: &Machine| member.gate.contacts()[0].address.to_string();
    assert_eq!(address(&member), "/ip4/192.0.2.7/tcp/4001");
    let own = creator.gate.state().chain.own.clone();
    let lie = Gossip::Known { revocations: Vec::new(), admins: vec![(own, "/ip4/203.0.113.1/tcp/1".into())] };
    member.gate.hear_at(stranger.peer(), &lie.encode(), NOW_S).unwrap();
    let member = member.restarted();
    assert_eq!(address(&member), "/ip4/192.0.2.7/tcp/4001", "nobody else knows better");
}

#[test]
fn bags_run_for_submitters_only() {
    let creator = Machine::creator(None);
    let [submitter, member, other] =
        [Role::Submitter, Role::Member, Role::Submitter].map(|role| Machine::guest(&creator, role, NOW_S));
    let here = Machine::guest(&creator, Role::Member, NOW_S);
    let signed = submitter.gate.sign_bag(b"what to run".to_vec()).unwrap();
    let judge = |signed: &SignedBag, who: &Machine, now_s| here.gate.authorise_at(signed, who.peer(), now_s);
    assert_eq!(judge(&signed, &submitter, NOW_S), Ok(()));
    assert_eq!(judge(&creator.gate.sign_bag(Vec::new()).unwrap(), &creator, NOW_S), Ok(()), "an admin may");

    // A member's agent refuses; a manipulated one is refused by other machines.
    assert_eq!(member.gate.sign_bag(Vec::new()), Err(Unauthorised::Role));
    let key = |machine: &Machine| machine.key.clone().try_into_ed25519().unwrap();
    let forced = SignedBag::sign(Vec::new(), member.gate.hello().chain, &key(&member));
    assert_eq!(judge(&forced, &member, NOW_S), Err(Unauthorised::Role));
    let borrowed = SignedBag::sign(Vec::new(), submitter.gate.hello().chain, &key(&member));
    assert_eq!(judge(&borrowed, &member, NOW_S), Err(Unauthorised::Refused(Refused::NotTheirs)));
    assert_eq!(judge(&borrowed, &submitter, NOW_S), Err(Unauthorised::Signature));
    assert_eq!(judge(&signed, &other, NOW_S), Err(Unauthorised::Signature), "as somebody else's");
    let mut changed = signed.clone();
    changed.content[0] ^= 1;
    assert_eq!(judge(&changed, &submitter, NOW_S), Err(Unauthorised::Signature));
    let nothing = SignedBag::sign(Vec::new(), Vec::new(), &key(&submitter));
    assert_eq!(judge(&nothing, &submitter, NOW_S), Err(Unauthorised::Refused(Refused::Malformed)));
    let stranger = Gate::open(&other.key, None).unwrap().sign_bag(Vec::new()).unwrap();
    assert_eq!(judge(&stranger, &other, NOW_S), Err(Unauthorised::Refused(Refused::WrongGrid)));
    assert_eq!(other.gate.authorise_at(&stranger, other.peer(), NOW_S), Ok(()), "its own, from before it joined");

    // After a bag's certificate has expired the submitter's present one counts.
    let late = NOW_S + 31 * 86_400;
    assert_eq!(judge(&signed, &submitter, late), Err(Unauthorised::Refused(Refused::Expired)));
    let chain = {
        let state = creator.gate.state();
        let nonce = submitter.gate.state().chain.own.terms.nonce;
        state.issue(&creator.gate, submitter.peer(), Role::Submitter, 86_400, nonce, late).unwrap()
    };
    let hello = Hello { chain: chain.encode(), digest: [0; 16] };
    here.gate.admit_at(submitter.peer(), &hello, late).unwrap();
    assert_eq!(judge(&signed, &submitter, late), Ok(()));

    assert_eq!(here.gate.standing_at(submitter.peer(), late), Ok(()), "the longer one is remembered");
    assert_eq!(here.gate.standing_at(other.peer(), late), Err(Unauthorised::Refused(Refused::Expired)), "never seen");
    let later = late + 2 * 86_400;
    assert_eq!(here.gate.standing_at(submitter.peer(), later), Err(Unauthorised::Refused(Refused::Expired)));

    creator.gate.revoke_at(submitter.peer(), None, NOW_S).unwrap();
    assert_eq!(meet(&creator, &here, NOW_S), [Ok(()); 2]);
    gossip(&creator, &here, NOW_S);
    assert_eq!(here.gate.standing_at(submitter.peer(), NOW_S), Err(Unauthorised::Refused(Refused::Revoked)));
    assert_eq!(judge(&signed, &submitter, NOW_S), Err(Unauthorised::Refused(Refused::Revoked)));
    assert_eq!(judge(&signed, &submitter, late), Err(Unauthorised::Refused(Refused::Revoked)));
}

#[test]
fn revoking_an_administrator_ends_its_submitters() {
    let creator = Machine::creator(None);
    let [admin, here] = [Role::Admin, Role::Member].map(|role| Machine::guest(&creator, role, NOW_S));
    let submitter = Machine::guest(&admin, Role::Submitter, NOW_S);
    let signed = submitter.gate.sign_bag(b"what to run".to_vec()).unwrap();
    assert_eq!(here.gate.authorise_at(&signed, submitter.peer(), NOW_S), Ok(()));
    assert_eq!(here.gate.standing_at(submitter.peer(), NOW_S), Ok(()));
    creator.gate.revoke_at(admin.peer(), None, NOW_S).unwrap();
    assert_eq!(meet(&creator, &here, NOW_S), [Ok(()); 2]);
    gossip(&creator, &here, NOW_S);
    assert_eq!(here.gate.standing_at(submitter.peer(), NOW_S), Err(Unauthorised::Refused(Refused::Revoked)));
}

#[test]
fn the_frames_of_the_handshake_are_pinned() {
    let hello = Hello { chain: vec![1, 2], digest: [3; 16] };
    let join = First::Join { secret: [4; 16] };
    let welcome = message::Welcome { chain: vec![5], issuer: vec![6], name: "n".to_owned() };
    let answers = [
        hex::encode(First::Hello(hello.clone()).encode()),
        hex::encode(join.encode()),
        hex::encode(message::encode_answer(&Ok(hello.clone()))),
        hex::encode(message::encode_answer(&Ok(welcome.clone()))),
        hex::encode(message::encode_answer(&Ok(()))),
        hex::encode(message::encode_answer::<()>(&Err(Refused::Revoked))),
        hex::encode(Gossip::Renew.encode()),
        hex::encode(Gossip::Certificate(vec![7]).encode()),
    ];
    let expected = [
        "83004201025003030303030303030303030303030303",
        "8301500404040404040404040404040404040440",
        "83004201025003030303030303030303030303030303",
        "8300410545824106616e",
        "83004040",
        "83064040",
        "83028080",
        "830181410780",
    ];
    assert_eq!(answers, expected);
    assert_eq!(First::decode(&join.encode()), Ok(join));
    assert_eq!(message::decode_answer(&message::encode_answer(&Ok(welcome.clone()))), Ok(Ok(welcome)));
    assert_eq!(message::decode_answer::<()>(&hex::decode("83074040").unwrap()), Ok(Err(Refused::NotInvited)));
    for damaged in ["8300414040", "830040", "83094040", "8306410040", "8306404100"] {
        assert!(message::decode_answer::<()>(&hex::decode(damaged).unwrap()).is_err(), "{damaged}");
    }
}

proptest! {
    #[test]
    fn any_gossip_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0..200_usize, bit in 0..8) {
        prop_assert!(First::decode(&bytes).is_err());
        prop_assert!(message::decode_answer::<Hello>(&bytes).is_err());
        prop_assert!(message::decode_answer::<message::Welcome>(&bytes).is_err());
        prop_assert!(message::Renewal::decode(&bytes).is_err());
        prop_assert!(Gossip::decode(&bytes).is_err());
        // Almost valid bytes are a harder test.
        let grid = GridId([1; 32]);
        let key = ed25519::SecretKey::try_from_bytes([2; 32]).unwrap().into();
        let revocation = Revocation::issue(grid, PeerId([3; 32]), NOW_S, &key, None);
        let mut gossip = Gossip::Known { revocations: vec![revocation], admins: Vec::new() }.encode();
        let at = at % gossip.len();
        gossip[at] ^= 1_u8 << bit;
        if let Ok(Gossip::Known { revocations, .. }) = Gossip::decode(&gossip) {
            prop_assert!(revocations.iter().all(|it| it.verify(grid).is_err()));
        }
    }
}
