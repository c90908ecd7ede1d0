//! I6: the quiescent tree is that of the membership, and the root counts all. See `simnet::invariant::i6_tree`.

mod worlds;

use idlewood_simnet::invariant::i6_tree;

#[test]
fn the_tree_is_the_true_one_within_the_bound_whatever_befell_the_grid() {
    worlds::hold(i6_tree::RULE);
}
