//! Access to the control API: only with the token, and no web page even with it.
//!
//! A page in the user's browser can send requests to loopback. It cannot know the token; if that leaks, the page still
//! reveals itself by its `Origin`, or, after rebinding its own name to 127.0.0.1 (DNS rebinding), by a `Host` that is
//! not loopback. Scripts cannot set either header.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use blake3::Hash;

use super::answers::Failure;
use super::server::Shown;

/// What a request must contain.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    token: Hash,
    hosts: [String; 3],
}

impl Guard {
    pub(super) fn new(token: &str, port: u16) -> Self {
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}"));
        Self { token: blake3::hash(token.as_bytes()), hosts }
    }

    fn examine(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let one = |name| {
            let mut values = headers.get_all(name).iter();
            let first = values.next().and_then(|value| value.to_str().ok());
            if values.next().is_some() { None } else { first }
        };
        let host = one(header::HOST).map(str::to_ascii_lowercase);
        if !host.is_some_and(|host| self.hosts.contains(&host)) {
            return Err(Failure::new(StatusCode::FORBIDDEN, "commands are taken on loopback only"));
        }
        if headers.contains_key(header::ORIGIN) {
            return Err(Failure::new(StatusCode::FORBIDDEN, "commands are not taken from web pages"));
        }
        let token = one(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        // Hashes are compared in constant time, and reveal nothing of the token's beginning either way.
        if !token.is_some_and(|token| blake3::hash(token.as_bytes()) == self.token) {
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "the token of control.json is missing or wrong"));
        }
        Ok(())
    }
}

/// Passes a request on, or answers with a refusal.
pub(super) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Result<Response, Failure> {
    guard.examine(request.headers())?;
    // Such a connection is the owner's, and is never ended to make room.
    if let Some(shown) = request.extensions().get::<Shown>() {
        shown.set();
    }
    Ok(next.run(request).await)
}
