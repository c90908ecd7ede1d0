//! What an agent has as it comes.

use idlewood_scheduler::Config;

/// What an agent has that its owner and its user have left as it came: two stewards for each bag (`submit.stewards`), and room for 64 bags
/// of others (`limits.keep`). A peer alone has neither.
pub(super) fn shipped() -> Config {
    Config { stewards: 2, kept_bags_max: 64, ..Config::default() }
}
