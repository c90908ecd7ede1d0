//! What an agent has as it comes.

use idlewood_machine::policy::OwnerSettings;
use idlewood_scheduler::{Config, STEWARDS_DEFAULT};

/// What an agent has that its owner and its user have left as it came: stewards for each bag (`submit.stewards`), and room for bags of
/// others (`limits.keep`). A peer alone has neither.
pub(super) fn shipped() -> Config {
    Config { stewards: STEWARDS_DEFAULT, kept_bags_max: OwnerSettings::default().kept_bags_max, ..Config::default() }
}
