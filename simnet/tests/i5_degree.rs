//! I5: at most two children and one router role. See `simnet::invariant::i5_degree`.

mod worlds;

use idlewood_simnet::invariant::i5_degree;

#[test]
fn peers_have_at_most_one_router_with_two_children_under_all_faults() {
    worlds::hold(i5_degree::RULE);
}
