//! Which program makes the results.

/// The commit that the program was built from.
pub(crate) fn commit() -> &'static str {
    env!("IDLEWOOD_COMMIT")
}

/// Identifies this build: the hash of the program itself.
pub(crate) fn build() -> Result<String, String> {
    let program = std::env::current_exe().and_then(std::fs::read);
    let program = program.map_err(|error| format!("the program itself cannot be read: {error}"))?;
    Ok(blake3::hash(&program).to_hex().to_string())
}
