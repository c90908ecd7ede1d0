//! I2: a leaf set is ordered, nearest first, without the machine itself, without duplicates, and within its length.
//!
//! Source: `docs/design/overlay.md`; Zave's "ordered successor lists" (arXiv 1610.01140). Why: the tree is derived from
//! the first on each side; a leaf set out of order makes a tree of another line.

use idlewood_overlay::{Overlay, PositionKey};

use super::keys::Keys;
use super::rule::Invariant;

/// I2.
pub const RULE: Invariant = Invariant { name: "I2", rule: "leaf sets are ordered, without self and duplicates" };

/// Checks the leaf set of one machine, with at most `side_len` peers on either side.
///
/// # Errors
/// Its flaw.
pub fn check(keys: &mut Keys, overlay: &Overlay, side_len: usize) -> Result<(), String> {
    let me = keys.of(overlay.me().peer);
    let line: Vec<PositionKey> = overlay.neighbours().map(|contact| keys.of(contact.peer)).collect();
    if line.contains(&me) {
        return Err("its leaf set holds itself".into());
    }
    // Predecessors come first, so the sides meet where keys begin to be above our own.
    let below = line.iter().take_while(|key| **key < me).count();
    let (below, above) = line.split_at(below);
    let falls = below.windows(2).all(|pair| pair[0] > pair[1]);
    let rises = above.windows(2).all(|pair| pair[0] < pair[1]) && above.iter().all(|key| *key > me);
    if !falls || !rises {
        return Err(format!("its leaf set is out of order: {line:?} around {me:?}"));
    }
    if below.len() > side_len || above.len() > side_len {
        return Err(format!("its leaf set has {} and {} peers, {side_len} a side at most", below.len(), above.len()));
    }
    let named = [overlay.predecessor(), overlay.successor()];
    let nearest = [below.first(), above.first()];
    for (named, nearest) in named.iter().zip(nearest) {
        if named.map(|contact| keys.of(contact.peer)) != nearest.copied() {
            return Err(format!("it takes {named:?} for its neighbour, the nearest it has is {nearest:?}"));
        }
    }
    Ok(())
}
