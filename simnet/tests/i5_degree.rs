//! I5: at most two children and one router role. See `simnet::invariant::i5_degree`.

mod worlds;

use idlewood_simnet::invariant::i5_degree;

#[test]
fn nobody_has_more_than_one_router_with_two_children_whatever_befalls_the_grid() {
    worlds::hold(i5_degree::RULE);
}
