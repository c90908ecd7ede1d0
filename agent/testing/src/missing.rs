//! Tests that need programs or rights which not every machine has.

/// Reports what a test needs and this machine lacks. Continuous integration (`CI` is set) installs everything and runs
/// as root: there the test fails.
///
/// # Panics
/// In continuous integration.
pub fn missing(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "not tested: {what}; in continuous integration it has to be");
    println!("not tested: {what}");
}
