//! I2: leaf sets are ordered, without self and duplicates. See `simnet::invariant::i2_ordered`.

mod worlds;

use idlewood_simnet::invariant::i2_ordered;

#[test]
fn leaf_sets_are_ordered_under_all_faults() {
    worlds::hold(i2_ordered::RULE);
}
