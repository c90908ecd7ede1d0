//! Bytes of certificates, revocations and invitations, and which of them are refused.

use idlewood_overlay::PeerId;
use libp2p::identity::ed25519;
use proptest::prelude::*;

use super::*;

fn key(number: u8) -> ed25519::Keypair {
    ed25519::SecretKey::try_from_bytes([number; 32]).unwrap().into()
}

fn peer(number: u8) -> PeerId {
    PeerId(key(number).public().to_bytes())
}

/// The grid of key 1.
fn grid() -> idlewood_overlay::GridId {
    grid_id(&key(1).public().to_bytes())
}

fn terms(who: u8, role: Role) -> Terms {
    Terms { grid: grid(), peer: peer(who), role, issued_s: 1_800_000_000, expires_s: 1_802_592_000, nonce: [who; 16] }
}

/// Key 2 is an administrator's.
fn admin() -> Certificate {
    Certificate::issue(terms(2, Role::Admin), &key(1))
}

/// Machine 3, certified by machine 2.
fn chain() -> Chain {
    Chain { own: Certificate::issue(terms(3, Role::Submitter), &key(2)), admin: Some(admin()) }
}

fn invitation() -> Invitation {
    Invitation {
        grid: grid(),
        issuer: peer(2),
        addresses: vec!["/ip4/192.0.2.7/tcp/4001".to_owned(), "/ip6/2001:db8::1/tcp/4001".to_owned()],
        secret: [0xa5; 16],
        role: Role::Member,
        expires_s: 1_800_600_000,
        uses: 12,
    }
}

fn by_admin() -> Revocation {
    Revocation::issue(grid(), peer(3), 1_800_000_500, &key(2), Some(admin()))
}

fn signed_envelope() -> SignedBag {
    SignedBag::sign(b"a manifest".to_vec(), chain().encode(), &key(3))
}

/// As agents signed before envelopes existed.
fn signed_manifest() -> SignedBag {
    SignedBag::sign_as(SignedForm::Manifest, b"a manifest".to_vec(), chain().encode(), &key(3))
}

const NOW_S: u64 = 1_801_000_000;

fn verdict(chain: &Chain, who: u8) -> Result<(), Refused> {
    chain.verify(grid(), peer(who), NOW_S, |_, _| false)
}

#[test]
fn the_bytes_are_pinned() {
    let by_grid_key = Revocation::issue(grid(), peer(3), 1_800_000_500, &key(1), None);
    let golden = [
        ("grid id", hex::encode(grid().0)),
        ("certificate by the grid key", hex::encode(admin().encode())),
        ("chain by an administrator", hex::encode(chain().encode())),
        ("chain by the grid key", hex::encode(Chain { own: admin(), admin: None }.encode())),
        ("revocation by the grid key", hex::encode(by_grid_key.encode())),
        ("revocation by an administrator", hex::encode(by_admin().encode())),
        ("signed manifest", hex::encode(signed_manifest().encode())),
        ("signed envelope", hex::encode(signed_envelope().encode())),
        ("invitation", invitation().to_string()),
    ];
    insta::assert_snapshot!(golden.map(|(name, bytes)| format!("{name}\n{bytes}")).join("\n\n"));
}

#[test]
fn encodings_decode_and_stay_within_their_size() {
    let longest = Terms { issued_s: u64::MAX, expires_s: u64::MAX, ..terms(3, Role::Admin) };
    let longest = Certificate::issue(longest, &key(1));
    assert!(longest.encode().len() <= CERTIFICATE_BYTES_MAX, "{}", longest.encode().len());
    assert_eq!(Certificate::decode(&longest.encode()), Ok(longest.clone()));
    let chain = Chain { own: longest.clone(), admin: Some(longest.clone()) };
    assert!(chain.encode().len() <= CHAIN_BYTES_MAX);
    assert_eq!(Chain::decode(&chain.encode()), Ok(chain));
    let revocation = Revocation::issue(grid(), peer(3), u64::MAX, &key(2), Some(longest));
    assert!(revocation.encode().len() <= REVOCATION_BYTES_MAX, "{}", revocation.encode().len());
    assert_eq!(Revocation::decode(&revocation.encode()), Ok(revocation));
    for signed in [signed_manifest(), signed_envelope()] {
        assert_eq!(SignedBag::decode(&signed.clone().encode(), 10), Ok(signed.clone()));
        assert_eq!(SignedBag::decode(&signed.encode(), 9), Err(Malformed), "too long");
    }
    let invitation = invitation();
    assert_eq!(invitation.to_string().parse(), Ok(invitation.clone()));
    assert_eq!(format!("\n  {invitation} \n").parse(), Ok(invitation));
}

#[test]
fn both_ways_to_a_certificate_are_accepted() {
    assert_eq!(verdict(&chain(), 3), Ok(()));
    assert_eq!(verdict(&Chain { own: admin(), admin: None }, 2), Ok(()));
    let member = Certificate::issue(terms(4, Role::Member), &key(1));
    assert_eq!(verdict(&Chain { own: member, admin: None }, 4), Ok(()));
    assert_eq!(by_admin().verify(grid()), Ok(()));
    assert_eq!(Revocation::issue(grid(), peer(9), 0, &key(1), None).verify(grid()), Ok(()));
}

#[test]
fn every_rule_of_a_chain_has_its_refusal() {
    let good = chain();
    assert_eq!(verdict(&good, 4), Err(Refused::NotTheirs), "a stolen certificate");
    let other = grid_id(&key(8).public().to_bytes());
    assert_eq!(good.verify(other, peer(3), NOW_S, |_, _| false), Err(Refused::WrongGrid));
    let revoked = |who: u8| good.verify(grid(), peer(3), NOW_S, move |asked, _| asked == peer(who));
    assert_eq!(revoked(3), Err(Refused::Revoked));
    assert_eq!(revoked(2), Err(Refused::Revoked), "with the administrator falls what it certified");
    assert_eq!(revoked(5), Ok(()));
    let at = |now_s| good.verify(grid(), peer(3), now_s, |_, _| false);
    assert_eq!((at(1_802_591_999), at(1_802_592_000)), (Ok(()), Err(Refused::Expired)));

    let short = Certificate::issue(Terms { expires_s: NOW_S, ..terms(2, Role::Admin) }, &key(1));
    let by_expired = Chain { admin: Some(short), ..good.clone() };
    assert_eq!(verdict(&by_expired, 3), Err(Refused::Expired), "of the administrator");
    let alone = Chain { admin: None, ..good.clone() };
    assert_eq!(verdict(&alone, 3), Err(Refused::Forged), "nothing leads to the grid key");
    let by_member = Certificate::issue(terms(2, Role::Submitter), &key(1));
    let by_member = Chain { admin: Some(by_member), ..good.clone() };
    assert_eq!(verdict(&by_member, 3), Err(Refused::Forged), "certified by one that is no administrator");
    let made_admin = Certificate::issue(terms(3, Role::Admin), &key(2));
    let made_admin = Chain { own: made_admin, ..good.clone() };
    assert_eq!(verdict(&made_admin, 3), Err(Refused::Forged), "made an administrator by another one");
    let self_made = Certificate::issue(terms(2, Role::Admin), &key(2));
    assert_eq!(verdict(&Chain { own: self_made.clone(), admin: None }, 2), Err(Refused::Forged));
    assert_eq!(verdict(&Chain { admin: Some(self_made), ..good.clone() }, 3), Err(Refused::Forged));
    let other_admin = Certificate::issue(terms(5, Role::Admin), &key(1));
    assert_eq!(verdict(&Chain { admin: Some(other_admin), ..good }, 3), Err(Refused::Forged), "by somebody else");
}

#[test]
fn every_rule_of_a_revocation_has_its_refusal() {
    let good = by_admin();
    assert_eq!(good.verify(grid_id(&[8; 32])), Err(Refused::WrongGrid));
    let by_stranger = Revocation::issue(grid(), peer(3), 1, &key(9), None);
    assert_eq!(by_stranger.verify(grid()), Err(Refused::Forged));
    let member = Certificate::issue(terms(4, Role::Submitter), &key(1));
    let by_member = Revocation::issue(grid(), peer(3), 1, &key(4), Some(member));
    assert_eq!(by_member.verify(grid()), Err(Refused::Forged));
    let by_other = Revocation::issue(grid(), peer(3), 1, &key(5), Some(admin()));
    assert_eq!(by_other.verify(grid()), Err(Refused::Forged), "with somebody else's certificate");
    let mut changed = good;
    changed.peer = peer(4);
    assert_eq!(changed.verify(grid()), Err(Refused::Forged));
}

/// Simulations fetch what a submitter signs of a bag, and the manifest, with these sizes: those of a bag of a machine certified by an
/// administrator, with one program that is given a number.
#[test]
fn simulations_fetch_envelopes_and_manifests_of_their_size() {
    let defaults = include_str!("../../../simnet/scenarios/default.toml");
    let simulated = |name: &str| -> f64 {
        let line = defaults.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.expect("it is among the defaults").parse().expect("it is a number")
    };
    let manifest = manifest::Manifest {
        entries: Vec::new(),
        inputs: Vec::new(),
        env: std::collections::BTreeMap::new(),
        args: vec!["{index}".to_owned()],
        ..manifest::tests::manifest()
    };
    let bytes = manifest.encode();
    let envelope = SignedBag::sign(envelope::Envelope::of(&manifest, &bytes).encode(), chain().encode(), &key(3));
    for (name, measured) in [("manifest_bytes", bytes.len()), ("envelope_bytes", envelope.encode().len())] {
        let ratio = measured as f64 / simulated(name);
        assert!((0.9..1.1).contains(&ratio), "{name}: {measured} are {ratio} of what is simulated");
    }
}

#[test]
fn a_signature_counts_in_its_place_alone() {
    // A certificate's signature under a revocation's body of the same key, and the other way round, is refused because
    // the bodies differ; here the same body is signed for another domain.
    let body = b"any body";
    let signature = canonical::sign(&key(1), b"idlewood certificate v1", body);
    let public = key(1).public().to_bytes();
    assert!(canonical::is_signed_by(&public, b"idlewood certificate v1", body, &signature));
    assert!(!canonical::is_signed_by(&public, b"idlewood revocation v1", body, &signature));
    assert!(!canonical::is_signed_by(&[0xff; 32], b"idlewood certificate v1", body, &signature), "no key at all");
}

#[test]
fn other_encodings_of_the_same_value_are_refused() {
    // 0x18 0x01 is another way to write 1, 0x9f..0xff an array without its length, 0xc2 0x41 0x01 a big number.
    for (other, canonical) in [("811801", "8101"), ("9f01ff", "8101"), ("81c24101", "8101"), ("810100", "8101")] {
        let decode = |text| canonical::decode::<(u64,)>(&hex::decode(text).unwrap(), 64);
        assert_eq!(decode(canonical), Ok((1,)));
        assert_eq!(decode(other), Err(Malformed), "{other}");
    }
    let bytes = admin().encode();
    assert_eq!(Certificate::decode(&[&bytes[..], &[0]].concat()), Err(Malformed), "bytes follow");
    assert_eq!(canonical::decode::<(u64,)>(&hex::decode("8101").unwrap(), 1), Err(Malformed), "too long");
    assert_eq!(Certificate::decode(&[0x81; 200]), Err(Malformed), "deep nesting");
    assert_eq!(Certificate::decode(&[]), Err(Malformed));
}

#[test]
fn excess_revocations_displace_the_oldest() {
    let mut known = Revocations::default();
    let empty = known.digest();
    let mut name = [0; 32];
    let template = Revocation::issue(grid(), peer(3), 0, &key(1), None);
    let mut revocation = |number: u64| {
        name[..8].copy_from_slice(&number.to_be_bytes());
        let mut revocation = template.clone();
        (revocation.peer, revocation.when_s) = (PeerId(name), 1_000 + number);
        revocation
    };
    for number in 0..REVOCATIONS_MAX as u64 {
        assert!(known.insert(revocation(number)));
    }
    let full = known.digest();
    assert_ne!(full, empty);
    assert!(!known.insert(revocation(7)), "is known");
    assert!(known.insert(revocation(9_000)));
    assert_eq!(known.len(), REVOCATIONS_MAX);
    assert!(!known.revokes(revocation(0).peer, Role::Member) && known.revokes(revocation(9_000).peer, Role::Member));
    let mut old = revocation(9_001);
    old.when_s = 1;
    assert!(!known.insert(old), "older than all others");
}

#[test]
fn excess_revocations_displace_only_their_issuers_own() {
    let templates = [0, 1, 2].map(|by: u8| {
        let admin = (by > 0).then(admin);
        let mut revocation = Revocation::issue(grid(), peer(3), 0, &key(1), admin);
        revocation.issuer = [by; 32];
        revocation
    });
    let revocation = |by: u8, number: u64, when_s: u64| {
        let mut revocation = templates[usize::from(by)].clone();
        let mut name = [by; 32];
        name[..8].copy_from_slice(&number.to_be_bytes());
        (revocation.peer, revocation.when_s) = (PeerId(name), when_s);
        revocation
    };
    let mut known = Revocations::default();
    let true_ones = [revocation(0, 1, 5), revocation(0, 2, 5), revocation(2, 1, 5)];
    for it in &true_ones {
        assert!(known.insert(it.clone()));
    }
    for number in 0..2 * REVOCATIONS_MAX as u64 {
        known.insert(revocation(1, number, u64::MAX - number));
    }
    assert_eq!(known.len(), REVOCATIONS_MAX);
    assert!(known.insert(revocation(2, 2, 6)) && known.insert(revocation(0, 3, 6)), "there is room for others");
    assert!(true_ones.iter().all(|it| known.revokes(it.peer, Role::Member)));
}

proptest! {
    #[test]
    fn any_flipped_bit_of_a_chain_is_refused(position in 0..8 * chain().encode().len()) {
        let mut bytes = chain().encode();
        bytes[position / 8] ^= 1 << (position % 8);
        let refused = match Chain::decode(&bytes) {
            Ok(flipped) => verdict(&flipped, 3).is_err(),
            Err(Malformed) => true,
        };
        prop_assert!(refused);
    }

    #[test]
    fn any_flipped_bit_of_a_revocation_is_refused(position in 0..8 * by_admin().encode().len()) {
        let mut bytes = by_admin().encode();
        bytes[position / 8] ^= 1 << (position % 8);
        let refused = match Revocation::decode(&bytes) {
            Ok(flipped) => flipped.verify(grid()).is_err(),
            Err(Malformed) => true,
        };
        prop_assert!(refused);
    }

    #[test]
    fn any_flipped_bit_of_a_signed_bag_is_refused(
        position in 0..8 * signed_envelope().encode().len(), is_old in any::<bool>()
    ) {
        let mut bytes = if is_old { signed_manifest() } else { signed_envelope() }.encode();
        bytes[position / 8] ^= 1 << (position % 8);
        let refused = match SignedBag::decode(&bytes, 10) {
            Ok(flipped) => {
                !flipped.is_signed_by(peer(3)) || Chain::decode(&flipped.chain).map_or(true, |it| verdict(&it, 3).is_err())
            }
            Err(Malformed) => true,
        };
        prop_assert!(refused);
    }

    #[test]
    fn any_flipped_bit_of_an_invitation_is_refused(position in 0..8 * invitation().to_string().len()) {
        let mut line = invitation().to_string().into_bytes();
        line[position / 8] ^= 1 << (position % 8);
        if let Ok(line) = String::from_utf8(line) {
            prop_assert!(line.parse::<Invitation>().is_err(), "{line}");
        }
    }

    #[test]
    fn any_bytes_are_taken_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let decoded = (Certificate::decode(&bytes).is_ok(), Chain::decode(&bytes).is_ok(), Revocation::decode(&bytes).is_ok());
        prop_assert_eq!(decoded, (false, false, false));
    }
}

/// A signed value has one encoding: decoding and encoding gives the same bytes.
#[test]
fn mutations_of_signed_values() {
    use idlewood_testing::mutations;

    let same = |read: Result<Vec<u8>, Malformed>, bytes: &[u8]| {
        assert!(read.as_deref().is_ok_and(|again| again == bytes) || read.is_err());
        read.is_ok()
    };
    mutations("certificate", vec![admin().encode()], |bytes| {
        same(Certificate::decode(bytes).map(|read| read.encode()), bytes)
    });
    mutations("chain", vec![chain().encode(), Chain { own: admin(), admin: None }.encode()], |bytes| {
        let read = Chain::decode(bytes);
        if let Ok(read) = &read {
            let is_original = *read == chain() || *read == Chain { own: admin(), admin: None };
            assert!(is_original || (1..5).all(|who| verdict(read, who).is_err()), "nobody else signs");
        }
        same(read.map(|read| read.encode()), bytes)
    });
    let by_grid_key = Revocation::issue(grid(), peer(3), 1_800_000_500, &key(1), None);
    mutations("revocation", vec![by_admin().encode(), by_grid_key.encode()], |bytes| {
        let read = Revocation::decode(bytes);
        if let Ok(read) = &read {
            assert!(*read == by_admin() || *read == by_grid_key || read.verify(grid()).is_err(), "nobody else signs");
        }
        same(read.map(|read| read.encode()), bytes)
    });
    mutations("signed manifest", vec![signed_manifest().encode(), signed_envelope().encode()], |bytes| {
        same(SignedBag::decode(bytes, 1000).map(SignedBag::encode), bytes)
    });
    mutations("invitation", vec![invitation().to_string().into_bytes()], |bytes| {
        let Ok(Ok(read)) = std::str::from_utf8(bytes).map(|line| line.parse::<Invitation>()) else { return false };
        assert_eq!(read.to_string().parse(), Ok(read));
        true
    });
}

#[test]
fn mutations_of_messages_about_the_grid() {
    use super::message::{First, Gossip, Hello, Renewal, Welcome, decode_answer, encode_answer};
    use idlewood_testing::mutations;

    let hello = Hello { chain: chain().encode(), digest: [3; 16] };
    let firsts = [First::Hello(hello.clone()), First::Join { secret: [4; 16] }];
    mutations("first words", firsts.map(|first| first.encode()).to_vec(), |bytes| {
        First::decode(bytes).is_ok_and(|read| read.encode() == bytes)
    });
    mutations("greeting", vec![encode_answer(&Ok(hello)), encode_answer::<Hello>(&Err(Refused::Expired))], |bytes| {
        decode_answer::<Hello>(bytes).is_ok_and(|read| encode_answer(&read) == bytes)
    });
    let welcome = Welcome { chain: chain().encode(), issuer: admin().encode(), name: "grid".to_owned() };
    mutations("welcome", vec![encode_answer(&Ok(welcome))], |bytes| {
        decode_answer::<Welcome>(bytes).is_ok_and(|read| encode_answer(&read) == bytes)
    });
    mutations("last word", vec![encode_answer(&Ok(()))], |bytes| {
        decode_answer::<()>(bytes).is_ok_and(|read| encode_answer(&read) == bytes)
    });
    let news = Gossip::Known { revocations: vec![by_admin()], admins: vec![(admin(), "/ip4/192.0.2.7".to_owned())] };
    let gossip = [news, Gossip::Certificate(chain().encode()), Gossip::Renew];
    mutations("news", gossip.map(|gossip| gossip.encode()).to_vec(), |bytes| {
        Gossip::decode(bytes).is_ok_and(|read| read.encode() == bytes)
    });
    let renewals = [Renewal(Ok(chain().encode())), Renewal(Err(Refused::Revoked))];
    mutations("renewal", renewals.map(|renewal| renewal.encode()).to_vec(), |bytes| {
        Renewal::decode(bytes).is_ok_and(|read| read.encode() == bytes)
    });
}
