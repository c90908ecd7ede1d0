//! The `idlewood` binary.
fn main() {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        idlewood::worker::child::main()
    }
}
