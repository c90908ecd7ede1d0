//! Which machines a submitter asks to keep a bag: those that have been up the longest, for sessions are heavy-tailed, so that
//! those last longest; of other addresses than its own and each other's.

use std::collections::BTreeSet;

use idlewood_overlay::{Contact, PeerId};

/// The host in an address: what machines behind one line have in common. `None` where the address names none.
fn host(address: &str) -> Option<&str> {
    let mut parts = address.split('/').filter(|part| !part.is_empty());
    parts.find(|part| matches!(*part, "ip4" | "ip6" | "dns" | "dns4" | "dns6"))?;
    parts.next().filter(|host| !matches!(*host, "127.0.0.1" | "::1"))
}

/// Up to `count` of these machines, the best first. `taken`: this machine and its stewards. A machine whose start is not known is
/// no candidate, nor is one that is `refused`.
pub(crate) fn choose(
    known: Vec<Contact>,
    taken: &[Contact],
    is_refused: impl Fn(&Contact) -> bool,
    count: usize,
) -> Vec<Contact> {
    let mut known: Vec<Contact> = known.into_iter().filter(|contact| contact.incarnation > 0).collect();
    // An incarnation is the wall-clock time at which the machine started. Contacts of one machine may be older and newer.
    known.sort_by(|one, other| (one.peer, other.incarnation).cmp(&(other.peer, one.incarnation)));
    known.dedup_by_key(|contact| contact.peer);
    known.sort_by_key(|contact| (contact.incarnation, contact.peer));
    let mut peers: BTreeSet<PeerId> = taken.iter().map(|contact| contact.peer).collect();
    let mut hosts: BTreeSet<String> =
        taken.iter().filter_map(|contact| host(&contact.address)).map(str::to_owned).collect();
    let mut chosen = Vec::new();
    for contact in known {
        if chosen.len() >= count {
            break;
        }
        let host = host(&contact.address).map(str::to_owned);
        if is_refused(&contact) || host.as_ref().is_some_and(|host| hosts.contains(host)) || !peers.insert(contact.peer)
        {
            continue;
        }
        hosts.extend(host);
        chosen.push(contact);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(number: u8, incarnation: u64, address: &str) -> Contact {
        Contact { peer: PeerId([number; 32]), incarnation, address: address.into(), nonce: None }
    }

    #[test]
    fn machines_that_are_up_longest_are_asked_first() {
        let me = contact(1, 50, "/ip4/10.0.0.1/tcp/1");
        let known = vec![
            contact(2, 70, "/ip4/10.0.0.2/tcp/1"),
            contact(3, 30, "/ip4/10.0.0.3/tcp/1"),
            // It has started again since.
            contact(3, 90, "/ip4/10.0.0.3/tcp/1"),
            contact(4, 40, "/ip4/10.0.0.2/tcp/9"),
            contact(5, 10, "/ip4/10.0.0.1/tcp/2"),
            contact(6, 0, "/ip4/10.0.0.6/tcp/2"),
            contact(7, 60, "/ip4/10.0.0.7/tcp/2"),
        ];
        let chosen = |count| choose(known.clone(), std::slice::from_ref(&me), |contact| contact.peer.0[0] == 7, count);
        let numbers: Vec<u8> = chosen(4).iter().map(|contact| contact.peer.0[0]).collect();
        assert_eq!(
            numbers,
            [4, 3],
            "5 is behind this machine's address, 2 behind that of 4, 6 is only heard of, 7 refused"
        );
        assert_eq!(chosen(1).len(), 1);
    }

    #[test]
    fn machines_of_one_computer_may_keep_each_others_bags() {
        let known = vec![contact(2, 7, "/ip4/127.0.0.1/tcp/2"), contact(3, 8, "/ip4/127.0.0.1/tcp/3")];
        assert_eq!(choose(known, &[contact(1, 1, "/ip4/127.0.0.1/tcp/1")], |_| false, 2).len(), 2);
    }
}
